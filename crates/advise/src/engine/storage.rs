//! Disks with a known service-time model, and the gatherings that share their syncs.
//!
//! A disk serves requests as [`crate::hardware`] says, in virtual time. A gathering collects the tasks
//! that wait while its earlier runs are under way, and then runs the steps that its [`Work`] makes of
//! them, once for all: a journal's commit, a sync of a file system, a batch of a commit lane, a
//! database's rows.

use std::collections::{HashMap, VecDeque};

use super::{Engine, Event, Step};
use crate::calibration::FileCost;
use crate::cell::DiskUse;
use crate::hardware::{Medium, Model, Op, Request};
use crate::random::Dice;

const BLOCK_BYTES: u64 = 4096;
/// Part of a disk where ext4 puts its journal, and its size in bytes.
const JOURNAL_AT: f64 = 0.41;
const JOURNAL_BYTES: u64 = 64 << 20;
/// Size of the bitmaps and inode tables that are in use, from the disk's beginning.
const TABLES_BYTES: u64 = 2 << 20;
/// Offset of the first content.
const CONTENT_AT: u64 = 130 << 20;
/// Size of a request that the kernel makes of a longer one.
const REQUEST_BYTES_MAX: u64 = 128 << 10;

/// A disk, and where its file system puts the next blocks.
pub(super) struct HardDisk {
    model: Model,
    waiting: HashMap<u64, usize>,
    next: u64,
    /// Requests of a task that are not answered.
    open: HashMap<usize, usize>,
    size: u64,
    /// Bytes of content, and of the journal, so far.
    content: u64,
    journal: u64,
    decision: Option<u64>,
    /// Requests behind the flush that is under way, if those wait for its end.
    behind_flush: Option<BehindFlush>,
    channels: f64,
    /// Requests since the last reset.
    counts: DiskUse,
}

/// The requests of a disk that takes none while it flushes, as a loop device does: its one worker
/// waits for the end of each flush.
#[derive(Default)]
struct BehindFlush {
    /// The number of the flush under way.
    flush: Option<u64>,
    held: VecDeque<(u64, Request)>,
}

/// One request of a disk, or several that follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Io {
    /// A new file's content, behind the last one.
    Content(f64),
    /// Blocks of directories and of databases: anywhere among the content.
    Scattered,
    /// A block of a bitmap or an inode table.
    Table,
    /// Blocks of the journal, in bytes.
    Journal(f64),
    Flush,
    /// Content of this size, so many bytes behind a place: a fraction (0 to 1) of the disk.
    Read {
        bytes: f64,
        at: f64,
        behind: f64,
    },
}

/// Work of a gathering for those that wait.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A commit of the journal of the file system on a disk.
    Journal,
    /// A sync of a whole file system; its commits are those of this gathering.
    FileSystem { journal: usize },
    /// A batch of new or removed objects, with two syncs by this gathering.
    Objects { syncs: usize },
    /// A database's rows: in its log, or by a transaction.
    Rows { syncs: usize, journal: usize },
}

/// A thing that a task has written before it waits for a sync.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Written {
    /// A file of so many bytes.
    Content(f64),
    /// A name in a directory.
    Name,
    /// A tombstone, and what it removes: the names and inodes of two files.
    Removal,
    /// A row in a database's log.
    Entry,
    /// Blocks that a journal's commit has, in bytes.
    Blocks(f64),
    /// Before the name a list's last block is added to, which must be read at this place first.
    Unread(f64),
}

impl Written {
    pub fn of_size(bytes: f64) -> Written {
        match bytes > 0.0 {
            true => Written::Content(bytes),
            false => Written::Name,
        }
    }
}

/// A task that waits, and the bytes of what it has written.
#[derive(Clone, Debug)]
struct Member {
    task: usize,
    writes: Vec<Written>,
}

pub(super) struct Gathering {
    work: Work,
    disk: usize,
    at_once: usize,
    runs: usize,
    waiting: Vec<Member>,
    /// When the last run of rows began, and when those were logged that are not merged. What was
    /// written before the simulation begins is.
    last: Option<f64>,
    logged: Option<f64>,
    files: FileCost,
    counts: GatherCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatherCounts {
    pub runs: u64,
    pub members: u64,
}

/// Work under way for members of a gathering.
#[derive(Debug)]
pub(super) struct Run {
    gathering: usize,
    members: Vec<usize>,
}

impl Gathering {
    /// Are rows of a database that come now logged? They are if others have come lately, and while the
    /// log is not empty.
    fn is_logged(&mut self, now: f64) -> bool {
        let since = |before: Option<f64>| before.map_or(f64::INFINITY, |before| now - before);
        if since(self.logged) >= self.files.merge_seconds {
            self.logged = None;
        }
        let is_quick = since(self.last.replace(now)) < self.files.busy_seconds;
        if is_quick && self.logged.is_none() {
            self.logged = Some(now);
        }
        is_quick || self.logged.is_some()
    }
}

impl std::fmt::Debug for HardDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HardDisk")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Gathering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathering")
            .field("work", &self.work)
            .finish_non_exhaustive()
    }
}

impl HardDisk {
    fn new(medium: &Medium, bytes: f64, seed: u64) -> HardDisk {
        HardDisk {
            model: Model::new(medium.clone(), bytes as u64, seed),
            waiting: HashMap::new(),
            next: 0,
            open: HashMap::new(),
            size: (bytes as u64).max(1 << 30),
            content: 0,
            journal: 0,
            decision: None,
            behind_flush: None,
            channels: f64::from(medium.channels),
            counts: DiskUse::default(),
        }
    }

    /// Hands a request to the disk, or has it wait for the end of a flush.
    fn submit(&mut self, now: u64, id: u64, request: Request) {
        if let Some(behind) = &mut self.behind_flush {
            if behind.flush.is_some() {
                behind.held.push_back((id, request));
                return;
            }
            behind.flush = (request.op == Op::Flush).then_some(id);
        }
        self.model.submit(now, id, request);
    }

    /// A flush has ended: hands on what came meanwhile, up to the next flush.
    fn flushed(&mut self, now: u64) {
        let Some(behind) = &mut self.behind_flush else {
            return;
        };
        behind.flush = None;
        for (id, request) in std::mem::take(&mut behind.held) {
            self.submit(now, id, request);
        }
    }

    fn count(&mut self, request: &Request) {
        let (counts, bytes) = (&mut self.counts, request.bytes as f64);
        match request.op {
            Op::Read => {
                counts.reads += 1.0;
                counts.read_bytes += bytes;
            }
            Op::Write => {
                counts.writes += 1.0;
                counts.written_bytes += bytes;
            }
            Op::Flush => counts.flushes += 1.0,
        }
    }

    /// The kernel's requests for one of a task.
    fn requests(&mut self, io: Io, dice: &mut Dice) -> Vec<Request> {
        let blocks = |bytes: f64| (bytes.max(1.0) / BLOCK_BYTES as f64).ceil() as u64 * BLOCK_BYTES;
        let within = |from: u64, bytes: u64, dice: &mut Dice| {
            from + (dice.part() * bytes as f64) as u64 / BLOCK_BYTES * BLOCK_BYTES
        };
        let (op, offset, bytes) = match io {
            Io::Flush => (Op::Flush, 0, 0),
            Io::Content(bytes) => {
                let (at, bytes) = (CONTENT_AT + self.content % (self.size / 4), blocks(bytes));
                self.content += bytes;
                (Op::Write, at, bytes)
            }
            Io::Scattered => {
                let span = (8 << 20) + self.content % (self.size / 4);
                let at = within(CONTENT_AT, span, dice);
                (Op::Write, at, BLOCK_BYTES)
            }
            Io::Table => (Op::Write, within(0, TABLES_BYTES, dice), BLOCK_BYTES),
            Io::Journal(bytes) => {
                let start = (self.size as f64 * JOURNAL_AT) as u64 / BLOCK_BYTES * BLOCK_BYTES;
                let (at, bytes) = (start + self.journal % JOURNAL_BYTES, blocks(bytes));
                self.journal += bytes;
                (Op::Write, at, bytes)
            }
            Io::Read { bytes, at, behind } => {
                let at = (at * self.size as f64 + behind) as u64 / BLOCK_BYTES * BLOCK_BYTES;
                (Op::Read, CONTENT_AT + at, blocks(bytes))
            }
        };
        let mut requests = Vec::new();
        let (mut at, mut left) = (offset, bytes);
        loop {
            let bytes = left.min(REQUEST_BYTES_MAX);
            requests.push(Request {
                op,
                offset: at,
                bytes,
            });
            (at, left) = (at + bytes, left - bytes);
            if left == 0 {
                return requests;
            }
        }
    }
}

impl Work {
    /// The steps for what members have written. `is_busy`: others came lately, or, of a file system,
    /// its last sync was waited for.
    fn steps(
        &self,
        disk: usize,
        writes: &[Written],
        files: &FileCost,
        is_busy: bool,
        dice: &mut Dice,
    ) -> Vec<Step> {
        let io = |requests: Vec<Io>| Step::Io { disk, requests };
        let join = |gathering: usize, writes: Vec<Written>| Step::Join { gathering, writes };
        match self {
            Work::Journal => {
                let blocks = writes.iter().map(|written| match written {
                    Written::Blocks(bytes) => *bytes,
                    _ => 0.0,
                });
                let bytes = files.journal_base + blocks.sum::<f64>();
                vec![
                    io(vec![Io::Journal(bytes)]),
                    io(vec![Io::Flush]),
                    io(vec![Io::Journal(BLOCK_BYTES as f64)]),
                    io(vec![Io::Flush]),
                ]
            }
            Work::FileSystem { journal } => {
                file_system(disk, *journal, writes, files, is_busy, dice)
            }
            Work::Objects { syncs } => {
                let is_content = |w: &Written| matches!(w, Written::Content(_));
                let contents: Vec<Written> = writes.iter().copied().filter(is_content).collect();
                let name = |w: &Written| match w {
                    Written::Unread(_) => None,
                    Written::Removal => Some(Written::Removal),
                    _ => Some(Written::Name),
                };
                let read = |w: &Written| match w {
                    Written::Unread(at) => Some(io(vec![Io::Read {
                        bytes: BLOCK_BYTES as f64,
                        at: *at,
                        behind: 0.0,
                    }])),
                    _ => None,
                };
                let mut steps = Vec::new();
                if !contents.is_empty() {
                    steps.push(join(*syncs, contents));
                }
                // The batch's thread reads them one after the other.
                steps.extend(writes.iter().filter_map(read));
                steps.push(join(*syncs, writes.iter().filter_map(name).collect()));
                steps
            }
            Work::Rows { syncs, .. } if is_busy => {
                vec![join(*syncs, vec![Written::Entry; writes.len().max(1)])]
            }
            Work::Rows { journal, .. } => vec![
                io(vec![Io::Content(28_672.0)]),
                join(*journal, vec![Written::Blocks(20_480.0)]),
                io(vec![Io::Scattered]),
                join(*journal, vec![]),
                io(vec![Io::Scattered, Io::Scattered]),
                join(*journal, vec![]),
                join(*journal, vec![Written::Blocks(24_576.0)]),
            ],
        }
    }
}

/// The steps of a sync of a whole file system. `is_busy`: it was waited for.
fn file_system(
    disk: usize,
    journal: usize,
    writes: &[Written],
    files: &FileCost,
    is_busy: bool,
    dice: &mut Dice,
) -> Vec<Step> {
    let is_entry = |w: &&Written| matches!(w, Written::Entry);
    let entries = writes.iter().filter(is_entry).count() as f64;
    let removals = writes.iter().filter(|w| **w == Written::Removal).count() as f64;
    let count = writes.len() as f64 - entries;
    let files_changed = count + removals;
    let io = |requests: Vec<Io>| Step::Io { disk, requests };
    let join = |bytes: f64| Step::Join {
        gathering: journal,
        writes: vec![Written::Blocks(bytes)],
    };
    let whole = |mean: f64, dice: &mut Dice| (mean + dice.part()) as usize;
    let mut first: Vec<Io> = Vec::new();
    for written in writes {
        first.extend(match written {
            Written::Content(bytes) => Some(Io::Content(*bytes)),
            Written::Entry => Some(Io::Scattered),
            Written::Name | Written::Removal | Written::Blocks(_) | Written::Unread(_) => None,
        });
    }
    first.extend((0..whole(files.directories * count, dice)).map(|_| Io::Scattered));
    first.extend((0..whole(files.bitmaps, dice)).map(|_| Io::Table));
    let journal_bytes = files.journal_member * files_changed + files.journal_entry * entries;
    let mut steps = vec![io(first), join(journal_bytes)];
    let second = match is_busy {
        true => files.second_commit_busy,
        false => files.second_commit,
    };
    if dice.part() < second {
        steps.push(join(0.0));
    }
    let mut home: Vec<Io> = Vec::new();
    home.extend((0..whole(files.home_tables, dice)).map(|_| Io::Table));
    home.extend((0..whole(files.home_member * files_changed, dice)).map(|_| Io::Scattered));
    steps.push(io(home));
    if is_busy && dice.part() < files.last_commit_busy {
        steps.push(join(0.0));
    }
    steps.retain(|step| !matches!(step, Step::Io { requests, .. } if requests.is_empty()));
    steps
}

impl Engine {
    /// A disk of a known kind, of this size.
    pub fn add_disk(&mut self, medium: &Medium, bytes: f64) -> usize {
        let seed = self.disks.len() as u64 + 1;
        let disk = HardDisk::new(medium, bytes, seed);
        self.disks.push(disk);
        self.disk_busy_at_reset.push(0);
        self.disks.len() - 1
    }

    /// From now on a disk takes no request while it flushes.
    pub fn hold_behind_flushes(&mut self, disk: usize) {
        self.disks[disk].behind_flush = Some(BehindFlush::default());
    }

    /// A gathering on a disk, of which at most `at_once` runs are under way.
    pub fn add_gathering(
        &mut self,
        work: Work,
        disk: usize,
        at_once: usize,
        files: &FileCost,
    ) -> usize {
        self.gatherings.push(Gathering {
            work,
            disk,
            at_once,
            runs: 0,
            waiting: Vec::new(),
            last: None,
            logged: Some(0.0),
            files: files.clone(),
            counts: GatherCounts::default(),
        });
        self.gatherings.len() - 1
    }

    /// Runs and members of the syncs of file systems.
    pub fn gather_counts(&self) -> GatherCounts {
        let syncs = self
            .gatherings
            .iter()
            .filter(|g| matches!(g.work, Work::FileSystem { .. }));
        syncs.fold(GatherCounts::default(), |sum, g| GatherCounts {
            runs: sum.runs + g.counts.runs,
            members: sum.members + g.counts.members,
        })
    }

    /// Requests of all known disks since the last reset, and how busy they were on average.
    pub fn disk_use(&self) -> DiskUse {
        let mut sum = DiskUse::default();
        for (number, disk) in self.disks.iter().enumerate() {
            let its = &disk.counts;
            sum.reads += its.reads;
            sum.writes += its.writes;
            sum.flushes += its.flushes;
            sum.read_bytes += its.read_bytes;
            sum.written_bytes += its.written_bytes;
            sum.busy += self.disk_utilisation(number) / self.disks.len() as f64;
        }
        sum
    }

    /// Fraction of the time since the last reset that a disk's channels were serving.
    pub fn disk_utilisation(&self, disk: usize) -> f64 {
        let seconds = self.seconds_counted();
        let busy = self.disks[disk].model.busy_ns() - self.disk_busy_at_reset[disk];
        busy as f64 / 1e9 / seconds.max(1e-12) / self.disks[disk].channels
    }

    pub(super) fn reset_storage(&mut self) {
        self.disk_busy_at_reset = self.disks.iter().map(|d| d.model.busy_ns()).collect();
        for disk in &mut self.disks {
            disk.counts = DiskUse::default();
        }
        self.gatherings
            .iter_mut()
            .for_each(|g| g.counts = GatherCounts::default());
    }

    pub(super) fn submit(&mut self, task: usize, disk: usize, ios: &[Io]) {
        let now = self.now_ns();
        let at = &mut self.disks[disk];
        let mut count = 0;
        for io in ios {
            for request in at.requests(*io, &mut self.dice) {
                at.next += 1;
                at.count(&request);
                at.waiting.insert(at.next, task);
                at.submit(now, at.next, request);
                count += 1;
            }
        }
        at.open.insert(task, count);
        self.advance_disk(disk);
    }

    fn now_ns(&self) -> u64 {
        (self.now * 1e9).round() as u64
    }

    pub(super) fn advance_disk(&mut self, disk: usize) {
        let now = self.now_ns();
        let answers = self.disks[disk].model.advance(now);
        for answer in answers {
            if let Some(task) = self.disks[disk].waiting.remove(&answer.id) {
                let seconds = answer.due as f64 / 1e9 - self.now;
                let behind = self.disks[disk].behind_flush.as_ref();
                if behind.is_some_and(|behind| behind.flush == Some(answer.id)) {
                    self.after(seconds, Event::Flushed { disk });
                }
                self.after(seconds, Event::Answered { disk, task });
            }
        }
        let next = self.disks[disk].model.next_decision();
        // An earlier decision that was noted comes all the same, and does no harm.
        if let Some(at) = next.filter(|at| {
            self.disks[disk]
                .decision
                .is_none_or(|d| d <= now || *at < d)
        }) {
            self.disks[disk].decision = Some(at);
            self.after(at as f64 / 1e9 - self.now, Event::Disk { disk });
        }
    }

    pub(super) fn flushed(&mut self, disk: usize) {
        let now = self.now_ns();
        self.disks[disk].flushed(now);
        self.advance_disk(disk);
    }

    pub(super) fn answered(&mut self, disk: usize, task: usize) {
        let Some(left) = self.disks[disk].open.get_mut(&task) else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            self.disks[disk].open.remove(&task);
            self.go_on(task);
        }
    }

    pub(super) fn join(&mut self, gathering: usize, task: usize, writes: Vec<Written>) {
        self.gatherings[gathering]
            .waiting
            .push(Member { task, writes });
        self.start_run(gathering, false);
    }

    fn start_run(&mut self, gathering: usize, follows: bool) {
        let now = self.now;
        let at = &mut self.gatherings[gathering];
        if at.runs >= at.at_once || at.waiting.is_empty() {
            return;
        }
        at.runs += 1;
        let members = std::mem::take(&mut at.waiting);
        at.counts.runs += 1;
        let writes: Vec<Written> = members
            .iter()
            .flat_map(|m| m.writes.iter().copied())
            .collect();
        at.counts.members += writes.len() as u64;
        let busy = match at.work {
            Work::FileSystem { .. } => follows,
            _ => at.is_logged(now),
        };
        let steps = at
            .work
            .steps(at.disk, &writes, &at.files, busy, &mut self.dice);
        let task = self.add_task(steps, None, None);
        let members = members.into_iter().map(|m| m.task).collect();
        self.tasks[task].run = Some(Run { gathering, members });
        self.after(0.0, Event::Waited { task });
    }

    /// A run has ended: its members go on, and the next begins.
    pub(super) fn ended_run(&mut self, run: Run) {
        self.gatherings[run.gathering].runs -= 1;
        for task in run.members {
            self.after(0.0, Event::Waited { task });
        }
        self.start_run(run.gathering, true);
    }
}
