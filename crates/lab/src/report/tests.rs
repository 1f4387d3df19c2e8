//! Pages of artificial runs.

use super::*;
use crate::plot::{Axis, Kind, Unit};
use crate::results::model::{
    Distances, Fact, Failures, Operation, Quantile, Resource, Run, Stage, State, Tick, Timeline,
    Tool, WorstRequest,
};

fn stage(workers: u32, rate: f64) -> Stage {
    let mut read = Operation::new("read", "read");
    read.done = Some(1000);
    read.failed = Failures::Counted(3);
    read.rate = Some(rate);
    read.bandwidth = Some(rate * 4000.0);
    read.latency.mean_us = Some(2000.0);
    read.latency.max_us = Some(2_000_000.0);
    for (quantile, us) in [
        (0.0, 100.0),
        (0.5, 1500.0),
        (0.99, 9000.0),
        (1.0, 2_000_000.0),
    ] {
        read.latency.quantiles.push(Quantile { quantile, us });
        read.latency.curve.push(Quantile { quantile, us });
    }
    let mut stage = Stage::new(format!("s{workers}-mix_{workers}"), State::Completed);
    stage.workers = Some(workers);
    stage.operations.push(read);
    stage.timeline.push(Timeline {
        operation: "read".to_owned(),
        ticks: (1..10)
            .map(|n| Tick {
                second: f64::from(n),
                interval: 1.0,
                done: 100,
                rate: Some(rate),
                mean_us: Some(2000.0),
                ..Tick::default()
            })
            .collect(),
    });
    stage.worst.push(WorstRequest {
        operation: "read".to_owned(),
        size_class: None,
        us: 2_000_000.0,
        second: Some(3.5),
        transaction_id: Some("tx<slow>".to_owned()),
        what: Some("c/o".to_owned()),
    });
    stage.resources.push(Resource {
        of: "host user".to_owned(),
        quantity: "CPU (cores)".to_owned(),
        points: vec![(1.0, 0.5), (2.0, 1.0), (3.0, 0.7), (4.0, 0.8)],
    });
    stage.distances.push(Distances {
        device: "vda".to_owned(),
        buckets: vec![(0, 50), (1, 0), (2, 10), (1 << 21, 40)],
        beyond_125k: 40,
        beyond_2500k: 20,
    });
    stage
}

fn run(name: &str, rates: &[(u32, f64)]) -> Run {
    let mut stages: Vec<Stage> = rates.iter().map(|(w, rate)| stage(*w, *rate)).collect();
    stages.push(Stage::new("dispose", State::Aborted));
    Run {
        name: name.to_owned(),
        tool: Tool::Lab,
        tool_version: Some("1".to_owned()),
        target: Some("swift http://store".to_owned()),
        started: Some("2026-11-22T01:02:03Z".to_owned()),
        state: State::Failed,
        broken: Vec::new(),
        plan: None,
        facts: vec![Fact::new("seed", "7")],
        notes: vec!["a <note> & more".to_owned()],
        stages,
    }
}

/// Asserts that a browser would fetch nothing.
fn assert_alone(page: &str) {
    for word in ["<script", "src=", "@import", "url(", "<link", "<iframe"] {
        assert!(!page.contains(word), "the page has {word}");
    }
    // Names of XML namespaces are not fetched.
    let without = page.replace("http://www.w3.org/2000/svg", "");
    for (index, _) in without.match_indices("href=\"") {
        assert!(
            without[index..].starts_with("href=\"#"),
            "a link leaves the page"
        );
    }
}

#[test]
fn a_page_of_one_run() {
    let runs = [run("alpha", &[(1, 100.0), (16, 900.0), (64, 700.0)])];
    let page = page(&runs);
    assert_alone(&page);
    assert!(
        page.contains("best: 16 workers, 900/s"),
        "the best worker count is noted"
    );
    let fastest =
        page.find("The fastest of 3 stages, mix_16: 900/s, 3.6 MB/s; read p50 1.5 ms p99 9 ms.");
    assert!(
        fastest.is_some() && fastest < page.find("<h2>Runs</h2>"),
        "what was reached comes first"
    );
    assert!(page.contains("a &lt;note&gt; &amp; more"));
    assert!(page.contains("<code>tx&lt;slow&gt;</code>"));
    assert!(page.contains("99.70%"));
    assert!(page.contains("<td class=\"bad\">failed</td>"));
    assert!(
        page.contains(">aborted</text>"),
        "a stage that never ran is in the chart"
    );
    assert!(page.contains("more than 125,000 blocks"));
    assert!(page.contains("<dt>seed</dt><dd>7</dd>"));
    assert!(page.contains("prefers-color-scheme:dark"));
    assert!(!page.contains("NaN"));
    let open = page.matches("<details").count();
    assert_eq!(open, page.matches("</details>").count());
    assert_eq!(
        page.matches("<section").count(),
        page.matches("</section>").count()
    );
}

/// The state and its reason come before the figures, and no overload is called the fastest.
#[test]
fn trouble_comes_first() {
    use crate::record::OpenLoop;
    let lead = |run: &Run| {
        let page = page(std::slice::from_ref(run));
        let end = page.find("<h2>Runs</h2>").unwrap_or(page.len());
        let begin = page.find("<main>").unwrap_or(0);
        page[begin..end].to_owned()
    };
    let mut told = run("alpha", &[(1, 100.0), (16, 900.0), (64, 700.0)]);
    told.notes
        .insert(0, "stage mix: driver d2 was lost".to_owned());
    let shown = lead(&told);
    let trouble = shown.find("<p class=\"bad\">failed: stage mix: driver d2 was lost</p>");
    assert!(
        trouble.is_some() && trouble < shown.find("The fastest"),
        "{shown}"
    );
    told.state = State::Completed;
    assert!(!lead(&told).contains("\"bad\""));
    told.broken = vec!["s1-mix, read: failed 9 %, more than 1 %".to_owned()];
    assert!(lead(&told).contains("completed, over limits: s1-mix, read: failed 9 %"));
    told.broken.clear();
    let overload = |stage: &mut Stage| {
        stage.operations[0].open_loop = Some(OpenLoop {
            overloaded: true,
            ..OpenLoop::default()
        });
    };
    overload(&mut told.stages[1]);
    let shown = lead(&told);
    assert!(
        shown.contains("The fastest of 3 stages, mix_64: 700/s"),
        "{shown}"
    );
    overload(&mut told.stages[2]);
    told.stages[0].state = State::Failed;
    let shown = lead(&told);
    assert!(
        shown.contains("mix_16: could not keep up, 900/s"),
        "{shown}"
    );
}

/// Three points are not a timeline.
#[test]
fn short_courses_are_not_drawn() {
    let mut short = run("short", &[(1, 100.0)]);
    assert!(page(std::slice::from_ref(&short)).contains("Throughput over time"));
    short.stages[0].timeline[0].ticks.truncate(3);
    assert!(!page(&[short]).contains("Throughput over time"));
}

/// Many workloads with common name beginnings share charts, and notes do not overlap.
#[test]
fn many_workloads_are_grouped() {
    let mut many = run("matrix", &[]);
    for size in ["4KB", "1MB", "10MB"] {
        for mix in ["r80w20", "r100", "w100"] {
            for workers in [1, 16] {
                let mut one = stage(workers, 100.0 * f64::from(workers));
                one.id = format!("s{workers}-c1-{size}-{mix}-w{workers}");
                many.stages.push(one);
            }
        }
    }
    let section = &sections(&[many])[0];
    let slugs: Vec<&str> = section.figures.iter().map(|f| f.slug.as_str()).collect();
    assert_eq!(slugs[0], "throughput-over-workers-c1-4kb");
    assert_eq!(
        slugs
            .iter()
            .filter(|slug| slug.contains("over-workers"))
            .count(),
        2 * 3,
        "{slugs:?}"
    );
    let picture = crate::plot::svg(&section.figures[0].scene);
    assert!(
        picture.contains(">r80w20<") && !picture.contains("1MB"),
        "{picture}"
    );
    // All three are at the same point: the texts are stacked.
    let at: std::collections::BTreeSet<&str> = picture
        .split("<text ")
        .filter_map(|text| text.split('<').next())
        .filter(|text| text.contains(">best: 16 workers"))
        .filter_map(|text| text.split("y=\"").nth(1)?.split('"').next())
        .collect();
    assert_eq!(at.len(), 3, "{at:?}");
}

#[test]
fn runs_stand_side_by_side() {
    let runs = [
        run("alpha", &[(1, 100.0), (16, 900.0)]),
        run("beta", &[(1, 150.0), (16, 1200.0)]),
    ];
    let all = sections(&runs);
    let workers = &all[0];
    assert_eq!(workers.title, "Over the number of workers");
    // One chart for the common workload, with a line for each run; both notes are there.
    let picture = crate::plot::svg(&workers.figures[0].scene);
    assert!(picture.contains("alpha") && picture.contains("beta"));
    assert!(picture.contains("best: 16 workers, 1,200/s"));
    assert_eq!(workers.tables[0].rows.len(), 2);
    let stages: Vec<&str> = all.iter().map(|s| s.title.as_str()).collect();
    assert_eq!(stages.iter().filter(|t| **t == "mix_16").count(), 1);
    assert_alone(&page(&runs));
}

#[test]
fn equal_names_are_told_apart() {
    let runs = [run("alpha", &[(1, 1.0)]), run("alpha", &[(1, 2.0)])];
    assert_eq!(
        words::labels(&runs),
        [
            "alpha, swift http://store #1",
            "alpha, swift http://store #2"
        ]
    );
    let told = |tags: &str, scale: &str| {
        let mut run = run("alpha", &[(1, 1.0)]);
        let facts = [
            ("tags", tags),
            ("scale", scale),
            ("workload file", "w.toml"),
        ];
        run.facts = facts
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| crate::results::model::Fact::new(*name, *value))
            .collect();
        run
    };
    assert_eq!(
        words::labels(&[told("ssd", ""), told("hdd, raid", "quick")]),
        ["alpha (ssd)", "alpha (hdd, raid, quick)"]
    );
}

#[test]
fn files_of_a_report() {
    let out = tempfile::tempdir().unwrap();
    let runs = [run("alpha", &[(1, 100.0), (16, 900.0)])];
    let plots = out.path().join("plots");
    std::fs::create_dir(&plots).unwrap();
    std::fs::write(plots.join("001-of-an-earlier-report.png"), "").unwrap();
    std::fs::write(plots.join("mine.txt"), "").unwrap();
    let pictures = write_report(&runs, None, out.path(), true).unwrap();
    assert!(
        plots.join("mine.txt").is_file(),
        "a person's file is left alone"
    );
    std::fs::remove_file(plots.join("mine.txt")).unwrap();
    let files = std::fs::read_dir(out.path().join("plots")).unwrap().count();
    assert_eq!(files, 2 * pictures);
    let json = std::fs::read(out.path().join("report.json")).unwrap();
    let back: Vec<Run> = serde_json::from_slice(&json).unwrap();
    assert_eq!(back, runs);
}

#[test]
fn a_summary_has_a_line_for_every_stage() {
    let text = summary(&[run("alpha", &[(1, 100.0)])]);
    assert!(text.contains("s1-mix_1  read"), "{text}");
    assert!(text.contains("dispose   aborted"), "{text}");
}

/// An operation's colour is the same on every plot, whatever else its stage has, and in which order.
#[test]
fn an_operation_has_one_colour() {
    let mut run = run("alpha", &[(1, 1.0), (2, 2.0)]);
    let operation = |name: &str, like: &Operation| Operation {
        name: name.into(),
        ..like.clone()
    };
    for (stage, names) in run
        .stages
        .iter_mut()
        .zip([&["read", "a-write"][..], &["a-write"]])
    {
        let like = stage.operations[0].clone();
        let line = stage.timeline[0].clone();
        stage.operations = names.iter().map(|name| operation(name, &like)).collect();
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        let lines = sorted.iter().map(|name| Timeline {
            operation: (*name).to_owned(),
            ..line.clone()
        });
        stage.timeline = lines.collect();
    }
    let runs = [run];
    let labels = words::labels(&runs);
    let mut colours = std::collections::BTreeMap::<String, Vec<usize>>::new();
    for stage in sections::together(&runs) {
        let y = || Axis::new("rate", Kind::Linear, Unit::PerSecond);
        let courses = courses::over_time(&stage, &labels, "t", y(), |tick| tick.rate);
        for chart in [courses, stages::distribution(&stage, &labels, false)] {
            for line in chart.lines {
                colours
                    .entry(line.name)
                    .or_default()
                    .push(line.style.colour);
            }
        }
    }
    assert_eq!(colours["read"], [0, 0]);
    assert_eq!(colours["a-write"], [1, 1, 1, 1]);
}
