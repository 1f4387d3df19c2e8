// Tests may panic.
#![allow(clippy::unwrap_used)]

use super::*;

const TEXT: &str = r#"
name = "t"
scale = "small"
[parameters]
nodes = 2
size = "1GB"
[scales.small]
[scales.large]
nodes = 4
[media.hdd]
fixed_us = 5000.0
[classes.thin]
cpu_cores = 0.5
memory = "64MB"
[[cluster]]
name = "w${weight}-${db}"
for.weight = [100, 200]
for.db = ["hdd", "folder"]
replicas = 2
[[cluster.node]]
name = "s${n}"
count = "${nodes}"
roles = ["account", "container", "object"]
zone = "${n}"
class = "thin"
[[cluster.node.device]]
name = "data"
size = "${size}"
weight = "${weight}"
rings = ["object"]
[[cluster.node.device]]
name = "db"
medium = "${db}"
rings = ["account", "container"]
[[cluster.node]]
roles = ["proxy"]
[[workload]]
name = "c${containers}"
for.containers = [10, 20]
file = "w.toml"
parameters = { containers = "${containers}", objects = 7 }
"#;

fn with(name: &str, value: &str) -> Choices {
    Choices {
        scale: None,
        parameters: BTreeMap::from([(name.to_owned(), value.to_owned())]),
    }
}

#[test]
fn sweeps_multiply_and_names_are_filled_in() {
    let study = parse(TEXT, &Choices::default()).unwrap();
    assert_eq!((study.clusters.len(), study.workloads.len()), (4, 2));
    let cluster = &study.clusters[1];
    assert_eq!(
        (cluster.name.as_str(), cluster.nodes.len()),
        ("w200-hdd", 3)
    );
    let node = &cluster.nodes[1];
    assert_eq!((node.name.as_str(), node.zone), ("s2", 2));
    assert_eq!(node.devices[0].weight, 200.0);
    assert_eq!(node.devices[0].size, 1_000_000_000);
    assert!(node.devices[0].disk.is_none() && node.devices[1].disk.is_some());
    assert_eq!(node.limits.memory, Some(64_000_000));
    assert_eq!(cluster.swept["weight"], "200");
    assert_eq!(study.workloads[1].parameters["containers"], "20");
    assert_eq!(study.workloads[1].parameters["objects"], "7");
}

#[test]
fn scales_and_set_change_parameters() {
    let large = Choices {
        scale: Some("large".into()),
        ..Choices::default()
    };
    assert_eq!(parse(TEXT, &large).unwrap().clusters[0].nodes.len(), 5);
    assert_eq!(
        parse(TEXT, &with("nodes", "1")).unwrap().clusters[0]
            .nodes
            .len(),
        2
    );
}

#[test]
fn errors_name_the_place_the_value_and_the_remedy() {
    let refused = |text: &str, choices: &Choices| parse(text, choices).unwrap_err().to_string();
    let unknown = refused(TEXT, &with("knots", "1"));
    assert!(
        unknown.contains("\"knots\"") && unknown.contains("nodes, size"),
        "{unknown}"
    );
    let cases = [
        ("medium = \"${db}\"", "medium = \"tape\"", "tape"),
        ("class = \"thin\"", "class = \"fat\"", "fat"),
        (
            "weight = \"${weight}\"",
            "weight = \"${height}\"",
            "${height}",
        ),
        ("roles = [\"proxy\"]", "roles = [\"object\"]", "role proxy"),
        ("replicas = 2", "replica = 2", "replica"),
        ("name = \"w${weight}-${db}\"", "name = \"same\"", "\"same\""),
        ("fixed_us = 5000.0", "fixed_us = -1.0", "fixed_us = -1"),
        ("size = \"${size}\"", "size = \"big\"", "big"),
        ("file = \"w.toml\"", "", "file"),
    ];
    for (old, new, told) in cases {
        assert!(TEXT.contains(old), "{old}");
        let error = refused(&TEXT.replacen(old, new, 1), &Choices::default());
        assert!(error.contains(told), "{old}: {error}");
    }
}

#[test]
fn sweeps_are_bounded() {
    let wide: Vec<String> = (0..1100).map(|n| n.to_string()).collect();
    let text = TEXT.replace("[10, 20]", &format!("[{}]", wide.join(",")));
    assert!(parse(&text, &Choices::default()).is_err());
}

proptest::proptest! {
    /// No text makes the reader panic.
    #[test]
    fn any_text_is_read_or_refused(at in 0usize..1400, with in "[\\[\\]{}$=\"a-z0-9 .\n-]{0,12}") {
        let at = at.min(TEXT.len());
        let text = format!("{}{with}{}", &TEXT[..at], &TEXT[at..]);
        let _ = parse(&text, &Choices::default());
    }
}
