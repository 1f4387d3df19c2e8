//! A study's results as Markdown: the question, published and measured values, every figure's
//! points. For pages that archive results.

use std::fmt::Write;

use crate::cell::{Outcome, State};
use crate::figures;
use crate::file::Study;
use crate::page::{Facts, measured_words, percent, stamp, words};

/// Renders the summary. `plots` is the folder with the plots, relative to the page.
pub fn markdown(study: &Study, outcomes: &[Outcome], facts: &Facts, plots: &str) -> String {
    let title = if study.title.is_empty() {
        &study.name
    } else {
        &study.title
    };
    let of = |state| outcomes.iter().filter(|o| o.state == state).count();
    let mut text = format!("# {title}\n\n");
    for (name, words) in [("Asked", &study.asked), ("Published", &study.seen)] {
        if !words.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, "**{name}:** {words}\n\n");
        }
    }
    let _ = write!(
        text,
        "`cairn study run studies/{}.toml --scale {}`: {} cells accepted, {} rejected for good, {} failed, {} \
         measurements repeated because they were late; {}.\n\n",
        study.name,
        study.scale,
        of(State::Accepted),
        of(State::Rejected),
        of(State::Failed),
        facts.rejected,
        stamp(outcomes)
    );
    effects(&mut text, study, outcomes);
    for (name, _) in crate::page::plots(study, outcomes) {
        let title = name.trim_end_matches(".svg");
        let _ = write!(text, "![{title}]({plots}/{name})\n\n");
    }
    for figure in &study.figures {
        points(&mut text, figure, outcomes);
    }
    for note in study.notes.iter().chain(&facts.notes) {
        let _ = writeln!(text, "* {note}");
    }
    text
}

fn effects(text: &mut String, study: &Study, outcomes: &[Outcome]) {
    let expected = study
        .figures
        .iter()
        .flat_map(|f| f.expect.iter().map(move |e| (f, e)));
    let mut rows = String::new();
    for (figure, expected) in expected {
        let effect = figures::effect(figure, expected, outcomes);
        let published = match (effect.published, expected.sign.unwrap_or(0)) {
            (Some(change), _) => percent(change),
            (None, sign) if sign > 0 => "more".to_owned(),
            (None, sign) if sign < 0 => "less".to_owned(),
            (None, _) => String::new(),
        };
        let _ = writeln!(
            rows,
            "| {} | {published} | {} | {} / {} | {} |",
            effect.what,
            measured_words(&effect),
            effect.cells.0,
            effect.cells.1,
            effect.verdict.words()
        );
    }
    if !rows.is_empty() {
        text.push_str("| effect | published | measured (95 % interval) | cells | verdict |\n");
        text.push_str("| --- | --- | --- | --- | --- |\n");
        text.push_str(&rows);
        text.push('\n');
    }
}

fn points(text: &mut String, figure: &crate::file::Figure, outcomes: &[Outcome]) {
    let drawn = figures::draw(figure, outcomes);
    if drawn.series.is_empty() {
        let _ = write!(text, "{}: no accepted cell has it.\n\n", figure.title);
        return;
    }
    let series = figure.series.as_deref().unwrap_or("");
    let _ = writeln!(
        text,
        "| {series} | {} | {} | repetitions |",
        figure.x, figure.title
    );
    text.push_str("| --- | --- | --- | --- |\n");
    for (name, points) in &drawn.series {
        for (x, estimate) in points {
            let count = estimate.values.len();
            let _ = writeln!(
                text,
                "| {name} | {x} | {} | {count} |",
                words(estimate, &figure.unit)
            );
        }
    }
    text.push('\n');
}
