//! Reader of the kernel's log files, from their ends: counts devices' errors within some minutes
//! and since the last boot.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cairn_types::calendar;
use regex_lite::Regex;

/// Bytes read from a file's end per step.
const BLOCK_BYTES: u64 = 64 << 10;
/// Maximum length of a line of the kernel's, in bytes.
const LINE_MAX_BYTES: usize = 1 << 20;
/// First messages of a boot.
const STARTS: [&str; 3] = [
    "[    0.000000]",
    "KERNEL supported cpus:",
    "BIOS-provided physical RAM map:",
];
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];

/// Seconds on a calendar without a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocalTime(i64);

impl LocalTime {
    /// `None` for an invalid day or hour.
    fn new(year: i64, month: i64, day: i64, clock: [u32; 3]) -> Option<LocalTime> {
        let [hour, minute, second] = clock;
        let is_time = hour <= 23 && minute <= 59 && second <= 61;
        if !(1..=12).contains(&month)
            || !(1..=calendar::days_in_month(year, month)).contains(&day)
            || !is_time
        {
            return None;
        }
        let days = calendar::days_of(year, month, day);
        let seconds = hour * 3600 + minute * 60 + second;
        Some(LocalTime(days * 86_400 + i64::from(seconds)))
    }

    /// Parses `2026-11-22T15:00:00`, ignoring the rest.
    pub(super) fn parse_iso(text: &str) -> Option<LocalTime> {
        let (date, clock) = text.get(..19)?.split_once('T')?;
        let mut date = date.splitn(3, '-');
        let year = date.next()?.parse().ok()?;
        let month = date.next()?.parse().ok()?;
        let day = date.next()?.parse().ok()?;
        LocalTime::new(year, month, day, clock_of(clock)?)
    }

    fn minutes_before(self, minutes: u64) -> LocalTime {
        let seconds = i64::try_from(minutes.saturating_mul(60)).unwrap_or(i64::MAX);
        LocalTime(self.0.saturating_sub(seconds))
    }

    fn year_and_month(self) -> (i64, usize) {
        let (year, month, _) = calendar::date_of(self.0.div_euclid(86_400));
        (year, month as usize - 1)
    }
}

fn clock_of(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.splitn(3, ':').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

/// Infers the year of lines without one: that of the following line, or the year before.
struct Calendar {
    year: i64,
    /// Month of the following line, from 0.
    month: usize,
}

impl Calendar {
    fn of(now: LocalTime) -> Calendar {
        let (year, month) = now.year_and_month();
        Calendar { year, month }
    }

    fn time_of(&mut self, line: &str) -> Option<LocalTime> {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_ascii_lowercase();
        let Some(month) = MONTHS.iter().position(|month| *month == name) else {
            return LocalTime::parse_iso(line);
        };
        if (month, self.month) == (11, 0) {
            self.year -= 1;
        }
        self.month = month;
        let day = words.next()?.parse().ok()?;
        LocalTime::new(self.year, month as i64 + 1, day, clock_of(words.next()?)?)
    }
}

/// Log files to read, and patterns to count.
pub(super) struct KernelLog {
    /// Glob pattern, which includes rotated files.
    pub(super) files: String,
    pub(super) minutes: u64,
    pub(super) patterns: Vec<Regex>,
}

impl KernelLog {
    /// Counts of matches per device.
    pub(super) fn errors(&self, root: &Path, now: LocalTime) -> Result<BTreeMap<String, u64>> {
        let since = now.minutes_before(self.minutes);
        let mut files = Vec::new();
        for path in glob(root, &self.files) {
            let modified = fs::metadata(&path).and_then(|meta| meta.modified());
            let modified = modified.with_context(|| format!("cannot read {}", path.display()))?;
            files.push((modified, path));
        }
        files.sort_by(|one, other| other.cmp(one));
        let mut calendar = Calendar::of(now);
        let mut errors = BTreeMap::new();
        for (_, path) in files {
            let file = File::open(&path);
            let file = file.with_context(|| format!("Unable to open {}", path.display()))?;
            let mut is_old = false;
            let read = backwards(&file, |line| {
                let line = String::from_utf8_lossy(line);
                is_old = STARTS.iter().any(|start| line.contains(start));
                if is_old {
                    return false;
                }
                let Some(time) = calendar.time_of(&line) else {
                    return true;
                };
                is_old = time <= since;
                if !is_old {
                    self.count(&line, &mut errors);
                }
                !is_old
            });
            read.with_context(|| format!("cannot read {}", path.display()))?;
            if is_old {
                break;
            }
        }
        Ok(errors)
    }

    /// Counts a line's match; the device's name is a pattern's first group, or the whole match
    /// without one.
    fn count(&self, line: &str, errors: &mut BTreeMap<String, u64>) {
        for pattern in &self.patterns {
            for found in pattern.captures_iter(line) {
                let name = found.get(1).or_else(|| found.get(0));
                let name = name.map_or("", |name| name.as_str());
                *errors.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
}

/// Passes a file's lines to `take`, last one first, until it returns true.
fn backwards(file: &File, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let mut at = file.metadata()?.len();
    // Start of a line whose end has been read.
    let mut rest: Vec<u8> = Vec::new();
    while at > 0 {
        let from = at.saturating_sub(BLOCK_BYTES);
        let mut block = vec![0; (at - from) as usize];
        file.read_exact_at(&mut block, from)?;
        at = from;
        block.append(&mut rest);
        let mut lines = block.split(|byte| *byte == b'\n');
        rest = lines.next().unwrap_or_default().to_vec();
        let whole: Vec<&[u8]> = lines.collect();
        for line in whole.into_iter().rev().filter(|line| !line.is_empty()) {
            if !take(line) {
                return Ok(());
            }
        }
        if rest.len() > LINE_MAX_BYTES {
            rest.clear();
        }
    }
    if !rest.is_empty() {
        take(&rest);
    }
    Ok(())
}

/// Paths below `root` that match a shell pattern.
fn glob(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let is_plain = !part.contains(['*', '?', '[']);
        let mut next = Vec::new();
        for folder in found {
            if is_plain {
                next.push(folder.join(part));
                continue;
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            // Hidden files match only a pattern that starts with a dot.
            let names = names.filter(|name| !name.starts_with('.') || part.starts_with('.'));
            let names = names.filter(|name| matches(part.as_bytes(), name.as_bytes()));
            next.extend(names.map(|name| folder.join(name)));
        }
        found = next;
    }
    found.retain(|path| path.exists());
    found
}

/// Matches `*`, `?`, `[abc]`, `[a-c]` and `[!abc]`, as in shells.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.first(), name.first()) {
        (None, _) => name.is_empty(),
        (Some(b'*'), _) => (0..=name.len()).any(|at| matches(&pattern[1..], &name[at..])),
        (Some(b'['), Some(byte)) => match class(&pattern[1..]) {
            Some((inside, rest)) => is_in(inside, *byte) && matches(rest, &name[1..]),
            None => *byte == b'[' && matches(&pattern[1..], &name[1..]),
        },
        (Some(b'?'), Some(_)) => matches(&pattern[1..], &name[1..]),
        (Some(one), Some(other)) => one == other && matches(&pattern[1..], &name[1..]),
        (Some(_), None) => false,
    }
}

/// Splits off a bracket expression; a bracket in first position is literal.
fn class(pattern: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = 1 + usize::from(pattern.first() == Some(&b'!'));
    let end = first
        + pattern
            .get(first..)?
            .iter()
            .position(|byte| *byte == b']')?;
    Some((&pattern[..end], &pattern[end + 1..]))
}

fn is_in(class: &[u8], byte: u8) -> bool {
    let (is_not, mut class) = match class.strip_prefix(b"!") {
        Some(class) => (true, class),
        None => (false, class),
    };
    let mut found = false;
    while let [first, rest @ ..] = class {
        if let [b'-', last, rest @ ..] = rest {
            found |= (*first..=*last).contains(&byte);
            class = rest;
        } else {
            found |= *first == byte;
            class = rest;
        }
    }
    found != is_not
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> LocalTime {
        LocalTime::parse_iso(text).unwrap()
    }

    #[test]
    fn days_follow_each_other() {
        let day = |text: &str| at(&format!("{text}T00:00:00")).0 / 86_400;
        assert_eq!(day("2024-03-01") - day("2024-02-28"), 2);
        assert_eq!(day("2026-03-01") - day("2026-02-28"), 1);
        assert_eq!(day("2027-01-01") - day("2026-01-01"), 365);
        assert!(LocalTime::parse_iso("2026-02-29T00:00:00").is_none());
        for text in ["2026-11-22", "2024-02-29", "2026-01-01", "2000-12-31"] {
            let (year, month) = at(&format!("{text}T12:00:00")).year_and_month();
            assert_eq!(format!("{year}-{:02}", month + 1), text[..7], "{text}");
        }
    }

    #[test]
    fn last_years_lines() {
        let mut calendar = Calendar::of(at("2026-01-02T00:00:00"));
        let time = calendar.time_of("Jan  1 10:00:00 host kernel: x");
        assert_eq!(time, Some(at("2026-01-01T10:00:00")));
        let time = calendar.time_of("Dec 31 10:00:00 host kernel: x");
        assert_eq!(time, Some(at("2025-12-31T10:00:00")));
        let time = calendar.time_of("2025-12-30T10:00:00.123+01:00 host kernel: x");
        assert_eq!(time, Some(at("2025-12-30T10:00:00")));
        assert_eq!(calendar.time_of("no time at all"), None);
    }

    #[test]
    fn lines_from_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let lines: Vec<String> = (0..20_000).map(|i| format!("line {i}")).collect();
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let file = File::open(&path).unwrap();
        let mut found = Vec::new();
        let push = |line: &[u8]| {
            found.push(String::from_utf8_lossy(line).into_owned());
            true
        };
        backwards(&file, push).unwrap();
        found.reverse();
        assert_eq!(found, lines);
    }

    #[test]
    fn only_since_the_machine_started_and_in_rotated_files() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("var/log");
        fs::create_dir_all(&log).unwrap();
        let line = |minute: u32| format!("Nov 22 14:{minute:02}:00 h kernel: error on sdb\n");
        let start = "Nov 22 14:40:00 h kernel: [    0.000000] Linux version 6\n";
        fs::write(log.join("kern.log.1"), line(30) + start + &line(41)).unwrap();
        fs::write(log.join("kern.log.2.gz"), line(59)).unwrap();
        let rotated = File::open(log.join("kern.log.1")).unwrap();
        let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        rotated.set_modified(hour_ago).unwrap();
        fs::write(log.join("kern.log"), line(50) + &line(51)).unwrap();
        let kernel_log = KernelLog {
            files: "/var/log/kern.*[!.][!g][!z]".into(),
            minutes: 60,
            patterns: vec![Regex::new(r"\berror\b.*\b(sd[a-z])\b").unwrap()],
        };
        let errors = kernel_log.errors(root.path(), at("2026-11-22T15:00:00"));
        assert_eq!(errors.unwrap(), BTreeMap::from([("sdb".to_owned(), 3)]));
    }

    #[test]
    fn patterns_of_names() {
        let is = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(is("kern.*[!.][!g][!z]", "kern.log"));
        assert!(is("kern.*[!.][!g][!z]", "kern.log-20261122"));
        assert!(!is("kern.*[!.][!g][!z]", "kern.log.2.gz"));
        assert!(is("[a-c]?[]x]", "bz]") && !is("[a-c]?[]x]", "dzx"));
        assert!(is("a[b", "a[b"));
    }
}
