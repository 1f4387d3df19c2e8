//! Service-time model of a disk: the order in which requests are served, and the end of each
//! service. Pure; the caller provides the clock.
//!
//! A disk has channels (heads that move independently; a hard disk has one). A free channel takes,
//! of the `queue` oldest requests, the one nearest to its head. Service takes a fixed time, a seek
//! of `settle + full · √(distance / size)` and on average half a rotation if the request does not
//! begin at the end of the last one, and the transfer. With a volatile write cache a write is
//! complete once it is in the cache; an idle disk and a flush write back in the order of offsets.

use std::collections::{BTreeMap, VecDeque};

use cairn_types::SplitMix;
use serde::{Deserialize, Serialize};

/// Kind of a disk, as described in a study file. Times and rates are in emulated time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Medium {
    /// Fixed time of each request.
    pub fixed_us: f64,
    /// Time of the shortest seek.
    pub settle_us: f64,
    /// Additional time of the longest seek.
    pub full_seek_us: f64,
    /// Rotations per minute; 0: no rotation.
    pub rpm: f64,
    /// Transfer rate; 0: no transfer time.
    pub mb_per_s: f64,
    /// Number of requests served concurrently.
    pub channels: u32,
    /// Number of oldest requests among which the nearest is served first; 1: in order of arrival.
    pub queue: u32,
    /// Size of the volatile write cache in MB; 0: none.
    pub write_cache_mb: f64,
    /// Time of a write into the cache.
    pub cached_us: f64,
    /// Minimum time of a flush.
    pub flush_us: f64,
}

impl Default for Medium {
    fn default() -> Self {
        Medium {
            fixed_us: 0.0,
            settle_us: 0.0,
            full_seek_us: 0.0,
            rpm: 0.0,
            mb_per_s: 0.0,
            channels: 1,
            queue: 1,
            write_cache_mb: 0.0,
            cached_us: 50.0,
            flush_us: 0.0,
        }
    }
}

impl Medium {
    /// Validates the fields; the error names the first invalid one, its value and what was
    /// expected.
    ///
    /// # Errors
    /// A field is out of its range, or a request would take no time.
    pub fn check(&self) -> Result<(), String> {
        let times = [
            ("fixed_us", self.fixed_us),
            ("settle_us", self.settle_us),
            ("full_seek_us", self.full_seek_us),
            ("rpm", self.rpm),
            ("mb_per_s", self.mb_per_s),
            ("write_cache_mb", self.write_cache_mb),
            ("cached_us", self.cached_us),
            ("flush_us", self.flush_us),
        ];
        for (name, value) in times {
            if !(0.0..=1e9).contains(&value) {
                return Err(format!("{name} = {value}: 0 to 10⁹ was expected"));
            }
        }
        for (name, value) in [("channels", self.channels), ("queue", self.queue)] {
            if !(1..=1024).contains(&value) {
                return Err(format!("{name} = {value}: 1 to 1024 was expected"));
            }
        }
        if self.fixed_us + self.settle_us == 0.0 && self.mb_per_s == 0.0 && self.rpm == 0.0 {
            return Err("a disk that takes no time: give fixed_us, settle_us or mb_per_s".into());
        }
        Ok(())
    }

    /// The same disk with all times multiplied by `factor`.
    pub fn dilated(&self, factor: f64) -> Medium {
        Medium {
            fixed_us: self.fixed_us * factor,
            settle_us: self.settle_us * factor,
            full_seek_us: self.full_seek_us * factor,
            rpm: self.rpm / factor,
            mb_per_s: self.mb_per_s / factor,
            cached_us: self.cached_us * factor,
            flush_us: self.flush_us * factor,
            ..self.clone()
        }
    }

    fn cache_bytes(&self) -> u64 {
        (self.write_cache_mb * 1e6) as u64
    }
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    Flush,
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub op: Op,
    pub offset: u64,
    pub bytes: u64,
}

impl Request {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// A reply: the request's number and its due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub id: u64,
    pub due: u64,
}

struct Waiting {
    id: u64,
    arrived: u64,
    request: Request,
}

#[derive(Clone, Copy)]
struct Channel {
    free_at: u64,
    /// End of its last request.
    head: u64,
}

/// State of one disk: queue, cache and heads.
pub struct Model {
    medium: Medium,
    size: u64,
    random: SplitMix,
    waiting: VecDeque<Waiting>,
    channels: Vec<Channel>,
    /// Ranges that are only in the cache: length by offset.
    dirty: BTreeMap<u64, u64>,
    dirty_bytes: u64,
    answered: Vec<Answer>,
    /// Total time that channels were serving.
    busy_ns: u64,
}

impl Model {
    /// `medium` is in this host's time; the seed determines the rotational delays.
    pub fn new(medium: Medium, size: u64, seed: u64) -> Model {
        let channels = vec![
            Channel {
                free_at: 0,
                head: 0
            };
            medium.channels.max(1) as usize
        ];
        Model {
            medium,
            size: size.max(1),
            random: SplitMix::new(seed),
            waiting: VecDeque::new(),
            channels,
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            answered: Vec::new(),
            busy_ns: 0,
        }
    }

    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Adds a request that arrived at `now`; its reply is returned by this or a later
    /// [`Model::advance`].
    pub fn submit(&mut self, now: u64, id: u64, request: Request) {
        let fits = self.dirty_bytes + request.bytes <= self.medium.cache_bytes();
        if request.op == Op::Write && fits {
            let length = self.dirty.entry(request.offset).or_default();
            let more = request.bytes.saturating_sub(*length);
            *length += more;
            self.dirty_bytes += more;
            let due = now + us(self.medium.cached_us);
            self.answered.push(Answer { id, due });
            return;
        }
        let arrived = now;
        self.waiting.push_back(Waiting {
            id,
            arrived,
            request,
        });
    }

    /// Advances to `now`, and returns the replies determined by then.
    pub fn advance(&mut self, now: u64) -> Vec<Answer> {
        while let Some(number) = self.next_channel() {
            let free_at = self.channels[number].free_at;
            let Some(oldest) = self.waiting.front() else {
                if !self.write_back(number, now) {
                    break;
                }
                continue;
            };
            let start = free_at.max(oldest.arrived);
            if start > now {
                break;
            }
            let Some(waiting) = self.take(start, self.channels[number].head) else {
                break;
            };
            let took = match waiting.request.op {
                Op::Flush => self.flush(number),
                _ => self.serve(number, waiting.request.offset, waiting.request.bytes),
            };
            self.channels[number].free_at = start + took;
            self.busy_ns += took;
            let (id, due) = (waiting.id, start + took);
            self.answered.push(Answer { id, due });
        }
        std::mem::take(&mut self.answered)
    }

    /// Time of the next decision of [`Model::advance`].
    pub fn next_decision(&self) -> Option<u64> {
        let free_at = self.next_channel().map(|n| self.channels[n].free_at)?;
        match self.waiting.front() {
            Some(oldest) => Some(free_at.max(oldest.arrived)),
            None => (!self.dirty.is_empty()).then_some(free_at),
        }
    }

    fn next_channel(&self) -> Option<usize> {
        (0..self.channels.len()).min_by_key(|n| self.channels[*n].free_at)
    }

    /// The request to serve at `start`: the nearest of the oldest ones, none beyond the next flush.
    fn take(&mut self, start: u64, head: u64) -> Option<Waiting> {
        let in_sight = self.waiting.iter().take(self.medium.queue.max(1) as usize);
        let before_flush = in_sight
            .take_while(|w| w.arrived <= start && w.request.op != Op::Flush)
            .map(|w| w.request.offset.abs_diff(head));
        let nearest = before_flush
            .enumerate()
            .min_by_key(|(_, distance)| *distance);
        self.waiting.remove(nearest.map_or(0, |(number, _)| number))
    }

    fn serve(&mut self, number: usize, offset: u64, bytes: u64) -> u64 {
        let head = self.channels[number].head;
        self.channels[number].head = offset + bytes;
        us(self.medium.fixed_us) + self.seek(head, offset) + self.transfer(bytes)
    }

    fn seek(&mut self, head: u64, offset: u64) -> u64 {
        let distance = head.abs_diff(offset);
        if distance == 0 {
            return 0;
        }
        let medium = &self.medium;
        let reach = (distance as f64 / self.size as f64).min(1.0).sqrt();
        let turn = match medium.rpm > 0.0 {
            true => (self.random.number() % 1_000_000) as f64 / 1e6 * 60e6 / medium.rpm,
            false => 0.0,
        };
        us(medium.settle_us + medium.full_seek_us * reach + turn)
    }

    fn transfer(&self, bytes: u64) -> u64 {
        match self.medium.mb_per_s > 0.0 {
            true => (bytes as f64 * 1e3 / self.medium.mb_per_s) as u64,
            false => 0,
        }
    }

    /// Writes back everything in one sweep.
    fn flush(&mut self, number: usize) -> u64 {
        let mut took = us(self.medium.flush_us);
        for (offset, bytes) in std::mem::take(&mut self.dirty) {
            took += self.serve(number, offset, bytes);
        }
        self.dirty_bytes = 0;
        took
    }

    /// Writes back the next range behind the head of an idle disk; false if there is none or the
    /// channel is busy.
    fn write_back(&mut self, number: usize, now: u64) -> bool {
        let channel = self.channels[number];
        if channel.free_at > now {
            return false;
        }
        let next = self.dirty.range(channel.head..).next();
        let Some((offset, bytes)) = next.or(self.dirty.iter().next()).map(|(o, b)| (*o, *b)) else {
            return false;
        };
        self.dirty.remove(&offset);
        self.dirty_bytes = self.dirty_bytes.saturating_sub(bytes);
        let took = self.serve(number, offset, bytes);
        self.busy_ns += took;
        self.channels[number].free_at = now + took;
        true
    }
}

fn us(us: f64) -> u64 {
    (us * 1e3) as u64
}

/// Distances between successive requests, in blocks of 512 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distances {
    /// `counts[0]`: the next begins at the end of the last; `counts[n]`: 2^(n-1) <= distance < 2^n.
    pub counts: Vec<u64>,
    pub beyond_125k: u64,
    pub beyond_2500k: u64,
    #[serde(skip)]
    end: u64,
}

impl Distances {
    pub fn record(&mut self, request: &Request) {
        if request.op == Op::Flush {
            return;
        }
        let blocks = self.end.abs_diff(request.offset) / 512;
        self.end = request.end();
        let bucket = (u64::BITS - blocks.leading_zeros()) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.beyond_125k += u64::from(blocks > 125_000);
        self.beyond_2500k += u64::from(blocks > 2_500_000);
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn add(&mut self, other: &Distances) {
        let buckets = self.counts.len().max(other.counts.len());
        self.counts.resize(buckets, 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.beyond_125k += other.beyond_125k;
        self.beyond_2500k += other.beyond_2500k;
    }

    /// Subtracts an earlier reading of the same disk.
    pub fn take_away(&mut self, earlier: &Distances) {
        for (count, less) in self.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*less);
        }
        self.beyond_125k = self.beyond_125k.saturating_sub(earlier.beyond_125k);
        self.beyond_2500k = self.beyond_2500k.saturating_sub(earlier.beyond_2500k);
    }
}

#[cfg(test)]
mod tests;
