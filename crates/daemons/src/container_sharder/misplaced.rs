//! Misplaced rows: outside the container's range, or in shards already cleaved. They are copied
//! into the right shards, those are replicated, and then the rows are removed here.

use std::collections::VecDeque;

use cairn_formats::shard::{Bound, Bounded, Namespace, ShardRange, State};
use cairn_index::{DbState, ObjectRecord, ObjectRow, RangeQuery, RowsQuery};
use tracing::{debug, warn};

use super::calls::Shard;
use super::context::Context;
use super::{ContainerSharder, Result, Visited};

/// The container's file that rows are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// The file that takes new rows.
    Fresh,
    /// The file being cleaved.
    Source,
}

/// Result of moving rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    success: bool,
    placed: usize,
    unplaced: usize,
}

/// Identity and last row of a file when the move began.
#[derive(Clone, Debug)]
struct Sampled {
    id: String,
    max_row: i64,
}

pub(super) fn part(lower: &str, upper: &str) -> Namespace {
    Namespace {
        name: String::new(),
        lower: lower.to_owned(),
        upper: upper.to_owned(),
    }
}

/// The ranges outside of a range.
fn outside(own: &ShardRange) -> Vec<Namespace> {
    let mut parts = Vec::new();
    if !own.lower.is_empty() {
        parts.push(part("", &own.lower));
    }
    if !own.upper.is_empty() {
        parts.push(part(&own.upper, ""));
    }
    parts
}

impl ContainerSharder {
    pub(super) async fn move_misplaced(&self, visited: &Visited) -> Result<bool> {
        let parts = visited
            .db
            .read(|broker| {
                let own = broker.own_shard_range()?;
                match broker.db_state()? {
                    DbState::Sharded => return Ok(vec![part("", "")]),
                    DbState::Sharding => {
                        let cursor = Context::load(broker)?.cursor;
                        if !cursor.is_empty() {
                            let mut parts = vec![part("", &cursor)];
                            if !own.upper.is_empty() {
                                parts.push(part(&own.upper, ""));
                            }
                            return Ok(parts);
                        }
                    }
                    _ => {}
                }
                Ok(outside(&own))
            })
            .await?;
        self.move_parts(visited, From::Fresh, parts).await
    }

    /// Moves misplaced rows of the file to be cleaved.
    pub(super) async fn move_misplaced_of_source(&self, visited: &Visited) -> Result<bool> {
        let own = visited.db.read(|broker| broker.own_shard_range()).await?;
        self.move_parts(visited, From::Source, outside(&own)).await
    }

    async fn move_parts(
        &self,
        visited: &Visited,
        from: From,
        parts: Vec<Namespace>,
    ) -> Result<bool> {
        self.count("misplaced", "attempted");
        let mut all = Moved {
            success: true,
            placed: 0,
            unplaced: 0,
        };
        for part in parts {
            let moved = self.move_part(visited, from, &part).await?;
            all.success &= moved.success;
            all.placed += moved.placed;
            all.unplaced += moved.unplaced;
        }
        if all.placed + all.unplaced > 0 {
            self.count("misplaced", "found");
        }
        if all.unplaced > 0 {
            let unplaced = all.unplaced;
            warn!(
                container = visited.name,
                unplaced, "there are no shards for misplaced rows"
            );
        }
        self.stats.lock().add("misplaced", "placed", all.placed);
        self.stats.lock().add("misplaced", "unplaced", all.unplaced);
        self.count("misplaced", if all.success { "success" } else { "failure" });
        Ok(all.success)
    }

    async fn move_part(&self, visited: &Visited, from: From, source: &Namespace) -> Result<Moved> {
        let mut moved = Moved {
            success: true,
            placed: 0,
            unplaced: 0,
        };
        // Ranges may have to be fetched; check for rows first.
        if !self.has_rows(visited, from, source).await? {
            return Ok(moved);
        }
        let ranges = self.destinations(visited, source).await?;
        let mut at = source.lower.clone();
        let mut ended = false;
        for range in &ranges {
            if range.upper() <= source.lower() || ended {
                continue;
            }
            if range.lower() > Bound::lower(&at) {
                let gap = part(&at, range.lower().min(source.upper()).text());
                moved.unplaced += self.count_rows(visited, from, &gap).await?;
                moved.success &= moved.unplaced == 0;
            }
            let lower = range.lower().max(source.lower()).text();
            let upper = range.upper().min(source.upper()).text();
            if range.name != visited.name {
                let (success, placed) = self
                    .move_to(visited, from, range, &part(lower, upper))
                    .await?;
                moved.success &= success;
                moved.placed += placed;
            }
            at.clone_from(&range.upper);
            ended = range.upper() >= source.upper();
        }
        if !ended {
            let rest = part(&at, &source.upper);
            moved.unplaced += self.count_rows(visited, from, &rest).await?;
            moved.success &= moved.unplaced == 0;
        }
        Ok(moved)
    }

    async fn destinations(&self, visited: &Visited, source: &Namespace) -> Result<Vec<ShardRange>> {
        let end_marker = source.end_marker();
        if !visited.is_root {
            return self
                .root_ranges(visited, &source.lower, &end_marker, "updating", false)
                .await;
        }
        let query = RangeQuery {
            marker: source.lower.clone(),
            end_marker,
            states: State::UPDATING.to_vec(),
            ..RangeQuery::default()
        };
        let ranges = visited
            .db
            .read(move |broker| broker.list_shard_ranges(&query));
        Ok(ranges.await?)
    }

    /// Copies the rows of a range into a shard, and removes them here once that is replicated.
    async fn move_to(
        &self,
        visited: &Visited,
        from: From,
        range: &ShardRange,
        source: &Namespace,
    ) -> Result<(bool, usize)> {
        let sampled = self.sample(visited, from).await?;
        let mut rows = Batches::of(source, -1, self.config.row_batch);
        let mut shard: Option<Shard> = None;
        let mut placed = 0;
        while let Some(batch) = self.next_batch(visited, from, &mut rows).await? {
            let shard = match &shard {
                Some(shard) => shard,
                None => {
                    let made = self.local_shard(visited, range).await?;
                    self.count(
                        "misplaced",
                        if made.created {
                            "db_created"
                        } else {
                            "db_exists"
                        },
                    );
                    shard.insert(made)
                }
            };
            placed += batch.len();
            shard.db.merge_items(None, batch).await?;
        }
        let Some(shard) = shard else {
            return Ok((true, 0));
        };
        let replicated = self
            .replicate(shard.db.key().clone(), shard.device_id)
            .await;
        let successes = replicated.1.iter().filter(|success| **success).count();
        let enough = self.ring().quorum().is_reached_by(successes);
        if !replicated.0 && !enough {
            warn!(
                container = visited.name,
                shard = range.name,
                successes,
                "misplaced rows stay: too few replicas of their shard have them"
            );
            return Ok((false, placed));
        }
        let (lower, upper) = (source.lower.clone(), source.upper.clone());
        let removed = visited.db.write(None, move |broker| {
            let remove = |broker: &cairn_index::ContainerBroker<'_>| {
                // Another file has other rows; later rows were not moved.
                let same = broker.id()? == sampled.id;
                if same {
                    broker.remove_rows(&lower, &upper, sampled.max_row)?;
                }
                Ok(same)
            };
            match from {
                From::Fresh => remove(broker),
                From::Source => broker.with_source_to_write(remove),
            }
        });
        let removed = removed.await?;
        debug!(
            container = visited.name,
            shard = range.name,
            placed,
            removed,
            "misplaced rows"
        );
        Ok((removed, placed))
    }

    async fn sample(&self, visited: &Visited, from: From) -> Result<Sampled> {
        let sampled = visited.db.read(move |broker| {
            let sample = |broker: &cairn_index::ContainerBroker<'_>| {
                Ok(Sampled {
                    id: broker.id()?,
                    max_row: broker.max_row()?,
                })
            };
            match from {
                From::Fresh => sample(broker),
                From::Source => broker.with_source(sample),
            }
        });
        Ok(sampled.await?)
    }

    async fn has_rows(&self, visited: &Visited, from: From, source: &Namespace) -> Result<bool> {
        let mut rows = Batches::of(source, -1, 1);
        Ok(self.next_batch(visited, from, &mut rows).await?.is_some())
    }

    async fn count_rows(&self, visited: &Visited, from: From, source: &Namespace) -> Result<usize> {
        let mut rows = Batches::of(source, -1, self.config.row_batch);
        let mut count = 0;
        while let Some(batch) = self.next_batch(visited, from, &mut rows).await? {
            count += batch.len();
        }
        Ok(count)
    }

    /// The next rows; none at the end.
    pub(super) async fn next_batch(
        &self,
        visited: &Visited,
        from: From,
        batches: &mut Batches,
    ) -> Result<Option<Vec<ObjectRow>>> {
        while let Some(query) = batches.queries.front().cloned() {
            let limit = query.limit;
            let rows = visited.db.read(move |broker| match from {
                From::Fresh => broker.rows_between(&query),
                From::Source => broker.with_source(|source| source.rows_between(&query)),
            });
            let rows = rows.await?;
            batches.went_on(&rows, limit);
            if !rows.is_empty() {
                return Ok(Some(
                    rows.into_iter().filter_map(|r| r.try_into().ok()).collect(),
                ));
            }
        }
        Ok(None)
    }
}

/// Iterator over the rows of a range of names, objects before tombstones.
pub(super) struct Batches {
    queries: VecDeque<RowsQuery>,
}

impl Batches {
    pub(super) fn of(source: &Namespace, since_row: i64, limit: usize) -> Self {
        let query = |deleted| RowsQuery {
            lower: source.lower.clone(),
            upper: source.upper.clone(),
            deleted,
            since_row,
            after: None,
            limit,
        };
        Batches {
            queries: VecDeque::from([query(false), query(true)]),
        }
    }

    fn went_on(&mut self, rows: &[ObjectRecord], limit: usize) {
        match (rows.last(), self.queries.front_mut()) {
            (Some(last), Some(query)) if rows.len() >= limit => {
                query.after = Some((last.name.clone(), last.rowid));
            }
            _ => {
                self.queries.pop_front();
            }
        }
    }
}
