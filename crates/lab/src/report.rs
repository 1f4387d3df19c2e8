//! What a person reads of runs: a page that needs nothing but itself, the same pictures as SVG and
//! PNG files, the same numbers as tables and JSON. Several runs, of whatever tool, stand side by
//! side.
//!
//! [`sections`] decides what is shown, from the model alone; [`html`] and the files only write it.

mod courses;
mod families;
mod files;
mod html;
mod sections;
mod stages;
mod summary;
mod words;

pub use files::{Input, Report, ReportError, ReportOptions, report, write_report};
pub use html::page;
pub use sections::{Cell, Figure, Section, Table, sections};
pub use summary::summary;

/// The page's style sheet, for pages that look alike.
pub const PAGE_CSS: &str = include_str!("report/page.css");

#[cfg(test)]
mod tests;
