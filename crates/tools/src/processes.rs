//! `swift-oldies` and `swift-orphans`: lists processes of Swift's programs, Cairn's or upstream's,
//! that have run for long, or that no pid file contains.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};

/// List old processes of Swift
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Oldies {
    /// Those that are at least so many hours old
    #[arg(short, long = "age", value_name = "HOURS", default_value_t = 720)]
    age: u64,
    /// Only their ids
    #[arg(short, long)]
    pids: bool,
}

/// List, and end, processes of Swift that are in no file of process ids
///
/// Those with the word once in their arguments are left out.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
pub(crate) struct Orphans {
    /// Those that are at least so many hours old
    #[arg(short, long = "age", value_name = "HOURS", default_value_t = 24)]
    age: u64,
    /// Send this signal to them: a name or a number
    #[arg(short, long = "kill", value_name = "SIGNAL")]
    kill: Option<String>,
    /// Whole lines, however long
    #[arg(short, long)]
    wide: bool,
    /// The folder of files with process ids
    #[arg(short, long, value_name = "DIR", default_value = "/var/run/swift")]
    run_dir: PathBuf,
}

/// A process of one of Swift's programs.
#[derive(Clone, Debug, PartialEq)]
struct Process {
    pid: i32,
    parent: i32,
    hours: u64,
    /// Arguments after `swift-`.
    arguments: String,
}

pub(crate) fn oldies(options: Oldies, out: &mut dyn Write) -> Result<u8> {
    let mut old = all(Path::new("/proc"))?;
    old.retain(|process| process.hours >= options.age);
    match options.pids {
        true => old
            .iter()
            .try_for_each(|process| writeln!(out, "{}", process.pid))?,
        false => list(&old, false, out)?,
    }
    Ok(0)
}

pub(crate) fn orphans(options: Orphans, out: &mut dyn Write) -> Result<u8> {
    let signal = options.kill.as_deref().map(signal_of).transpose()?;
    let known = known_pids(&options.run_dir);
    let found = orphans_of(all(Path::new("/proc"))?, &known, options.age);
    list(&found, options.wide, out)?;
    let (Some(signal), false) = (signal, found.is_empty()) else {
        return Ok(0);
    };
    let name = options.kill.as_deref().unwrap_or_default();
    write!(
        out,
        "Sending processes {name} ({}) signal...",
        signal.as_raw()
    )?;
    for process in &found {
        let pid = Pid::from_raw(process.pid).context("a process id of 0")?;
        kill_process(pid, signal).with_context(|| format!("process {pid:?}"))?;
    }
    writeln!(out, "Done.")?;
    Ok(0)
}

/// Processes that are neither in a pid file nor children of one that is.
fn orphans_of(all: Vec<Process>, known: &BTreeSet<i32>, age: u64) -> Vec<Process> {
    let is_orphan = |process: &Process| {
        let mut words = process.arguments.split(' ');
        !known.contains(&process.pid)
            && !known.contains(&process.parent)
            && !process.arguments.starts_with("orphans")
            && words.all(|word| word != "once" && word != "--once")
            && process.hours >= age
    };
    all.into_iter().filter(is_orphan).collect()
}

/// Process ids in the files of the folder and its subfolders.
fn known_pids(folder: &Path) -> BTreeSet<i32> {
    let mut known = BTreeSet::new();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.to_string_lossy();
        if path.is_dir() {
            known.extend(known_pids(&path));
        } else if name.ends_with(".pid") || name.ends_with(".pid.d") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            known.extend(
                text.split_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            );
        }
    }
    known
}

fn signal_of(text: &str) -> Result<Signal> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = match name {
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "ABRT" => Signal::ABORT,
        "KILL" => Signal::KILL,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "TERM" => Signal::TERM,
        "CONT" => Signal::CONT,
        "STOP" => Signal::STOP,
        number => {
            let number = number.parse().ok().and_then(Signal::from_named_raw);
            return number
                .ok_or_else(|| anyhow!("Could not translate '{text}' to a signal number."));
        }
    };
    Ok(named)
}

/// All processes in `proc`, in order of their ids.
fn all(proc: &Path) -> Result<Vec<Process>> {
    let uptime = fs::read_to_string(proc.join("uptime"))
        .with_context(|| format!("cannot read {}", proc.join("uptime").display()))?;
    let uptime: f64 = match uptime.split_whitespace().next().map(str::parse) {
        Some(Ok(seconds)) => seconds,
        _ => bail!("{} has no seconds in it", proc.join("uptime").display()),
    };
    let entries = fs::read_dir(proc).with_context(|| format!("cannot read {}", proc.display()))?;
    let pids = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse::<i32>().ok()
    });
    let mut found: Vec<Process> = pids
        // A process that has ended meanwhile is skipped.
        .filter_map(|pid| process(&proc.join(pid.to_string()), pid, uptime))
        .collect();
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn process(folder: &Path, pid: i32, uptime: f64) -> Option<Process> {
    let words = fs::read(folder.join("cmdline")).ok()?;
    let words: Vec<String> = words
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let arguments = of_swift(&words)?;
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // Fields after the name, which may contain blanks and brackets: state, parent, and as the
    // twentieth the start time in ticks since boot.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let started =
        fields.get(19)?.parse::<f64>().ok()? / rustix::param::clock_ticks_per_second() as f64;
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        hours: ((uptime - started).max(0.0) / 3600.0) as u64,
        arguments,
    })
}

/// The part after `swift-` of a program's own name, or of the script that Python runs.
fn of_swift(words: &[String]) -> Option<String> {
    let name = |word: &String| Some(Path::new(word).file_name()?.to_str()?.to_owned());
    let mut words = words;
    if name(words.first()?)?.starts_with("python") {
        words = &words[1..];
    }
    let program = name(words.first()?)?.strip_prefix("swift-")?.to_owned();
    let rest = words[1..].iter().filter(|word| !word.is_empty());
    Some(rest.fold(program, |line, word| line + " " + word))
}

fn list(found: &[Process], wide: bool, out: &mut dyn Write) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let widest = |title: &str, texts: &mut dyn Iterator<Item = String>| {
        texts
            .map(|text| text.len())
            .chain([title.len()])
            .max()
            .unwrap_or(0)
    };
    let hours = widest("Hours", &mut found.iter().map(|p| p.hours.to_string()));
    let pids = widest("PID", &mut found.iter().map(|p| p.pid.to_string()));
    let room = if wide { usize::MAX } else { 78 - hours - pids };
    writeln!(out, "{:>hours$} {:>pids$} Command", "Hours", "PID")?;
    for process in found {
        let line: String = process.arguments.chars().take(room).collect();
        writeln!(
            out,
            "{:>hours$} {:>pids$} {line}",
            process.hours, process.pid
        )?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A fake `proc` with these processes: id, parent, seconds since their start, words.
    fn proc(processes: &[(i32, i32, u64, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("uptime"), "1000000.50 7.0\n").unwrap();
        let ticks = rustix::param::clock_ticks_per_second();
        for (pid, parent, age, words) in processes {
            let own = folder.path().join(pid.to_string());
            fs::create_dir(&own).unwrap();
            let started = (1_000_000 - age) * ticks;
            let zeros = "0 ".repeat(17);
            let stat = format!("{pid} (a) b)) S {parent} {zeros}{started} 9 9\n");
            fs::write(own.join("stat"), stat).unwrap();
            fs::write(own.join("cmdline"), words.replace(' ', "\0") + "\0").unwrap();
        }
        folder
    }

    #[test]
    fn whose_processes() {
        let proc = proc(&[
            (
                7,
                1,
                90_000,
                "/usr/bin/python3 /usr/local/bin/swift-object-server /etc/o.conf",
            ),
            (8, 7, 7_300, "/usr/bin/swift-proxy-server /etc/p.conf"),
            (
                9,
                1,
                90_000,
                "/usr/bin/swift-object-auditor /etc/o.conf once",
            ),
            (10, 1, 90_000, "/usr/bin/vim /etc/swift-notes"),
            (11, 1, 90_000, "swift-object-updater x"),
        ]);
        let all = all(proc.path()).unwrap();
        let seen: Vec<_> = all.iter().map(|p| (p.pid, p.hours)).collect();
        assert_eq!(seen, [(7, 25), (8, 2), (9, 25), (11, 25)]);
        assert_eq!(all[0].arguments, "object-server /etc/o.conf");
        let pids = |found: Vec<Process>| found.iter().map(|p| p.pid).collect::<Vec<_>>();
        assert_eq!(pids(orphans_of(all.clone(), &BTreeSet::from([7]), 0)), [11]);
        assert_eq!(
            pids(orphans_of(all.clone(), &BTreeSet::new(), 2)),
            [7, 8, 11]
        );
        assert!(orphans_of(all.clone(), &BTreeSet::new(), 26).is_empty());
        let mut text = Vec::new();
        list(&all, false, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().next(), Some("Hours PID Command"));
        assert_eq!(
            text.lines().nth(1),
            Some("   25   7 object-server /etc/o.conf")
        );
    }

    #[test]
    fn files_of_ids() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("object-server")).unwrap();
        fs::write(folder.path().join("object-server/1.pid"), "41\n").unwrap();
        fs::write(folder.path().join("proxy-server.pid"), "42").unwrap();
        fs::write(folder.path().join("notes"), "43").unwrap();
        assert_eq!(known_pids(folder.path()), BTreeSet::from([41, 42]));
    }

    #[test]
    fn signals() {
        assert_eq!(signal_of("TERM").unwrap(), Signal::TERM);
        assert_eq!(signal_of("sigkill").unwrap(), Signal::KILL);
        assert_eq!(signal_of("15").unwrap(), Signal::TERM);
        assert!(signal_of("nothing").is_err());
    }
}
