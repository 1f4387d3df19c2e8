//! Reader of workload files of all supported formats into a [`Plan`]: COSBench's XML, ssbench's
//! scenarios, swift-bench's conf and the lab's own TOML; and writer of a plan as that TOML.
//!
//! A reader refuses invalid input with its position: file, line, column, what was found and what
//! was expected. Ignorable input becomes a note. Everything read is bounded ([`limits`]), so
//! untrusted files may be read.

mod cosbench;
mod error;
pub mod limits;
mod names;
mod native;
mod settings;
mod ssbench;
mod swift_bench;
mod target;
mod value;
mod write;
mod xml;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use error::WorkloadError;
pub use target::{Target, TargetError};
pub use write::to_toml;

use crate::plan::Plan;
use error::Source;

/// A format of workload files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// COSBench's workload XML.
    Cosbench,
    /// An ssbench scenario: JSON, `#` comments allowed.
    Ssbench,
    /// swift-bench's conf: a `[bench]` section.
    SwiftBench,
    /// The lab's own TOML.
    Lab,
}

impl Format {
    pub const ALL: [Self; 4] = [Self::Cosbench, Self::Ssbench, Self::SwiftBench, Self::Lab];

    /// The format's name in results and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cosbench => "cosbench",
            Self::Ssbench => "ssbench",
            Self::SwiftBench => "swift-bench",
            Self::Lab => "lab",
        }
    }

    /// The format of this name, or of this usual file extension.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "cosbench" | "xml" => Some(Self::Cosbench),
            "ssbench" | "scenario" | "json" => Some(Self::Ssbench),
            "swift-bench" | "conf" => Some(Self::SwiftBench),
            "lab" | "toml" => Some(Self::Lab),
            _ => None,
        }
    }

    /// The extension for a copy of such a file.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Cosbench => "xml",
            Self::Ssbench => "scenario",
            Self::SwiftBench => "conf",
            Self::Lab => "toml",
        }
    }

    /// Detects the format from the first text that is not a comment: `<` is XML, `{` is JSON, a
    /// `[bench]` section is swift-bench's, everything else is TOML. The file's name is not used,
    /// because people rename files.
    pub fn detect(text: &str) -> Self {
        let text = text.trim_start_matches('\u{feff}');
        for line in text.lines().map(str::trim) {
            match line.chars().next() {
                None | Some('#' | ';') => {}
                Some('<') => return Self::Cosbench,
                Some('{') => return Self::Ssbench,
                Some('[') => {
                    let section = line.trim_start_matches('[').split(']').next();
                    return match section.map(str::trim) {
                        Some("bench" | "DEFAULT") if !line.starts_with("[[") => Self::SwiftBench,
                        _ => Self::Lab,
                    };
                }
                Some(_) => return Self::Lab,
            }
        }
        Self::Lab
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// Options of the caller besides the file.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The format; `None`: detected from the content.
    pub format: Option<Format>,
    /// The `[scales.NAME]` of a TOML workload to apply. `None`: the file's default, or none.
    pub scale: Option<String>,
    /// Values for `[parameters]` of a TOML workload, overriding the file's and the scale's.
    pub parameters: BTreeMap<String, String>,
}

/// A parsed workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub plan: Plan,
    pub format: Format,
    /// Ignored input, one sentence each.
    pub notes: Vec<String>,
    /// Settings of stores that published samples leave open (`<accesskey>`): `accesskey of s3`.
    pub placeholders: Vec<String>,
}

impl Workload {
    /// Describes the open settings; irrelevant if the command line names a store.
    pub fn open_settings(&self) -> Option<String> {
        (!self.placeholders.is_empty()).then(|| {
            let settings = self.placeholders.join(", ");
            format!("the workload leaves open: {settings}; name a store with --target")
        })
    }
}

/// Parses bytes as written in workload files: `4096`, `64KB`, `64KiB`. `None` if invalid.
pub fn bytes(text: &str) -> Option<u64> {
    value::size(text, u64::MAX).ok()
}

/// Reads a workload; `file` is its name in errors.
///
/// # Errors
/// It is not UTF-8, of no known format, or a value of it is wrong: the error names the line.
pub fn read(file: &str, bytes: &[u8], options: &Options) -> Result<Workload, WorkloadError> {
    let text = error::text_of(file, bytes)?;
    let format = options.format.unwrap_or_else(|| Format::detect(text));
    let source = Source::new(file, text);
    if format != Format::Lab && (options.scale.is_some() || !options.parameters.is_empty()) {
        return Err(source.error(
            0,
            format!("a {format} workload, which has no scales and no parameters"),
            "the lab's own TOML where a scale or a parameter is given",
        ));
    }
    let mut notes = Notes::default();
    let mut plan = match format {
        Format::Cosbench => cosbench::read(&source, &mut notes)?,
        Format::Ssbench => ssbench::read(&source, &mut notes)?,
        Format::SwiftBench => swift_bench::read(&source, &mut notes)?,
        Format::Lab => native::read(&source, options, &mut notes)?,
    };
    if plan.format.is_empty() {
        plan.format = format.as_str().to_owned();
    }
    Ok(Workload {
        plan,
        format,
        notes: notes.passed_over,
        placeholders: notes.placeholders,
    })
}

/// Notes on ignored input, each only once.
#[derive(Debug, Default)]
struct Notes {
    passed_over: Vec<String>,
    placeholders: Vec<String>,
}

impl Notes {
    fn add(&mut self, note: String) {
        add_once(&mut self.passed_over, note);
    }

    fn add_placeholder(&mut self, note: String) {
        add_once(&mut self.placeholders, note);
    }
}

fn add_once(notes: &mut Vec<String>, note: String) {
    if notes.len() < limits::NOTES && !notes.contains(&note) {
        notes.push(note);
    }
}
