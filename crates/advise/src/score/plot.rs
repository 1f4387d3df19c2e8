//! A plot of predictions against measurements: one point a cell and way of predicting, on logarithmic
//! axes.

use std::fmt::Write;

const SIDE: f64 = 420.0;
const MARGIN: f64 = 52.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#7f7f7f", "#2ca02c"];

/// Points of one way of predicting: measured and predicted.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    pub(super) points: Vec<[f64; 2]>,
}

/// An SVG of all series; the lines are equality and a quarter off either way.
pub(super) fn svg(title: &str, unit: &str, series: &[Series<'_>]) -> String {
    let all = || series.iter().flat_map(|s| &s.points).flatten().copied();
    let usable = || all().filter(|v| v.is_finite() && *v > 0.0);
    let low = usable().fold(f64::INFINITY, f64::min).log10().floor();
    let high = usable().fold(0.0, f64::max).log10().ceil().max(low + 1.0);
    let place = |value: f64| (value.log10() - low) / (high - low) * SIDE;
    let (x, y) = (
        |v: f64| MARGIN + place(v),
        |v: f64| MARGIN / 2.0 + SIDE - place(v),
    );
    let whole = SIDE + MARGIN * 1.5;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {whole}\" font-family=\"sans-serif\" \
         font-size=\"11\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\
         <text x=\"{MARGIN}\" y=\"16\">{title}</text>",
        w = whole + 130.0
    );
    // Writing to a String cannot fail.
    for decade in low as i32..=high as i32 {
        let at = 10f64.powi(decade);
        let _ = write!(
            text,
            "<line x1=\"{x0}\" y1=\"{yv}\" x2=\"{x1}\" y2=\"{yv}\" stroke=\"#ddd\"/>\
             <line x1=\"{xv}\" y1=\"{y0}\" x2=\"{xv}\" y2=\"{y1}\" stroke=\"#ddd\"/>\
             <text x=\"{xv}\" y=\"{below}\" text-anchor=\"middle\">{at}</text>\
             <text x=\"{left}\" y=\"{yv}\" text-anchor=\"end\">{at}</text>",
            x0 = MARGIN,
            x1 = MARGIN + SIDE,
            y0 = MARGIN / 2.0,
            y1 = MARGIN / 2.0 + SIDE,
            xv = x(at),
            yv = y(at),
            below = MARGIN / 2.0 + SIDE + 14.0,
            left = MARGIN - 4.0
        );
    }
    let (from, to) = (10f64.powf(low), 10f64.powf(high));
    for (factor, dash) in [(1.0, "none"), (1.25, "4 3"), (0.8, "4 3")] {
        let (a, b) = (
            from * f64::max(1.0, 1.0 / factor),
            to * f64::min(1.0, 1.0 / factor),
        );
        let _ = write!(
            text,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#999\" stroke-dasharray=\"{dash}\"/>",
            x(a),
            y(a * factor),
            x(b),
            y(b * factor)
        );
    }
    for (number, one) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        for [measured, predicted] in one.points.iter().filter(|p| p.iter().all(|v| *v > 0.0)) {
            let _ = write!(
                text,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\" fill-opacity=\"0.7\"/>",
                x(*measured),
                y(*predicted)
            );
        }
        let at = MARGIN + 16.0 * number as f64;
        let _ = write!(
            text,
            "<circle cx=\"{cx}\" cy=\"{at}\" r=\"4\" fill=\"{colour}\"/><text x=\"{tx}\" y=\"{ty}\">{}</text>",
            one.name,
            cx = MARGIN + SIDE + 14.0,
            tx = MARGIN + SIDE + 22.0,
            ty = at + 4.0
        );
    }
    let _ = write!(
        text,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">measured, {unit} (predicted: upwards)</text></svg>",
        MARGIN + SIDE / 2.0,
        whole - 6.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_where_its_values_are() {
        let series = [Series {
            name: "simulation",
            points: vec![[10.0, 100.0], [0.0, 1.0]],
        }];
        let text = svg("t", "1/s", &series);
        // Nothing measured has no place; the other is at the left of the middle decade's end.
        assert_eq!(text.matches("r=\"3.5\"").count(), 1, "{text}");
        assert!(text.contains("simulation") && text.ends_with("</svg>"));
    }
}
