//! Comparison of two sides A and B, measure by measure over their repetitions: the difference with
//! its confidence interval, and a verdict only if the interval is conclusive; otherwise the number
//! of further repetitions needed.
//!
//! A repetition is one run. Intervals within a run are not repetitions: what a store does in one
//! minute depends on the minute before, and a test that treats them as independent finds
//! differences that do not exist.

mod alternate;
mod gate;
mod measures;
mod plans;
mod statistics;
mod verdict;
mod words;

pub use alternate::{Side, alternate};
pub use gate::{Gate, GateError};
pub use measures::{Better, Measure, measures};
pub use plans::{plan_differences, plan_digest};
pub use statistics::{Interval, bootstrap, student_quantile, welch};
pub use verdict::{Comparison, MARGIN, NotRanked, Row, Verdict, compare};
pub use words::{figures, headline, markdown, section, text, verdict as verdict_words};

use thiserror::Error;

use crate::open::OpenError;
use crate::report::Input;
use crate::results::model::Run;

#[derive(Debug, Error)]
pub enum CompareError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{side}: no run was found")]
    Empty { side: String },
    #[error(
        "{side}: its runs are no repetitions: number {run} differs from the first in its plan \
         ({differences}); name one run, or a folder with runs of one plan"
    )]
    NoRepetitions {
        side: String,
        run: usize,
        differences: String,
    },
    #[error("the two sides have no stage and operation in common: {a} has {in_a}; {b} has {in_b}")]
    NothingInCommon {
        a: String,
        b: String,
        in_a: String,
        in_b: String,
    },
}

/// One side: its name and its repetitions.
#[derive(Clone, Debug)]
pub struct Repetitions {
    pub name: String,
    pub runs: Vec<Run>,
}

/// The repetitions at a path: a run folder is one, a folder of run folders has one for each.
///
/// # Errors
/// `Open` if a run cannot be read, `Empty` if there is none.
pub fn repetitions(input: &Input) -> Result<Repetitions, CompareError> {
    let name = input.label.clone().unwrap_or_else(|| {
        let name = input.path.file_name();
        let whole = || input.path.display().to_string();
        name.map_or_else(whole, |name| name.to_string_lossy().into_owned())
    });
    let runs = input.runs()?;
    if runs.is_empty() {
        return Err(CompareError::Empty { side: name });
    }
    Ok(Repetitions { name, runs })
}

#[cfg(test)]
mod tests;
