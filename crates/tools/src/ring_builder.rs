//! `cairn ring …`, which is also `swift-ring-builder …`: the same verbs, argument forms, files and
//! exit codes (0 done, 1 done with a warning or nothing to do, 2 error).
//!
//! `NAME.ring.gz` and `backups/` are in the folder of `NAME.builder`; each written version is kept
//! in `backups/`, named by its time in seconds.

mod composer;
mod edit;
mod lock;
mod options;
mod part_power;
mod rebalance;
mod report;
mod settings;
mod show;
mod usage;
mod write;

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_ring::{BuilderError, RingBuilder, RingError};

pub use composer::run as run_composer;

pub const EXIT_SUCCESS: i32 = 0;
pub const EXIT_WARNING: i32 = 1;
pub const EXIT_ERROR: i32 = 2;

/// Runs one command. `args` are the arguments after the program's name:
/// `["object.builder", "rebalance", "--seed", "1"]`. Returns the exit code.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    run_with(args, out, err, &mut io::stdin().lock(), unix_now())
}

/// Runs one command as the program of that name (`ring-builder`, `ring-builder-safe` or
/// `ring-composer`), on the process's own streams.
pub fn run_as(program: &str, args: &[String]) -> ExitCode {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    let run = match program {
        "ring-composer" => run_composer,
        "ring-builder-safe" => run_locked,
        _ => run,
    };
    let code = run(args, &mut out, &mut err);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Runs one command like [`run`] while holding the lock of the builder's directory, like
/// `swift-ring-builder-safe`. Waits up to fifteen seconds for the lock.
pub fn run_locked(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> i32 {
    let Some(name) = args.first() else {
        return run(args, out, err);
    };
    match lock::hold(&RingFiles::named(name).builder) {
        Ok(_held) => run(args, out, err),
        Err(reason) => {
            // If even this line cannot be written, nothing else can be done.
            let _ = writeln!(out, "Ring/builder dir currently locked: {reason}");
            EXIT_ERROR
        }
    }
}

fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Runs one command with the given answers to questions and the given clock.
pub(crate) fn run_with(
    args: &[String],
    out: &mut dyn Write,
    err: &mut dyn Write,
    input: &mut dyn BufRead,
    now: u64,
) -> i32 {
    let Some(name) = args.first() else {
        let written = usage::overview(out);
        return written.map_or(EXIT_ERROR, |()| EXIT_SUCCESS);
    };
    if matches!(name.as_str(), "-h" | "--help" | "help") {
        let written = usage::overview(out);
        return written.map_or(EXIT_ERROR, |()| EXIT_SUCCESS);
    }
    let mut session = Session {
        files: RingFiles::named(name),
        out,
        err,
        input,
        now,
    };
    let stopped = match session.dispatch(name, args.get(1).map(String::as_str), &args[1..]) {
        Ok(status) => return status,
        Err(stopped) => stopped,
    };
    if !stopped.message.is_empty() {
        // The exit code is still returned if the terminal is gone.
        let _ = writeln!(session.out, "{}", stopped.message);
    }
    stopped.status
}

/// Reasons why a command ends early.
#[derive(Debug)]
struct Stop {
    message: String,
    status: i32,
}

impl Stop {
    fn error(message: impl Into<String>) -> Self {
        Stop {
            message: message.into(),
            status: EXIT_ERROR,
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::error(format!("cannot write: {error}"))
    }
}

impl From<BuilderError> for Stop {
    fn from(error: BuilderError) -> Self {
        Stop::error(error.to_string())
    }
}

impl From<RingError> for Stop {
    fn from(error: RingError) -> Self {
        Stop::error(error.to_string())
    }
}

impl From<cairn_ring::search::SearchError> for Stop {
    fn from(error: cairn_ring::search::SearchError) -> Self {
        Stop::error(error.to_string())
    }
}

impl From<cairn_ring::AddressError> for Stop {
    fn from(error: cairn_ring::AddressError) -> Self {
        Stop::error(error.to_string())
    }
}

type Outcome = Result<i32, Stop>;

/// Paths of a ring's files.
struct RingFiles {
    builder: PathBuf,
    ring: PathBuf,
    backups: PathBuf,
}

impl RingFiles {
    /// The files for `x.builder`, `x.ring.gz` or plain `x`.
    fn named(name: &str) -> RingFiles {
        let (builder, ring) = if let Some(stem) = name.strip_suffix(".ring.gz") {
            (format!("{stem}.builder"), name.to_owned())
        } else {
            let stem = name.strip_suffix(".builder").unwrap_or(name);
            (name.to_owned(), format!("{stem}.ring.gz"))
        };
        let builder = PathBuf::from(builder);
        RingFiles {
            backups: builder.with_file_name("backups"),
            builder,
            ring: PathBuf::from(ring),
        }
    }

    fn backup_of(&self, file: &Path, now: u64) -> PathBuf {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        self.backups.join(format!("{now}.{name}"))
    }
}

/// Input, output and clock of one command.
struct Session<'s> {
    files: RingFiles,
    out: &'s mut dyn Write,
    err: &'s mut dyn Write,
    input: &'s mut dyn BufRead,
    /// Seconds since 1970.
    now: u64,
}

impl Session<'_> {
    /// Dispatches a verb. `args` starts with the verb, so that `args[1]` is the verb's first
    /// argument.
    fn dispatch(&mut self, name: &str, verb: Option<&str>, args: &[String]) -> Outcome {
        let verb = verb.unwrap_or("default");
        let rest = args.get(1..).unwrap_or_default();
        if verb != "default" && usage::of(verb).is_none() {
            return Err(Stop::error(format!(
                "Unknown command: {verb}\nCommands: {}",
                usage::verbs().join(", ")
            )));
        }
        if rest.iter().any(|arg| arg == "-h" || arg == "--help") {
            writeln!(self.out, "{}", usage::of(verb).unwrap_or_default())?;
            return Ok(EXIT_SUCCESS);
        }
        match verb {
            "create" => return self.create(rest),
            "version" => return self.version(),
            "write_builder" => return self.write_builder(rest),
            _ => {}
        }
        if name.ends_with(".ring.gz") {
            let builder = self.files.builder.display();
            writeln!(
                self.out,
                "Note: using {builder} instead of {name} as builder file"
            )?;
        }
        let mut builder = self.load_builder()?;
        match verb {
            "default" => self.show(&builder),
            "search" => self.search(&builder, rest),
            "list_parts" => self.list_parts(&builder, rest),
            "dispersion" => self.dispersion(&mut builder, rest),
            "validate" => self.validate(&builder),
            "add" => self.add(&mut builder, rest),
            "set_weight" => self.set_weight(&mut builder, rest),
            "set_region" => self.set_region(&mut builder, rest),
            "set_zone" => self.set_zone(&mut builder, rest),
            "set_info" => self.set_info(&mut builder, rest),
            "remove" => self.remove(&mut builder, rest),
            "rebalance" => self.rebalance(&mut builder, rest),
            "write_ring" => self.write_ring(&mut builder, rest),
            "pretend_min_part_hours_passed" => {
                builder.pretend_min_part_hours_passed();
                self.save_builder(&mut builder)
            }
            "set_min_part_hours" => self.set_min_part_hours(&mut builder, rest),
            "set_replicas" => self.set_replicas(&mut builder, rest),
            "set_overload" => self.set_overload(&mut builder, rest),
            "prepare_increase_partition_power" => self.prepare_power(&mut builder),
            "increase_partition_power" => self.increase_power(&mut builder),
            "cancel_increase_partition_power" => self.cancel_power(&mut builder),
            "finish_increase_partition_power" => self.finish_power(&mut builder),
            other => Err(Stop::error(format!("Unknown command: {other}"))),
        }
    }

    fn load_builder(&self) -> Result<RingBuilder, Stop> {
        let path = &self.files.builder;
        let shown = path.display();
        RingBuilder::load(path).map_err(|error| match error {
            BuilderError::Ring(RingError::Io { source, .. }) => match source.kind() {
                io::ErrorKind::NotFound => {
                    Stop::error(format!("Ring Builder file does not exist: {shown}"))
                }
                io::ErrorKind::PermissionDenied => {
                    Stop::error(format!("Ring Builder file cannot be accessed: {shown}"))
                }
                _ => Stop::error(format!(
                    "Problem occurred while reading builder file: {shown}. {source}"
                )),
            },
            BuilderError::PythonPickle(detail) => self.explain_pickle(&detail),
            other => Stop::error(format!("Ring Builder file is invalid: {shown}: {other}")),
        })
    }

    fn explain_pickle(&self, detail: &str) -> Stop {
        let builder = self.files.builder.display();
        let ring = self.files.ring.display();
        let ring_state = if self.files.ring.exists() {
            "which is there"
        } else {
            "which is not there: copy it from any node of the cluster"
        };
        Stop::error(format!(
            "Ring Builder file is invalid: {builder} was written by Python (it is a pickle) and \
             cannot be read: {detail}.\nIts partitions and devices can be recovered from {ring}, \
             {ring_state}:\n    mv {builder} {builder}.python\n    swift-ring-builder {ring} \
             write_builder <min_part_hours>\nOverload and times of last moves are not in a ring: \
             set the overload again, and let a replication pass finish before rebalancing."
        ))
    }

    /// Saves the builder; the first save gives it its id.
    fn save_builder(&mut self, builder: &mut RingBuilder) -> Outcome {
        builder.assign_id(new_id);
        builder.save(&self.files.builder)?;
        Ok(EXIT_SUCCESS)
    }

    fn make_backup_dir(&self) -> Result<(), Stop> {
        let dir = &self.files.backups;
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Stop::error(format!(
                    "cannot make the backup directory {}: {error}",
                    dir.display()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Asks for confirmation if several devices matched and `--yes` was not given.
    fn confirm(&mut self, question: &str) -> Result<bool, Stop> {
        write!(self.out, "{question}")?;
        self.out.flush()?;
        let mut answer = String::new();
        let read = self.input.read_line(&mut answer);
        Ok(read.is_ok() && answer.trim_end_matches(['\r', '\n']) == "y")
    }
}

/// Thirty-two random hex digits. The hasher's keys come from the operating system.
fn new_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests;
