//! Charts: data in, a picture out, as SVG for pages and PNG for papers. [`Lines`] and [`Bars`] lay
//! a chart out as a [`Scene`] of strokes, areas and words; two painters draw scenes. No font of
//! the system, no script, no network: the PNG painter has its font in the program, SVG uses the
//! reader's.
//!
//! Colours are roles, not values. An SVG says light and dark itself, so the same picture is
//! readable on a white page and on a black one; a PNG is light.

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
