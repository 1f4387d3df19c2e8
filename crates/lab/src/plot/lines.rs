//! Line charts: throughput over workers, rates over time, distributions.

use super::scale::{Kind, Scale, Tick, Unit};
use super::scene::{Anchor, Dash, Paint, Scene, Shape};
use super::text;

pub(super) const WIDTH: f64 = 480.0;
pub(super) const TITLE: f64 = 14.0;
pub(super) const SMALL: f64 = 12.0;
const PLOT_HEIGHT: f64 = 210.0;
const RIGHT: f64 = 16.0;
const LEGEND_ROW: f64 = 17.0;
/// Approximate maximum number of points of a line; more than there are pixels cannot be seen.
const POINTS_MAX: usize = 1200;

#[derive(Clone, Debug)]
pub struct Axis {
    pub title: String,
    pub kind: Kind,
    pub unit: Unit,
}

impl Axis {
    pub fn new(title: &str, kind: Kind, unit: Unit) -> Axis {
        Axis {
            title: title.to_owned(),
            kind,
            unit,
        }
    }
}

/// Style of a line: its colour, and dashes if colours repeat.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub colour: usize,
    pub dash: usize,
    pub mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    None,
    Points,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    /// Points; a y of NaN interrupts the line.
    pub points: Vec<(f64, f64)>,
    pub style: Style,
}

/// A text at a point, such as the best worker count.
#[derive(Clone, Debug)]
pub struct Note {
    pub at: (f64, f64),
    pub text: String,
    pub colour: usize,
}

#[derive(Clone, Debug)]
pub struct Lines {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    pub notes: Vec<Note>,
    /// Marked values of the x axis, such as the end of the ramp-up.
    pub subtitle: String,
}

impl Lines {
    pub fn new(title: &str, x: Axis, y: Axis) -> Lines {
        Lines {
            title: title.to_owned(),
            x,
            y,
            lines: Vec::new(),
            notes: Vec::new(),
            subtitle: String::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// Lays out the chart.
    pub fn scene(&self) -> Scene {
        let mut scene = Scene::new(WIDTH, &self.title);
        let mut top = heading(&mut scene, &self.title, &self.subtitle);
        let entries: Vec<(String, Swatch)> = self
            .lines
            .iter()
            // Among others, a line without a name is the bar of an interval.
            .filter(|line| self.lines.len() == 1 || !line.name.is_empty())
            .map(|line| (line.name.clone(), Swatch::Line(line.style)))
            .collect();
        // A single line needs no legend if the title describes it.
        if entries.len() > 1 || entries.iter().any(|(name, _)| !name.is_empty()) {
            top = legend(&mut scene, top, &entries);
        }
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_scale = Scale::over(self.x.kind, points().map(|p| p.0));
        let mut y_scale = Scale::over(self.y.kind, points().map(|p| p.1));
        if !self.notes.is_empty() {
            y_scale.make_room();
        }
        let y_ticks = y_scale.ticks(self.y.unit, 6);
        let widest = y_ticks
            .iter()
            .map(|t| text::width(&t.label, SMALL))
            .fold(0.0, f64::max);
        let frame = Frame {
            left: widest + 30.0,
            right: WIDTH - RIGHT,
            top: top + 8.0,
            bottom: top + 8.0 + PLOT_HEIGHT,
        };
        self.grid(&mut scene, &frame, &x_scale, &y_scale, &y_ticks);
        let place = |(x, y): (f64, f64)| {
            (
                frame.left + x_scale.place(x) * (frame.right - frame.left),
                frame.bottom - y_scale.place(y) * (frame.bottom - frame.top),
            )
        };
        for line in &self.lines {
            self.draw_line(&mut scene, line, &place);
        }
        self.draw_notes(&mut scene, &frame, &place);
        scene.height = frame.bottom + 42.0;
        scene
    }

    fn grid(
        &self,
        scene: &mut Scene,
        frame: &Frame,
        x_scale: &Scale,
        y_scale: &Scale,
        y_ticks: &[Tick],
    ) {
        let (width, height) = (frame.right - frame.left, frame.bottom - frame.top);
        for value in y_scale.minor() {
            let y = frame.bottom - y_scale.place(value) * height;
            scene.line((frame.left, y), (frame.right, y), Paint::Grid, 0.35);
        }
        for value in x_scale.minor() {
            let x = frame.left + x_scale.place(value) * width;
            scene.line((x, frame.top), (x, frame.bottom), Paint::Grid, 0.35);
        }
        for tick in y_ticks {
            let y = frame.bottom - y_scale.place(tick.value) * height;
            scene.line((frame.left, y), (frame.right, y), Paint::Grid, 1.0);
            let at = (frame.left - 6.0, y + 4.0);
            scene.words(at, &tick.label, SMALL, Paint::Muted, Anchor::End);
        }
        let mut free = frame.left - 20.0;
        for tick in self.x_ticks(x_scale) {
            let x = frame.left + x_scale.place(tick.value) * width;
            scene.line((x, frame.top), (x, frame.bottom), Paint::Grid, 1.0);
            let half = text::width(&tick.label, SMALL) / 2.0;
            // A label that would overlap the last is omitted; its line stays.
            if x - half > free + 4.0 {
                let x = x.min(WIDTH - half - 2.0);
                let at = (x, frame.bottom + 15.0);
                scene.words(at, &tick.label, SMALL, Paint::Muted, Anchor::Middle);
                free = x + half;
            }
        }
        scene.line(
            (frame.left, frame.bottom),
            (frame.right, frame.bottom),
            Paint::Muted,
            1.2,
        );
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_title = titled(&self.x, points().map(|p| p.0));
        let at = ((frame.left + frame.right) / 2.0, frame.bottom + 33.0);
        scene.words(at, &x_title, SMALL, Paint::Ink, Anchor::Middle);
        scene.shapes.push(Shape::Words {
            at: (13.0, (frame.top + frame.bottom) / 2.0),
            text: titled(&self.y, points().map(|p| p.1)),
            size: SMALL,
            paint: Paint::Ink,
            anchor: Anchor::Middle,
            bold: false,
            upright: true,
        });
    }

    /// Ticks at the measured worker counts if they are few; otherwise those of the scale.
    fn x_ticks(&self, scale: &Scale) -> Vec<Tick> {
        if self.x.kind == Kind::Log2 {
            let points = self.lines.iter().flat_map(|line| &line.points);
            let mut values: Vec<f64> = points.map(|p| p.0).filter(|x| *x > 0.0).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            if (2..=10).contains(&values.len()) {
                return values.into_iter().map(Tick::plain).collect();
            }
        }
        scale.ticks(self.x.unit, 7)
    }

    fn draw_line(&self, scene: &mut Scene, line: &Line, place: &dyn Fn((f64, f64)) -> (f64, f64)) {
        let drawable = |(x, y): &(f64, f64)| {
            let fits = |kind, v: f64| v.is_finite() && (!is_log(kind) || v > 0.0);
            fits(self.x.kind, *x) && fits(self.y.kind, *y)
        };
        let points: Vec<(f64, f64)> = line.points.iter().copied().filter(drawable).collect();
        let paint = Paint::Series(line.style.colour);
        // A point without a value interrupts the line.
        for part in line.points.split(|point| point.1.is_nan()) {
            let part: Vec<(f64, f64)> = part.iter().copied().filter(drawable).collect();
            if let ([alone], true) = (&part[..], points.len() > 1) {
                scene.shapes.push(Shape::Disc {
                    at: place(*alone),
                    radius: 1.6,
                    paint,
                    hollow: false,
                    hint: None,
                });
            }
            if part.len() > 1 {
                scene.shapes.push(Shape::Stroke {
                    points: thinned(&part).into_iter().map(place).collect(),
                    paint,
                    width: 1.9,
                    dash: dash(line.style.dash),
                });
            }
        }
        if line.style.mark == Mark::Points || points.len() == 1 {
            for point in &points {
                scene.shapes.push(Shape::Disc {
                    at: place(*point),
                    radius: 3.2,
                    paint,
                    hollow: line.style.dash % 2 == 1,
                    hint: Some(self.hint(line, *point)),
                });
            }
        }
    }

    fn hint(&self, line: &Line, (x, y): (f64, f64)) -> String {
        let x = match self.x.unit {
            Unit::Plain => format!("{} {}", Unit::Plain.words(x), self.x.title),
            unit => unit.words(x),
        };
        let name = if line.name.is_empty() {
            String::new()
        } else {
            format!("{}: ", line.name)
        };
        format!("{name}{} at {x}", self.y.unit.words(y))
    }

    /// Places notes above their points, or as near as possible without overlap. A note that does
    /// not fit is omitted; its point is marked.
    fn draw_notes(
        &self,
        scene: &mut Scene,
        frame: &Frame,
        place: &dyn Fn((f64, f64)) -> (f64, f64),
    ) {
        let mut taken: Vec<(f64, f64, f64)> = Vec::new();
        for note in &self.notes {
            let (x, y) = place(note.at);
            scene.shapes.push(Shape::Disc {
                at: (x, y),
                radius: 5.0,
                paint: Paint::Series(note.colour),
                hollow: true,
                hint: Some(note.text.clone()),
            });
            let half = text::width(&note.text, SMALL) / 2.0;
            let x = x.clamp(
                frame.left + half,
                (frame.right - half).max(frame.left + half),
            );
            let first = (y - 10.0).max(frame.top + 12.0);
            let covers = |at: (f64, f64), taken: &[(f64, f64, f64)]| {
                taken
                    .iter()
                    .any(|(tx, ty, th)| (tx - at.0).abs() < th + half && (ty - at.1).abs() < 14.0)
            };
            // Offsets 0, one line down, one up, two down, …
            let lines = (0..16).map(|n: i32| if n % 2 == 1 { n / 2 + 1 } else { -(n / 2) });
            let free = lines
                .map(|line| (x, first + 15.0 * f64::from(line)))
                .find(|at| {
                    (frame.top + 12.0..=frame.bottom - 4.0).contains(&at.1) && !covers(*at, &taken)
                });
            let Some(at) = free else { continue };
            taken.push((at.0, at.1, half));
            let paint = Paint::Series(note.colour);
            scene.words(at, &note.text, SMALL, paint, Anchor::Middle);
        }
    }
}

struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

fn is_log(kind: Kind) -> bool {
    matches!(kind, Kind::Log10 | Kind::Log2)
}

/// An axis's title with its unit, if the ticks have none.
fn titled(axis: &Axis, values: impl Iterator<Item = f64>) -> String {
    let largest = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    let unit = match (axis.unit, axis.kind) {
        (Unit::Share, _) => "",
        (Unit::PerSecond, Kind::Log10) => "per second",
        (_, Kind::Log10) => "",
        (unit, _) => unit.name(largest),
    };
    if unit.is_empty() {
        axis.title.clone()
    } else {
        format!("{} ({unit})", axis.title)
    }
}

pub(super) fn dash(number: usize) -> Dash {
    [Dash::Solid, Dash::Dashed, Dash::Dotted, Dash::Mixed][number % 4]
}

/// Keeps the minimum and maximum of every group of points, so that no spike is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let bunch = points.len().div_ceil(POINTS_MAX / 2);
    let mut kept = Vec::with_capacity(POINTS_MAX + 2);
    for bunch in points.chunks(bunch) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = bunch.iter().min_by(by_value);
        let high = bunch.iter().max_by(by_value);
        if let (Some(low), Some(high)) = (low, high) {
            let (first, second) = if low.0 <= high.0 {
                (low, high)
            } else {
                (high, low)
            };
            kept.push(*first);
            kept.push(*second);
        }
    }
    kept
}

/// Draws the title and the subtitle; returns the y below them.
pub(super) fn heading(scene: &mut Scene, title: &str, subtitle: &str) -> f64 {
    let mut y = 18.0;
    // Bold, and in the viewer's font.
    for row in wrapped(title, TITLE * 1.22, WIDTH - 20.0) {
        scene.heading((10.0, y), &row, TITLE);
        y += 18.0;
    }
    for row in wrapped(subtitle, SMALL, WIDTH - 20.0) {
        scene.words((10.0, y - 2.0), &row, SMALL, Paint::Muted, Anchor::Start);
        y += 15.0;
    }
    y - 10.0
}

pub(super) enum Swatch {
    Line(Style),
    Area(usize),
}

/// Draws the legend in as few rows as possible; returns the y below it.
pub(super) fn legend(scene: &mut Scene, top: f64, entries: &[(String, Swatch)]) -> f64 {
    let (mut x, mut y) = (10.0, top + LEGEND_ROW - 2.0);
    for (name, swatch) in entries {
        let name = shortened(name, SMALL, WIDTH - 60.0);
        let width = 30.0 + text::width(&name, SMALL) + 12.0;
        if x + width > WIDTH && x > 10.0 {
            x = 10.0;
            y += LEGEND_ROW;
        }
        match swatch {
            Swatch::Line(style) => {
                scene.shapes.push(Shape::Stroke {
                    points: vec![(x, y - 4.0), (x + 22.0, y - 4.0)],
                    paint: Paint::Series(style.colour),
                    width: 2.2,
                    dash: dash(style.dash),
                });
                if style.mark == Mark::Points {
                    scene.shapes.push(Shape::Disc {
                        at: (x + 11.0, y - 4.0),
                        radius: 3.2,
                        paint: Paint::Series(style.colour),
                        hollow: style.dash % 2 == 1,
                        hint: None,
                    });
                }
            }
            Swatch::Area(colour) => {
                let at = (x + 6.0, y - 10.0);
                scene.rectangle(at, (12.0, 11.0), Paint::Series(*colour), 0.85, None);
            }
        }
        scene.words((x + 28.0, y), &name, SMALL, Paint::Ink, Anchor::Start);
        x += width;
    }
    y + 4.0
}

/// Breaks a text at spaces into rows no wider than `width`.
pub(super) fn wrapped(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let word = shortened(word, size, width);
        match rows.last_mut() {
            Some(row) if text::width(&format!("{row} {word}"), size) <= width => {
                row.push(' ');
                row.push_str(&word);
            }
            _ => rows.push(word),
        }
    }
    rows
}

/// Shortens a text in the middle: ends distinguish stages, beginnings workloads.
pub(super) fn shortened(text: &str, size: f64, width: f64) -> String {
    if text::width(text, size) <= width {
        return text.to_owned();
    }
    let characters: Vec<char> = text.chars().collect();
    for keep in (2..characters.len()).rev() {
        let head = keep.div_ceil(2);
        let short: String = characters[..head]
            .iter()
            .chain(std::iter::once(&'…'))
            .chain(&characters[characters.len() - (keep - head)..])
            .collect();
        if text::width(&short, size) <= width {
            return short;
        }
    }
    "…".to_owned()
}
