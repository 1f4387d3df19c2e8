//! A scene: shapes in drawing order, in pixels of a page about as wide as a phone.

/// Role of a colour; each painter defines its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Ink,
    Muted,
    Grid,
    Surface,
    /// Colour of the series with this number (modulo eight).
    Series(usize),
}

pub(super) const SERIES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Dashed,
    Dotted,
    Mixed,
}

impl Dash {
    pub fn pattern(self) -> &'static [f32] {
        match self {
            Dash::Solid => &[],
            Dash::Dashed => &[6.0, 4.0],
            Dash::Dotted => &[1.5, 3.0],
            Dash::Mixed => &[8.0, 3.0, 1.5, 3.0],
        }
    }
}

/// Tooltip of the shape.
pub(super) type Hint = Option<String>;

#[derive(Clone, Debug)]
pub enum Shape {
    Stroke {
        points: Vec<(f64, f64)>,
        paint: Paint,
        width: f64,
        dash: Dash,
    },
    Area {
        points: Vec<(f64, f64)>,
        paint: Paint,
        opacity: f64,
        hint: Hint,
    },
    Disc {
        at: (f64, f64),
        radius: f64,
        paint: Paint,
        /// A ring with the background's colour inside.
        hollow: bool,
        hint: Hint,
    },
    Words {
        at: (f64, f64),
        text: String,
        size: f64,
        paint: Paint,
        anchor: Anchor,
        bold: bool,
        /// Text direction from bottom to top.
        upright: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Scene {
    pub width: f64,
    pub height: f64,
    /// Description for screen readers.
    pub title: String,
    pub shapes: Vec<Shape>,
}

impl Scene {
    pub(super) fn new(width: f64, title: &str) -> Scene {
        Scene {
            width,
            height: 0.0,
            title: title.to_owned(),
            shapes: Vec::new(),
        }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), paint: Paint, width: f64) {
        self.shapes.push(Shape::Stroke {
            points: vec![from, to],
            paint,
            width,
            dash: Dash::Solid,
        });
    }

    pub(super) fn rectangle(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        paint: Paint,
        opacity: f64,
        hint: Hint,
    ) {
        self.shapes.push(Shape::Area {
            points: vec![
                (x, y),
                (x + width, y),
                (x + width, y + height),
                (x, y + height),
            ],
            paint,
            opacity,
            hint,
        });
    }

    pub(super) fn words(
        &mut self,
        at: (f64, f64),
        text: &str,
        size: f64,
        paint: Paint,
        anchor: Anchor,
    ) {
        self.shapes.push(Shape::Words {
            at,
            text: text.to_owned(),
            size,
            paint,
            anchor,
            bold: false,
            upright: false,
        });
    }

    pub(super) fn heading(&mut self, at: (f64, f64), text: &str, size: f64) {
        self.shapes.push(Shape::Words {
            at,
            text: text.to_owned(),
            size,
            paint: Paint::Ink,
            anchor: Anchor::Start,
            bold: true,
            upright: false,
        });
    }
}
