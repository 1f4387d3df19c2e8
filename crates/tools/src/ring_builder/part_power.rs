//! The verbs of a partition power increase; `builder/part_power.rs` describes their effect on the
//! ring.

use cairn_ring::RingBuilder;

use super::{Outcome, Session, Stop};

const NEXT_WRITE_RING: &str = "The change will take effect after the next write_ring.";

impl Session<'_> {
    pub(super) fn prepare_power(&mut self, builder: &mut RingBuilder) -> Outcome {
        let name = self.files.builder.file_name().unwrap_or_default();
        if !name.to_string_lossy().contains("object") {
            return Err(Stop::error(
                "Partition power increase is only supported for object rings.",
            ));
        }
        if !builder.prepare_increase_partition_power()? {
            return Err(Stop::error(
                "Ring is already prepared for partition power increase.",
            ));
        }
        self.save_builder(builder)?;
        self.say_next_power(
            builder,
            "Deploy the changed rings to proxies and object nodes, then relink the existing data\n\
             (swift-object-relinker relink) before increasing the partition power.",
        )
    }

    pub(super) fn increase_power(&mut self, builder: &mut RingBuilder) -> Outcome {
        if !builder.increase_partition_power(self.now) {
            return Err(Stop::error(
                "Ring partition power cannot be increased. Either the ring\n\
                 was not prepared yet, or this operation has already run.",
            ));
        }
        let power = builder.part_power();
        writeln!(
            self.out,
            "The partition power is now {power}.\n{NEXT_WRITE_RING}"
        )?;
        self.save_builder(builder)
    }

    pub(super) fn cancel_power(&mut self, builder: &mut RingBuilder) -> Outcome {
        if !builder.cancel_increase_partition_power() {
            return Err(Stop::error(
                "Ring partition power increase cannot be canceled.",
            ));
        }
        self.save_builder(builder)?;
        self.say_next_power(
            builder,
            "Deploy the changed rings to the object nodes, then clean up the hard links\n\
             (swift-object-relinker cleanup).",
        )
    }

    pub(super) fn finish_power(&mut self, builder: &mut RingBuilder) -> Outcome {
        if !builder.finish_increase_partition_power() {
            return Err(Stop::error(
                "Ring partition power increase cannot be finished.",
            ));
        }
        writeln!(self.out, "{NEXT_WRITE_RING}")?;
        self.save_builder(builder)
    }

    fn say_next_power(&mut self, builder: &RingBuilder, advice: &str) -> Outcome {
        let next = builder.next_part_power().unwrap_or(builder.part_power());
        writeln!(
            self.out,
            "The next partition power is now {next}.\n{NEXT_WRITE_RING}\n{advice}"
        )?;
        Ok(super::EXIT_SUCCESS)
    }
}
