//! Monitoring data of containers being sharded.

use std::time::Duration;

use cairn_formats::shard::{ShardRange, State};
use cairn_index::{ContainerDb, DbState, RangeQuery};
use cairn_types::Timestamp;
use serde_json::{Value, json};
use tracing::warn;

use super::context::Context;
use super::{ContainerSharder, Result, Visited, split};
use crate::local::blocking;

const SHOWN: [State; 4] = [State::Found, State::Created, State::Cleaved, State::Active];

fn seconds(text: &str) -> f64 {
    Timestamp::parse(text).map_or(0.0, Timestamp::as_f64)
}

impl ContainerSharder {
    /// Properties of a container, by the names in monitoring.
    pub(super) async fn facts(
        &self,
        db: &ContainerDb,
        replica: Option<usize>,
        name: &str,
        root: &str,
        own: &ShardRange,
    ) -> Value {
        let file = db
            .read(|broker| Ok(broker.file()))
            .await
            .unwrap_or_default();
        let path = file.display().to_string();
        let size = blocking(move || Ok(std::fs::metadata(file)?.len()))
            .await
            .ok();
        let (account, container) = split(name);
        let replica = replica.map_or(json!("handoff"), |replica| json!(replica));
        json!({
            "path": path, "node_index": replica, "account": account, "container": container,
            "root": root, "object_count": own.object_count, "tombstones": own.tombstones,
            "meta_timestamp": own.meta_timestamp, "file_size": size,
        })
    }

    pub(super) async fn note_progress(
        &self,
        visited: &Visited,
        error: Option<String>,
        took: Duration,
    ) -> Result<()> {
        let now = self.now();
        let seen = visited.db.read(move |broker| {
            let state = broker.db_state()?;
            let mut own = broker.own_shard_range()?;
            let info = broker.info()?;
            own.set_counts(info.object_count, info.bytes_used, now);
            let ranges = broker.list_shard_ranges(&RangeQuery {
                states: SHOWN.to_vec(),
                ..RangeQuery::default()
            })?;
            let last = Context::all(broker)?
                .into_iter()
                .max_by(|a, b| a.1.cmp(&b.1));
            Ok((state, own, ranges, last, broker.is_sharding_required()?))
        });
        let (state, own, ranges, last, required) = seen.await?;
        if state == DbState::Collapsed || !own.is_cleaving() {
            return Ok(());
        }
        let mut facts = self
            .facts(
                &visited.db,
                visited.replica,
                &visited.name,
                &visited.root,
                &own,
            )
            .await;
        let epoch = own.epoch.as_deref().map(seconds);
        if state == DbState::Sharded {
            let Some((context, at)) = last else {
                return Ok(());
            };
            let at = seconds(&at);
            if at + self.config.recon_sharded_timeout.as_secs_f64() < now.as_f64() {
                return Ok(());
            }
            facts["total_replicate_time"] = json!(context.replication_time);
            facts["total_sharding_time"] = json!(at - epoch.unwrap_or(at));
        }
        facts["processing_time"] = json!(took.as_secs_f64());
        facts["state"] = json!(own.state_text());
        facts["db_state"] = json!(state.name());
        facts["error"] = json!(error);
        for state in SHOWN {
            let count = ranges.iter().filter(|range| range.is(state)).count();
            facts[state.name()] = json!(count);
        }
        self.stats.lock().progress(facts);
        let limit = self.config.sharding_timeout.as_secs_f64();
        if let Some(epoch) = epoch.filter(|epoch| required && epoch + limit < now.as_f64()) {
            let since_s = now.as_f64() - epoch;
            warn!(
                container = visited.name,
                since_s,
                state = state.name(),
                "sharding takes long"
            );
        }
        Ok(())
    }
}
