//! `cairn mount`: the command line of the file system, and its daemonisation; `cairn mount sweep`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_mount::{Failure, MountOptions};
use cairn_node::logging::{self, LogOptions};
use cairn_node::settings::LogLevel;

use crate::args::{Close, MountArguments, MountCommand, SweepArguments};

/// Warnings; but for that of the crate `fuser` after every `umount`, that it finds nothing to unmount.
const LOG_LEVEL: &str = "warn,fuser::session=error";

/// The given file of certificates, or that of the environment.
fn authorities(named: Option<PathBuf>) -> Option<PathBuf> {
    named.or_else(|| {
        let file = std::env::var_os("OS_CACERT")?;
        (!file.is_empty()).then(|| file.into())
    })
}

fn sweep(arguments: SweepArguments) -> Result<()> {
    logging::start(&arguments.log.into(), LogLevel::Warning)?;
    let authorities = authorities(arguments.cacert);
    let (grace, timeout) = (
        Duration::from_secs(arguments.grace),
        Duration::from_secs(arguments.timeout),
    );
    let swept = cairn_mount::sweep(&arguments.url, grace, timeout, authorities.as_deref())?;
    let _ = writeln!(
        std::io::stdout(),
        "{} of {} segments removed, {} bytes; {} are unused for less than {} s so far, {} of files that \
         are open on a mount; {} large objects",
        swept.removed,
        swept.segments,
        swept.removed_bytes,
        swept.waiting,
        arguments.grace,
        swept.pinned,
        swept.large_objects,
    );
    if swept.failures.is_empty() {
        return Ok(());
    }
    for Failure { name, reason } in &swept.failures {
        let _ = writeln!(std::io::stderr(), "{name}: {reason}");
    }
    bail!(
        "{} objects could not be read or removed, as the lines above say; {} segments stay that files \
         among them may refer to",
        swept.failures.len(),
        swept.doubtful
    );
}

pub(crate) fn run(arguments: MountArguments) -> Result<()> {
    if let Some(MountCommand::Sweep(arguments)) = arguments.command {
        return sweep(arguments);
    }
    if !arguments.foreground {
        return in_background();
    }
    let mut log: LogOptions = arguments.log.into();
    if log.level.is_none() && std::env::var_os("RUST_LOG").is_none() {
        log.level = Some(LOG_LEVEL.to_owned());
    }
    logging::start(&log, LogLevel::Warning)?;
    let authorities = authorities(arguments.cacert);
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let url = arguments.url.context("URL: none is given")?;
    let dir = arguments.dir.context("DIR: none is given")?;
    let dir = std::path::absolute(dir).context("DIR: no usable path")?;
    let journal = match arguments.close {
        Close::Async => arguments.journal,
        Close::Sync if arguments.journal.is_some() => {
            bail!(
                "--journal {:?} is for --close=async: give that too, or leave it out",
                arguments.journal.unwrap_or_default()
            );
        }
        Close::Sync => None,
    };
    let greeting = format!("{url} is mounted at {}", dir.display());
    let options = MountOptions {
        url,
        dir,
        is_read_only: arguments.read_only,
        allows_others: arguments.allow_other || uid.is_root(),
        uid: arguments.uid.unwrap_or(uid.as_raw()),
        gid: arguments.gid.unwrap_or(gid.as_raw()),
        timeout: Duration::from_secs(arguments.timeout),
        cache_bytes: arguments.cache,
        disk_cache: arguments.disk_cache,
        disk_cache_bytes: arguments.disk_cache_size,
        unwritten_bytes: arguments.write_buffer,
        journal,
        authorities,
    };
    Ok(cairn_mount::run(options, || {
        // Standard output may be closed.
        let _ = writeln!(std::io::stdout(), "{greeting}");
    })?)
}

/// Starts the same command in the foreground of a process group of its own, and returns once it has
/// mounted or failed.
fn in_background() -> Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--foreground")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("starting the mount")?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.is_empty() {
        let status = child.wait()?;
        bail!("nothing is mounted ({status}); the line above says why");
    }
    let _ = write!(std::io::stdout(), "{line}");
    Ok(())
}
