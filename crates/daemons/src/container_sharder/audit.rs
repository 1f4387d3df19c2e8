//! Audit of a container's ranges. A root's are checked; a shard adopts from its root its own range,
//! its children, and, if it is to be merged into others, those.

use cairn_formats::shard::{Namespace, ShardRange, State, combine, find_gaps, find_overlaps};
use cairn_index::{ContainerBroker, DbState, IndexError, RangeQuery};
use cairn_types::{Timestamp, hex};
use md5::{Digest, Md5};
use tracing::{debug, info, warn};

use super::context::Context;
use super::{ContainerSharder, Result, SharderError, Visited};

/// Hex MD5 of the parent's name, as part of a shard's name.
pub fn hash_container_name(name: &str) -> String {
    hex::encode(Md5::digest(name.as_bytes()))
}

fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap_or(Timestamp::ZERO)
}

impl ContainerSharder {
    /// Audits the container; false if it must not be processed further.
    pub(super) async fn audit(&self, visited: &Visited, is_deleted: bool) -> Result<bool> {
        if is_deleted {
            // Its metadata is gone, so nothing can be audited; but it may still have rows.
            return Ok(true);
        }
        self.forget_contexts(visited).await?;
        let (category, sound) = match visited.is_root {
            true => ("audit_root", self.audit_root(visited).await?),
            false => ("audit_shard", self.audit_shard(visited).await?),
        };
        self.count(category, "attempted");
        self.count(category, if sound { "success" } else { "failure" });
        Ok(sound)
    }

    /// Removes contexts of cleaving that ended long ago, or was abandoned.
    async fn forget_contexts(&self, visited: &Visited) -> Result<()> {
        let done_before = self.ago(self.config.recon_sharded_timeout);
        let stale_before = self.ago(self.config.replication.reclaim_age);
        let old = move |broker: &ContainerBroker<'_>| -> std::result::Result<_, IndexError> {
            let all = Context::all(broker)?.into_iter();
            let is_old = |(context, at): &(Context, String)| {
                let at = time(at);
                (context.is_done() && at < done_before) || at < stale_before
            };
            Ok(all
                .filter(is_old)
                .map(|(context, _)| context)
                .collect::<Vec<_>>())
        };
        if visited
            .db
            .read(move |broker| Ok(!old(broker)?.is_empty()))
            .await?
        {
            visited
                .db
                .write(None, move |broker| {
                    old(broker)?
                        .iter()
                        .try_for_each(|context| context.delete(broker))
                })
                .await?;
        }
        Ok(())
    }

    async fn audit_root(&self, visited: &Visited) -> Result<bool> {
        let (own, ranges, epoch) = visited
            .db
            .read(|broker| {
                Ok((
                    broker.own_shard_range()?,
                    broker.list_shard_ranges(&RangeQuery::default())?,
                    broker.db_epoch(),
                ))
            })
            .await?;
        let mut warnings = Vec::new();
        if own.state().is_some_and(State::is_sharding) {
            let gaps = find_gaps(&ranges, &Namespace::default()).len();
            if gaps > 0 {
                warnings.push(format!("{gaps} missing ranges"));
            }
        }
        // A child exists before its parent is removed, which is no overlap for a while.
        let since = self.ago(self.config.replication.reclaim_age).normal();
        let excused = |a: &ShardRange, b: &ShardRange| {
            let of = |child: &ShardRange, parent: &ShardRange| {
                child.timestamp >= since && child.is_child_of(parent, hash_container_name)
            };
            of(a, b) || of(b, a)
        };
        // Shrinking resolves overlaps.
        for state in State::ALL
            .into_iter()
            .filter(|state| *state != State::Shrinking)
        {
            let some: Vec<ShardRange> = ranges.iter().filter(|r| r.is(state)).cloned().collect();
            let overlaps = find_overlaps(&some, excused).len();
            if overlaps > 0 {
                self.count("audit_root", "has_overlap");
                self.stats.lock().add("audit_root", "num_overlap", overlaps);
                warnings.push(format!("{overlaps} overlapping {} ranges", state.name()));
            }
        }
        if let (None, Some(epoch)) = (&own.epoch, epoch) {
            warnings.push(format!("the own range has lost its epoch {epoch}"));
        }
        if !warnings.is_empty() {
            let found = warnings.join(", ");
            warn!(
                container = visited.name,
                found, "see swift-manage-shard-ranges repair"
            );
        }
        Ok(warnings.is_empty())
    }

    async fn audit_shard(&self, visited: &Visited) -> Result<bool> {
        let stored = visited
            .db
            .read(|broker| broker.stored_own_shard_range())
            .await?;
        let Some(own) = stored else {
            warn!(
                container = visited.name,
                "a shard without a range of its own is left alone"
            );
            return Ok(false);
        };
        if !visited.name.starts_with(&self.shards_prefix) {
            warn!(
                container = visited.name,
                "a shard in an account that is not for shards"
            );
        }
        let asked = self
            .root_ranges(visited, &own.lower, &own.upper, "auditing", true)
            .await;
        let ranges = match asked {
            Ok(ranges) => ranges,
            Err(error @ SharderError::NoRanges { .. }) => {
                warn!(container = visited.name, %error, "a shard cannot be compared with its root");
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let known = ranges.iter().any(|range| range.name == own.name);
        let own = match ranges.is_empty() {
            true => own,
            false => self.take_from_root(visited, ranges, own).await?,
        };
        if !known && !own.is_deleted() {
            warn!(
                container = visited.name,
                "the root has no range for this shard"
            );
        }
        self.delete_if_spent(visited, &own).await?;
        Ok(true)
    }

    /// Merges newer ranges of the root; returns the resulting own range.
    async fn take_from_root(
        &self,
        visited: &Visited,
        ranges: Vec<ShardRange>,
        before: ShardRange,
    ) -> Result<ShardRange> {
        let name = visited.name.clone();
        let taken = visited.db.write(None, move |broker| {
            let (own, others): (Vec<_>, Vec<_>) = ranges
                .iter()
                .cloned()
                .partition(|range| range.name == before.name);
            broker.merge_shard_ranges(own)?;
            let own = broker.own_shard_range()?;
            if (&own.lower, &own.upper, own.state) != (&before.lower, &before.upper, before.state) {
                info!(
                    container = name,
                    state = own.state_text(),
                    lower = own.lower,
                    upper = own.upper,
                    "a shard's range has changed at its root"
                );
            }
            if broker.db_state()? == DbState::Sharded {
                // Its children are unaffected.
                return Ok(own);
            }
            let (children, others): (Vec<_>, Vec<_>) = others
                .into_iter()
                .partition(|range| range.is_child_of(&own, hash_container_name));
            broker.merge_shard_ranges(children)?;
            if own.is_cleaving() && !others.is_empty() {
                take_acceptors(broker, &ranges, others, &own)?;
            }
            Ok(own)
        });
        Ok(taken.await?)
    }

    /// Marks a shard as deleted that was sharded or merged long ago; a replicator removes it.
    async fn delete_if_spent(&self, visited: &Visited, own: &ShardRange) -> Result<()> {
        let spent = own.is_any(&[State::Sharded, State::Shrunk]) && own.is_deleted();
        let before = self.ago(self.config.replication.reclaim_age);
        if !spent || time(&own.timestamp) >= before {
            return Ok(());
        }
        let now = self.now().internal();
        let deleted = visited.db.write(None, move |broker| {
            let goes = broker.is_empty()?;
            if goes {
                broker.delete_db(&now)?;
            }
            Ok(goes)
        });
        if deleted.await? {
            debug!(container = visited.name, "a spent shard is deleted");
        }
        Ok(())
    }
}

/// Ranges that are not the shard's children may be its acceptors, or cover its range of names after
/// a repair. Ancestors are excluded, except a root that takes everything; so are ranges being
/// removed themselves. Nothing is taken that would leave gaps or overlaps.
fn take_acceptors(
    broker: &ContainerBroker<'_>,
    all: &[ShardRange],
    others: Vec<ShardRange>,
    own: &ShardRange,
) -> std::result::Result<(), IndexError> {
    let ancestors = own.ancestors(all, hash_container_name);
    let root = own.find_root(&others).cloned();
    let mut acceptors: Vec<ShardRange> = others
        .into_iter()
        .filter(|range| {
            !ancestors.contains(&range.name) && (!range.is_cleaving() || range.is_deleted())
        })
        .collect();
    if own.state().is_some_and(State::is_shrinking) {
        acceptors.extend(root.filter(|root| root.is(State::Active)));
    }
    let existing = broker.list_shard_ranges(&RangeQuery::default())?;
    let combined = combine(&acceptors, &existing);
    let sound = find_overlaps(&combined, |_, _| false).is_empty()
        && find_gaps(&combined, &own.namespace()).is_empty();
    match sound {
        true => broker.merge_shard_ranges(acceptors),
        false => Ok(()),
    }
}
