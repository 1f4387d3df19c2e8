//! The `rsync` program, pushing suffix directories to the rsync daemon beside another object
//! server, with Swift's options.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use cairn_disk::engine::Rsync;
use cairn_peer::Node;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info};

use super::config::ReplicatorConfig;
use super::pass::{Job, Pass};

/// Pattern of rsync's temporary files and their leftovers.
const TEMPORARY: &str =
    "--exclude=.*.[0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z][0-9a-zA-Z]";
/// Maximum bytes of output kept for the log.
const OUTPUT_MAX_BYTES: u64 = 1 << 20;

/// Reasons for a failure of rsync.
#[derive(Debug, Error)]
pub(super) enum RsyncError {
    #[error("cannot run rsync (is it installed?): {0}")]
    Start(std::io::Error),
    #[error("it ended with {0}")]
    Failed(ExitStatus),
    #[error("ended after {0:?}")]
    TooLong(Duration),
    #[error("nothing to send is there any more")]
    Nothing,
    #[error("rsync_module = {template:?}: {name:?} is no property of a device")]
    Module { template: String, name: String },
}

impl Pass {
    pub(super) async fn rsync(
        &self,
        job: &Job,
        rsync: &dyn Rsync,
        node: &Node,
        suffixes: &[String],
    ) -> Result<(), RsyncError> {
        let config = &self.work.replicator.config;
        let args = arguments(config, job, rsync, node, suffixes)?;
        let started = Instant::now();
        let (status, output) = run(&args, config.rsync_timeout, || self.note_progress()).await?;
        let to = args.last().map_or("", String::as_str);
        log_output(config, &output, status.success());
        if !status.success() {
            error!(%status, to, "rsync failed");
            return Err(RsyncError::Failed(status));
        }
        info!(
            to,
            seconds = started.elapsed().as_secs_f64(),
            "rsync succeeded"
        );
        Ok(())
    }
}

/// All arguments; the last is the destination.
fn arguments(
    config: &ReplicatorConfig,
    job: &Job,
    rsync: &dyn Rsync,
    node: &Node,
    suffixes: &[String],
) -> Result<Vec<String>, RsyncError> {
    let io_timeout = &config.rsync_io_timeout;
    let mut args: Vec<String> = [
        "--recursive",
        "--whole-file",
        "--human-readable",
        "--xattrs",
        "--itemize-changes",
        "--ignore-existing",
    ]
    .map(str::to_owned)
    .into();
    args.push(format!("--timeout={io_timeout}"));
    args.push(format!("--contimeout={io_timeout}"));
    args.push(format!("--bwlimit={}", config.rsync_bwlimit));
    args.push(TEMPORARY.into());
    if config.rsync_compress && job.local.region != node.device.region {
        args.push("--compress".into());
    }
    let sources = rsync.sources(&job.device, job.at(), suffixes);
    if sources.is_empty() {
        return Err(RsyncError::Nothing);
    }
    args.extend(sources.iter().map(|path| path.display().to_string()));
    let module = module(&config.rsync_module, &node.device)?;
    let device = &node.device.device;
    args.push(format!("{module}/{device}/{}", rsync.target(job.at())));
    Ok(args)
}

/// Substitutes a device's properties into the template.
fn module(template: &str, device: &cairn_ring::Device) -> Result<String, RsyncError> {
    let host = |ip: &str| match ip.contains(':') {
        true => format!("[{ip}]"),
        false => ip.to_owned(),
    };
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(&match name {
            "ip" => host(&device.ip),
            "port" => device.port.to_string(),
            "replication_ip" => host(&device.replication_ip),
            "replication_port" => device.replication_port.to_string(),
            "region" => device.region.to_string(),
            "zone" => device.zone.to_string(),
            "device" => device.device.clone(),
            "meta" => device.meta.clone(),
            name => {
                return Err(RsyncError::Module {
                    template: template.to_owned(),
                    name: name.to_owned(),
                });
            }
        });
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// A child process, killed when dropped.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            // On a failing disk even its end takes time.
            std::thread::spawn(move || child.wait());
        }
    }
}

async fn run(
    args: &[String],
    run_timeout: Duration,
    on_progress: impl Fn(),
) -> Result<(ExitStatus, String), RsyncError> {
    let (reader, writer) = std::io::pipe().map_err(RsyncError::Start)?;
    let mut command = Command::new("rsync");
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(RsyncError::Start)?)
        .stderr(writer);
    let child = command.spawn().map_err(RsyncError::Start)?;
    // Closes our copies of the writing end.
    drop(command);
    let mut running = Running(Some(child));
    let output = tokio::task::spawn_blocking(move || {
        let mut kept = Vec::new();
        let _ = (&reader).take(OUTPUT_MAX_BYTES).read_to_end(&mut kept);
        let _ = std::io::copy(&mut &reader, &mut std::io::sink());
        String::from_utf8_lossy(&kept).into_owned()
    });
    let deadline = Instant::now() + run_timeout;
    let mut pause = Duration::from_millis(2);
    loop {
        let ended = running.0.as_mut().map(Child::try_wait);
        match ended.transpose().map_err(RsyncError::Start)?.flatten() {
            Some(status) => {
                running.0 = None;
                on_progress();
                return Ok((status, output.await.unwrap_or_default()));
            }
            None if Instant::now() >= deadline => return Err(RsyncError::TooLong(run_timeout)),
            None => {
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
        }
    }
}

fn log_output(config: &ReplicatorConfig, output: &str, succeeded: bool) {
    for line in output.lines() {
        let is_transfer = line.starts_with('<');
        let is_skipped = line.is_empty() || line.starts_with("cd+");
        if is_skipped || (is_transfer && !config.log_rsync_transfers) {
            continue;
        }
        if succeeded {
            debug!("rsync: {line}");
        } else {
            let most = match config.rsync_error_log_line_length {
                0 => usize::MAX,
                length => length,
            };
            let line: String = line.chars().take(most).collect();
            error!("rsync: {line}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn modules() {
        let device = cairn_ring::Device {
            id: 1,
            region: 2,
            zone: 3,
            weight: 1.0,
            ip: "fe80::1".into(),
            port: 6200,
            device: "sda".into(),
            replication_ip: "10.0.0.1".into(),
            replication_port: 6300,
            meta: "m".into(),
        };
        let module = |template| module(template, &device);
        assert_eq!(
            module("{replication_ip}::object").unwrap(),
            "10.0.0.1::object"
        );
        assert_eq!(
            module("[x]{ip}::o_{device}_{meta}").unwrap(),
            "[x][fe80::1]::o_sda_m"
        );
        assert!(module("{weight}").is_err());
    }

    #[tokio::test]
    async fn a_long_run_is_ended() {
        let Err(error) = run(&["--version".into()], Duration::ZERO, || ()).await else {
            println!("it was faster than no time at all");
            return;
        };
        assert!(
            matches!(error, RsyncError::TooLong(_) | RsyncError::Start(_)),
            "{error}"
        );
    }
}
