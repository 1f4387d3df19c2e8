//! Errors of the advisor. Each names the file, the field, the value and the remedy.

use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq)]
pub enum AdviseError {
    #[error("{file}: {field} is {value}: {remedy}")]
    Field {
        file: &'static str,
        field: String,
        value: String,
        remedy: String,
    },
    #[error("{file}, line {line}: `{text}`: {message}")]
    Syntax {
        file: &'static str,
        line: usize,
        text: String,
        message: String,
    },
    #[error("the {ring} ring of {cluster} cannot be built: {message}")]
    Ring {
        ring: &'static str,
        cluster: String,
        message: String,
    },
    #[error(
        "not predicted, for it is outside what was measured: {}; measure such cells, or say \
         --extrapolate to have it all the same, without an interval",
        .reasons.join("; ")
    )]
    Outside { reasons: Vec<String> },
    #[error("{what} has {have} cells, {need} are needed: {remedy}")]
    TooFewCells {
        what: &'static str,
        have: usize,
        need: usize,
        remedy: &'static str,
    },
}

impl AdviseError {
    pub fn field(
        file: &'static str,
        field: impl Into<String>,
        value: impl ToString,
        remedy: impl Into<String>,
    ) -> Self {
        AdviseError::Field {
            file,
            field: field.into(),
            value: value.to_string(),
            remedy: remedy.into(),
        }
    }
}
