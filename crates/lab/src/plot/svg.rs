//! Painter of scenes as SVG: as a standalone file with light and dark colours, or as part of a page
//! with those in its style sheet.

use std::fmt::Write;

use super::scene::{Anchor, Paint, SERIES, Scene, Shape};

/// Colours distinguishable for the colour-blind, on white and on black.
const LIGHT: [&str; SERIES] = [
    "#2a6fbb", "#d9730d", "#2f8f4e", "#c8353a", "#8250c4", "#12878f", "#8f6b2f", "#c2448f",
];
const DARK: [&str; SERIES] = [
    "#6aa9f0", "#f2a154", "#66c98a", "#f07a7a", "#b592f0", "#54c6cf", "#d0a868", "#ee86c0",
];
const LIGHT_ROLES: [(&str, &str); 4] = [
    ("ink", "#1f2328"),
    ("muted", "#59636e"),
    ("grid", "#d8dde3"),
    ("surface", "#ffffff"),
];
const DARK_ROLES: [(&str, &str); 4] = [
    ("ink", "#e6edf3"),
    ("muted", "#9ba5b0"),
    ("grid", "#363d46"),
    ("surface", "#14181d"),
];

/// The light value of a colour: red, green and blue.
pub(super) fn light(paint: Paint) -> [u8; 3] {
    let text = match paint {
        Paint::Ink => LIGHT_ROLES[0].1,
        Paint::Muted => LIGHT_ROLES[1].1,
        Paint::Grid => LIGHT_ROLES[2].1,
        Paint::Surface => LIGHT_ROLES[3].1,
        Paint::Series(n) => LIGHT[n % SERIES],
    };
    let part = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap_or(0);
    [part(1), part(3), part(5)]
}

/// CSS variables of charts, for both colour schemes.
pub fn palette_css() -> String {
    let declare = |roles: &[(&str, &str)], series: &[&str]| {
        let mut css = String::new();
        for (name, value) in roles {
            // Writing to a String cannot fail.
            let _ = write!(css, "--{name}:{value};");
        }
        for (index, value) in series.iter().enumerate() {
            let _ = write!(css, "--s{index}:{value};");
        }
        css
    };
    format!(
        ":root{{color-scheme:light dark;{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n",
        declare(&LIGHT_ROLES, &LIGHT),
        declare(&DARK_ROLES, &DARK)
    )
}

/// A standalone file.
pub fn standalone(scene: &Scene) -> String {
    let mut svg = open(scene, true);
    let _ = write!(
        svg,
        "<style>{}</style>\n<rect width=\"100%\" height=\"100%\" {}/>\n",
        palette_css(),
        paints(&[("fill", Paint::Surface)], true)
    );
    body(&mut svg, scene, true);
    svg
}

/// An element of a page that includes [`palette_css`].
pub fn inline(scene: &Scene) -> String {
    let mut svg = open(scene, false);
    body(&mut svg, scene, false);
    svg
}

fn open(scene: &Scene, alone: bool) -> String {
    let (width, height) = (scene.width, scene.height);
    let size = if alone {
        format!(
            " width=\"{:.0}\" height=\"{:.0}\"",
            width * 1.5,
            height * 1.5
        )
    } else {
        String::new()
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\"{size} viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\" font-family=\"system-ui, 'Segoe UI', Ubuntu, 'Helvetica Neue', \
         'DejaVu Sans', sans-serif\">\n<title>{}</title>\n",
        escape(&scene.title)
    )
}

fn body(svg: &mut String, scene: &Scene, alone: bool) {
    for shape in &scene.shapes {
        draw(svg, shape, alone);
    }
    svg.push_str("</svg>\n");
}

fn colour(paint: Paint) -> String {
    match paint {
        Paint::Ink => "var(--ink)".to_owned(),
        Paint::Muted => "var(--muted)".to_owned(),
        Paint::Grid => "var(--grid)".to_owned(),
        Paint::Surface => "var(--surface)".to_owned(),
        Paint::Series(n) => format!("var(--s{})", n % SERIES),
    }
}

/// The attributes of `fill` and `stroke`. A standalone file contains the light values as well:
/// viewers other than browsers do not support variables, and would draw everything in black.
fn paints(paints: &[(&str, Paint)], alone: bool) -> String {
    let mut text = String::new();
    for (name, paint) in paints.iter().filter(|_| alone) {
        let [red, green, blue] = light(*paint);
        let _ = write!(text, "{name}=\"#{red:02x}{green:02x}{blue:02x}\" ");
    }
    text.push_str("style=\"");
    for (index, (name, paint)) in paints.iter().enumerate() {
        let next = if index == 0 { "" } else { ";" };
        let _ = write!(text, "{next}{name}:{}", colour(*paint));
    }
    text.push('"');
    text
}

fn points(points: &[(f64, f64)]) -> String {
    let mut text = String::with_capacity(points.len() * 12);
    for (x, y) in points {
        let _ = write!(text, "{x:.1},{y:.1} ");
    }
    text.truncate(text.trim_end().len());
    text
}

fn draw(svg: &mut String, shape: &Shape, alone: bool) {
    let _ = match shape {
        Shape::Stroke {
            points: line,
            paint,
            width,
            dash,
        } => {
            let dashes: Vec<String> = dash.pattern().iter().map(f32::to_string).collect();
            let dashes = if dashes.is_empty() {
                String::new()
            } else {
                format!(" stroke-dasharray=\"{}\"", dashes.join(" "))
            };
            writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" {} stroke-width=\"{width}\" stroke-linejoin=\"round\" \
                 stroke-linecap=\"round\"{dashes}/>",
                points(line),
                paints(&[("stroke", *paint)], alone)
            )
        }
        Shape::Area {
            points: outline,
            paint,
            opacity,
            hint,
        } => writeln!(
            svg,
            "<polygon points=\"{}\" {} fill-opacity=\"{opacity}\"{}",
            points(outline),
            paints(&[("fill", *paint)], alone),
            close_with(hint.as_deref(), "polygon")
        ),
        Shape::Disc {
            at: (x, y),
            radius,
            paint,
            hollow,
            hint,
        } => {
            let style = if *hollow {
                paints(&[("fill", Paint::Surface), ("stroke", *paint)], alone)
            } else {
                paints(&[("fill", *paint)], alone)
            };
            writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" {style} stroke-width=\"1.8\"{}",
                close_with(hint.as_deref(), "circle")
            )
        }
        Shape::Words {
            at: (x, y),
            text,
            size,
            paint,
            anchor,
            bold,
            upright,
        } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let weight = if *bold { " font-weight=\"600\"" } else { "" };
            let turn = if *upright {
                format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"")
            } else {
                String::new()
            };
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\"{anchor}{weight}{turn} \
                 {}>{}</text>",
                paints(&[("fill", *paint)], alone),
                escape(text)
            )
        }
    };
}

fn close_with(hint: Option<&str>, element: &str) -> String {
    match hint {
        Some(hint) => format!("><title>{}</title></{element}>", escape(hint)),
        None => "/>".to_owned(),
    }
}

/// Escapes text for XML and HTML; characters that are invalid in XML become a replacement
/// character.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(' '),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}
