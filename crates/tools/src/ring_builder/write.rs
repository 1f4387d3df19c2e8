//! The verbs that create files: `create`, `write_ring`, `write_builder`; and `version`, which reads
//! a ring's version.

use std::fs;

use cairn_ring::{FormatVersion, Ring, RingBuilder};

use super::options::{NO_LETTER, Options, Spec};
use super::settings::min_part_hours;
use super::{EXIT_ERROR, EXIT_SUCCESS, Outcome, Session, Stop, usage};

pub(super) const FORMAT_VERSION: Spec = (NO_LETTER, "format-version", true);
const WRITE_RING: &[Spec] = &[FORMAT_VERSION, (NO_LETTER, "dev-id-bytes", true)];
const MIN_PART_HOURS_DEFAULT: u32 = 24;

/// The requested ring format; version 1, with a note, if none was given.
pub(super) fn chosen_format(
    session: &mut Session<'_>,
    options: &Options,
) -> Result<FormatVersion, Stop> {
    match options.text("format-version") {
        Some("1") => Ok(FormatVersion::V1),
        Some("2") => Ok(FormatVersion::V2),
        Some(other) => Err(Stop::error(format!(
            "error: --format-version is {other:?}: 1 or 2 expected"
        ))),
        None => {
            writeln!(
                session.out,
                "Defaulting to --format-version=1, which every version of Swift can read.\n"
            )?;
            Ok(FormatVersion::V1)
        }
    }
}

impl Session<'_> {
    pub(super) fn create(&mut self, args: &[String]) -> Outcome {
        let [part_power, replicas, hours, ..] = args else {
            return Err(usage::stop("create"));
        };
        let number = |field: &str, text: &str| {
            Stop::error(format!("{field} is {text:?}: a number expected"))
        };
        let mut builder = RingBuilder::new(
            part_power
                .parse()
                .map_err(|_| number("part_power", part_power))?,
            replicas.parse().map_err(|_| number("replicas", replicas))?,
            min_part_hours(hours)?,
        )?;
        self.make_backup_dir()?;
        self.keep_replaced_builder()?;
        builder.assign_id(super::new_id);
        builder.save(self.files.backup_of(&self.files.builder, self.now))?;
        self.save_builder(&mut builder)
    }

    /// Backs up an existing builder before `create` replaces it, since that discards a whole
    /// cluster's assignment.
    fn keep_replaced_builder(&mut self) -> Result<(), Stop> {
        let old = &self.files.builder;
        if !old.exists() {
            return Ok(());
        }
        let name = old.file_name().unwrap_or_default().to_string_lossy();
        let kept = self
            .files
            .backups
            .join(format!("{}.replaced.{name}", self.now));
        fs::copy(old, &kept)
            .map_err(|e| Stop::error(format!("cannot keep a copy of {}: {e}", old.display())))?;
        writeln!(
            self.err,
            "WARNING: {} existed and is replaced; the old one is {}",
            old.display(),
            kept.display()
        )?;
        Ok(())
    }

    pub(super) fn version(&mut self) -> Outcome {
        let ring = Ring::load(&self.files.ring)?;
        writeln!(
            self.out,
            "{}: Serialization version: {} ({}-byte IDs), build version: {}",
            self.files.ring.display(),
            ring.format_version().number(),
            ring.data().dev_id_bytes,
            ring.version().unwrap_or(0),
        )?;
        Ok(EXIT_SUCCESS)
    }

    pub(super) fn write_ring(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        let options = Options::parse(WRITE_RING, args)?;
        let format = chosen_format(self, &options)?;
        if builder.devices().next().is_none() {
            return Err(Stop::error("Unable to write empty ring."));
        }
        if let Some(bytes) = options.value("dev-id-bytes", "2 or 4")? {
            builder.set_dev_id_bytes(bytes)?;
        }
        if !builder.ever_rebalanced() {
            writeln!(
                self.err,
                "WARNING: Writing a ring with no partition assignments but with devices; did you \
                 forget to run \"rebalance\"?"
            )?;
        }
        self.write_ring_files(builder, format)?;
        Ok(EXIT_SUCCESS)
    }

    /// Writes the ring and its backup.
    pub(super) fn write_ring_files(
        &mut self,
        builder: &RingBuilder,
        format: FormatVersion,
    ) -> Result<(), Stop> {
        self.make_backup_dir()?;
        let data = builder.ring_data();
        data.save(self.files.backup_of(&self.files.ring, self.now), format)?;
        data.save(&self.files.ring, format)?;
        Ok(())
    }

    pub(super) fn write_builder(&mut self, args: &[String]) -> Outcome {
        let path = self.files.builder.display().to_string();
        if self.files.builder.exists() {
            writeln!(
                self.out,
                "Cowardly refusing to overwrite existing Ring Builder file: {path}"
            )?;
            return Ok(EXIT_ERROR);
        }
        let hours = match args.first() {
            Some(text) => min_part_hours(text)?,
            None => {
                writeln!(
                    self.err,
                    "WARNING: default min_part_hours may not match the value in the lost builder.\n"
                )?;
                MIN_PART_HOURS_DEFAULT
            }
        };
        let ring = Ring::load(&self.files.ring)?;
        let mut builder = RingBuilder::from_ring_data(ring.data(), hours)?;
        self.save_builder(&mut builder)
    }
}
