//! A study's page: one HTML file with embedded styles and pictures, without scripts or external
//! resources. It shows published values with the measured ones; every plot states whether its cells
//! were emulated.

use std::fmt::Write;

use cairn_lab::plot::{
    Axis, Bar, BarGroup, Bars, Kind, Line, Lines, Mark, Scene, Style, Unit, palette_css, svg,
    svg_escape as escape, svg_inline,
};

use crate::cell::{Outcome, State};
use crate::figures::{self, Drawn, Effect, Verdict};
use crate::file::{Figure, Study};

/// Facts of a study's run that belong to no cell.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The generator's operations per second on this host without a store.
    pub ceiling: Option<f64>,
    pub rejected: usize,
    pub notes: Vec<String>,
}

/// Caption of every plot: whether its cells were emulated.
pub fn stamp(outcomes: &[Outcome]) -> String {
    let emulated = outcomes.iter().filter(|o| o.emulated).count();
    let dilation = outcomes.first().map_or(1.0, |o| o.dilation);
    match (emulated, outcomes.len()) {
        (0, _) => "on folders of this host, nothing emulated".to_owned(),
        (some, all) if some == all => format!("EMULATED, K = {dilation}"),
        _ => format!("in part EMULATED, K = {dilation}"),
    }
}

/// Renders the page.
pub fn page(study: &Study, outcomes: &[Outcome], facts: &Facts) -> String {
    let title = if study.title.is_empty() {
        &study.name
    } else {
        &study.title
    };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; img-src data:\">\n\
         <title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n",
        escape(title),
        palette_css(),
        cairn_lab::report::PAGE_CSS,
        escape(title)
    );
    // Writing to a String cannot fail.
    let _ = writeln!(
        html,
        "<p class=\"lead\">{}</p></header>\n<main>",
        escape(&lead(study, outcomes))
    );
    for (name, words) in [("Asked", &study.asked), ("Published", &study.seen)] {
        if !words.is_empty() {
            let _ = writeln!(html, "<p><b>{name}.</b> {}</p>", escape(words));
        }
    }
    effects_table(&mut html, study, outcomes);
    for figure in &study.figures {
        figure_html(&mut html, figure, outcomes);
    }
    cells_table(&mut html, outcomes);
    about(&mut html, study, outcomes, facts);
    html.push_str("</main>\n<footer>Made by cairn study ");
    html.push_str(env!("CARGO_PKG_VERSION"));
    html.push_str(
        ". Rates and times are of emulated time. Intervals are of the mean over accepted \
         repetitions, at 95 % (Student's t; changes by Welch's).</footer>\n</body>\n</html>\n",
    );
    html
}

/// Every figure as an SVG file, named by its title.
pub fn plots(study: &Study, outcomes: &[Outcome]) -> Vec<(String, String)> {
    let one = |(number, figure): (usize, &Figure)| {
        let drawn = figures::draw(figure, outcomes);
        let scene = scene(figure, &drawn, outcomes)?;
        Some((
            format!("{:02}-{}.svg", number + 1, slug(&figure.title)),
            svg(&scene),
        ))
    };
    study.figures.iter().enumerate().filter_map(one).collect()
}

fn slug(title: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let slug: String = title.chars().map(plain).take(60).collect();
    let words: Vec<&str> = slug.split('-').filter(|word| !word.is_empty()).collect();
    words.join("-")
}

fn lead(study: &Study, outcomes: &[Outcome]) -> String {
    let of = |state| outcomes.iter().filter(|o| o.state == state).count();
    let scale = match study.scale.as_str() {
        "" => String::new(),
        scale => format!(" at the scale {scale}"),
    };
    format!(
        "{}{scale}: {} cells accepted, {} rejected, {} failed; {}",
        study.name,
        of(State::Accepted),
        of(State::Rejected),
        of(State::Failed),
        stamp(outcomes)
    )
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// The measured change as text.
pub fn measured_words(effect: &Effect) -> String {
    match (effect.measured, effect.interval) {
        (Some(change), Some(i)) => {
            format!(
                "{} ({} to {})",
                percent(change),
                percent(i.low),
                percent(i.high)
            )
        }
        (Some(change), None) => format!("{} (no interval)", percent(change)),
        (None, _) => "not measured".to_owned(),
    }
}

fn effects_table(html: &mut String, study: &Study, outcomes: &[Outcome]) {
    if study
        .figures
        .iter()
        .all(|figure| figure.expect.is_empty() && figure.point.is_empty())
    {
        return;
    }
    html.push_str(
        "<h2>Published beside measured</h2>\n<div class=\"wide\" tabindex=\"0\"><table><thead><tr>\
         <th>effect</th><th class=\"n\">published</th><th class=\"n\">measured</th>\
         <th class=\"n\">cells</th><th>verdict</th></tr></thead><tbody>\n",
    );
    for figure in &study.figures {
        for expected in &figure.expect {
            let effect = figures::effect(figure, expected, outcomes);
            let class = match effect.verdict {
                Verdict::Same | Verdict::NoDifference => "good",
                Verdict::Opposite | Verdict::Difference => "bad",
                Verdict::NotResolved | Verdict::TooFew => "pause",
            };
            let published = match (effect.published, expected.sign) {
                (Some(change), _) => percent(change),
                (None, Some(sign)) if sign > 0 => "more".to_owned(),
                (None, Some(sign)) if sign < 0 => "less".to_owned(),
                _ => String::new(),
            };
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td class=\"n\">{published}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{} / {}</td><td class=\"{class}\">{}</td></tr>",
                escape(&effect.what),
                escape(&measured_words(&effect)),
                effect.cells.0,
                effect.cells.1,
                effect.verdict.words()
            );
        }
        for point in &figure.point {
            let (point, estimate) = figures::published_point(figure, point, outcomes);
            let at: Vec<String> = point.at.iter().map(|(k, v)| format!("{k} {v}")).collect();
            let measured = estimate.map_or("not measured".to_owned(), |e| words(&e, &figure.unit));
            let _ = writeln!(
                html,
                "<tr><td>{}: {}</td><td class=\"n\">{} {}</td><td class=\"n\">{}</td><td></td>\
                 <td>on other hardware and scale</td></tr>",
                escape(&figure.title),
                escape(&at.join(", ")),
                point.value,
                escape(&figure.unit),
                escape(&measured)
            );
        }
    }
    html.push_str("</tbody></table></div>\n");
}

pub(crate) fn words(estimate: &figures::Estimate, unit: &str) -> String {
    let reach = estimate
        .reach
        .map(|r| format!(" ± {}", short(r)))
        .unwrap_or_default();
    format!("{}{reach} {unit}", short(estimate.mean))
        .trim_end()
        .to_owned()
}

/// Three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// The picture: lines if x is numeric, otherwise bars. `None` without accepted cells.
fn scene(figure: &Figure, drawn: &Drawn, outcomes: &[Outcome]) -> Option<Scene> {
    let all = || drawn.series.iter().flat_map(|(_, points)| points);
    all().next()?;
    let stamp = stamp(outcomes);
    let are_numbers = all().all(|(x, _)| figures::number(x).is_some());
    let xs = drawn
        .series
        .iter()
        .map(|(_, points)| points.len())
        .max()
        .unwrap_or(0);
    if are_numbers && xs > 2 {
        return Some(lines(figure, drawn, &stamp));
    }
    let mut names: Vec<String> = Vec::new();
    for (x, _) in all() {
        if !names.contains(x) {
            names.push(x.clone());
        }
    }
    let bar = |x: &str, series: usize| {
        let points = &drawn.series[series].1;
        let found = points.iter().find(|(own, _)| own == x);
        match found {
            Some((_, estimate)) => Bar {
                series,
                value: estimate.mean,
                error: estimate.reach,
                missing: None,
            },
            None => Bar {
                series,
                value: 0.0,
                error: None,
                missing: Some("no accepted cell".to_owned()),
            },
        }
    };
    let groups = names.iter().map(|x| BarGroup {
        label: format!("{} {x}", figure.x),
        bars: (0..drawn.series.len())
            .map(|series| bar(x, series))
            .collect(),
    });
    let bars = Bars {
        title: figure.title.clone(),
        subtitle: format!("{} · {stamp}", figure.unit)
            .trim_start_matches(" · ")
            .to_owned(),
        unit: Unit::Plain,
        series: drawn
            .series
            .iter()
            .map(|(name, _)| series_name(figure, name))
            .collect(),
        groups: groups.collect(),
    };
    Some(bars.scene())
}

fn series_name(figure: &Figure, value: &str) -> String {
    match &figure.series {
        Some(name) => format!("{name} {value}"),
        None => value.to_owned(),
    }
}

fn lines(figure: &Figure, drawn: &Drawn, stamp: &str) -> Scene {
    let x = Axis::new(&figure.x, Kind::Linear, Unit::Plain);
    let y = Axis::new(&figure.unit, Kind::Linear, Unit::Plain);
    let mut lines = Lines::new(&figure.title, x, y);
    lines.subtitle = format!("{stamp}; bars: 95 % interval of the mean");
    for (colour, (name, points)) in drawn.series.iter().enumerate() {
        let at = |x: &str| figures::number(x).unwrap_or(0.0);
        lines.lines.push(Line {
            name: series_name(figure, name),
            points: points.iter().map(|(x, e)| (at(x), e.mean)).collect(),
            style: Style {
                colour,
                dash: 0,
                mark: Mark::Points,
            },
        });
    }
    // The intervals' bars come last, so that the legend contains only the lines.
    for (colour, (_, points)) in drawn.series.iter().enumerate() {
        for (x, estimate) in points {
            let Some(reach) = estimate.reach else {
                continue;
            };
            let at = figures::number(x).unwrap_or(0.0);
            let ends = [estimate.mean - reach, estimate.mean + reach];
            lines.lines.push(Line {
                name: String::new(),
                points: ends.map(|y| (at, y.max(0.0))).to_vec(),
                style: Style {
                    colour,
                    dash: 0,
                    mark: Mark::None,
                },
            });
        }
    }
    lines.scene()
}

fn figure_html(html: &mut String, figure: &Figure, outcomes: &[Outcome]) {
    let drawn = figures::draw(figure, outcomes);
    let _ = writeln!(html, "<h2>{}</h2>", escape(&figure.title));
    let Some(scene) = scene(figure, &drawn, outcomes) else {
        let _ = writeln!(
            html,
            "<p class=\"quiet\">No accepted cell has {}.</p>",
            escape(&figure.y)
        );
        return;
    };
    let _ = writeln!(
        html,
        "<div class=\"figures\"><figure>{}</figure><div class=\"wide\" tabindex=\"0\"><table><thead><tr>\
         <th>{}</th><th>{}</th><th class=\"n\">mean, 95 %</th><th class=\"n\">repetitions</th></tr></thead>\
         <tbody>",
        svg_inline(&scene),
        escape(figure.series.as_deref().unwrap_or_default()),
        escape(&figure.x)
    );
    for (series, points) in &drawn.series {
        for (x, estimate) in points {
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                escape(series),
                escape(x),
                escape(&words(estimate, &figure.unit)),
                estimate.values.len()
            );
        }
    }
    html.push_str("</tbody></table></div></div>\n");
}

fn cells_table(html: &mut String, outcomes: &[Outcome]) {
    html.push_str(
        "<details class=\"stage\"><summary>Cells</summary><div class=\"wide\" tabindex=\"0\"><table>\
         <thead><tr><th>cell</th><th>cluster</th><th>workload</th><th class=\"n\">repetition</th>\
         <th class=\"n\">attempt</th><th>state</th><th class=\"n\">lateness</th>\
         <th class=\"n\">CPU wait</th><th class=\"n\">s here</th><th>why</th></tr></thead><tbody>\n",
    );
    for outcome in outcomes {
        let (class, state) = match outcome.state {
            State::Accepted => ("good", "accepted"),
            State::Rejected => ("pause", "rejected"),
            State::Failed => ("bad", "failed"),
        };
        let worst = outcome
            .fidelity
            .device_lateness
            .values()
            .copied()
            .fold(0.0, f64::max);
        let _ = writeln!(
            html,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"{class}\">{state}</td><td class=\"n\">{:.2} %</td>\
             <td class=\"n\">{:.1} %</td><td class=\"n\">{:.0}</td><td>{}</td></tr>",
            escape(&outcome.id),
            escape(&outcome.cluster.name),
            escape(&outcome.workload.name),
            outcome.repetition,
            outcome.attempt,
            worst.max(outcome.fidelity.network_lateness) * 100.0,
            outcome.fidelity.cpu_wait * 100.0,
            outcome.host.total_s,
            escape(&outcome.why.join("; "))
        );
    }
    html.push_str("</tbody></table></div></details>\n");
}

fn about(html: &mut String, study: &Study, outcomes: &[Outcome], facts: &Facts) {
    html.push_str("<h2>How it was measured</h2>\n<dl>\n");
    let mut say = |name: &str, value: String| {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    };
    say("seed", study.seed.to_string());
    say("time dilation", format!("K = {}", study.dilation));
    let r = &study.repetitions;
    let until = r.until * 100.0;
    say(
        "repetitions",
        format!("{} to {}, until ±{until:.0} %", r.least, r.most),
    );
    say(
        "gate",
        format!(
            "lateness ≤ {:.0} %, CPU wait ≤ {:.0} % of request time",
            study.gate.lateness * 100.0,
            study.gate.cpu_wait * 100.0
        ),
    );
    if let Some(first) = outcomes.first() {
        let host = &first.host;
        say(
            "host",
            format!("{} cores, Linux {}", host.cores, host.kernel),
        );
        let binaries: std::collections::BTreeSet<&str> = outcomes
            .iter()
            .map(|o| o.host.binary.get(..12).unwrap_or_default())
            .collect();
        let binaries: Vec<&str> = binaries.into_iter().collect();
        say(
            "program",
            format!("{} ({})", host.program, binaries.join(", ")),
        );
    }
    if let Some(ceiling) = facts.ceiling {
        say(
            "generator's ceiling",
            format!("{ceiling:.0} operations/s without a store"),
        );
    }
    say(
        "measurements rejected and repeated",
        facts.rejected.to_string(),
    );
    html.push_str("</dl>\n");
    let notes: Vec<&String> = study.notes.iter().chain(&facts.notes).collect();
    if !notes.is_empty() {
        html.push_str("<ul class=\"notes\">\n");
        for note in notes {
            let _ = writeln!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>\n");
    }
}
