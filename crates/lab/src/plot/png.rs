//! Painter of scenes as PNG, with 2.5 pixels per unit, in light colours.

use thiserror::Error;
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint as SkiaPaint, Path, PathBuilder, Pixmap, Stroke,
    StrokeDash, Transform,
};

use super::scene::{Anchor, Paint, Scene, Shape};
use super::svg::light;
use super::text::{self, PathSink};

const ZOOM: f32 = 2.5;
/// Width of an additional stroke around text: a light font looks thin at this size.
const WORDS_STROKE: f32 = 0.25;
const BOLD_STROKE: f32 = 0.6;

#[derive(Debug, Error)]
pub enum PngError {
    #[error("a picture of {width} × {height} pixels cannot be made")]
    Size { width: f64, height: f64 },
    #[error("cannot write the picture as PNG: {0}")]
    Encode(String),
}

/// Paints a scene and encodes it as PNG.
///
/// # Errors
/// `Size` if a side is not within 1 to 20,000 pixels; `Encode` if the encoder fails.
pub fn png(scene: &Scene) -> Result<Vec<u8>, PngError> {
    let zoom = f64::from(ZOOM);
    let (width, height) = (scene.width * zoom, scene.height * zoom);
    let bad_size = || PngError::Size { width, height };
    if !(1.0..20_000.0).contains(&width) || !(1.0..20_000.0).contains(&height) {
        return Err(bad_size());
    }
    let mut pixels = Pixmap::new(width as u32, height as u32).ok_or_else(bad_size)?;
    pixels.fill(Color::WHITE);
    for shape in &scene.shapes {
        draw(&mut pixels, shape);
    }
    pixels
        .encode_png()
        .map_err(|error| PngError::Encode(error.to_string()))
}

fn colour(paint: Paint, opacity: f64) -> SkiaPaint<'static> {
    let [red, green, blue] = light(paint);
    let mut paint = SkiaPaint::default();
    paint.set_color_rgba8(red, green, blue, (opacity * 255.0) as u8);
    paint
}

fn path_of(points: &[(f64, f64)], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (index, (x, y)) in points.iter().enumerate() {
        if index == 0 {
            builder.move_to(*x as f32, *y as f32);
        } else {
            builder.line_to(*x as f32, *y as f32);
        }
    }
    if closed {
        builder.close();
    }
    builder.finish()
}

fn draw(pixels: &mut Pixmap, shape: &Shape) {
    let zoom = Transform::from_scale(ZOOM, ZOOM);
    match shape {
        Shape::Stroke {
            points,
            paint,
            width,
            dash,
        } => {
            let stroke = Stroke {
                width: *width as f32,
                line_cap: LineCap::Round,
                line_join: LineJoin::Round,
                dash: StrokeDash::new(dash.pattern().to_vec(), 0.0),
                ..Stroke::default()
            };
            if let Some(path) = path_of(points, false) {
                pixels.stroke_path(&path, &colour(*paint, 1.0), &stroke, zoom, None);
            }
        }
        Shape::Area {
            points,
            paint,
            opacity,
            ..
        } => {
            if let Some(path) = path_of(points, true) {
                let paint = colour(*paint, *opacity);
                pixels.fill_path(&path, &paint, FillRule::Winding, zoom, None);
            }
        }
        Shape::Disc {
            at: (x, y),
            radius,
            paint,
            hollow,
            ..
        } => {
            let circle = PathBuilder::from_circle(*x as f32, *y as f32, *radius as f32);
            let Some(circle) = circle else { return };
            let inside = if *hollow { Paint::Surface } else { *paint };
            pixels.fill_path(&circle, &colour(inside, 1.0), FillRule::Winding, zoom, None);
            if *hollow {
                let stroke = Stroke {
                    width: 1.8,
                    ..Stroke::default()
                };
                pixels.stroke_path(&circle, &colour(*paint, 1.0), &stroke, zoom, None);
            }
        }
        Shape::Words {
            at,
            text,
            size,
            paint,
            anchor,
            bold,
            upright,
        } => {
            let mut sink = Sink(PathBuilder::new());
            text::outline(text, *size, &mut sink);
            let Some(path) = sink.0.finish() else { return };
            let width = text::exact_width(text, *size) as f32;
            let back = match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => -width / 2.0,
                Anchor::End => -width,
            };
            let (x, y) = (at.0 as f32, at.1 as f32);
            let place = if *upright {
                Transform::from_rotate(-90.0).post_translate(x, y)
            } else {
                Transform::from_translate(x, y)
            };
            let place = place.pre_translate(back, 0.0).post_concat(zoom);
            let paint = colour(*paint, 1.0);
            pixels.fill_path(&path, &paint, FillRule::Winding, place, None);
            let stroke = Stroke {
                width: if *bold { BOLD_STROKE } else { WORDS_STROKE },
                ..Stroke::default()
            };
            pixels.stroke_path(&path, &paint, &stroke, place, None);
        }
    }
}

struct Sink(PathBuilder);

impl PathSink for Sink {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.0.quad_to(x1, y1, x, y);
    }

    fn cubic_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}
