//! Discrete-event engine: tasks execute steps at stations, in virtual time.
//!
//! A station has servers and one queue (`stations.rs`). A group collects tasks that need a sync while the previous sync is in
//! progress, and then syncs once for all of them. A fork continues when the required number of its
//! branches have ended, and the others have had their time; those still going continue in parallel.
//! Branches of a fork may wait for each other at meetings.

mod forks;
mod stations;
mod storage;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::calibration::Medium;
use crate::random::Dice;

use forks::{Meeting, WaitsFor};
pub use stations::{Counts, Quota};
use stations::{Job, Owner, Station};
pub use storage::{GatherCounts, Io, Work, Written};
use storage::{Gathering, HardDisk, Run};

/// The next step of a task. Its duration has been drawn already.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Serve {
        station: usize,
        seconds: f64,
    },
    Sync {
        group: usize,
        bytes: f64,
    },
    /// Requests of a disk of known hardware, all at once.
    Io {
        disk: usize,
        requests: Vec<Io>,
    },
    /// Waits for a run of a gathering.
    Join {
        gathering: usize,
        /// Things that the task has written; several where it is itself a run for several.
        writes: Vec<Written>,
    },
    Wait {
        seconds: f64,
    },
    Fork {
        need: usize,
        /// Seconds that the other branches have once enough have ended.
        linger: f64,
        branches: Vec<Vec<Step>>,
    },
    /// Ends this branch if its fork has gone on without it.
    UnlessOver,
    /// Waits until `need` of the `of` branches of its fork have come to the meeting of this number.
    Meet {
        number: usize,
        need: usize,
        of: usize,
    },
}

/// An event for the engine's caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Happened {
    Ended { token: u64 },
    Alarm { token: u64 },
}

#[derive(Debug)]
struct Group {
    disk: usize,
    /// The station for a sync's CPU work.
    processor: Option<usize>,
    medium: Medium,
    gathering: Vec<usize>,
    gathering_bytes: f64,
    running: Vec<usize>,
    is_running: bool,
    /// Seconds of the current sync that depend on its members and bytes.
    growing: f64,
    /// Seconds of the current sync on the disk.
    on_disk: f64,
    counts: GroupCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupCounts {
    pub groups: u64,
    pub members: u64,
    /// Seconds for members beyond the first and for bytes, summed over groups: the rest of a sync's
    /// time does not depend on how many share it.
    pub seconds: f64,
}

#[derive(Debug, Default)]
struct Task {
    steps: std::vec::IntoIter<Step>,
    /// The fork that this is a branch of: its task and number.
    parent: Option<(usize, u64)>,
    waits_for: Option<WaitsFor>,
    token: Option<u64>,
    /// The run of a gathering that this is.
    run: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Disk {
        disk: usize,
    },
    Answered {
        disk: usize,
        task: usize,
    },
    /// A flush has ended on a disk that takes nothing meanwhile.
    Flushed {
        disk: usize,
    },
    Served {
        station: usize,
        job: Job,
        slice: f64,
    },
    /// A quota of a station begins anew.
    Refilled {
        station: usize,
    },
    Waited {
        task: usize,
    },
    /// The other branches of a fork have had their time.
    Lingered {
        task: usize,
        fork: u64,
    },
    Alarm {
        token: u64,
    },
}

#[derive(Debug)]
struct Due {
    at: f64,
    number: u64,
    event: Event,
}

impl Ord for Due {
    /// Reversed, so that the heap's greatest element is the earliest event.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.at.total_cmp(&self.at);
        by_time.then_with(|| other.number.cmp(&self.number))
    }
}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Due {}

/// State: stations, groups, tasks and time.
#[derive(Debug)]
pub struct Engine {
    now: f64,
    dice: Dice,
    due: BinaryHeap<Due>,
    events: u64,
    forks: u64,
    stations: Vec<Station>,
    groups: Vec<Group>,
    disks: Vec<HardDisk>,
    disk_busy_at_reset: Vec<u64>,
    gatherings: Vec<Gathering>,
    tasks: Vec<Task>,
    free: Vec<usize>,
    /// Meetings that not all branches have come to, by fork and number.
    meetings: BTreeMap<(u64, usize), Meeting>,
    ended: VecDeque<u64>,
    reset_at: f64,
}

impl Engine {
    pub fn new(seed: u64) -> Engine {
        Engine {
            now: 0.0,
            dice: Dice::new(seed),
            due: BinaryHeap::new(),
            events: 0,
            forks: 0,
            stations: Vec::new(),
            groups: Vec::new(),
            disks: Vec::new(),
            disk_busy_at_reset: Vec::new(),
            gatherings: Vec::new(),
            tasks: Vec::new(),
            free: Vec::new(),
            meetings: BTreeMap::new(),
            ended: VecDeque::new(),
            reset_at: 0.0,
        }
    }

    pub fn add_group(&mut self, disk: usize, processor: Option<usize>, medium: Medium) -> usize {
        self.groups.push(Group {
            disk,
            processor,
            medium,
            gathering: Vec::new(),
            gathering_bytes: 0.0,
            running: Vec::new(),
            is_running: false,
            growing: 0.0,
            on_disk: 0.0,
            counts: GroupCounts::default(),
        });
        self.groups.len() - 1
    }

    pub fn now(&self) -> f64 {
        self.now
    }

    /// Number of active tasks, branches included.
    pub fn under_way(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// Resets the statistics.
    pub fn reset_counts(&mut self) {
        self.reset_at = self.now;
        self.reset_stations();
        for group in &mut self.groups {
            group.counts = GroupCounts::default();
        }
        self.reset_storage();
    }

    pub fn seconds_counted(&self) -> f64 {
        self.now - self.reset_at
    }

    /// Sums over all groups.
    pub fn group_counts(&self) -> GroupCounts {
        let mut all = GroupCounts::default();
        for group in &self.groups {
            all.groups += group.counts.groups;
            all.members += group.counts.members;
            all.seconds += group.counts.seconds;
        }
        all
    }

    /// Fraction of the time that a group's syncs spent on members and bytes; at 1 more members do
    /// not share a sync any faster.
    pub fn group_utilisation(&self, group: usize) -> f64 {
        let seconds = self.seconds_counted();
        if seconds > 0.0 {
            self.groups[group].counts.seconds / seconds
        } else {
            0.0
        }
    }

    /// Starts a task; its end is reported with the token.
    pub fn start(&mut self, steps: Vec<Step>, token: u64) {
        let task = self.add_task(steps, None, Some(token));
        self.go_on(task);
    }

    pub fn set_alarm(&mut self, seconds: f64, token: u64) {
        self.after(seconds, Event::Alarm { token });
    }

    /// Advances to the next end of a task or alarm; `None` if no event is left.
    pub fn advance(&mut self) -> Option<Happened> {
        loop {
            if let Some(token) = self.ended.pop_front() {
                return Some(Happened::Ended { token });
            }
            let due = self.due.pop()?;
            self.now = due.at;
            match due.event {
                Event::Alarm { token } => return Some(Happened::Alarm { token }),
                Event::Waited { task } => self.go_on(task),
                Event::Refilled { station } => self.refilled(station),
                Event::Lingered { task, fork } => self.lingered(task, fork),
                Event::Disk { disk } => self.advance_disk(disk),
                Event::Answered { disk, task } => self.answered(disk, task),
                Event::Flushed { disk } => self.flushed(disk),
                Event::Served {
                    station,
                    job,
                    slice,
                } => self.served(station, job, slice),
            }
        }
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.events += 1;
        self.due.push(Due {
            at: self.now + seconds.max(0.0),
            number: self.events,
            event,
        });
    }

    fn add_task(
        &mut self,
        steps: Vec<Step>,
        parent: Option<(usize, u64)>,
        token: Option<u64>,
    ) -> usize {
        let task = Task {
            steps: steps.into_iter(),
            parent,
            waits_for: None,
            token,
            run: None,
        };
        match self.free.pop() {
            Some(index) => {
                self.tasks[index] = task;
                index
            }
            None => {
                self.tasks.push(task);
                self.tasks.len() - 1
            }
        }
    }

    /// Executes a task's next step, or ends it and continues the task whose fork it completes.
    fn go_on(&mut self, task: usize) {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            match self.tasks[task].steps.next() {
                None => next = self.end(task),
                Some(Step::Wait { seconds }) => self.after(seconds, Event::Waited { task }),
                Some(Step::UnlessOver) => {
                    if self.is_over(task) {
                        self.tasks[task].steps = Vec::new().into_iter();
                    }
                    next = Some(task);
                }
                Some(Step::Serve { station, seconds }) => {
                    let owner = Owner::Task(task);
                    self.arrive(
                        station,
                        Job {
                            owner,
                            left: seconds,
                        },
                    );
                }
                Some(Step::Sync { group, bytes }) => self.gather(group, task, bytes),
                Some(Step::Io { disk, requests }) => self.submit(task, disk, &requests),
                Some(Step::Join { gathering, writes }) => self.join(gathering, task, writes),
                Some(Step::Fork {
                    need,
                    linger,
                    branches,
                }) => next = self.fork(task, need, linger, branches),
                Some(Step::Meet { number, need, of }) => next = self.meet(task, number, need, of),
            }
        }
    }

    fn gather(&mut self, group: usize, task: usize, bytes: f64) {
        let at = &mut self.groups[group];
        at.gathering.push(task);
        at.gathering_bytes += bytes;
        if !at.is_running {
            self.sync(group);
        }
    }

    fn sync(&mut self, group: usize) {
        let at = &mut self.groups[group];
        at.is_running = true;
        at.running = std::mem::take(&mut at.gathering);
        let bytes = std::mem::take(&mut at.gathering_bytes);
        at.counts.groups += 1;
        at.counts.members += at.running.len() as u64;
        let mean = at.medium.sync(at.running.len(), bytes);
        let seconds = at.medium.sync_spread.draw(mean, &mut self.dice);
        at.growing = seconds * (1.0 - at.medium.sync_base / mean).max(0.0);
        at.on_disk = seconds;
        let (disk, cpu) = (at.disk, at.medium.sync_cpu);
        match at.processor.filter(|_| cpu > 0.0) {
            Some(processor) => {
                let owner = Owner::Work(group);
                self.arrive(processor, Job { owner, left: cpu });
            }
            None => {
                let owner = Owner::Group(group);
                self.arrive(
                    disk,
                    Job {
                        owner,
                        left: seconds,
                    },
                );
            }
        }
    }

    fn synced(&mut self, group: usize) {
        let at = &mut self.groups[group];
        let members = std::mem::take(&mut at.running);
        at.is_running = false;
        at.counts.seconds += at.growing;
        if !at.gathering.is_empty() {
            self.sync(group);
        }
        for task in members {
            self.go_on(task);
        }
    }
}

/// Sums of seconds at each station and of group syncs in these steps, over all branches.
pub fn demands(steps: &[Step], engine_groups: &mut f64, sums: &mut BTreeMap<usize, f64>) {
    for step in steps {
        match step {
            Step::Serve { station, seconds } => *sums.entry(*station).or_default() += seconds,
            Step::Sync { .. } => *engine_groups += 1.0,
            Step::Wait { .. } | Step::Io { .. } | Step::Join { .. } | Step::Meet { .. } => {}
            // The steps behind it are the exception.
            Step::UnlessOver => break,
            Step::Fork { branches, .. } => {
                for branch in branches {
                    demands(branch, engine_groups, sums);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
