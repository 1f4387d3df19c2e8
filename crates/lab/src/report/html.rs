//! HTML page of a report: one file with embedded styles and pictures, without scripts or external
//! resources. Light and dark follow the reader's setting; on a phone pictures take the whole width
//! and tables scroll horizontally.

use std::fmt::Write;

use crate::plot::{palette_css, svg_escape as escape, svg_inline};
use crate::results::model::{Run, State};

use super::sections::{Cell, Section, Table, sections};
use super::words::{OVER_LIMITS, labels, slug};

/// The page for some runs.
pub fn page(runs: &[Run]) -> String {
    page_of(runs, None, &sections(runs))
}

pub(super) fn page_of(runs: &[Run], first: Option<&Section>, sections: &[Section]) -> String {
    let title = match runs {
        [run] => run.name.clone(),
        _ => format!("{} runs side by side", runs.len()),
    };
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; img-src data:\">\n\
         <title>{}</title>\n<style>\n{}{}</style>\n</head>\n<body>\n",
        escape(&title),
        palette_css(),
        include_str!("page.css")
    );
    head(&mut html, runs, &title, sections);
    html.push_str("<main>\n");
    for (run, label) in runs.iter().zip(labels(runs)) {
        let name = match runs.len() {
            1 => String::new(),
            _ => format!("{label}: "),
        };
        if let Some(words) = super::words::trouble(run) {
            let words = escape(&format!("{name}{words}"));
            let _ = writeln!(html, "<p class=\"bad\">{words}</p>");
        }
        if let Some(words) = super::words::fastest(run) {
            let _ = writeln!(html, "<p>{}</p>", escape(&format!("{name}{words}")));
        }
    }
    if let Some(first) = first {
        section_html(&mut html, &slug(&first.title), first);
    }
    runs_table(&mut html, runs);
    for (index, section) in sections.iter().enumerate() {
        section_html(&mut html, &anchor(index, section), section);
    }
    about(&mut html, runs);
    html.push_str("</main>\n<footer>Made by cairn lab ");
    html.push_str(env!("CARGO_PKG_VERSION"));
    html.push_str(
        ". Latencies of our own runs are HdrHistograms at full range, merged exactly; failures \
         are counted apart and never in a latency.</footer>\n</body>\n</html>\n",
    );
    html
}

fn anchor(index: usize, section: &Section) -> String {
    format!("{}-{index}", slug(&section.title))
}

fn head(html: &mut String, runs: &[Run], title: &str, sections: &[Section]) {
    // Writing to a String cannot fail.
    let _ = writeln!(html, "<header>\n<h1>{}</h1>", escape(title));
    if let [run] = runs {
        let mut parts = vec![match &run.tool_version {
            Some(version) => format!("{} {version}", run.tool.title()),
            None => run.tool.title().to_owned(),
        }];
        parts.extend(run.target.clone());
        parts.extend(run.started.clone());
        let _ = writeln!(html, "<p class=\"lead\">{}</p>", escape(&parts.join(" · ")));
    }
    if sections.len() > 2 {
        let open = if sections.len() <= 12 { " open" } else { "" };
        let _ = writeln!(html, "<nav><details{open}><summary>Contents</summary><ul>");
        for (index, section) in sections.iter().enumerate() {
            let _ = writeln!(
                html,
                "<li><a href=\"#{}\">{}</a></li>",
                anchor(index, section),
                escape(&section.title)
            );
        }
        html.push_str("</ul></details></nav>\n");
    }
    html.push_str("</header>\n");
}

fn runs_table(html: &mut String, runs: &[Run]) {
    let labels = labels(runs);
    let rows = runs.iter().zip(&labels).map(|(run, label)| {
        let (mut done, mut failed, mut unknown) = (0, 0, false);
        for operation in run.stages.iter().flat_map(|s| s.whole_operations()) {
            done += operation.done.unwrap_or(0);
            match operation.failed.count() {
                Some(count) => failed += count,
                None => unknown = operation.done.unwrap_or(0) > 0 || unknown,
            }
        }
        let failed = match (failed, unknown) {
            (count, true) => format!("{} or more", super::words::count(Some(count))),
            (count, false) => super::words::count(Some(count)),
        };
        let completed = run
            .stages
            .iter()
            .filter(|s| s.state == State::Completed)
            .count();
        vec![
            Cell::Words(label.clone()),
            match run.broken.is_empty() || run.state != State::Completed {
                true => Cell::State(run.state),
                false => Cell::OverLimits,
            },
            Cell::Words(run.tool.title().to_owned()),
            Cell::Words(run.target.clone().unwrap_or_default()),
            Cell::Words(run.started.clone().unwrap_or_default()),
            Cell::Number(format!("{completed} of {}", run.stages.len())),
            Cell::Number(super::words::count(Some(done))),
            Cell::Number(failed),
        ]
    });
    let table = Table {
        title: String::new(),
        head: [
            "run",
            "state",
            "tool",
            "target",
            "started",
            "stages completed",
            "operations",
            "failed",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: rows.collect(),
    };
    html.push_str("<h2>Runs</h2>\n");
    table_html(html, &table);
    for (run, label) in runs.iter().zip(&labels) {
        if run.notes.is_empty() {
            continue;
        }
        if runs.len() > 1 {
            let _ = writeln!(html, "<h3>{}</h3>", escape(label));
        }
        html.push_str("<ul class=\"notes\">\n");
        for note in &run.notes {
            let _ = writeln!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>\n");
    }
}

fn section_html(html: &mut String, anchor: &str, section: &Section) {
    let title = escape(&section.title);
    let _ = if section.folded {
        writeln!(
            html,
            "<details class=\"stage\" id=\"{anchor}\"><summary>{title}</summary>"
        )
    } else {
        writeln!(html, "<section id=\"{anchor}\"><h2>{title}</h2>")
    };
    for words in &section.words {
        let _ = writeln!(html, "<p class=\"quiet\">{}</p>", escape(words));
    }
    if !section.figures.is_empty() {
        html.push_str("<div class=\"figures\">\n");
        for figure in &section.figures {
            let _ = writeln!(html, "<figure>{}</figure>", svg_inline(&figure.scene));
        }
        html.push_str("</div>\n");
    }
    for table in &section.tables {
        if !table.title.is_empty() {
            let _ = writeln!(html, "<h3>{}</h3>", escape(&table.title));
        }
        table_html(html, table);
    }
    html.push_str(if section.folded {
        "</details>\n"
    } else {
        "</section>\n"
    });
}

fn table_html(html: &mut String, table: &Table) {
    let right: Vec<bool> = (0..table.head.len())
        .map(|column| {
            let mut cells = table.rows.iter().filter_map(|row| row.get(column));
            cells.any(|cell| matches!(cell, Cell::Number(_)))
        })
        .collect();
    // A scrolling box must be reachable by keyboard.
    html.push_str("<div class=\"wide\" tabindex=\"0\" role=\"region\"");
    let name = if table.title.is_empty() {
        "Runs"
    } else {
        &table.title
    };
    let _ = write!(html, " aria-label=\"{}\"><table><thead><tr>", escape(name));
    for (head, right) in table.head.iter().zip(&right) {
        let class = if *right { " class=\"n\"" } else { "" };
        let _ = write!(html, "<th scope=\"col\"{class}>{}</th>", escape(head));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            cell_html(html, cell);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

fn cell_html(html: &mut String, cell: &Cell) {
    let _ = match cell {
        Cell::Words(words) => write!(html, "<td>{}</td>", escape(words)),
        Cell::Number(number) => write!(html, "<td class=\"n\">{}</td>", escape(number)),
        Cell::Code(code) if code.is_empty() => write!(html, "<td></td>"),
        Cell::Code(code) => write!(html, "<td><code>{}</code></td>", escape(code)),
        Cell::OverLimits => write!(html, "<td class=\"bad\">{OVER_LIMITS}</td>"),
        Cell::State(state) => {
            let class = match state {
                State::Completed => "good",
                State::Waiting | State::Running => "quiet",
                State::Cancelled | State::Interrupted => "pause",
                State::Failed | State::Aborted | State::Terminated => "bad",
            };
            write!(html, "<td class=\"{class}\">{}</td>", state.name())
        }
    };
}

/// Details needed to repeat or to assess each run.
fn about(html: &mut String, runs: &[Run]) {
    if runs.iter().all(|run| run.facts.is_empty()) {
        return;
    }
    html.push_str("<section id=\"about\"><h2>To repeat it</h2>\n");
    for (run, label) in runs.iter().zip(labels(runs)) {
        if run.facts.is_empty() {
            continue;
        }
        if runs.len() > 1 {
            let _ = writeln!(html, "<h3>{}</h3>", escape(&label));
        }
        html.push_str("<dl>\n");
        for fact in &run.facts {
            let (name, value) = (escape(&fact.name), escape(&fact.value));
            let _ = writeln!(html, "<dt>{name}</dt><dd>{value}</dd>");
        }
        html.push_str("</dl>\n");
    }
    html.push_str("</section>\n");
}
