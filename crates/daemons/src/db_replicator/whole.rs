//! Transfer of whole databases: by rsync into the `tmp` folder of the other device, as in Swift, or
//! created there by a PUT and filled with rows.
//!
//! `rsync --quiet --no-motd --timeout=N --contimeout=N --whole-file FILE MODULE/DEVICE/tmp/ID`;
//! then `complete_rsync` or `rsync_then_merge` makes the server install it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cairn_index::ReplicationInfo;
use cairn_index::broker::timestamp;
use cairn_ring::Device;
use http::header::{HeaderMap, HeaderValue, USER_AGENT};
use serde_json::json;
use tokio::process::Command;
use tracing::{debug, warn};

use super::config::WholeDatabases;
use super::peer::{Peer, Replica};
use super::push::PushError;
use super::{DbReplicator, Job};
use crate::calls;
use crate::local::blocking;

type Result<T> = std::result::Result<T, PushError>;

/// Rows per second assumed for merging into a received file.
const MERGED_ROWS_PER_SECOND: i64 = 2000;

impl DbReplicator {
    /// Sends to a node that has none.
    pub(super) async fn send_missing(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
        far: bool,
    ) -> Result<bool> {
        let is_small = usize::try_from(info.max_row).unwrap_or(0) <= self.config.per_diff;
        let is_sharded = info
            .of_container
            .as_ref()
            .is_some_and(|facts| facts.db_state != "unsharded");
        let ways: &[WholeDatabases] = match self.config.whole_databases {
            // A PUT creates a database that was never sharded: it would take rows, and list an
            // incomplete container.
            _ if is_sharded => &[WholeDatabases::Rsync],
            WholeDatabases::Auto if is_small => &[WholeDatabases::Rows, WholeDatabases::Rsync],
            WholeDatabases::Auto => &[WholeDatabases::Rsync, WholeDatabases::Rows],
            WholeDatabases::Rsync => &[WholeDatabases::Rsync],
            WholeDatabases::Rows => &[WholeDatabases::Rows],
        };
        for way in ways {
            let sent = match way {
                WholeDatabases::Rows => self.make_and_fill(job, peer, info, far).await?,
                _ => {
                    self.send_file(job, peer, info, "complete_rsync", far)
                        .await?
                }
            };
            if sent {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends to a node that lacks most rows. False if rows are to be sent instead.
    pub(super) async fn send_far_behind(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
        far: bool,
    ) -> Result<bool> {
        if self.config.whole_databases == WholeDatabases::Rows {
            return Ok(false);
        }
        self.send_file(job, peer, info, "rsync_then_merge", far)
            .await
    }

    async fn make_and_fill(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
        far: bool,
    ) -> Result<bool> {
        let Some((path, headers)) = put_of(info) else {
            return Ok(false);
        };
        let made = peer.put(&path, headers).await;
        if !made.is_some_and(|answer| answer.status.is_success()) {
            return Ok(false);
        }
        let Some(answer) = self.send_sync(peer, info).await else {
            return Ok(false);
        };
        let is_there = answer.status.is_success() && Replica::parse(&answer.body).is_some();
        if !is_there {
            return Ok(false);
        }
        // It is empty: only rows remain to be sent.
        Box::pin(self.send_news(job, peer, info, &answer, far)).await
    }

    async fn send_file(
        &self,
        job: &Job,
        peer: &Peer<'_>,
        info: &ReplicationInfo,
        operation: &str,
        far: bool,
    ) -> Result<bool> {
        let name = format!("sending-{:032x}", (self.pool.config().random)());
        let (snapshot, file) = job.db.snapshot(name).await?;
        let sent = self
            .rsync(&snapshot, &peer.node.device, &info.id, far)
            .await;
        let removed = blocking(move || std::fs::remove_file(snapshot));
        if let Err(error) = removed.await {
            warn!(%error, "a copy made for rsync is not removed");
        }
        if !sent {
            return Ok(false);
        }
        let merged = (info.count.max(0) / MERGED_ROWS_PER_SECOND) as u64;
        let call_timeout = peer.call_timeout.max(Duration::from_secs(merged));
        let args = json!([operation, info.id, file]);
        let answer = peer.replicate_within(&args, call_timeout).await;
        Ok(answer.is_some_and(|answer| answer.status.is_success()))
    }

    async fn rsync(&self, file: &Path, device: &Device, id: &str, far: bool) -> bool {
        let module = module_of(&self.config.rsync_module, device);
        let to = format!("{module}/{}/tmp/{id}", device.device);
        let seconds = |time: Duration| time.as_secs_f64().ceil() as u64;
        let mut command = Command::new("rsync");
        command.args(["--quiet", "--no-motd"]);
        command.arg(format!("--timeout={}", seconds(self.config.node_timeout)));
        if to.contains("::") || to.starts_with("rsync://") {
            // Accepted only by connections to an rsync daemon.
            command.arg(format!(
                "--contimeout={}",
                seconds(self.config.conn_timeout)
            ));
        }
        command.arg("--whole-file");
        if self.config.rsync_compress && far {
            command.arg("--compress");
        }
        command.arg(file).arg(&to);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped()).kill_on_drop(true);
        match command.output().await {
            Ok(output) if output.status.success() => true,
            Ok(output) => {
                let told = String::from_utf8_lossy(&output.stderr);
                let told: String = told.trim().chars().take(300).collect();
                debug!(to, status = %output.status, told, "rsync failed");
                false
            }
            Err(error) => {
                warn!(%error, "rsync cannot be started; install it, or set whole_databases = rows");
                false
            }
        }
    }
}

/// Path and headers of the request that creates such a database.
fn put_of(info: &ReplicationInfo) -> Option<(String, HeaderMap)> {
    let mut headers = HeaderMap::new();
    let (agent, path) = match &info.container {
        Some(container) => (
            "container-replicator",
            format!("/{}/{container}", info.account),
        ),
        None => ("account-replicator", format!("/{}", info.account)),
    };
    headers.insert(USER_AGENT, calls::user_agent(agent));
    let time = timestamp(&info.put_timestamp).internal();
    headers.insert("x-timestamp", HeaderValue::from_str(&time).ok()?);
    if let Some(facts) = &info.of_container {
        headers.insert(
            "x-backend-storage-policy-index",
            HeaderValue::from(facts.storage_policy_index),
        );
    }
    Some((path, headers))
}

/// Substitutes a device's properties for `{…}`.
fn module_of(template: &str, device: &Device) -> String {
    let host = |host: &str| {
        if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        }
    };
    [
        ("{replication_ip}", host(&device.replication_ip)),
        ("{replication_port}", device.replication_port.to_string()),
        ("{ip}", host(&device.ip)),
        ("{port}", device.port.to_string()),
        ("{device}", device.device.clone()),
        ("{id}", device.id.to_string()),
        ("{region}", device.region.to_string()),
        ("{zone}", device.zone.to_string()),
        ("{weight}", device.weight.to_string()),
        ("{meta}", device.meta.clone()),
    ]
    .iter()
    .fold(template.to_owned(), |text, (name, value)| {
        text.replace(name, value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_name_devices() {
        let device = Device {
            id: 3,
            region: 1,
            zone: 2,
            weight: 1.0,
            ip: "10.0.0.1".into(),
            port: 6201,
            device: "sdb1".into(),
            replication_ip: "::1".into(),
            replication_port: 7201,
            meta: String::new(),
        };
        let module = |template: &str| module_of(template, &device);
        assert_eq!(module("{replication_ip}::container"), "[::1]::container");
        assert_eq!(module("{ip}::c_{device}_{id}"), "10.0.0.1::c_sdb1_3");
        assert_eq!(module("/srv/{zone}"), "/srv/2");
    }
}
