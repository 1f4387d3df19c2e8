//! [`Daemon`]: the trait of all background daemons, and [`run`], the one loop in which they are
//! repeated, timed and cancelled.
//!
//! A daemon is called in one of two ways: for one pass (`once`: a program called so, a test, the
//! simulator), or until it is stopped. Then it has one or more [`Cycle`]s, each a step and the
//! [`Schedule`] by which that is repeated; for most daemons the step is a whole pass.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_http::own_thread;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::progress::Progress;

/// Minimum time between two steps, so that an interval of 0 still yields.
const REST_MIN: Duration = Duration::from_millis(10);

/// The kinds of daemons. Each has a section of its name, and a program: `swift-` and the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DaemonKind {
    AccountAuditor,
    AccountReaper,
    AccountReplicator,
    ContainerAuditor,
    ContainerReconciler,
    ContainerReplicator,
    ContainerSharder,
    ContainerSync,
    ContainerUpdater,
    ObjectAuditor,
    ObjectExpirer,
    ObjectReconstructor,
    ObjectReplicator,
    ObjectUpdater,
}

impl DaemonKind {
    pub const ALL: [DaemonKind; 14] = [
        DaemonKind::AccountAuditor,
        DaemonKind::AccountReaper,
        DaemonKind::AccountReplicator,
        DaemonKind::ContainerAuditor,
        DaemonKind::ContainerReconciler,
        DaemonKind::ContainerReplicator,
        DaemonKind::ContainerSharder,
        DaemonKind::ContainerSync,
        DaemonKind::ContainerUpdater,
        DaemonKind::ObjectAuditor,
        DaemonKind::ObjectExpirer,
        DaemonKind::ObjectReconstructor,
        DaemonKind::ObjectReplicator,
        DaemonKind::ObjectUpdater,
    ];

    /// The names of [`DaemonKind::ALL`], in its order.
    pub const NAMES: [&str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].name();
            at += 1;
        }
        names
    };

    /// Name of its section and, after `swift-`, of its program.
    pub const fn name(self) -> &'static str {
        match self {
            DaemonKind::AccountAuditor => "account-auditor",
            DaemonKind::AccountReaper => "account-reaper",
            DaemonKind::AccountReplicator => "account-replicator",
            DaemonKind::ContainerAuditor => "container-auditor",
            DaemonKind::ContainerReconciler => "container-reconciler",
            DaemonKind::ContainerReplicator => "container-replicator",
            DaemonKind::ContainerSharder => "container-sharder",
            DaemonKind::ContainerSync => "container-sync",
            DaemonKind::ContainerUpdater => "container-updater",
            DaemonKind::ObjectAuditor => "object-auditor",
            DaemonKind::ObjectExpirer => "object-expirer",
            DaemonKind::ObjectReconstructor => "object-reconstructor",
            DaemonKind::ObjectReplicator => "object-replicator",
            DaemonKind::ObjectUpdater => "object-updater",
        }
    }

    pub fn from_name(name: &str) -> Option<DaemonKind> {
        DaemonKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for DaemonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Restriction of a pass by the command line; empty lists impose none. A daemon ignores what its
/// program has no option for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassFilter {
    /// Names of devices (`--devices`).
    pub devices: Vec<String>,
    /// Numbers of partitions (`--partitions`).
    pub partitions: Vec<u32>,
    /// Indices of storage policies (`--policies`).
    pub policies: Vec<u32>,
    /// Object auditor: only opens objects, at this rate per second, and reads no content
    /// (`--zero_byte_fps`).
    pub zero_byte_fps: Option<f64>,
}

impl PassFilter {
    /// Whether it leaves out none of the stored data.
    pub fn is_everything(&self) -> bool {
        self.devices.is_empty() && self.partitions.is_empty() && self.policies.is_empty()
    }

    pub(crate) fn has_device(&self, name: &str) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|device| device == name)
    }

    pub(crate) fn has_partition(&self, partition: u32) -> bool {
        self.partitions.is_empty() || self.partitions.contains(&partition)
    }

    pub(crate) fn has_policy(&self, index: u32) -> bool {
        self.policies.is_empty() || self.policies.contains(&index)
    }
}

/// A step or a pass under way.
pub type PassFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A background daemon, for all devices of a server or for a whole cluster.
///
/// Passes and steps report their results themselves, to the log and to monitoring, and continue
/// after errors. Each may be dropped half-way: it leaves the stored data valid, and the rest to a
/// later one.
pub trait Daemon: Send + Sync + 'static {
    fn kind(&self) -> DaemonKind;

    /// When a pass follows the one before.
    fn schedule(&self) -> Schedule;

    /// Runs one pass over all that the filter admits.
    fn once(self: Arc<Self>, only: PassFilter) -> PassFuture;

    /// Steps that are repeated side by side until the daemon is stopped: by default one, a pass
    /// over everything.
    fn cycles(self: Arc<Self>) -> Vec<Cycle> {
        let schedule = self.schedule();
        let step = move || self.clone().once(PassFilter::default());
        vec![Cycle::new(schedule, step)]
    }

    /// Progress of the current pass, for daemons that count their work.
    fn progress(&self) -> Option<Arc<Progress>> {
        None
    }
}

/// Runs a daemon's cycles until `stop` turns true, which drops their steps half-way.
pub async fn run(daemon: Arc<dyn Daemon>, stop: watch::Receiver<bool>) {
    let cycles = daemon.cycles().into_iter();
    join_all(cycles.map(|cycle| cycle.run(stop.clone()))).await;
}

/// A step and when it is repeated.
pub struct Cycle {
    schedule: Schedule,
    step: Box<dyn Fn() -> PassFuture + Send + Sync>,
}

impl Cycle {
    pub(crate) fn new(
        schedule: Schedule,
        step: impl Fn() -> PassFuture + Send + Sync + 'static,
    ) -> Self {
        Cycle {
            schedule,
            step: Box::new(step),
        }
    }

    async fn run(self, mut stop: watch::Receiver<bool>) {
        let repeat = async {
            let before = self.schedule.before_first();
            if !before.is_zero() {
                sleep(before).await;
            }
            loop {
                let started = Instant::now();
                (self.step)().await;
                sleep(self.schedule.rest(started.elapsed())).await;
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = repeat => {}
        }
    }
}

/// The times at which a step is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    interval: Duration,
    from: Anchor,
    jitter: Jitter,
}

/// The event from which the interval is measured to the next step's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Start,
    End,
}

/// Randomness, so that daemons of a cluster that are started together do not work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jitter {
    None,
    /// The first step starts at a random time within the interval.
    First,
    /// And each rest after it is a random part of what is left of the interval.
    Every,
}

impl Schedule {
    /// `interval` is from a step's start to the next one's; a longer step is followed at once.
    pub(crate) fn from_start(interval: Duration) -> Self {
        Schedule {
            interval,
            from: Anchor::Start,
            jitter: Jitter::None,
        }
    }

    /// `interval` is from a step's end to the next one's start.
    pub(crate) fn from_end(interval: Duration) -> Self {
        Schedule {
            from: Anchor::End,
            ..Schedule::from_start(interval)
        }
    }

    /// The first step starts at a random time.
    pub(crate) fn with_random_first(self) -> Self {
        Schedule {
            jitter: Jitter::First,
            ..self
        }
    }

    /// All steps start at random times.
    pub(crate) fn with_random_times(self) -> Self {
        Schedule {
            jitter: Jitter::Every,
            ..self
        }
    }

    fn before_first(&self) -> Duration {
        match self.jitter {
            Jitter::None => Duration::ZERO,
            Jitter::First | Jitter::Every => self.interval.mul_f64(random_part()),
        }
    }

    /// Time to wait after a step of this duration.
    fn rest(&self, step: Duration) -> Duration {
        let rest = match self.from {
            Anchor::Start => self.interval.saturating_sub(step),
            Anchor::End => self.interval,
        };
        let rest = match self.jitter {
            Jitter::None | Jitter::First => rest,
            Jitter::Every => rest.mul_f64(random_part()),
        };
        rest.max(REST_MIN)
    }
}

/// Uniform in 0..1, and a simulator's where one has taken over.
fn random_part() -> f64 {
    (own_thread::random() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const STEP: Duration = Duration::from_secs(2);
    const INTERVAL: Duration = Duration::from_secs(5);

    /// A daemon whose passes take two seconds.
    struct Fake {
        schedule: Schedule,
        begun: AtomicU32,
        ended: AtomicU32,
    }

    impl Daemon for Fake {
        fn kind(&self) -> DaemonKind {
            DaemonKind::ObjectAuditor
        }

        fn schedule(&self) -> Schedule {
            self.schedule
        }

        fn once(self: Arc<Self>, only: PassFilter) -> PassFuture {
            assert!(only.is_everything());
            Box::pin(async move {
                self.begun.fetch_add(1, Ordering::Relaxed);
                sleep(STEP).await;
                self.ended.fetch_add(1, Ordering::Relaxed);
            })
        }
    }

    /// Passes begun and ended in this time, by a daemon that is then stopped.
    async fn passes(schedule: Schedule, time: Duration) -> (u32, u32) {
        let daemon = Arc::new(Fake {
            schedule,
            begun: AtomicU32::new(0),
            ended: AtomicU32::new(0),
        });
        let (sender, stop) = watch::channel(false);
        let running = tokio::spawn(run(daemon.clone(), stop));
        sleep(time).await;
        sender.send_replace(true);
        assert!(running.await.is_ok());
        let count = |number: &AtomicU32| number.load(Ordering::Relaxed);
        let counts = (count(&daemon.begun), count(&daemon.ended));
        sleep(10 * INTERVAL).await;
        assert_eq!(count(&daemon.ended), counts.1, "stopped");
        counts
    }

    #[tokio::test(start_paused = true)]
    async fn passes_are_repeated_and_dropped_when_stopped() {
        let time = Duration::from_secs(11);
        // Begun at 0, 5 and 10 s.
        assert_eq!(passes(Schedule::from_start(INTERVAL), time).await, (3, 2));
        // Begun at 0 and 7 s.
        assert_eq!(passes(Schedule::from_end(INTERVAL), time).await, (2, 2));
        // A pass takes longer than the interval: 0, 2.01, 4.02 s and so on.
        let short = Schedule::from_start(Duration::ZERO);
        assert_eq!(passes(short, time).await, (6, 5));
    }

    #[test]
    fn jitter_is_within_the_interval() {
        let first = Schedule::from_start(INTERVAL).with_random_first();
        let every = Schedule::from_start(INTERVAL).with_random_times();
        let plain = Schedule::from_start(INTERVAL);
        assert_eq!(plain.before_first(), Duration::ZERO);
        assert_eq!(first.rest(STEP), INTERVAL - STEP);
        assert_eq!(first.rest(2 * INTERVAL), REST_MIN);
        let draws = |draw: &dyn Fn() -> Duration| (0..50).map(|_| draw()).collect::<Vec<_>>();
        for (draws, most) in [
            (draws(&|| first.before_first()), INTERVAL),
            (draws(&|| every.before_first()), INTERVAL),
            (draws(&|| every.rest(STEP)), INTERVAL - STEP),
        ] {
            assert!(draws.iter().all(|draw| *draw <= most));
            assert!(draws.windows(2).any(|two| two[0] != two[1]));
        }
    }

    #[test]
    fn names() {
        for kind in DaemonKind::ALL {
            assert_eq!(DaemonKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(DaemonKind::from_name("object-server"), None);
    }
}
