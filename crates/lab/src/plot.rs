//! Charts: data in, a picture out, as SVG for pages and PNG for papers. [`Lines`] and [`Bars`] lay
//! out a chart as a [`Scene`] of strokes, areas and texts; two painters draw scenes. They need no
//! system fonts, scripts or network: the PNG painter has an embedded font, SVG uses the viewer's.
//!
//! Colours are roles, not values. An SVG contains both light and dark colours, so that it is
//! readable on white and black pages; a PNG is light.

mod bars;
mod lines;
mod png;
mod scale;
mod scene;
mod svg;
mod text;

pub use bars::{Bar, BarGroup, Bars};
pub use lines::{Axis, Line, Lines, Mark, Note, Style};
pub use png::{PngError, png};
pub use scale::{Kind, Unit};
pub use scene::Scene;
pub use svg::escape as svg_escape;
pub use svg::{inline as svg_inline, palette_css, standalone as svg};

#[cfg(test)]
mod tests;
