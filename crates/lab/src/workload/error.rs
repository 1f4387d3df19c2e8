//! Errors in workload files: each names file, line, column, what was found and what was expected.

use thiserror::Error;

use super::limits;

/// An error in a workload file. Lines and columns count from 1; columns are characters.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{file}:{line}:{column}: {found}; expected {expected}")]
pub struct WorkloadError {
    pub file: String,
    pub line: usize,
    pub column: usize,
    pub found: String,
    pub expected: String,
}

/// An invalid value whose position is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) found: String,
    pub(super) expected: String,
}

impl Wrong {
    pub(super) fn new(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// A file's text and name, from which errors are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'t> {
    pub(super) file: &'t str,
    pub(super) text: &'t str,
}

impl<'t> Source<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        Self { file, text }
    }

    /// An error at a byte offset of the text.
    pub(super) fn error(
        &self,
        at: usize,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> WorkloadError {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        WorkloadError {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            found: found.into(),
            expected: expected.into(),
        }
    }

    pub(super) fn wrong(&self, at: usize, wrong: Wrong) -> WorkloadError {
        self.error(at, wrong.found, wrong.expected)
    }

    /// An error at a line (from 1), with its column if known.
    pub(super) fn error_at_line(
        &self,
        line: usize,
        column: usize,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> WorkloadError {
        WorkloadError {
            file: self.file.to_owned(),
            line: line.max(1),
            column: column.max(1),
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// The bytes as text, without a byte order mark.
pub(super) fn text_of<'t>(file: &str, bytes: &'t [u8]) -> Result<&'t str, WorkloadError> {
    let start = Source::new(file, "");
    if bytes.len() > limits::FILE_BYTES {
        return Err(start.error(
            0,
            format!("a file of {} bytes", bytes.len()),
            format!("at most {} bytes", limits::FILE_BYTES),
        ));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or("");
            Err(Source::new(file, valid).error(valid.len(), "bytes that are no text", "UTF-8"))
        }
    }
}

/// The beginning of a text, for errors.
pub(super) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(60).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}
