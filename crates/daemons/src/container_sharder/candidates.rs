//! Candidates for sharding and for shrinking, and a shard's report to its root.

use cairn_formats::shard::{ShardRange, State, compactible_sequences, shrink_sequences, total};
use cairn_http::params::quote_path;
use cairn_index::RangeQuery;

use super::{ContainerSharder, Result, Visited};

impl ContainerSharder {
    fn is_large(&self, range: &ShardRange) -> bool {
        range.is(State::Active) && range.object_count >= self.config.shard_container_threshold
    }

    fn enable(&self, range: &mut ShardRange) {
        let now = self.now();
        range.set_state_at(State::Sharding, now);
        range.epoch = Some(now.normal());
    }

    /// Starts sharding of a root that has grown.
    pub(super) async fn enable_if_large(&self, visited: &Visited) -> Result<()> {
        let now = self.now();
        let own = visited.db.read(move |broker| {
            let info = broker.info()?;
            let mut own = broker.own_shard_range()?;
            own.set_counts(info.object_count, info.bytes_used, now);
            Ok(own)
        });
        let mut own = own.await?;
        if self.is_large(&own) {
            self.enable(&mut own);
            self.merge(visited, vec![own]).await?;
        }
        Ok(())
    }

    /// Merges small shards of a sharded root, and starts sharding of large ones.
    pub(super) async fn manage_shards(&self, visited: &Visited, leads: bool) -> Result<()> {
        let (own, ranges, info) = visited
            .db
            .read(|broker| {
                let ranges = broker.list_shard_ranges(&RangeQuery::default())?;
                Ok((broker.own_shard_range()?, ranges, broker.info()?))
            })
            .await?;
        let limits = self.config.shrinking;
        let compactible: usize = compactible_sequences(&ranges, &own, limits, false)
            .iter()
            .map(|sequence| sequence.len() - 1)
            .sum();
        if compactible > 0 {
            let mut own = own.clone();
            own.set_counts(info.object_count, info.bytes_used, self.now());
            let mut facts = self
                .facts(
                    &visited.db,
                    visited.replica,
                    &visited.name,
                    &visited.root,
                    &own,
                )
                .await;
            facts["compactible_ranges"] = compactible.into();
            self.stats.lock().may_shrink(facts);
        }
        if leads {
            let sequences = compactible_sequences(&ranges, &own, limits, true);
            self.compact(visited, sequences, &own).await?;
            self.enable_large_shards(visited).await?;
        }
        let query = RangeQuery {
            states: vec![State::Sharding],
            ..RangeQuery::default()
        };
        let sharding = visited
            .db
            .read(move |broker| broker.list_shard_ranges(&query));
        for range in sharding.await? {
            let name = range.name.clone();
            self.send_ranges(&name, std::slice::from_ref(&range), &[])
                .await;
        }
        Ok(())
    }

    async fn enable_large_shards(&self, visited: &Visited) -> Result<()> {
        let query = RangeQuery {
            states: vec![State::Active],
            ..RangeQuery::default()
        };
        let active = visited
            .db
            .read(move |broker| broker.list_shard_ranges(&query))
            .await?;
        let mut large: Vec<ShardRange> = active
            .into_iter()
            .filter(|range| self.is_large(range))
            .collect();
        for range in &mut large {
            self.enable(range);
        }
        self.merge(visited, large).await
    }

    async fn compact(
        &self,
        visited: &Visited,
        mut sequences: Vec<Vec<ShardRange>>,
        own: &ShardRange,
    ) -> Result<()> {
        let changed = shrink_sequences(&mut sequences, self.now());
        self.merge(visited, changed).await?;
        for sequence in &sequences {
            let Some((acceptor, donors)) = sequence.split_last() else {
                continue;
            };
            let mut acceptor = acceptor.clone();
            if acceptor.name != own.name {
                let name = acceptor.name.clone();
                self.send_ranges(&name, std::slice::from_ref(&acceptor), &[])
                    .await;
                let objects = total(donors.iter().map(|donor| donor.object_count));
                let bytes = total(donors.iter().map(|donor| donor.bytes_used));
                acceptor.set_counts(
                    acceptor.object_count.saturating_add(objects),
                    acceptor.bytes_used.saturating_add(bytes),
                    self.now(),
                );
            }
            // Each donor then copies all its rows into the acceptor.
            for donor in donors {
                self.send_ranges(&donor.name, &[donor.clone(), acceptor.clone()], &[])
                    .await;
            }
        }
        Ok(())
    }

    /// Reports a shard's range and totals to the root, once for each change.
    pub(super) async fn report_to_root(&self, visited: &Visited) -> Result<()> {
        let now = self.now();
        let age = self.ago(self.config.replication.reclaim_age);
        let stored = visited
            .db
            .read(|broker| broker.stored_own_shard_range())
            .await?;
        let Some(mut own) = stored else {
            return Ok(());
        };
        if own.state().is_some_and(State::has_counts) {
            // Reclaimable tombstones do not prevent a merge.
            let sync_age = self.ago(self.config.replication.reclaim_age.saturating_mul(2));
            if visited
                .db
                .read(move |broker| broker.has_reclaimable(age, sync_age))
                .await?
            {
                visited.db.reclaim(age, sync_age).await?;
            }
            let (info, tombstones) = visited
                .db
                .read(|broker| Ok((broker.info()?, broker.tombstone_count()?)))
                .await?;
            own.set_tombstones(tombstones, now);
            own.set_counts(info.object_count, info.bytes_used, now);
            if own.reported == 0 {
                self.merge(visited, vec![own.clone()]).await?;
            }
        }
        if own.reported != 0 {
            return Ok(());
        }
        let query = RangeQuery {
            include_own: true,
            include_deleted: true,
            ..RangeQuery::default()
        };
        let all = visited
            .db
            .read(move |broker| broker.list_shard_ranges(&query))
            .await?;
        let referer = [("referer", quote_path(&visited.name))];
        if self.send_ranges(&visited.root, &all, &referer).await {
            own.reported = 1;
            self.merge(visited, vec![own]).await?;
        }
        Ok(())
    }
}
