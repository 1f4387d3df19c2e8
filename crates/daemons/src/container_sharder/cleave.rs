//! Sharding of a container: finding ranges, creating shards, cleaving rows into them range by
//! range, and completion.

use std::time::Instant;

use cairn_formats::shard::{Bound, Bounded, ShardName, ShardRange, State};
use cairn_http::params::quote_path;
use cairn_index::{DbState, RangeQuery, SyncPoint};
use tracing::{info, warn};

use super::audit::hash_container_name;
use super::calls::Shard;
use super::context::Context;
use super::misplaced::{Batches, From};
use super::{ContainerSharder, Result, Visited, split};

/// Result of cleaving one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleaved {
    Done,
    /// There were no rows.
    Empty,
    Failed,
}

impl ContainerSharder {
    /// Searches for ranges after the existing ones; returns the number found.
    pub(super) async fn find_ranges(&self, visited: &Visited) -> Result<usize> {
        let began = Instant::now();
        let cut = self.config.cut();
        let found = visited.db.read(move |broker| {
            let own = broker.own_shard_range()?;
            let existing = broker.list_shard_ranges(&RangeQuery::default())?;
            if existing
                .last()
                .is_some_and(|last| last.upper() >= own.upper())
            {
                return Ok(None);
            }
            broker.find_shard_ranges(cut, &existing).map(Some)
        });
        let Some((found, is_last)) = found.await? else {
            return Ok(0);
        };
        self.count("scanned", "attempted");
        if found.is_empty() {
            self.count("scanned", if is_last { "success" } else { "failure" });
            if !is_last {
                warn!(container = visited.name, "nowhere to cut this container");
            }
            return Ok(0);
        }
        let (root_account, root) = split(&visited.root);
        let account = format!("{}{root_account}", self.shards_prefix);
        let (now, parent) = (self.now(), hash_container_name(visited.container()));
        let ranges: Vec<ShardRange> = found
            .iter()
            .map(|found| {
                let name = ShardName::make(&account, root, &parent, now, found.index);
                let mut range = ShardRange::new(name, now, &found.lower, &found.upper);
                range.object_count = found.object_count;
                range
            })
            .collect();
        let count = ranges.len();
        self.merge(visited, ranges).await?;
        info!(container = visited.name, count, is_last, "ranges found");
        let mut stats = self.stats.lock();
        stats.add("scanned", "found", count);
        stats.add("scanned", "success", 1);
        stats.took("scanned", began.elapsed().as_secs_f64() / count as f64);
        Ok(count)
    }

    /// Creates the containers of found ranges, which take rows from then on.
    pub(super) async fn create_shards(&self, visited: &Visited) -> Result<usize> {
        let query = RangeQuery {
            states: vec![State::Found],
            ..RangeQuery::default()
        };
        let found = visited
            .db
            .read(move |broker| broker.list_shard_ranges(&query))
            .await?;
        let mut created = Vec::new();
        for mut range in found {
            self.count("created", "attempted");
            range.set_state(State::Created);
            let headers = [
                ("x-backend-storage-policy-index", visited.policy.to_string()),
                (
                    "x-container-sysmeta-shard-quoted-root",
                    quote_path(&visited.root),
                ),
                ("x-container-sysmeta-sharding", "True".to_owned()),
                ("x-backend-auto-create", "True".to_owned()),
            ];
            let name = range.name.clone();
            if !self
                .send_ranges(&name, std::slice::from_ref(&range), &headers)
                .await
            {
                self.count("created", "failure");
                // Shards are created in the order of their ranges.
                break;
            }
            self.count("created", "success");
            created.push(range);
        }
        let count = created.len();
        if count > 0 {
            if !visited.is_root {
                self.send_ranges(&visited.root, &created, &[]).await;
            }
            self.merge(visited, created).await?;
            info!(container = visited.name, count, "shards made");
        }
        Ok(count)
    }

    /// Cleaves a batch of ranges. True if all are done.
    pub(super) async fn cleave(&self, visited: &Visited) -> Result<bool> {
        let (state, mut context) = visited
            .db
            .read(|broker| Ok((broker.db_state()?, Context::load(broker)?)))
            .await?;
        if state == DbState::Sharded {
            return Ok(true);
        }
        if !context.misplaced_done {
            context.misplaced_done = self.move_misplaced_of_source(visited).await?;
            self.store(visited, &context).await?;
        }
        if context.cleaving_done {
            return Ok(context.misplaced_done);
        }
        let marker = context.marker();
        let (own, ranges) = visited
            .db
            .read(move |broker| {
                let query = RangeQuery {
                    marker,
                    ..RangeQuery::default()
                };
                Ok((
                    broker.stored_own_shard_range()?,
                    broker.list_shard_ranges(&query)?,
                ))
            })
            .await?;
        let Some(mut own) = own else {
            warn!(container = visited.name, "it has lost its own shard range");
            return Ok(false);
        };
        // Nothing is copied into a range that is itself being merged.
        let todo: Vec<ShardRange> = ranges
            .into_iter()
            .filter(|range| !range.is(State::Shrinking))
            .collect();
        if context.cursor.is_empty() {
            context.start(&own.lower);
        }
        context.ranges_todo = todo.len() as i64;
        let mut done = 0;
        for range in todo {
            if context.cleaving_done || done == self.config.cleave_batch {
                break;
            }
            if range.lower() > Bound::lower(&context.cursor) {
                info!(
                    container = visited.name,
                    at = context.cursor,
                    "cleaving stops at a gap"
                );
                break;
            }
            if !range.is_any(&[State::Created, State::Cleaved, State::Active]) {
                info!(
                    container = visited.name,
                    shard = range.name,
                    state = range.state_text(),
                    "cleaving waits for a shard"
                );
                break;
            }
            match self
                .cleave_range(visited, &mut context, range, &mut own)
                .await?
            {
                Cleaved::Done => done += 1,
                Cleaved::Empty => {}
                Cleaved::Failed => break,
            }
        }
        self.store(visited, &context).await?;
        Ok(context.misplaced_done && context.cleaving_done)
    }

    async fn store(&self, visited: &Visited, context: &Context) -> Result<()> {
        let context = context.clone();
        Ok(visited
            .db
            .write(None, move |broker| context.store(broker))
            .await?)
    }

    async fn cleave_range(
        &self,
        visited: &Visited,
        context: &mut Context,
        mut range: ShardRange,
        own: &mut ShardRange,
    ) -> Result<Cleaved> {
        self.count("cleaved", "attempted");
        let began = Instant::now();
        let shard = self.local_shard(visited, &range).await?;
        self.count(
            "cleaved",
            if shard.created {
                "db_created"
            } else {
                "db_exists"
            },
        );
        let copied = self.copy(visited, context, &range, &shard).await?;
        let is_empty = !copied && shard.created;
        let is_new = self.update_ranges(visited, &mut range, own, &shard).await?;
        if is_empty {
            // Created for this range, and empty.
            let db = self.pool.db_by_key(shard.db.key().clone());
            db.remove_if(|_| Ok(true)).await?;
        } else if !self
            .send_shard(visited, context, &range, &shard, is_new)
            .await
        {
            self.count("cleaved", "failure");
            return Ok(Cleaved::Failed);
        } else {
            self.count("cleaved", "success");
            self.stats
                .lock()
                .took("cleaved", began.elapsed().as_secs_f64());
            info!(container = visited.name, shard = range.name, "cleaved");
        }
        context.range_done(&range.upper);
        context.cleaving_done |= range.upper() >= own.upper();
        let (range, saved) = (range, context.clone());
        visited
            .db
            .write(None, move |broker| {
                broker.merge_shard_ranges(vec![range])?;
                saved.store(broker)
            })
            .await?;
        Ok(if is_empty {
            Cleaved::Empty
        } else {
            Cleaved::Done
        })
    }

    /// Copies missing rows to the shard. False if it lacked some and the range has none behind the sync
    /// point.
    async fn copy(
        &self,
        visited: &Visited,
        context: &Context,
        range: &ShardRange,
        shard: &Shard,
    ) -> Result<bool> {
        let (id, max_row, known) = visited
            .db
            .read(|broker| {
                broker.with_source(|source| {
                    Ok((source.id()?, source.max_row()?, source.sync_points(true)?))
                })
            })
            .await?;
        let of_source = id.clone();
        let synced = shard
            .db
            .read(move |broker| broker.sync_point(&of_source, true))
            .await?;
        if synced >= max_row && max_row != -1 {
            return Ok(true);
        }
        let since = context.last_cleave_to_row.unwrap_or(-1).max(synced);
        let mut rows = Batches::of(&range.namespace(), since, self.config.row_batch);
        let mut copied = false;
        while let Some(batch) = self.next_batch(visited, From::Source, &mut rows).await? {
            copied = true;
            shard.db.merge_items(None, batch).await?;
        }
        // Read before the rows, so that later rows are copied next time. The shard inherits the
        // source's sync points.
        let mut points = vec![SyncPoint {
            remote_id: id,
            sync_point: max_row,
        }];
        points.extend(known);
        shard
            .db
            .write(None, move |broker| broker.merge_syncs(&points, true))
            .await?;
        Ok(copied)
    }

    /// Updates the ranges after a copy. True if the shard was cleaved for the first time.
    async fn update_ranges(
        &self,
        visited: &Visited,
        range: &mut ShardRange,
        own: &mut ShardRange,
        shard: &Shard,
    ) -> Result<bool> {
        if own.state().is_some_and(State::is_shrinking) {
            if range.includes(own) {
                // Adds the donor's deleted range: the acceptor reports both to the root at once.
                if own.set_state(State::Shrunk) {
                    own.set_deleted(self.now());
                    self.merge(visited, vec![own.clone()]).await?;
                }
                let donor = own.clone();
                shard
                    .db
                    .write(None, move |broker| broker.merge_shard_ranges(vec![donor]))
                    .await?;
            }
            return Ok(false);
        }
        if !range.is(State::Created) {
            return Ok(false);
        }
        let info = shard.db.read(|broker| broker.info()).await?;
        range.set_counts(info.object_count, info.bytes_used, self.now());
        range.set_state(State::Cleaved);
        let cleaved = range.clone();
        shard
            .db
            .write(None, move |broker| broker.merge_shard_ranges(vec![cleaved]))
            .await?;
        Ok(true)
    }

    async fn send_shard(
        &self,
        visited: &Visited,
        context: &mut Context,
        range: &ShardRange,
        shard: &Shard,
        is_new: bool,
    ) -> bool {
        let quorum = self.ring().quorum();
        let replicas = quorum.servers();
        let of_new = self.config.shard_quorum.unwrap_or(quorum.size());
        let of_new = of_new.min(replicas);
        let needed = match is_new {
            true => of_new,
            false => self
                .config
                .existing_shard_quorum
                .unwrap_or(of_new)
                .min(replicas),
        };
        let began = Instant::now();
        let (all, sent) = self
            .replicate(shard.db.key().clone(), shard.device_id)
            .await;
        context.replication_time += began.elapsed().as_secs_f64();
        let successes = sent.iter().filter(|success| **success).count();
        let enough = all || (!sent.is_empty() && successes >= needed);
        if !enough {
            warn!(
                container = visited.name,
                shard = range.name,
                successes,
                needed,
                "a shard is not replicated to enough nodes"
            );
        }
        enough
    }

    /// Removes the retiring file, unless rows were added meanwhile.
    pub(super) async fn complete(&self, visited: &Visited) -> Result<bool> {
        let (now, is_root) = (self.now(), visited.is_root);
        let name = visited.name.clone();
        let may_end = visited.db.write(None, move |broker| {
            let mut context = Context::load(broker)?;
            if !context.is_done() {
                info!(container = name, "rows have come meanwhile: cleaving again");
                context.reset();
                context.store(broker)?;
                return Ok(false);
            }
            let Some(mut own) = broker.stored_own_shard_range()? else {
                return Ok(false);
            };
            own.set_counts(0, 0, now);
            let mut ranges = Vec::new();
            if own.state().is_some_and(State::is_shrinking) {
                own.set_state(State::Shrunk);
            } else {
                own.set_state(State::Sharded);
                ranges = broker.list_shard_ranges(&RangeQuery {
                    states: vec![State::Cleaved],
                    ..RangeQuery::default()
                })?;
                for range in &mut ranges {
                    range.set_state(State::Active);
                }
            }
            if !is_root && !own.is_deleted() {
                own = own.renewed(now);
                own.deleted = 1;
            }
            ranges.push(own);
            broker.merge_shard_ranges(ranges)?;
            Ok(true)
        });
        Ok(may_end.await? && visited.db.end_sharding().await?)
    }
}
