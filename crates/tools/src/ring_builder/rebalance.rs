//! The verb `rebalance`: moves partitions, evaluates the result, writes ring and builder.

use cairn_ring::builder::BALANCE_MAX;
use cairn_ring::{RebalanceOptions, RebalanceOutcome, RingBuilder, Seed};

use super::options::{Options, Spec};
use super::show::time_left;
use super::write::{FORMAT_VERSION, chosen_format};
use super::{EXIT_SUCCESS, EXIT_WARNING, Outcome, Session, Stop};

const OPTIONS: &[Spec] = &[
    ('f', "force", false),
    ('s', "seed", true),
    ('d', "debug", false),
    FORMAT_VERSION,
];

const RULE: &str =
    "-------------------------------------------------------------------------------";

impl Session<'_> {
    pub(super) fn rebalance(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        let options = Options::parse(OPTIONS, args)?;
        let format = chosen_format(self, &options)?;
        if builder.next_part_power().is_some() {
            return Err(Stop::error(
                "Partition power increase in progress.\n\
                 You need to finish the increase first before rebalancing.",
            ));
        }
        let seed = options.text("seed").filter(|seed| !seed.is_empty());
        let seed = seed.or(options.positional.first().map(String::as_str));
        let force = options.has("force");

        let before = Standing::of(builder, self.now)?;
        let outcome = self.run_rebalance(builder, seed, options.has("debug"))?;
        if outcome.changed_parts == 0 && !force && outcome.removed_devices == 0 {
            return self.nothing_moved(builder, before.seconds_left);
        }
        if !force && !before.worth_saving(builder, &outcome) {
            writeln!(
                self.out,
                "Cowardly refusing to save rebalance as it did not change at least 1%."
            )?;
            return Ok(EXIT_WARNING);
        }
        builder
            .validate()
            .map_err(|e| validation_failed(&e.to_string()))?;
        let status = self.judge(builder, &outcome)?;
        self.write_ring_files(builder, format)?;
        builder.assign_id(super::new_id);
        let backup = self.files.backup_of(&self.files.builder, self.now);
        builder.save(backup)?;
        self.save_builder(builder)?;
        Ok(status)
    }

    fn run_rebalance(
        &mut self,
        builder: &mut RingBuilder,
        seed: Option<&str>,
        debug: bool,
    ) -> Result<RebalanceOutcome, Stop> {
        let mut written = Ok(());
        let mut print = |line: &str| {
            if written.is_ok() {
                written = writeln!(self.out, "DEBUG: {line}");
            }
        };
        let outcome = builder.rebalance(RebalanceOptions {
            seed: seed.map(|seed| Seed::Text(seed.to_owned())),
            now: self.now,
            log: if debug { Some(&mut print) } else { None },
        });
        written?;
        outcome.map_err(|e| validation_failed(&e.to_string()))
    }

    fn nothing_moved(&mut self, builder: &RingBuilder, seconds_left: u64) -> Outcome {
        writeln!(self.out, "No partitions could be reassigned.")?;
        if seconds_left > 0 {
            writeln!(
                self.out,
                "The time between rebalances must be at least min_part_hours: {} hours ({} \
                 remaining)",
                builder.min_part_hours(),
                time_left(seconds_left)
            )?;
        } else {
            writeln!(self.out, "There is no need to do so at this time")?;
        }
        Ok(EXIT_WARNING)
    }

    /// Reports the result, with a warning if balance or dispersion is poor.
    fn judge(&mut self, builder: &RingBuilder, outcome: &RebalanceOutcome) -> Outcome {
        let RebalanceOutcome {
            changed_parts,
            balance,
            ..
        } = *outcome;
        let dispersion = builder.dispersion().unwrap_or(0.0);
        writeln!(
            self.out,
            "Reassigned {changed_parts} ({:.2}%) partitions. Balance is now {balance:.2}.  \
             Dispersion is now {dispersion:.2}",
            100.0 * changed_parts as f64 / builder.parts() as f64,
        )?;
        if dispersion > 0.0 {
            writeln!(
                self.out,
                "{RULE}\n\
                 NOTE: Dispersion of {dispersion:.6} indicates some parts are not\n      \
                 optimally dispersed.\n\n      \
                 You may want to adjust some device weights, increase\n      \
                 the overload or review the dispersion report.\n\
                 {RULE}"
            )?;
            return Ok(EXIT_WARNING);
        }
        if balance > 5.0 && balance / 100.0 > builder.overload() {
            writeln!(
                self.out,
                "{RULE}\n\
                 NOTE: Balance of {balance:.2} indicates you should push this\n      \
                 ring, wait at least {} hours, and rebalance/repush.\n\
                 {RULE}",
                builder.min_part_hours()
            )?;
            return Ok(EXIT_WARNING);
        }
        Ok(EXIT_SUCCESS)
    }
}

fn validation_failed(message: &str) -> Stop {
    Stop::error(format!(
        "{RULE}\nAn error has occurred during ring validation. Common\ncauses of failure are rings \
         that are empty or do not\nhave enough devices to accommodate the replica count.\nOriginal \
         exception message:\n {message}\n{RULE}"
    ))
}

/// State of the ring before the rebalance.
struct Standing {
    balance: f64,
    dispersion: Option<f64>,
    devs_changed: bool,
    seconds_left: u64,
}

impl Standing {
    fn of(builder: &RingBuilder, now: u64) -> Result<Standing, Stop> {
        Ok(Standing {
            balance: builder
                .balance()
                .map_err(|e| validation_failed(&e.to_string()))?,
            dispersion: builder.dispersion(),
            devs_changed: builder.devs_changed(),
            seconds_left: builder.min_part_seconds_left(now),
        })
    }

    /// Is the result worth saving? It is if devices changed, if balance or dispersion moved by at
    /// least 1, or if a device is still draining.
    fn worth_saving(&self, builder: &RingBuilder, outcome: &RebalanceOutcome) -> bool {
        let draining = self.balance == BALANCE_MAX && outcome.balance == BALANCE_MAX;
        let dispersion = builder.dispersion().unwrap_or(0.0);
        let dispersed = self
            .dispersion
            .is_none_or(|before| (before - dispersion).abs() >= 1.0);
        self.devs_changed || draining || dispersed || (self.balance - outcome.balance).abs() >= 1.0
    }
}
