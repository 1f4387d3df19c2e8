//! An answer as a self-contained HTML page, and its Pareto front as SVG.

use crate::answer::{Answer, Question, Simulated};
use crate::predict::short;
use crate::quantity::Bytes;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 60.0;
const TOP: f64 = 20.0;
const RIGHT: f64 = 20.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#9aa4ae;--mark:#0b62c4;--pick:#c2410c}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--paper:#14171a;--line:#5b6670;--mark:#6db3ff;\
--pick:#ff9d5c}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;\
margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;width:100%}\
th,td{text-align:right;padding:.3rem .5rem;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{text-align:left}svg{width:100%;height:auto}.scroll{overflow-x:auto}";

fn escape(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;")
}

fn title(question: Question) -> &'static str {
    match question {
        Question::LeastCost => "Least cost",
        Question::MostCapacity => "Most capacity",
        Question::MostThroughput => "Most throughput",
    }
}

/// Renders the page.
pub fn html(answer: &Answer) -> String {
    let title = title(answer.question);
    let mut body = format!("<h1>{title}</h1>\n");
    match answer.pick.and_then(|pick| answer.simulated.get(pick)) {
        Some(pick) => body += &pick_html(answer, pick),
        None => body += "<p><strong>No candidate meets the limits.</strong></p>\n",
    }
    let simulated = answer.simulated.len();
    body += &format!(
        "<p>{} candidates; {} ruled out by limits and bounds, {simulated} simulated.{}</p>\n",
        answer.candidates,
        answer.pruned,
        match answer.is_cut_short {
            true => " Not all that were left were simulated: raise <code>simulations</code>.",
            false => "",
        }
    );
    if !answer.simulated.is_empty() {
        body += &format!("<h2>Cost and throughput</h2>\n{}\n", svg(answer));
        body += &table(answer);
        body += &format!("<p>Validated on {}.</p>\n", escape(&answer.validated_on));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body>\n{body}</body></html>\n"
    )
}

fn pick_html(answer: &Answer, pick: &Simulated) -> String {
    let it = &pick.prediction;
    let mut text = format!(
        "<p><strong>{}</strong>, {}: {} {}, {} of objects, {} W, {}/s{}, p95 {} ms.</p>\n",
        escape(&it.cluster),
        escape(&it.policy),
        short(pick.cost),
        escape(&answer.currency),
        Bytes(pick.capacity),
        short(pick.watts),
        short(it.throughput.value),
        interval(it.throughput.interval),
        short(it.p95_ms.value)
    );
    text += &format!(
        "<p>In the cluster, {} ({:.0} % used).",
        escape(&it.binding.what),
        it.binding.used * 100.0
    );
    if let Some(first) = answer.margins.first() {
        text += &format!(
            " The tightest limit is {}: {} of {}, {:.1} % of room.",
            first.limit,
            short(first.value),
            short(first.bound),
            first.room * 100.0
        );
    }
    text += "</p>\n";
    for reason in &it.outside {
        text += &format!("<p>Outside of what was measured: {}.</p>\n", escape(reason));
    }
    text
}

fn interval(interval: Option<[f64; 2]>) -> String {
    match interval {
        Some([low, high]) => format!(" (90 %: {} to {})", short(low), short(high)),
        None => String::new(),
    }
}

fn table(answer: &Answer) -> String {
    let mut text = format!(
        "<div class=\"scroll\"><table><thead><tr><th>cluster</th><th>policy</th><th>{}</th><th>W</th>\
         <th>capacity</th><th>ops/s</th><th>p95 ms</th><th>limit</th></tr></thead><tbody>\n",
        escape(&answer.currency)
    );
    let mut front: Vec<&Simulated> = answer.simulated.iter().filter(|s| s.is_on_front).collect();
    front.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    for it in front {
        text += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}{}</td><td>{}</td>\
             <td>{}</td></tr>\n",
            escape(&it.prediction.cluster),
            escape(&it.prediction.policy),
            short(it.cost),
            short(it.watts),
            Bytes(it.capacity),
            short(it.prediction.throughput.value),
            interval(it.prediction.throughput.interval),
            short(it.prediction.p95_ms.value),
            escape(&it.prediction.binding.what)
        );
    }
    text + "</tbody></table></div>\n"
}

/// Distance of ticks: 1, 2 or 5 times a power of ten, for at most eight of them.
fn step(most: f64) -> f64 {
    let rough = (most / 8.0).max(1e-12);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|f| f * power >= rough);
    factor.unwrap_or(10.0) * power
}

/// Cost over throughput; the front is connected, the answer is marked, areas are proportional to
/// capacity.
pub fn svg(answer: &Answer) -> String {
    let most = |of: fn(&Simulated) -> f64| {
        let all = answer.simulated.iter().map(of);
        all.fold(0.0, f64::max).max(1e-9) * 1.05
    };
    let (cost, rate) = (most(|s| s.cost), most(|s| s.prediction.throughput.value));
    let largest = most(|s| s.capacity);
    let x = |value: f64| LEFT + value / cost * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / rate * (HEIGHT - BOTTOM - TOP);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Throughput over cost of the simulated clusters\" font-family=\"system-ui,sans-serif\" \
         font-size=\"13\" fill=\"currentColor\">\n"
    );
    let ticks = |most: f64| {
        let step = step(most);
        (0..)
            .map(move |i| f64::from(i) * step)
            .take_while(move |v| *v <= most)
    };
    for value in ticks(cost) {
        text += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>\n",
            x(value),
            HEIGHT - BOTTOM + 20.0
        );
    }
    for value in ticks(rate) {
        text += &format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"var(--line,#999)\" \
             stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{value}</text>\n",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(value),
            y(value) + 4.0
        );
    }
    text += &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">cost, {}</text><text x=\"14\" y=\"{3:.1}\" \
         transform=\"rotate(-90 14 {3:.1})\" text-anchor=\"middle\">operations a second</text>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 14.0,
        escape(&answer.currency),
        (HEIGHT - BOTTOM + TOP) / 2.0
    );
    for (index, it) in answer.simulated.iter().enumerate() {
        let colour = match (Some(index) == answer.pick, it.is_on_front) {
            (true, _) => "var(--pick,#c2410c)",
            (_, true) => "var(--mark,#0b62c4)",
            _ => "var(--line,#999)",
        };
        text += &format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.6\" \
             stroke=\"{colour}\"><title>{}, {}: {} {}, {}, {}/s</title></circle>\n",
            x(it.cost),
            y(it.prediction.throughput.value),
            3.0 + 9.0 * (it.capacity / largest).sqrt(),
            escape(&it.prediction.cluster),
            escape(&it.prediction.policy),
            short(it.cost),
            escape(&answer.currency),
            Bytes(it.capacity),
            short(it.prediction.throughput.value)
        );
    }
    text + "</svg>"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::catalogue::{Catalogue, tests::CATALOGUE};

    #[test]
    fn a_page_has_the_answer_and_nothing_from_elsewhere() {
        let catalogue = CATALOGUE.replace("sumo", "su<mo>");
        let workload = "sizes = \"64KB\"\nwrite = 1\nworkers = 8\n";
        let limits = "budget = 60000\ncapacity = \"10TB\"\nnodes_max = 3\nsimulations = 6\n";
        let it = crate::answer::answer(
            Question::MostThroughput,
            &Catalogue::parse(&catalogue).unwrap(),
            &crate::workload::Workload::parse(workload).unwrap(),
            &crate::answer::Limits::parse(limits).unwrap(),
            &example(),
            true,
        );
        let page = html(&it.unwrap());
        for part in [
            "Most throughput",
            "su&lt;mo&gt;",
            "<circle",
            "tightest limit",
            "Outside of what",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        for part in ["<script", "src=", "href=", "<mo>", "@import"] {
            assert!(!page.contains(part), "{part}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn ticks() {
        assert_eq!([step(8.0), step(100.0), step(0.9)], [1.0, 20.0, 0.2]);
    }
}
