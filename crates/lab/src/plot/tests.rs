//! Charts of artificial data through both painters.

use super::*;

fn workers() -> Lines {
    let mut chart = Lines::new(
        "Throughput over workers",
        Axis::new("workers", Kind::Log2, Unit::Plain),
        Axis::new("throughput", Kind::Linear, Unit::PerSecond),
    );
    for (colour, (name, factor)) in [("read <80%>", 1.0), ("write & delete", 0.4)]
        .iter()
        .enumerate()
    {
        let points = [1.0, 16.0, 64.0, 128.0, 256.0, 512.0];
        chart.lines.push(Line {
            name: (*name).to_owned(),
            points: points
                .into_iter()
                .map(|w: f64| (w, factor * 1000.0 * w / (w + 30.0)))
                .collect(),
            style: Style {
                colour,
                dash: colour,
                mark: Mark::Points,
            },
        });
    }
    chart.notes.push(Note {
        at: (512.0, 944.6),
        text: "best: 512 workers, 945/s".to_owned(),
        colour: 0,
    });
    chart
}

#[test]
fn an_svg_is_whole_and_escapes_its_words() {
    let svg = svg(&workers().scene());
    assert!(svg.starts_with("<svg "), "{svg}");
    assert!(svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("read &lt;80%&gt;"), "{svg}");
    assert!(svg.contains("best: 512 workers"), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark"), "{svg}");
    let plain = "stroke=\"#2a6fbb\" style=\"stroke:var(--s0)\"";
    assert!(svg.contains(plain), "viewers without variables: {svg}");
    assert!(!svg.contains("NaN"), "{svg}");
}

#[test]
fn a_png_has_the_size_of_its_scene() {
    let scene = workers().scene();
    let bytes = png(&scene).unwrap();
    assert_eq!(&bytes[1..4], b"PNG");
    let part = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(part(16), (scene.width * 2.5) as u32);
    assert_eq!(part(20), (scene.height * 2.5) as u32);
}

#[test]
fn nothing_and_nonsense_are_drawn_too() {
    let mut chart = workers();
    chart.lines[0].points = vec![(f64::NAN, 1.0), (0.0, f64::INFINITY), (-1.0, 0.0)];
    chart.lines[1].points.clear();
    chart.y.kind = Kind::Log10;
    let svg = svg(&chart.scene());
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    png(&chart.scene()).unwrap();
}

#[test]
fn a_long_line_keeps_its_spikes() {
    let mut chart = workers();
    chart.lines.truncate(1);
    chart.x.kind = Kind::Linear;
    chart.lines[0].style.mark = Mark::None;
    chart.lines[0].points = (0..100_000).map(|n| (f64::from(n), 1.0)).collect();
    chart.lines[0].points[54_321].1 = 1000.0;
    chart.notes.clear();
    let flat = svg(&chart.scene());
    assert!(flat.len() < 60_000, "{}", flat.len());
    // The spike reaches the top of the axis, which begins at 1060.
    let scene = chart.scene();
    let highest = scene.shapes.iter().filter_map(|shape| match shape {
        scene::Shape::Stroke { points, .. } if points.len() > 100 => {
            points.iter().map(|p| p.1).reduce(f64::min)
        }
        _ => None,
    });
    let lowest = scene.height - 42.0;
    assert!(highest.into_iter().all(|y| lowest - y > 190.0));
}

#[test]
fn axes_have_numbers_people_count_in() {
    let labels = |kind, unit, low: f64, high: f64| {
        let scale = scale::Scale::over(kind, [low, high].into_iter());
        let ticks = scale.ticks(unit, 6);
        ticks.into_iter().map(|t| t.label).collect::<Vec<_>>()
    };
    assert_eq!(
        labels(Kind::Linear, Unit::PerSecond, 0.0, 240.0),
        ["0", "50", "100", "150", "200", "250"]
    );
    assert_eq!(
        labels(Kind::Log10, Unit::Time, 80.0, 3e6),
        ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]
    );
    assert_eq!(
        labels(Kind::Log2, Unit::Plain, 1.0, 512.0),
        ["1", "4", "16", "64", "256"]
    );
    assert_eq!(
        labels(Kind::Tail, Unit::Share, 0.0, 0.9999),
        ["0%", "50%", "90%", "99%", "99.9%", "99.99%"]
    );
    assert_eq!(
        labels(Kind::Linear, Unit::Seconds, 0.0, 720.0),
        ["0:00", "3:00", "6:00", "9:00", "12:00"]
    );
    assert_eq!(Unit::BytesPerSecond.words(7_512_345.0), "7.51 MB/s");
    assert_eq!(Unit::PerSecond.words(1_234_567.0), "1,234,567/s");
}

#[test]
fn bars_say_why_one_is_missing() {
    let bars = Bars {
        title: "Throughput".to_owned(),
        subtitle: String::new(),
        unit: Unit::PerSecond,
        series: vec!["a".to_owned()],
        groups: vec![BarGroup {
            label: "s3-main".to_owned(),
            bars: vec![Bar {
                series: 0,
                value: 0.0,
                error: None,
                missing: Some("aborted".to_owned()),
            }],
        }],
    };
    assert!(svg(&bars.scene()).contains(">aborted</text>"));
}

#[test]
fn a_point_without_a_value_breaks_the_line() {
    let mut chart = Lines::new(
        "t",
        Axis::new("x", Kind::Linear, Unit::Seconds),
        Axis::new("y", Kind::Linear, Unit::PerSecond),
    );
    chart.lines.push(Line {
        name: "read".to_owned(),
        points: vec![
            (1.0, 5.0),
            (2.0, 5.0),
            (3.0, f64::NAN),
            (4.0, 5.0),
            (5.0, 5.0),
        ],
        style: Style {
            colour: 0,
            dash: 0,
            mark: Mark::None,
        },
    });
    let strokes = |chart: &Lines| {
        let shapes = chart.scene().shapes;
        let is_stroke = |shape: &&scene::Shape| matches!(shape, scene::Shape::Stroke { .. });
        shapes.iter().filter(is_stroke).count()
    };
    let broken = strokes(&chart);
    chart.lines[0].points[2].1 = 5.0;
    assert_eq!(broken, strokes(&chart) + 1);
}
