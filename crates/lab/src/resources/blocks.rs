//! Distances between successive disk I/Os, from the kernel's tracepoint `block/block_rq_issue`.
//!
//! A separate trace instance is created below tracefs, so that other tracing is not affected; it is
//! removed when the tracer is dropped. Needs root, or a tracefs mounted for us. A line ends with
//! `8,0 R 4096 () 2048 + 8 none,0,0 [fio]`: device, kind, bytes, command, first sector, sectors;
//! older kernels omit what follows the sectors, except for the name.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::record::DistanceSample;

const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Number of powers of two that a distance in sectors can have.
const POWERS: usize = 64;
/// Threshold of "distant" in published studies, in blocks.
const FAR_BLOCKS: u64 = 125_000;
const FARTHER: u64 = 2_500_000;
/// Maximum bytes read between two samples; more is skipped, so that tracing does not become a load.
const BYTES_MAX: usize = 32 << 20;

fn root() -> Option<&'static Path> {
    ROOTS
        .iter()
        .map(Path::new)
        .find(|root| root.join("events/block/block_rq_issue").exists())
}

/// Is tracing possible? The error is the reason.
pub(super) fn permitted() -> Result<(), String> {
    Tracer::start().map(|_| ())
}

/// Reader of issued I/Os.
#[derive(Debug)]
pub(super) struct Tracer {
    instance: PathBuf,
    pipe: File,
    names: HashMap<(u32, u32), String>,
    last_end: HashMap<(u32, u32), u64>,
    partial: String,
}

impl Tracer {
    pub(super) fn start() -> Result<Self, String> {
        let why = |error: std::io::Error| {
            format!(
                "distances between disk I/Os are not recorded: the kernel's block tracepoints \
                 cannot be used here ({error}); run as root with tracefs mounted"
            )
        };
        let root = root().ok_or_else(|| why(ErrorKind::NotFound.into()))?;
        let instance = root
            .join("instances")
            .join(format!("cairn-lab-{}", std::process::id()));
        match fs::create_dir(&instance) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(why(error)),
            _ => {}
        }
        let set = || {
            fs::write(instance.join("events/block/block_rq_issue/enable"), "1")?;
            let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            OpenOptions::new()
                .read(true)
                .custom_flags(nonblocking)
                .open(instance.join("trace_pipe"))
        };
        match set() {
            Ok(pipe) => Ok(Self {
                instance,
                pipe,
                names: HashMap::new(),
                last_end: HashMap::new(),
                partial: String::new(),
            }),
            Err(error) => {
                let _ = fs::remove_dir(&instance);
                Err(why(error))
            }
        }
    }

    /// The I/Os issued since the last call, by device.
    pub(super) fn take(&mut self) -> BTreeMap<String, DistanceSample> {
        let mut samples = BTreeMap::new();
        let mut buffer = vec![0; 64 * 1024];
        let mut taken = 0;
        while let Ok(read @ 1..) = self.pipe.read(&mut buffer) {
            taken += read;
            if taken > BYTES_MAX {
                break;
            }
            let text =
                std::mem::take(&mut self.partial) + &String::from_utf8_lossy(&buffer[..read]);
            let (lines, partial) = text.rsplit_once('\n').unwrap_or(("", &text));
            for line in lines.lines() {
                self.line(line, &mut samples);
            }
            partial.clone_into(&mut self.partial);
        }
        samples
    }

    fn line(&mut self, line: &str, samples: &mut BTreeMap<String, DistanceSample>) {
        let Some(issue) = parse(line) else { return };
        let end = issue.sector + issue.sectors;
        let Some(last_end) = self.last_end.insert(issue.device, end) else {
            return;
        };
        let name = self
            .names
            .entry(issue.device)
            .or_insert_with(|| device_name(issue.device));
        let sample = samples.entry(name.clone()).or_default();
        count(sample, issue.sector.abs_diff(last_end));
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // An instance whose pipe is open cannot be removed; events are at least disabled in any
        // case.
        let _ = fs::write(self.instance.join("events/enable"), "0");
        if let Ok(null) = File::open("/dev/null") {
            self.pipe = null;
        }
        let _ = fs::remove_dir(&self.instance);
    }
}

fn count(sample: &mut DistanceSample, distance: u64) {
    let power = if distance == 0 {
        0
    } else {
        distance.ilog2() as usize + 1
    };
    if sample.counts.len() <= power {
        sample.counts.resize(power + 1, 0);
    }
    debug_assert!(power <= POWERS);
    sample.counts[power] += 1;
    sample.beyond_125k += u64::from(distance > FAR_BLOCKS);
    sample.beyond_2500k += u64::from(distance > FARTHER);
}

#[derive(Debug, PartialEq)]
struct Issue {
    device: (u32, u32),
    sector: u64,
    sectors: u64,
}

/// Parses a line; `None` for other lines, and for flushes, which have no position.
fn parse(line: &str) -> Option<Issue> {
    let rest = line.split_once("block_rq_issue: ")?.1;
    let (device, rest) = rest.split_once(' ')?;
    let (major, minor) = device.split_once(',')?;
    let (before, after) = rest.split_once(" + ")?;
    let sector = before.rsplit(' ').next()?.parse().ok()?;
    let sectors = after.split(' ').next()?.parse().ok()?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    (sectors > 0).then_some(Issue {
        device,
        sector,
        sectors,
    })
}

/// Name of a device, such as `sda` for 8:0.
fn device_name((major, minor): (u32, u32)) -> String {
    fs::read_link(format!("/sys/dev/block/{major}:{minor}"))
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| format!("{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_old_and_new_kernels() {
        let old = "fio-1 [0] d..1 5.0: block_rq_issue: 8,16 WS 4096 () 2048 + 8 [fio]";
        let new = "fio-1 [0] d..1 5.0: block_rq_issue: 8,16 WS 4096 () 2048 + 8 none,0,0 [fio]";
        let issue = Issue {
            device: (8, 16),
            sector: 2048,
            sectors: 8,
        };
        assert_eq!(parse(old).as_ref(), Some(&issue));
        assert_eq!(parse(new).as_ref(), Some(&issue));
        let flush = "k-1 [0] d..1 5.0: block_rq_issue: 8,0 FF 0 () 0 + 0 [k]";
        assert_eq!(parse(flush), None);
        assert_eq!(parse("CPU:0 [LOST 12 EVENTS]"), None);
    }

    #[test]
    fn distances_are_counted_by_power() {
        let mut sample = DistanceSample::default();
        for distance in [0, 1, 2, 3, 200_000, 3_000_000] {
            count(&mut sample, distance);
        }
        assert_eq!(sample.counts[..3], [1, 1, 2]);
        assert_eq!((sample.beyond_125k, sample.beyond_2500k), (2, 1));
    }
}
