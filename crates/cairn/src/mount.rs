//! `cairn mount`: the command line of the file system, and its way into the background.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_mount::MountOptions;
use cairn_node::logging;
use cairn_node::settings::LogLevel;

use crate::args::MountArguments;

pub(crate) fn run(arguments: MountArguments) -> Result<()> {
    if !arguments.foreground {
        return in_background();
    }
    logging::start(&arguments.log.into(), LogLevel::Warning)?;
    let authorities = arguments.cacert.or_else(|| {
        let file = std::env::var_os("OS_CACERT")?;
        (!file.is_empty()).then(|| file.into())
    });
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let dir = std::path::absolute(&arguments.dir).context("DIR: no usable path")?;
    let greeting = format!("{} is mounted at {}", arguments.url, dir.display());
    let options = MountOptions {
        url: arguments.url,
        dir,
        is_read_only: arguments.read_only,
        allows_others: arguments.allow_other || uid.is_root(),
        uid: arguments.uid.unwrap_or(uid.as_raw()),
        gid: arguments.gid.unwrap_or(gid.as_raw()),
        timeout: Duration::from_secs(arguments.timeout),
        cache_bytes: arguments.cache,
        unwritten_bytes: arguments.write_buffer,
        authorities,
    };
    Ok(cairn_mount::run(options, || {
        // Nobody may be listening.
        let _ = writeln!(std::io::stdout(), "{greeting}");
    })?)
}

/// Starts the same command in the foreground of a process group of its own, and returns when it has
/// mounted, or has not.
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
