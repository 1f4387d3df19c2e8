//! One worker: draws a request, waits until it is due, performs it, records it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::draw::{Drawer, Drawn, Sequences, Share, part};
use super::pace::{Schedule, Waiter, think_time};
use super::pool::Pools;
use super::recorder::{Observed, Recorder};
use crate::plan::{Objects, Operation, OperationKind, Pacing, Work, WorkKind};
use crate::record::{ErrorKind, WorstRequest};
use crate::rng::Rng;
use crate::target::{Failure, Request, Session, Target, Verb};

/// Time after the end of an open loop to work off requests that were due; the remaining ones count
/// as failed.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(30);

/// Times of a work: start, counted period and end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) begin: Instant,
    /// The same time in seconds since 1970.
    pub(super) begin_at: f64,
    pub(super) counted_from: Instant,
    pub(super) counted_to: Option<Instant>,
    pub(super) end: Option<Instant>,
}

impl Clock {
    pub(super) fn new(work: &Work, begin: Instant, begin_at: f64) -> Self {
        let counted_from = begin + work.rampup;
        let counted_to = work.runtime.map(|runtime| counted_from + runtime);
        let end = counted_to.map(|to| to + work.rampdown);
        Self {
            begin,
            begin_at,
            counted_from,
            counted_to,
            end,
        }
    }

    fn counts(&self, start: Instant) -> bool {
        start >= self.counted_from && self.counted_to.is_none_or(|to| start < to)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now >= end)
    }
}

/// A file that `filewrite` uploads.
#[derive(Debug)]
pub(super) struct LocalFile {
    path: PathBuf,
    name: String,
    size: u64,
}

/// State shared by all workers of a work in this process.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) work: Arc<Work>,
    pub(super) target: Target,
    pub(super) share: Share,
    pub(super) seed: u64,
    pub(super) driver: String,
    pub(super) clock: Clock,
    pub(super) stop: AtomicBool,
    pub(super) recorders: Vec<Mutex<Recorder>>,
    pub(super) schedule: Option<Schedule>,
    pub(super) sequences: Arc<Sequences>,
    pub(super) pools: Arc<Pools>,
    /// Files of each `filewrite` operation.
    pub(super) files: Vec<Vec<LocalFile>>,
    /// Nanoseconds after the start at which the last counted request ended.
    pub(super) last_end_ns: AtomicU64,
}

/// The files of a folder, sorted by name.
pub(super) fn local_files(operation: &Operation) -> std::io::Result<Vec<LocalFile>> {
    let Some(folder) = &operation.files else {
        return Ok(Vec::new());
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        if meta.is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            files.push(LocalFile {
                path: entry.path(),
                name,
                size: meta.len(),
            });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Worker `id` of the workers of all drivers.
pub(super) struct Worker {
    shared: Arc<Shared>,
    id: u32,
    recorder: usize,
    session: Session,
    drawer: Drawer,
    drawn: Drawn,
}

impl Worker {
    pub(super) fn new(shared: &Arc<Shared>, id: u32, recorder: usize) -> Self {
        let work = &shared.work;
        Self {
            session: shared.target.session(id),
            drawer: Drawer::new(work, id, work.workers, &shared.pools, &shared.sequences),
            shared: shared.clone(),
            id,
            recorder,
            drawn: Drawn::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        // All workers start simultaneously.
        tokio::time::sleep_until(shared.clock.begin).await;
        match (shared.work.kind, &shared.schedule) {
            (WorkKind::Delay, _) => self.delay().await,
            (WorkKind::Main, Some(schedule)) => self.open_loop(schedule).await,
            (WorkKind::Main, None) => self.closed_loop().await,
            _ => self.count_through().await,
        }
    }

    fn stopped(&self, now: Instant) -> bool {
        self.shared.stop.load(Ordering::Relaxed) || self.shared.clock.is_over(now)
    }

    async fn delay(&self) {
        while !self.stopped(Instant::now()) && self.shared.clock.end.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Can an empty pool be filled again?
    fn can_wait(&self) -> bool {
        self.shared.work.operations.iter().any(|operation| {
            operation.ratio > 0.0
                && matches!(operation.objects, Objects::Pool { .. })
                && matches!(
                    operation.kind,
                    OperationKind::Write | OperationKind::FileWrite
                )
        })
    }

    async fn closed_loop(&mut self) {
        let work = self.shared.work.clone();
        let of_worker =
            |total: u64| part(total, u64::from(self.id), u64::from(work.workers.max(1))).1;
        let (most_ops, most_bytes) = (
            work.total_ops.map(of_worker),
            work.total_bytes.map(of_worker),
        );
        let think = match work.pacing {
            Pacing::Closed { think } => think,
            Pacing::Open { .. } => None,
        };
        let mut waiter = think.map(|_| Waiter::new());
        let mut rng = Rng::fork(self.shared.seed, u64::from(self.id));
        let (mut ops, mut bytes) = (0, 0);
        while most_ops.is_none_or(|most| ops < most) && most_bytes.is_none_or(|most| bytes < most) {
            if self.stopped(Instant::now()) {
                break;
            }
            let mut drawn = std::mem::take(&mut self.drawn);
            let found = self.drawer.draw(&mut rng, &mut drawn);
            self.drawn = drawn;
            if !found {
                if !self.can_wait() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            bytes += self.perform(None).await;
            ops += 1;
            if let (Some(think), Some(waiter)) = (&think, &mut waiter) {
                let pause = think_time(think, &mut rng);
                waiter.until(Instant::now() + pause).await;
            }
        }
    }

    async fn open_loop(&mut self, schedule: &Schedule) {
        let shared = self.shared.clone();
        let (_, most) = shared.share.of(shared.work.total_ops.unwrap_or(u64::MAX));
        let mut waiter = Waiter::new();
        let mut bytes = 0;
        let most_bytes = shared
            .work
            .total_bytes
            .map(|total| shared.share.of(total).1);
        loop {
            let (number, after) = schedule.next();
            let due = shared.clock.begin + after;
            if number >= most
                || shared.clock.is_over(due)
                || shared.stop.load(Ordering::Relaxed)
                || most_bytes.is_some_and(|most| bytes >= most)
            {
                break;
            }
            // The request is determined by its number, whichever worker performs it.
            let of_all = number * u64::from(shared.share.drivers) + u64::from(shared.share.driver);
            let mut rng = Rng::fork(shared.seed, of_all);
            let mut drawn = std::mem::take(&mut self.drawn);
            let found = self.drawer.draw(&mut rng, &mut drawn);
            self.drawn = drawn;
            if !found {
                if self.can_wait() {
                    continue;
                }
                break;
            }
            if shared
                .clock
                .end
                .is_some_and(|end| Instant::now() > end + BACKLOG_TIMEOUT)
            {
                self.give_up(due);
                continue;
            }
            waiter.until(due).await;
            if shared.stop.load(Ordering::Relaxed) {
                break;
            }
            bytes += self.perform(Some(due)).await;
        }
    }

    /// Records a request that was due and never started.
    fn give_up(&mut self, due: Instant) {
        let failure = Failure {
            kind: ErrorKind::Other("due but not started".into()),
        };
        self.record(due, None, Err(failure));
    }

    async fn count_through(&mut self) {
        let work = self.shared.work.clone();
        let mut rng = Rng::fork(self.shared.seed, u64::from(self.id));
        for (index, total) in Drawer::special_total(&work).into_iter().enumerate() {
            let (start, length) = match total {
                u64::MAX => (0, u64::MAX),
                total => part(total, u64::from(self.id), u64::from(work.workers.max(1))),
            };
            for at in start..start.saturating_add(length) {
                if self.stopped(Instant::now()) {
                    return;
                }
                let mut drawn = std::mem::take(&mut self.drawn);
                let found = self.drawer.special(index, at, &mut rng, &mut drawn);
                self.drawn = drawn;
                if !found {
                    break;
                }
                self.perform(None).await;
            }
        }
    }

    /// Performs the drawn request and records it; returns the number of bytes moved.
    async fn perform(&mut self, due: Option<Instant>) -> u64 {
        let shared = self.shared.clone();
        let operation = &shared.work.operations[self.drawn.operation];
        let files = &shared.files[self.drawn.operation];
        let file = match files.len() as u64 {
            0 => None,
            count => Some(&files[(self.drawn.number % count) as usize]),
        };
        if let Some(file) = file {
            self.drawn.object.clone_from(&file.name);
            self.drawn.size = file.size;
        }
        let request = request(operation, &self.drawn, file);
        let start = Instant::now();
        let result = self.session.perform(&request).await;
        let result = forgive(operation.kind, result);
        let (succeeded, bytes) = match &result {
            Ok(done) => (true, done.bytes),
            Err(_) => (false, 0),
        };
        self.drawer.settle(&self.drawn, succeeded);
        self.record(start, due, result);
        bytes
    }

    fn record(
        &mut self,
        start: Instant,
        due: Option<Instant>,
        result: Result<crate::target::Done, Failure>,
    ) {
        let end = Instant::now();
        let shared = &self.shared;
        let from = due.unwrap_or(start);
        let counted = shared.clock.counts(from);
        let ns = |until: Instant, since: Instant| {
            u64::try_from(until.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX)
        };
        if counted {
            shared
                .last_end_ns
                .fetch_max(ns(end, shared.clock.begin), Ordering::Relaxed);
        }
        let last_byte_ns = ns(end, from);
        let (first_byte_ns, bytes, checked) = match &result {
            Ok(done) => (ns(done.first_byte, from), done.bytes, done.checked),
            Err(_) => (last_byte_ns, self.drawn.size, false),
        };
        let observed = Observed {
            operation: self.drawn.operation,
            counted,
            bytes,
            checked,
            first_byte_ns,
            last_byte_ns,
            service_ns: due.map(|_| ns(end, start)),
            ended_counted: shared.clock.counts(end),
        };
        let (drawn, session) = (&self.drawn, &self.session);
        let describe = |error: Option<ErrorKind>| WorstRequest {
            at: shared.clock.begin_at
                + from
                    .saturating_duration_since(shared.clock.begin)
                    .as_secs_f64(),
            driver: shared.driver.clone(),
            worker: self.id,
            container: drawn.container.clone(),
            object: drawn.object.clone(),
            bytes,
            first_byte_ns,
            last_byte_ns,
            transaction: session.transaction().to_owned(),
            error,
        };
        let mut recorder = shared.recorders[self.recorder].lock();
        match result {
            Ok(_) => recorder.success(&observed, || describe(None)),
            Err(Failure { kind }) => {
                recorder.failure(&observed, kind.clone(), || describe(Some(kind)));
            }
        }
    }
}

static NO_HEADERS: BTreeMap<String, String> = BTreeMap::new();

fn request<'a>(
    operation: &'a Operation,
    drawn: &'a Drawn,
    file: Option<&'a LocalFile>,
) -> Request<'a> {
    let verb = match operation.kind {
        OperationKind::Read => Verb::Read,
        OperationKind::Write
        | OperationKind::FileWrite
        | OperationKind::Update
        | OperationKind::Prepare => Verb::Write,
        OperationKind::Delete | OperationKind::Cleanup => Verb::Delete,
        OperationKind::Head => Verb::Head,
        OperationKind::List => Verb::List,
        OperationKind::Init => Verb::MakeContainer,
        OperationKind::Dispose => Verb::DropContainer,
        OperationKind::Copy => Verb::Copy,
        OperationKind::Post => Verb::Post,
        OperationKind::BulkDelete => Verb::BulkDelete,
        OperationKind::Versions => Verb::Versions,
    };
    let carries = matches!(
        verb,
        Verb::Write | Verb::MakeContainer | Verb::Copy | Verb::Post
    );
    // Without objects, all versions of a container are listed.
    let of_container = verb == Verb::Versions && operation.objects == Objects::default();
    Request {
        verb,
        container: &drawn.container,
        object: if of_container { "" } else { &drawn.object },
        number: drawn.number,
        size: drawn.size,
        range: drawn.range,
        content: operation.content,
        check: operation.hashcheck,
        part_bytes: operation.part_bytes,
        chunked: operation.chunked,
        file: file.map(|file| file.path.as_path()),
        headers: if carries {
            &operation.headers
        } else {
            &NO_HEADERS
        },
        to: (&drawn.to.0, &drawn.to.1),
        batch: &drawn.batch,
        versioned: operation.versioned,
    }
}

/// Special works may delete what is absent and create what exists.
fn forgive(
    kind: OperationKind,
    result: Result<crate::target::Done, Failure>,
) -> Result<crate::target::Done, Failure> {
    let forgiven = match (&result, kind) {
        (Err(failure), OperationKind::Cleanup | OperationKind::Dispose) => {
            failure.kind == ErrorKind::Status(404)
        }
        (Err(failure), OperationKind::Init) => failure.kind == ErrorKind::Status(409),
        _ => false,
    };
    match forgiven {
        true => Ok(crate::target::Done {
            first_byte: Instant::now(),
            bytes: 0,
            checked: false,
        }),
        false => result,
    }
}
