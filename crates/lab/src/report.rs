//! Reports of runs: a self-contained page, the same pictures as SVG and PNG files, the same numbers
//! as tables and JSON. Several runs, from any tool, are shown side by side.
//!
//! [`sections`] chooses the content from the model alone; [`html`] and the files only render it.

mod courses;
mod families;
mod files;
mod html;
mod rates;
mod sections;
mod stages;
mod summary;
mod words;

pub use files::{Input, Report, ReportError, ReportOptions, report, write_report};
pub use html::page;
pub use sections::{Cell, Figure, Section, Table, sections};
pub use summary::summary;

/// The page's style sheet, for other pages in the same style.
pub const PAGE_CSS: &str = include_str!("report/page.css");

#[cfg(test)]
mod tests;
