//! Measurement of a disk through a folder on it: reads by depth, size and distance; syncs by number
//! of files and bytes.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_advise::calibration::Medium;
use cairn_advise::{SplitMix, Spread};

/// Alignment and unit of direct reads, in bytes.
const BLOCK_BYTES: usize = 4096;
const DEPTHS: [usize; 5] = [1, 2, 4, 8, 16];
const SIZES_BYTES: [usize; 3] = [BLOCK_BYTES, 64 << 10, 1 << 20];
const SYNC_MEMBERS: [usize; 5] = [1, 2, 4, 8, 24];
const LARGE_BYTES: usize = 1 << 20;
/// Minimum ratio by which a deeper queue must gain.
const GAIN_MIN: f64 = 1.15;
const QUANTILES: usize = 33;

/// Amount of measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) file_bytes: u64,
    pub(super) reads: usize,
    pub(super) syncs: usize,
}

/// Measures the disk of this folder; `report` receives a line for each result.
pub(super) fn measure(
    folder: &Path,
    effort: Effort,
    report: &mut dyn FnMut(&str),
) -> Result<Medium> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join("reads");
    let medium = of_file(&path, effort, report).and_then(|reads| {
        let syncs = syncs(folder, effort, report)?;
        Ok(Medium {
            ..joined(reads, syncs)
        })
    });
    // Removes all files, even after an error.
    let _ = fs::remove_dir_all(folder);
    medium
}

struct Reads {
    channels: u32,
    base: f64,
    byte: f64,
    seek: f64,
    spread: Spread,
}

struct Syncs {
    base: f64,
    member: f64,
    byte: f64,
    cpu: f64,
    spread: Spread,
}

fn joined(reads: Reads, syncs: Syncs) -> Medium {
    Medium {
        channels: reads.channels,
        read_base: reads.base,
        read_byte: reads.byte,
        read_spread: reads.spread,
        seek_whole: reads.seek,
        sync_base: syncs.base,
        sync_member: syncs.member,
        sync_byte: syncs.byte,
        sync_spread: syncs.spread,
        sync_cpu: syncs.cpu,
        hardware: None,
    }
}

fn of_file(path: &Path, effort: Effort, report: &mut dyn FnMut(&str)) -> Result<Reads> {
    let at = || path.display().to_string();
    let mut file = File::create(path).with_context(at)?;
    let mut dice = SplitMix::new(effort.file_bytes);
    let mut chunk = vec![0u8; LARGE_BYTES];
    for _ in 0..effort.file_bytes / LARGE_BYTES as u64 {
        // Different chunks, so that no layer compresses or deduplicates them.
        chunk
            .chunks_mut(8)
            .for_each(|c| c.copy_from_slice(&dice.number().to_le_bytes()[..c.len()]));
        file.write_all(&chunk).with_context(at)?;
    }
    file.sync_all().with_context(at)?;
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(path);
    let file = file.with_context(|| {
        format!(
            "{}: reading past the page cache; choose a folder on a disk with --data",
            path.display()
        )
    })?;
    let mut means = Vec::new();
    let mut first = Vec::new();
    for size in SIZES_BYTES {
        let samples = reads(&file, effort, size, 1, None)?;
        means.push(mean(&samples));
        report(&format!(
            "read {size:>8} B, depth 1: {}",
            describe(&samples)
        ));
        if size == BLOCK_BYTES {
            first = samples;
        }
    }
    let byte = ((means[2] - means[0]) / (SIZES_BYTES[2] - SIZES_BYTES[0]) as f64).max(0.0);
    let mut rates = Vec::new();
    for depth in DEPTHS {
        let started = Instant::now();
        let done = reads(&file, effort, BLOCK_BYTES, depth, None)?.len();
        let rate = done as f64 / started.elapsed().as_secs_f64();
        report(&format!(
            "read {BLOCK_BYTES:>8} B, depth {depth}: {rate:.0}/s"
        ));
        rates.push(rate);
    }
    let near = mean(&reads(
        &file,
        effort,
        BLOCK_BYTES,
        1,
        Some(64 * BLOCK_BYTES as u64),
    )?);
    report(&format!(
        "read {BLOCK_BYTES:>8} B, within 256 KiB: mean {:.0} µs",
        near * 1e6
    ));
    let far = means[0];
    let most = rates.iter().copied().fold(0.0, f64::max);
    let channels = (most / rates[0]).round().clamp(1.0, 16.0);
    Ok(Reads {
        channels: if channels < GAIN_MIN {
            1
        } else {
            channels as u32
        },
        base: (near.min(far) - byte * BLOCK_BYTES as f64).max(1e-6),
        byte,
        // The average distance within the file is a third of it, and the average root 0.53 of the
        // whole's.
        seek: if far > near * GAIN_MIN {
            (far - near) / 0.53
        } else {
            0.0
        },
        spread: Spread::of_samples(&first, QUANTILES),
    })
}

/// Seconds of each read by `depth` threads; at random, or within `reach` of the previous one.
fn reads(
    file: &File,
    effort: Effort,
    size: usize,
    depth: usize,
    reach: Option<u64>,
) -> Result<Vec<f64>> {
    let blocks = (effort.file_bytes - size as u64) / BLOCK_BYTES as u64;
    let each = (effort.reads / depth).max(8);
    let one = |number: u64| -> Result<Vec<f64>> {
        let mut dice = SplitMix::new(number + size as u64);
        let mut memory = vec![0u8; size + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let buffer = &mut memory[start..start + size];
        let mut samples = Vec::with_capacity(each);
        let mut block = dice.number() % blocks;
        for _ in 0..each {
            block = match reach {
                Some(reach) => {
                    let low = block.saturating_sub(reach / BLOCK_BYTES as u64 / 2);
                    (low + dice.number() % (reach / BLOCK_BYTES as u64)).min(blocks)
                }
                None => dice.number() % blocks,
            };
            let started = Instant::now();
            file.read_exact_at(buffer, block * BLOCK_BYTES as u64)
                .context("reading")?;
            samples.push(started.elapsed().as_secs_f64());
        }
        Ok(samples)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth as u64)
            .map(|n| scope.spawn(move || one(n)))
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(samples) => all.extend(samples?),
                Err(_) => anyhow::bail!("a thread that reads has ended before its time"),
            }
        }
        Ok(all)
    })
}

/// Seconds and processor time of one `syncfs` after writing `members` new files of `bytes` bytes.
fn sync_once(folder: &Path, members: usize, bytes: usize) -> Result<(f64, f64)> {
    let content = vec![0x5au8; bytes];
    let mut paths = Vec::new();
    for number in 0..members {
        let path = folder.join(format!("sync-{number}"));
        fs::write(&path, &content).with_context(|| path.display().to_string())?;
        paths.push(path);
    }
    let directory = File::open(folder).with_context(|| folder.display().to_string())?;
    let (started, cpu) = (Instant::now(), thread_seconds());
    rustix::fs::syncfs(&directory).context("syncfs")?;
    let took = (started.elapsed().as_secs_f64(), thread_seconds() - cpu);
    for path in paths {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    Ok(took)
}

/// Seconds of a single sync in this folder: the median of five.
pub(super) fn lone_sync(folder: &Path) -> Result<f64> {
    let mut samples = Vec::new();
    for _ in 0..5 {
        samples.push(sync_once(folder, 1, BLOCK_BYTES)?.0);
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[2])
}

fn syncs(folder: &Path, effort: Effort, report: &mut dyn FnMut(&str)) -> Result<Syncs> {
    let mut points = Vec::new();
    let (mut cpu, mut parts) = (Vec::new(), Vec::new());
    for members in SYNC_MEMBERS {
        let mut samples = Vec::new();
        for _ in 0..effort.syncs {
            let (seconds, processor) = sync_once(folder, members, BLOCK_BYTES)?;
            samples.push(seconds);
            cpu.push(processor);
        }
        report(&format!(
            "sync shared by {members:>2}: {}",
            describe(&samples)
        ));
        let mean = mean(&samples);
        parts.extend(samples.iter().map(|s| s / mean));
        points.push((members as f64, mean));
    }
    let (base, member) = line(&points);
    let mut large = Vec::new();
    for _ in 0..effort.syncs.div_ceil(3) {
        large.push(sync_once(folder, 4, LARGE_BYTES)?.0);
    }
    report(&format!("sync of 4 files of 1 MiB: {}", describe(&large)));
    let small = base + 3.0 * member;
    ensure!(
        base > 0.0,
        "syncs took no time: {} is no disk",
        folder.display()
    );
    Ok(Syncs {
        base,
        member,
        byte: ((mean(&large) - small) / (4 * LARGE_BYTES) as f64).max(0.0),
        cpu: mean(&cpu),
        spread: Spread::of_samples(&parts, QUANTILES),
    })
}

/// Least-squares line through (members, seconds): value at one member, and slope; neither below 0.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let over: f64 = points
        .iter()
        .map(|(x, y)| (x - mean_x) * (y - mean_y))
        .sum();
    let under: f64 = points
        .iter()
        .map(|(x, _)| (x - mean_x) * (x - mean_x))
        .sum();
    let slope = (over / under).max(0.0);
    let least = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    let at_one = mean_y - slope * (mean_x - 1.0);
    (at_one.max(least / 2.0), slope)
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len().max(1) as f64
}

fn describe(samples: &[f64]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| {
        sorted
            .get(((sorted.len() - 1) as f64 * part) as usize)
            .copied()
    };
    let time = |seconds: f64| format!("{:?}", Duration::from_micros((seconds * 1e6) as u64));
    format!(
        "mean {}, p50 {}, p95 {}",
        time(mean(samples)),
        time(at(0.5).unwrap_or_default()),
        time(at(0.95).unwrap_or_default())
    )
}

/// Seconds of processor time of this thread; 0 if the kernel does not report it.
fn thread_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text
        .split_whitespace()
        .next()
        .and_then(|n| n.parse::<f64>().ok());
    first.unwrap_or(0.0) / 1e9
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_through_points() {
        let (base, member) = line(&[(1.0, 2.0), (2.0, 2.5), (5.0, 4.0)]);
        assert!((base - 2.0).abs() < 1e-9 && (member - 0.5).abs() < 1e-9);
        assert_eq!(line(&[(1.0, 3.0), (9.0, 2.0)]).1, 0.0);
    }

    #[test]
    fn a_disk_is_measured_and_nothing_stays() {
        let folder =
            tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let effort = Effort {
            file_bytes: 4 << 20,
            reads: 16,
            syncs: 2,
        };
        let mut lines = Vec::new();
        let inner = folder.path().join("disk");
        let medium = measure(&inner, effort, &mut |line| lines.push(line.to_owned())).unwrap();
        assert!(medium.sync_base > 0.0 && medium.read_base > 0.0 && medium.channels >= 1);
        assert!(
            lines.iter().any(|line| line.contains("depth 16")),
            "{lines:?}"
        );
        assert!(!inner.exists());
    }
}
