//! The sharded container: made by Cairn's sharder, for both stores.

use std::fs;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::{Databases, FOLDERS, Login, Setup, Target, copy};
use cairn_testkit::process::wait_for;
use cairn_testkit::wire::{Account, Connection, Response};

const SHARDS: u64 = 10;
/// A name before all later names of the first folder, and after the existing ones.
const NEW_NAME: &str = "dir-0/o1000000000";

impl Setup {
    pub(super) fn saved_shards(&self) -> PathBuf {
        self.dir.join("saved-shards")
    }

    /// Shards the saved container, and saves the result.
    pub(super) fn shard(&mut self, rows: u64) -> Result<()> {
        copy(&self.saved(), &self.containers())?;
        let client = self.swift.etc().join("internal-client.conf");
        fs::write(&client, self.swift.internal_client())?;
        let conf = self.swift.server_conf("container", 1);
        let text = fs::read_to_string(&conf)?;
        let each = (rows / SHARDS).max(1);
        fs::write(
            &conf,
            format!(
                "{text}[container-sharder]\ninternal_client_conf_path = {}\nauto_shard = yes\n\
                 interval = 1\nshard_container_threshold = {}\nrows_per_shard = {each}\n\
                 cleave_batch_size = {SHARDS}\nshard_scanner_batch_size = {SHARDS}\n",
                client.display(),
                2 * each,
            ),
        )?;
        let mut store = self.start_cairn(Databases::Exclusive)?;
        let start = Instant::now();
        let told = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let time = format!("{:016.5}", told.as_secs_f64());
        let on = [
            ("X-Timestamp", time.as_str()),
            ("X-Container-Sysmeta-Sharding", "True"),
        ];
        let answer = self.ask("POST", &self.root, &on)?;
        ensure!(answer.is_success(), "sharding on: {}", answer.status);
        wait_for("shards", 7200, || Ok(self.state()? == "sharded"))?;
        println!("in shards after {:.0} s", start.elapsed().as_secs_f64());
        store.stop()?;
        self.swift.stop();
        fs::write(&conf, without_sharder(&fs::read_to_string(&conf)?))?;
        copy(&self.containers(), &self.saved_shards())
    }

    /// Destination of rows: the container itself, or the shard for new names in the first folder.
    pub(super) fn target(&self) -> Result<Target> {
        if self.state()? != "sharded" {
            return Ok(Target {
                path: self.root.clone(),
                folders: FOLDERS,
                sharded: None,
            });
        }
        let query = format!(
            "{}?format=json&states=updating&includes={NEW_NAME}",
            self.root
        );
        let answer = self.ask("GET", &query, &[("X-Backend-Record-Type", "shard")])?;
        let ranges: Vec<serde_json::Value> = serde_json::from_slice(&answer.body)?;
        let shard = ranges.first().and_then(|range| range["name"].as_str());
        let shard = shard.context("no shard takes new names")?;
        // There are few partitions.
        for entry in fs::read_dir(self.containers())? {
            let partition = entry?.file_name();
            let path = format!("/d1/{}/{shard}", partition.to_string_lossy());
            if self.ask("HEAD", &path, &[])?.is_success() {
                let account = Account::login(self.swift.port)?;
                return Ok(Target {
                    path,
                    folders: 1,
                    sharded: Some(Login {
                        path: format!("{}/c", account.path),
                        token: account.token.clone(),
                    }),
                });
            }
        }
        anyhow::bail!("{shard} is nowhere")
    }

    fn state(&self) -> Result<String> {
        let answer = self.ask("HEAD", &self.root, &[])?;
        let state = answer.header("x-backend-sharding-state");
        Ok(state.unwrap_or("unsharded").to_owned())
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
        let mut connection = Connection::new(self.swift.port_of("container", 1));
        connection.call(method, path, headers, b"")
    }
}

fn without_sharder(text: &str) -> &str {
    text.split("[container-sharder]").next().unwrap_or(text)
}
