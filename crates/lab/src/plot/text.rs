//! The program's font, Ubuntu Light: widths of texts for layout, and outlines for PNGs.

use std::sync::OnceLock;

use ttf_parser::{Face, OutlineBuilder};

/// Factor for the wider fonts of SVG viewers.
const ROOM: f64 = 1.09;

fn face() -> Option<&'static Face<'static>> {
    static FACE: OnceLock<Option<Face<'static>>> = OnceLock::new();
    FACE.get_or_init(|| Face::parse(epaint_default_fonts::UBUNTU_LIGHT, 0).ok())
        .as_ref()
}

/// Width of a text of `size` pixels.
pub(super) fn width(text: &str, size: f64) -> f64 {
    exact_width(text, size) * ROOM
}

pub(super) fn exact_width(text: &str, size: f64) -> f64 {
    let Some(face) = face() else {
        return text.chars().count() as f64 * size * 0.5;
    };
    let units: f64 = text.chars().map(|c| advance(face, c)).sum();
    units * size / f64::from(face.units_per_em())
}

fn advance(face: &Face<'_>, character: char) -> f64 {
    let glyph = face.glyph_index(character).unwrap_or_default();
    let units = face.glyph_hor_advance(glyph);
    f64::from(units.unwrap_or(face.units_per_em() / 2))
}

/// Draws each character's outline; positions are in pixels from the start of the baseline, y
/// downwards.
pub(super) fn outline(text: &str, size: f64, builder: &mut dyn PathSink) {
    let Some(face) = face() else {
        return;
    };
    let scale = size / f64::from(face.units_per_em());
    let mut x = 0.0;
    for character in text.chars() {
        let glyph = face.glyph_index(character).unwrap_or_default();
        let mut placed = Placed {
            sink: builder,
            scale: scale as f32,
            x: x as f32,
        };
        // A space has no outline.
        let _ = face.outline_glyph(glyph, &mut placed);
        x += advance(face, character) * scale;
    }
}

/// Receiver of outlines in pixels.
pub(super) trait PathSink {
    fn move_to(&mut self, x: f32, y: f32);
    fn line_to(&mut self, x: f32, y: f32);
    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32);
    fn close(&mut self);
    fn cubic_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32);
}

struct Placed<'a> {
    sink: &'a mut dyn PathSink,
    scale: f32,
    x: f32,
}

impl Placed<'_> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, -y * self.scale)
    }
}

impl OutlineBuilder for Placed<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.sink.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.sink.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.sink.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.sink.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.sink.close();
    }
}
