//! The medium of a disk with fault injection: a sparse file with a volatile write cache in front.
//! Writes go to the cache and can be read from there; a flush writes them to the file; a power cut
//! loses any subset of unflushed blocks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use cairn_testkit::random::Random;

/// Block size of the cache; smaller than the file systems' writes.
const BLOCK: u64 = 4096;

/// Kind of a kernel request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    Flush,
}

/// A rule for requests that fail.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) op: Op,
    /// Byte ranges of the disk that it applies to; a flush has none, and matches every fault of
    /// flushes.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Number of requests that still fail; `None`: unlimited.
    pub(crate) left: Option<u32>,
    /// Number of failing requests in a thousand matching ones.
    pub(crate) of_thousand: u64,
}

impl Fault {
    /// A fault of every request, until it is removed.
    pub(crate) fn of(op: Op, ranges: Vec<Range<u64>>) -> Fault {
        Fault {
            op,
            ranges,
            left: None,
            of_thousand: 1000,
        }
    }

    fn meets(&self, op: Op, at: &Range<u64>) -> bool {
        let overlaps = |r: &Range<u64>| r.start < at.end && at.start < r.end;
        self.op == op && (op == Op::Flush || self.ranges.iter().any(overlaps))
    }
}

/// Counters of requests and failures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) failed: u64,
    /// Number of corrupted bytes.
    pub(crate) rotten: u64,
    /// Number of blocks lost by power cuts.
    pub(crate) lost_blocks: u64,
}

pub(crate) struct Medium {
    durable: File,
    size: u64,
    state: Mutex<State>,
}

struct State {
    /// Cached blocks by number, newer than the file.
    cache: BTreeMap<u64, Vec<u8>>,
    faults: Vec<Fault>,
    /// Minimum duration of each request.
    delay: Duration,
    is_off: bool,
    counted: Counted,
    random: Random,
}

impl Medium {
    pub(crate) fn open(path: &Path, seed: u64) -> io::Result<Medium> {
        let durable = File::options().read(true).write(true).open(path)?;
        let size = durable.metadata()?.len();
        let state = State {
            cache: BTreeMap::new(),
            faults: Vec::new(),
            delay: Duration::ZERO,
            is_off: false,
            counted: Counted::default(),
            random: Random::new(seed),
        };
        Ok(Medium {
            durable,
            size,
            state: Mutex::new(state),
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits while the disk is slow, and then decides whether this request fails.
    fn admit(&self, op: Op, at: &Range<u64>) -> io::Result<MutexGuard<'_, State>> {
        let delay = self.state().delay;
        std::thread::sleep(delay);
        let mut state = self.state();
        match op {
            Op::Read => state.counted.reads += 1,
            Op::Write => state.counted.writes += 1,
            Op::Flush => state.counted.flushes += 1,
        }
        if state.is_off || state.fails(op, at) {
            state.counted.failed += 1;
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(state)
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let end = self.size.min(offset.saturating_add(length as u64));
        let at = offset.min(end)..end;
        let state = self.admit(Op::Read, &at)?;
        let mut bytes = vec![0; (at.end - at.start) as usize];
        self.durable.read_exact_at(&mut bytes, at.start)?;
        let blocks = at.start / BLOCK..at.end.div_ceil(BLOCK);
        for (number, block) in state.cache.range(blocks) {
            let start = number * BLOCK;
            let shared = start.max(at.start)..(start + BLOCK).min(at.end);
            let (from, to) = (within(&shared, start), within(&shared, at.start));
            bytes[to].copy_from_slice(&block[from]);
        }
        Ok(bytes)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = offset..offset.saturating_add(bytes.len() as u64);
        if at.end > self.size {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        let mut state = self.admit(Op::Write, &at)?;
        for number in at.start / BLOCK..at.end.div_ceil(BLOCK) {
            let start = number * BLOCK;
            let shared = start.max(at.start)..(start + BLOCK).min(at.end);
            let block = match state.cache.entry(number) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => {
                    let mut block = vec![0; BLOCK as usize];
                    if shared.end - shared.start < BLOCK {
                        let there = (self.size - start).min(BLOCK) as usize;
                        self.durable.read_exact_at(&mut block[..there], start)?;
                    }
                    free.insert(block)
                }
            };
            block[within(&shared, start)].copy_from_slice(&bytes[within(&shared, at.start)]);
        }
        Ok(())
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut state = self.admit(Op::Flush, &(0..0))?;
        self.destage(&mut state, |_| true)
    }

    /// Writes the cached blocks chosen by `keeps` to the file; the others are lost.
    fn destage(
        &self,
        state: &mut State,
        mut keeps: impl FnMut(&mut Random) -> bool,
    ) -> io::Result<()> {
        for (number, block) in std::mem::take(&mut state.cache) {
            if !keeps(&mut state.random) {
                state.counted.lost_blocks += 1;
                continue;
            }
            let start = number * BLOCK;
            let there = (self.size - start).min(BLOCK) as usize;
            self.durable.write_all_at(&block[..there], start)?;
        }
        Ok(())
    }

    /// Flips a bit of this byte; no request ever fails because of it.
    pub(crate) fn rot(&self, at: u64) -> io::Result<()> {
        let mut state = self.state();
        let mut byte = [0];
        self.durable.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << state.random.below(8);
        self.durable.write_all_at(&byte, at)?;
        state.counted.rotten += 1;
        Ok(())
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Removes all faults and delays.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.delay = Duration::ZERO;
    }

    pub(crate) fn slow_down(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// From now on all requests fail, as without power.
    pub(crate) fn power_off(&self) {
        let mut state = self.state();
        state.is_off = true;
        state.delay = Duration::ZERO;
    }

    /// Restores power. Of the unflushed blocks, `kept_of_thousand` per thousand had reached the
    /// medium, in no order.
    pub(crate) fn power_on(&self, kept_of_thousand: u64) -> io::Result<()> {
        let mut state = self.state();
        state.is_off = false;
        state.faults.clear();
        self.destage(&mut state, |random| random.below(1000) < kept_of_thousand)
    }

    pub(crate) fn counted(&self) -> Counted {
        self.state().counted
    }
}

impl State {
    fn fails(&mut self, op: Op, at: &Range<u64>) -> bool {
        let random = &mut self.random;
        let meets = |f: &Fault| f.meets(op, at);
        let met = self
            .faults
            .iter_mut()
            .find(|f| meets(f) && random.below(1000) < f.of_thousand);
        let Some(fault) = met else { return false };
        if let Some(left) = &mut fault.left {
            *left = left.saturating_sub(1);
        }
        self.faults.retain(|f| f.left != Some(0));
        true
    }
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A range of the disk relative to a buffer that begins at `start`.
fn within(range: &Range<u64>, start: u64) -> Range<usize> {
    (range.start - start) as usize..(range.end - start) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn medium() -> (tempfile::NamedTempFile, Medium) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(10 * BLOCK).expect("its length");
        let medium = Medium::open(file.path(), 1).expect("it opens");
        (file, medium)
    }

    #[test]
    fn a_power_cut_loses_what_was_not_flushed() {
        let (_file, medium) = medium();
        medium.write(4000, &[1; 5000]).expect("written");
        medium.flush().expect("flushed");
        medium.write(4090, &[2; 20]).expect("written");
        let read = medium.read(4080, 40).expect("read");
        assert_eq!(read, [vec![1; 10], vec![2; 20], vec![1; 10]].concat());
        medium.power_off();
        assert!(medium.flush().is_err() && medium.read(0, 1).is_err());
        medium.power_on(0).expect("on");
        assert_eq!(medium.read(4080, 40).expect("read"), vec![1; 40]);
        assert_eq!(medium.counted().lost_blocks, 2);
    }

    #[test]
    fn some_of_it_may_have_reached_the_medium() {
        let (_file, medium) = medium();
        medium.write(0, &[1; 10 * BLOCK as usize]).expect("written");
        medium.power_off();
        medium.power_on(500).expect("on");
        let lost = medium.counted().lost_blocks;
        assert!(0 < lost && lost < 10, "{lost}");
    }

    #[test]
    fn faults_are_met_where_and_as_often_as_said() {
        let (_file, medium) = medium();
        let mut once = Fault::of(Op::Write, std::iter::once(BLOCK..2 * BLOCK).collect());
        once.left = Some(1);
        medium.fail(once);
        medium.write(0, &[1; 4096]).expect("beside it");
        assert!(medium.write(0, &[2; 4097]).is_err());
        assert_eq!(medium.read(0, 1).expect("read"), [1]);
        medium.write(0, &[2; 4097]).expect("over");
        medium.fail(Fault::of(Op::Flush, Vec::new()));
        for _ in 0..3 {
            assert!(medium.flush().is_err());
        }
        medium.heal();
        medium.flush().expect("healed");
        assert_eq!(medium.counted().failed, 4);
    }

    #[test]
    fn one_byte_rots() {
        let (_file, medium) = medium();
        medium.write(0, &[1; 100]).expect("written");
        medium.flush().expect("flushed");
        medium.rot(50).expect("rotten");
        let read = medium.read(0, 100).expect("read");
        let others: Vec<usize> = (0..100).filter(|i| read[*i] != 1).collect();
        assert_eq!(others, [50]);
    }

    #[test]
    fn the_end_of_the_disk_is_its_end() {
        let (_file, medium) = medium();
        assert!(medium.write(10 * BLOCK - 1, &[1, 2]).is_err());
        assert_eq!(medium.read(10 * BLOCK - 1, 10).expect("read").len(), 1);
    }
}
