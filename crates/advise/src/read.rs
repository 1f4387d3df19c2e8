//! Parser of TOML and JSON into values; an error shows the line with the field and its value.

use serde::de::DeserializeOwned;

use crate::error::AdviseError;

/// Maximum size of a text: a catalogue of thousands of nodes fits.
const TEXT_BYTES_MAX: usize = 4 << 20;

pub(crate) fn toml<T: DeserializeOwned>(file: &'static str, text: &str) -> Result<T, AdviseError> {
    check_length(file, text)?;
    ::toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        syntax(file, text, at, error.message())
    })
}

pub(crate) fn json<T: DeserializeOwned>(file: &'static str, text: &str) -> Result<T, AdviseError> {
    check_length(file, text)?;
    serde_json::from_str(text).map_err(|error| {
        let before = text
            .split_inclusive('\n')
            .take(error.line().saturating_sub(1));
        let at = before.map(str::len).sum::<usize>();
        syntax(file, text, at, &error.to_string())
    })
}

fn check_length(file: &'static str, text: &str) -> Result<(), AdviseError> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let remedy = format!("at most {TEXT_BYTES_MAX} are read");
    let length = format!("{} bytes", text.len());
    Err(AdviseError::field(
        file,
        "the file's length",
        length,
        remedy,
    ))
}

fn syntax(file: &'static str, text: &str, at: usize, message: &str) -> AdviseError {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let shown = text.lines().nth(line - 1).unwrap_or_default().trim();
    AdviseError::Syntax {
        file,
        line,
        text: shown.chars().take(120).collect(),
        message: message.trim().replace('\n', "; "),
    }
}

/// Checks that a number is within a range.
pub(crate) fn within(
    file: &'static str,
    field: impl Into<String>,
    value: f64,
    least: f64,
    most: f64,
) -> Result<(), AdviseError> {
    if value.is_finite() && (least..=most).contains(&value) {
        return Ok(());
    }
    let remedy = format!("give a number from {least} to {most}");
    Err(AdviseError::field(file, field, value, remedy))
}
