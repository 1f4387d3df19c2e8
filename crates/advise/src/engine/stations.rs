//! Stations: servers with one queue, first come first served, or in turns of a quantum like
//! processors. A quota bounds how much a station serves in each period, like a control group's limit of
//! processors.

use std::collections::VecDeque;

use super::{Engine, Event};

#[derive(Debug, Default)]
pub(super) struct Station {
    servers: usize,
    quantum: Option<f64>,
    quota: Option<Quota>,
    /// The period that the quota's rest belongs to, and that rest.
    period: u64,
    rest: f64,
    /// The quota is used up, and the next period will be told.
    is_stopped: bool,
    busy: usize,
    queue: VecDeque<Job>,
    counts: Counts,
    changed_at: f64,
}

/// Seconds of service, of all servers together, in each period. What a period does not use is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    pub seconds: f64,
    pub period: f64,
}

/// Sums since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub busy_seconds: f64,
    /// Jobs in queue and service, integrated over seconds.
    pub job_seconds: f64,
    pub arrived: u64,
    pub left: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) owner: Owner,
    pub(super) left: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Task(usize),
    /// A sync's CPU work, before its disk time.
    Work(usize),
    Group(usize),
}

impl Engine {
    pub fn add_station(&mut self, servers: usize, quantum: Option<f64>) -> usize {
        self.stations.push(Station {
            servers: servers.max(1),
            quantum,
            ..Station::default()
        });
        self.stations.len() - 1
    }

    /// A station that serves no more than its quota.
    pub fn add_limited_station(&mut self, servers: usize, quantum: f64, quota: Quota) -> usize {
        let station = self.add_station(servers, Some(quantum));
        self.stations[station].quota = Some(quota);
        self.stations[station].rest = quota.seconds;
        station
    }

    pub fn counts(&mut self, station: usize) -> Counts {
        let now = self.now;
        self.stations[station].settle(now);
        self.stations[station].counts
    }

    /// Utilisation of a station: the fraction of its servers, or of its quota, that was used.
    pub fn utilisation(&mut self, station: usize) -> f64 {
        let seconds = self.seconds_counted();
        let busy = self.counts(station).busy_seconds;
        let at = &self.stations[station];
        let servers = at.servers as f64;
        let most = at
            .quota
            .map_or(servers, |quota| servers.min(quota.seconds / quota.period));
        match seconds > 0.0 {
            true => busy / seconds / most,
            false => 0.0,
        }
    }

    pub(super) fn reset_stations(&mut self) {
        for station in &mut self.stations {
            station.counts = Counts::default();
            station.changed_at = self.now;
        }
    }

    pub(super) fn arrive(&mut self, station: usize, job: Job) {
        let now = self.now;
        let at = &mut self.stations[station];
        at.settle(now);
        at.counts.arrived += 1;
        at.queue.push_back(job);
        self.serve_next(station);
    }

    /// Starts the oldest jobs, as far as there are servers and a rest of the quota.
    fn serve_next(&mut self, station: usize) {
        let now = self.now;
        loop {
            match self.stations[station].next(now) {
                Next::Nothing => return,
                Next::Waits(seconds) => return self.after(seconds, Event::Refilled { station }),
                Next::Slice(job, slice) => {
                    let event = Event::Served {
                        station,
                        job,
                        slice,
                    };
                    self.after(slice, event);
                }
            }
        }
    }

    pub(super) fn refilled(&mut self, station: usize) {
        self.stations[station].refill();
        self.serve_next(station);
    }

    pub(super) fn served(&mut self, station: usize, mut job: Job, slice: f64) {
        let now = self.now;
        let at = &mut self.stations[station];
        at.settle(now);
        at.busy -= 1;
        job.left -= slice;
        let has_ended = job.left <= 1e-12;
        if !has_ended {
            at.queue.push_back(job);
        } else {
            at.counts.left += 1;
        }
        self.serve_next(station);
        if has_ended {
            self.left(job.owner);
        }
    }

    fn left(&mut self, owner: Owner) {
        match owner {
            Owner::Task(task) => self.go_on(task),
            Owner::Work(group) => {
                let (disk, left) = (self.groups[group].disk, self.groups[group].on_disk);
                let owner = Owner::Group(group);
                self.arrive(disk, Job { owner, left });
            }
            Owner::Group(group) => self.synced(group),
        }
    }
}

/// The next action of a station.
enum Next {
    /// It serves a job for so many seconds.
    Slice(Job, f64),
    /// Its quota is used up, for so many seconds.
    Waits(f64),
    Nothing,
}

impl Station {
    fn settle(&mut self, now: f64) {
        let seconds = now - self.changed_at;
        self.counts.busy_seconds += seconds * self.busy as f64;
        self.counts.job_seconds += seconds * (self.busy + self.queue.len()) as f64;
        self.changed_at = now;
    }

    fn next(&mut self, now: f64) -> Next {
        self.settle(now);
        let Some(job) = self.queue.front().copied() else {
            return Next::Nothing;
        };
        if self.busy >= self.servers || self.is_stopped {
            return Next::Nothing;
        }
        let mut slice = self
            .quantum
            .map_or(job.left, |quantum| job.left.min(quantum));
        if let Some(quota) = self.quota {
            let period = (now / quota.period) as u64;
            if period > self.period {
                (self.period, self.rest) = (period, quota.seconds);
            }
            if self.rest <= 1e-12 {
                self.is_stopped = true;
                return Next::Waits((self.period + 1) as f64 * quota.period - now);
            }
            slice = slice.min(self.rest);
            self.rest -= slice;
        }
        self.queue.pop_front();
        self.busy += 1;
        Next::Slice(job, slice)
    }

    /// Begins the next period, whatever rounding has made of its time.
    fn refill(&mut self) {
        if let Some(quota) = self.quota {
            (self.period, self.rest) = (self.period + 1, quota.seconds);
        }
        self.is_stopped = false;
    }
}
