//! The verb `dispersion`: lists failure domains with too many replicas of the same partition.

use cairn_ring::{RingBuilder, TierDispersion};
use regex_lite::Regex;

use super::options::{NO_LETTER, Options, Spec};
use super::{EXIT_SUCCESS, EXIT_WARNING, Outcome, Session, Stop};

const OPTIONS: &[Spec] = &[(NO_LETTER, "recalculate", false), ('v', "verbose", false)];

impl Session<'_> {
    pub(super) fn dispersion(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        self.require_balanced(builder)?;
        let options = Options::parse(OPTIONS, args)?;
        let filter = match options.positional.first() {
            Some(pattern) => Some(Regex::new(&format!("^(?:{pattern})")).map_err(|error| {
                Stop::error(format!(
                    "search filter {pattern:?} is no regular expression: {error}"
                ))
            })?),
            None => None,
        };
        if options.has("recalculate") || builder.dispersion().is_none() {
            builder.update_dispersion()?;
            self.save_builder(builder)?;
        }
        let accepts = |name: &str| filter.as_ref().is_none_or(|filter| filter.is_match(name));
        let report = builder.dispersion_report(accepts)?;
        writeln!(
            self.out,
            "Dispersion is {:.6}, Balance is {:.6}, Overload is {:.2}%",
            builder.dispersion().unwrap_or(0.0),
            builder.balance()?,
            builder.overload() * 100.0
        )?;
        let required = builder.required_overload()? * 100.0;
        writeln!(self.out, "Required overload is {required:.6}%")?;
        let mut status = EXIT_SUCCESS;
        if let Some(worst) = &report.worst_tier {
            writeln!(
                self.out,
                "Worst tier is {:.6} ({worst})",
                report.max_dispersion
            )?;
            status = EXIT_WARNING;
        }
        if options.has("verbose") && !report.tiers.is_empty() {
            self.dispersion_table(builder, &report.tiers)?;
        }
        Ok(status)
    }

    fn dispersion_table(
        &mut self,
        builder: &RingBuilder,
        tiers: &[TierDispersion],
    ) -> Result<(), Stop> {
        let number = builder.parts().to_string().len().max(5);
        let name = tiers.iter().map(|t| t.name.len()).fold(30, usize::max);
        let columns = |values: &mut dyn Iterator<Item = u64>| {
            let values: Vec<_> = values.map(|value| format!("{value:>number$}")).collect();
            values.join(" ")
        };
        let counts = columns(&mut (0..=builder.replicas().ceil() as u64));
        let header = format!(
            "{:<name$} {:>number$} {:>6} {:>6} {counts}",
            "Tier", "Parts", "%", "Max"
        );
        let rule = "-".repeat(header.len());
        writeln!(self.out, "{rule}\n{header}\n{rule}")?;
        for tier in tiers {
            writeln!(
                self.out,
                "{:<name$} {:>number$} {:>6.2} {:>6} {}",
                tier.name,
                tier.placed_parts,
                tier.dispersion,
                tier.max_replicas,
                columns(&mut tier.replicas.iter().copied()),
            )?;
        }
        Ok(())
    }
}
