//! Summaries of numbers from many servers, and formatting of times.

use std::io::{self, Write};

use cairn_types::Timestamp;
use serde_json::Value;

use super::scout::{Host, now};

pub(super) const LINE: &str =
    "===============================================================================";

/// Summary of one number over all servers, some of which may not report it.
#[derive(Debug, PartialEq)]
pub(super) struct Stats {
    low: f64,
    high: f64,
    total: f64,
    reported: usize,
    number_none: usize,
}

impl Stats {
    /// `None` if no server reported the number.
    pub(super) fn of(values: &[Option<f64>]) -> Option<Stats> {
        let told: Vec<f64> = values.iter().copied().flatten().collect();
        let first = *told.first()?;
        Some(Stats {
            low: told.iter().copied().fold(first, f64::min),
            high: told.iter().copied().fold(first, f64::max),
            total: told.iter().sum(),
            reported: told.len(),
            number_none: values.len() - told.len(),
        })
    }

    fn line(&self, name: &str) -> String {
        let average = self.total / self.reported as f64;
        let all = self.reported + self.number_none;
        let none = self.number_none as f64 * 100.0 / all as f64;
        format!(
            "[{name}] low: {}, high: {}, avg: {average:.1}, total: {}, Failed: {none:.1}%, \
             no_result: {}, reported: {}",
            self.low.trunc(),
            self.high.trunc(),
            self.total.trunc(),
            self.number_none,
            self.reported
        )
    }
}

/// Prints the summary, or that there are no values (under the name `absent`).
pub(super) fn print(
    out: &mut dyn Write,
    name: &str,
    absent: &str,
    values: &[Option<f64>],
) -> io::Result<()> {
    match Stats::of(values) {
        Some(stats) => writeln!(out, "{}", stats.line(name)),
        None => writeln!(out, "[{absent}] - No hosts returned valid data."),
    }
}

pub(super) fn number(value: &Value, name: &str) -> Option<f64> {
    value.get(name).and_then(Value::as_f64)
}

/// Formats a time as `2014-06-11 05:31:17`, UTC.
pub(super) fn clock(seconds: f64) -> String {
    let time = Timestamp::from_secs(seconds.max(0.0) as u64).isoformat();
    time[..19].replace('T', " ")
}

fn ago(seconds: f64) -> String {
    let mut elapsed = now() - seconds;
    let mut unit = "seconds";
    for (size, next) in [(60.0, "minutes"), (60.0, "hours"), (24.0, "days")] {
        if elapsed < size {
            break;
        }
        elapsed /= size;
        unit = next;
    }
    format!("{} {unit}", elapsed.trunc())
}

/// Prints the servers with the oldest and the newest completion; 0 means never.
pub(super) fn print_completions(
    out: &mut dyn Write,
    last: &[(Host, Option<f64>)],
) -> io::Result<()> {
    let told = || {
        last.iter()
            .filter_map(|(host, time)| Some((host, (*time)?)))
    };
    let oldest = told().reduce(|a, b| if b.1 < a.1 { b } else { a });
    if let Some((host, time)) = oldest {
        let host = host.netloc();
        if time == 0.0 {
            writeln!(out, "Oldest completion was NEVER by {host}.")?;
        } else {
            let (clock, ago) = (clock(time), ago(time));
            writeln!(out, "Oldest completion was {clock} ({ago} ago) by {host}.")?;
        }
    }
    let newest = told()
        .filter(|(_, time)| *time > 0.0)
        .reduce(|a, b| if b.1 > a.1 { b } else { a });
    if let Some((host, time)) = newest {
        let (clock, ago, host) = (clock(time), ago(time), host.netloc());
        writeln!(
            out,
            "Most recent completion was {clock} ({ago} ago) by {host}."
        )?;
    }
    Ok(())
}

/// Formats a size in the largest unit of a thousand that gives a whole number.
pub(super) fn size(bytes: f64) -> String {
    let mut bytes = bytes.trunc();
    for unit in ["bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"] {
        if bytes < 1000.0 {
            return format!("{bytes} {unit}");
        }
        bytes = (bytes / 1000.0).trunc();
    }
    format!("{bytes} YB")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_one_line() {
        let stats = Stats::of(&[Some(1.5), None, Some(4.0)]).unwrap();
        let line = stats.line("x");
        assert_eq!(
            line,
            "[x] low: 1, high: 4, avg: 2.8, total: 5, Failed: 33.3%, no_result: 1, reported: 2"
        );
        assert_eq!(Stats::of(&[None]), None);
        assert_eq!(clock(1_402_464_677.9), "2014-06-11 05:31:17");
        assert_eq!(
            (size(999.0), size(1_234_567.0)),
            ("999 bytes".into(), "1 MB".into())
        );
    }

    #[test]
    fn who_finished_when() {
        let host = |port| Host {
            ip: "127.0.0.1".into(),
            port,
        };
        let mut out = Vec::new();
        let last = [
            (host(1), Some(0.0)),
            (host(2), None),
            (host(3), Some(now() - 90.0)),
        ];
        print_completions(&mut out, &last).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("Oldest completion was NEVER by 127.0.0.1:1.\nMost recent"));
        assert!(
            text.ends_with("(1 minutes ago) by 127.0.0.1:3.\n"),
            "{text}"
        );
    }
}
