//! Increase of the partition power by one while the cluster runs: prepare, (relink), increase,
//! (clean up), finish; or prepare, cancel, finish.
//!
//! `next_part_power` in the ring tells servers the phase: one above the power while links are made,
//! equal to it while old links are removed. Each step returns false if it is not its turn.

use crate::builder::{BuilderError, RingBuilder};

impl RingBuilder {
    /// First step: announces the next partition power.
    ///
    /// # Errors
    /// `Invalid` if the partition power is 32 already.
    pub fn prepare_increase_partition_power(&mut self) -> Result<bool, BuilderError> {
        if self.next_part_power.is_some() {
            return Ok(false);
        }
        if self.part_power >= 32 {
            return Err(BuilderError::invalid(
                "part_power",
                self.part_power,
                "below 32",
            ));
        }
        self.next_part_power = Some(self.part_power + 1);
        self.version += 1;
        Ok(true)
    }

    /// Splits each partition in two on the same devices, so that no data moves.
    pub fn increase_partition_power(&mut self, now: u64) -> bool {
        if self.next_part_power != Some(self.part_power + 1) {
            return false;
        }
        for row in self.table.iter_mut().flatten() {
            *row = doubled(row);
        }
        for dev in self.devs.iter_mut().flatten() {
            dev.parts *= 2;
        }
        self.last_part_moves = doubled(&self.last_part_moves);
        self.part_power += 1;
        self.version += 1;
        self.update_last_part_moves(now);
        true
    }

    pub fn cancel_increase_partition_power(&mut self) -> bool {
        if self.next_part_power != Some(self.part_power + 1) {
            return false;
        }
        self.next_part_power = Some(self.part_power);
        self.version += 1;
        true
    }

    pub fn finish_increase_partition_power(&mut self) -> bool {
        if self.next_part_power != Some(self.part_power) {
            return false;
        }
        self.next_part_power = None;
        self.version += 1;
        true
    }
}

fn doubled<T: Copy>(items: &[T]) -> Vec<T> {
    items.iter().flat_map(|item| [*item, *item]).collect()
}
