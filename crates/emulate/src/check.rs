//! Accuracy checks of emulated disks on this host: the mean time of single requests and the rate of
//! a saturated disk, compared with the specification.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_types::SplitMix;

use crate::disk::DirectReader;

/// Times of single reads at random offsets, one after the other.
///
/// # Errors
/// The device cannot be opened for direct I/O, or cannot be read.
pub fn single_reads(
    device: &Path,
    size: u64,
    reads: usize,
    seed: u64,
) -> io::Result<Vec<Duration>> {
    let mut reader = DirectReader::open(device)?;
    let mut random = SplitMix::new(seed);
    let mut times = Vec::with_capacity(reads);
    for _ in 0..reads {
        let offset = random.number() % (size / 4096) * 4096;
        let began = Instant::now();
        reader.read(offset, 1)?;
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Reads per second of `threads` threads that read at random offsets concurrently.
///
/// # Errors
/// The device cannot be opened for direct I/O or read, or a reading thread panicked.
pub fn saturated(device: &Path, size: u64, threads: u64, time: Duration) -> io::Result<f64> {
    let began = Instant::now();
    let read = |seed: u64| -> io::Result<u64> {
        let mut reader = DirectReader::open(device)?;
        let mut random = SplitMix::new(seed);
        let mut reads = 0;
        while began.elapsed() < time {
            reader.read(random.number() % (size / 4096) * 4096, 1)?;
            reads += 1;
        }
        Ok(reads)
    };
    let counts: Vec<io::Result<u64>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|seed| scope.spawn(move || read(seed)))
            .collect();
        let panicked = |_| Err(io::Error::other("a reading thread panicked"));
        started
            .into_iter()
            .map(|t| t.join().unwrap_or_else(panicked))
            .collect()
    });
    let reads: u64 = counts.into_iter().sum::<io::Result<u64>>()?;
    Ok(reads as f64 / began.elapsed().as_secs_f64())
}
