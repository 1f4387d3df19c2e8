//! The verbs that change settings: `set_min_part_hours`, `set_replicas`, `set_overload`.

use cairn_ring::RingBuilder;

use super::{EXIT_SUCCESS, EXIT_WARNING, Outcome, Session, Stop, usage};

impl Session<'_> {
    pub(super) fn set_min_part_hours(
        &mut self,
        builder: &mut RingBuilder,
        args: &[String],
    ) -> Outcome {
        let text = args
            .first()
            .ok_or_else(|| usage::stop("set_min_part_hours"))?;
        builder.set_min_part_hours(min_part_hours(text)?);
        writeln!(
            self.out,
            "The minimum number of hours before a partition can be reassigned is now set to {text}"
        )?;
        self.save_builder(builder)
    }

    pub(super) fn set_replicas(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        let text = args.first().ok_or_else(|| usage::stop("set_replicas"))?;
        let replicas: f64 = text
            .parse()
            .map_err(|_| Stop::error(format!("\"{text}\" is not a valid number.")))?;
        if replicas < 1.0 {
            return Err(Stop::error("Replica count must be at least 1."));
        }
        builder.set_replicas(replicas)?;
        let replicas = builder.replicas();
        writeln!(
            self.out,
            "The replica count is now {replicas:.6}.\n\
             The change will take effect after the next rebalance."
        )?;
        self.save_builder(builder)
    }

    pub(super) fn set_overload(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        let text = args.first().ok_or_else(|| usage::stop("set_overload"))?;
        let percent = text.strip_suffix('%');
        let number: f64 = percent
            .unwrap_or(text)
            .parse()
            .map_err(|_| Stop::error(format!("\"{text}\" is not a valid number.")))?;
        if number < 0.0 {
            return Err(Stop::error("Overload must be non-negative."));
        }
        let mut status = EXIT_SUCCESS;
        if number > 1.0 && percent.is_none() {
            writeln!(self.out, "!?! Warning overload is greater than 100% !?!")?;
            status = EXIT_WARNING;
        }
        builder.set_overload(if percent.is_some() {
            number * 0.01
        } else {
            number
        })?;
        let overload = builder.overload();
        writeln!(
            self.out,
            "The overload factor is now {:.2}% ({overload:.6})\n\
             The change will take effect after the next rebalance.",
            overload * 100.0
        )?;
        self.save_builder(builder)?;
        Ok(status)
    }
}

pub(super) fn min_part_hours(text: &str) -> Result<u32, Stop> {
    text.parse().map_err(|_| {
        Stop::error(format!(
            "min_part_hours is {text:?}: a whole number of hours, at least 0, expected"
        ))
    })
}
