//! Permitted dependencies between crates. The table is ARCHITECTURE.md's own: layers in its first
//! column, and below it, after "Inside a layer", the arrows between crates of one layer.
//!
//! Dependencies of tests count too; only those that the page names for tests may go up or sideways.
//! Cargo itself refuses a cycle of dependencies, but lets tests close one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::Finding;
use cairn_testkit::workspace::{cargo, run_quiet};

const PAGE: &str = "ARCHITECTURE.md";
const PREFIX: &str = "cairn-";

/// Crates that may depend, directly or indirectly, on these crates only.
const ONLY: [(&str, &[&str]); 9] = [
    // The client of any store: it must not depend on a server.
    ("client", &["http", "formats", "types"]),
    ("mount", &["client", "http", "formats", "types"]),
    // Measurements share no server with the store that is measured; they sign in by the client.
    ("lab", &["client", "formats", "http", "rados", "types"]),
    (
        "console",
        &[
            "client",
            "console-api",
            "formats",
            "http",
            "lab",
            "rados",
            "types",
        ],
    ),
    // Neither the console nor the load generator is built for a node, nor the node for them.
    ("console-api", &["http", "types"]),
    // Clusters are child processes.
    ("emulate", &["advise", "ring", "types"]),
    (
        "study",
        &[
            "advise", "client", "emulate", "formats", "http", "lab", "rados", "ring", "types",
        ],
    ),
    // They use Cairn like its users do: what finds a fault must not share it.
    ("testkit", &[]),
    ("xtask", &["testkit"]),
];

/// External crates, and the only crates of ours that may use them (tests may use any).
const FOREIGN: [(&str, &[&str]); 4] = [
    ("fuser", &["emulate", "mount", "xtask"]),
    ("rusqlite", &["index"]),
    ("libloading", &["rados"]),
    ("libmimalloc-sys", &["cairn"]),
];
/// Async crates, forbidden in the first layers: pure code, and the disk's own threads.
const ASYNC: [&str; 4] = ["tokio", "hyper", "hyper-util", "tokio-rustls"];
const LAYERS_WITHOUT_ASYNC: usize = 2;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` for tests, `build` for build scripts.
    kind: Option<String>,
    /// Path; only crates of the workspace have one.
    path: Option<String>,
}

/// The page's table: the layer of each crate, and the arrows within layers.
#[derive(Debug, Default)]
struct Layers {
    of: BTreeMap<String, usize>,
    beside: BTreeSet<(String, String)>,
    beside_in_tests: BTreeSet<(String, String)>,
}

pub(crate) fn check_workspace(root: &Path) -> Result<Vec<Finding>> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let layers = Layers::parse(&page).context(PAGE)?;
    let mut command = cargo();
    command.args([
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
    ]);
    let metadata: Metadata = serde_json::from_str(&run_quiet(&mut command)?)?;
    Ok(check(&layers, &metadata.packages))
}

impl Layers {
    fn parse(page: &str) -> Result<Layers> {
        let mut layers = Layers::default();
        let mut number = 0;
        for row in page.lines().filter(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [_, layer, name, ..] = cells[..] else {
                continue;
            };
            let Some(name) = name.strip_prefix('`').and_then(|n| n.strip_suffix('`')) else {
                continue;
            };
            number += usize::from(!layer.is_empty());
            layers.of.insert(name.to_owned(), number);
        }
        ensure!(number > 0, "there is no table of layers and crates");
        let arrows = page.split("\n\n").find(|p| p.starts_with("Inside a layer"));
        let arrows = arrows.context("no paragraph begins with \"Inside a layer\"")?;
        let (arrows, in_tests) = arrows.split_once("in tests").unwrap_or((arrows, ""));
        layers.beside = parse_arrows(arrows)?;
        layers.beside_in_tests = parse_arrows(in_tests)?;
        Ok(layers)
    }
}

/// "`a` and `b` → `c`, `d`; …": an arrow from each name on the left to each on the right.
fn parse_arrows(text: &str) -> Result<BTreeSet<(String, String)>> {
    let mut arrows = BTreeSet::new();
    let names = |text: &str| -> Vec<String> {
        text.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    for arrow in text.split(';').filter(|part| part.contains('`')) {
        let Some((from, to)) = arrow.split_once('→') else {
            bail!("{arrow:?} has no arrow (→)");
        };
        for from in names(from) {
            arrows.extend(names(to).into_iter().map(|to| (from.clone(), to)));
        }
    }
    Ok(arrows)
}

fn short(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

fn check(layers: &Layers, packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |message: String| findings.push(Finding::new(PAGE, 0, message));
    let ours: BTreeSet<&str> = packages.iter().map(|p| short(&p.name)).collect();
    for name in layers
        .of
        .keys()
        .filter(|name| !ours.contains(name.as_str()))
    {
        find(format!("the table has a crate `{name}` that is not there"));
    }
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let from = short(&package.name);
        let Some(layer) = layers.of.get(from) else {
            find(format!("crate `{from}` has no row in the table"));
            continue;
        };
        for dependency in &package.dependencies {
            let ours_too = dependency.path.is_some();
            let to = short(&dependency.name);
            let in_tests = dependency.kind.as_deref() == Some("dev");
            if !ours_too {
                if !in_tests && let Some(message) = foreign(from, *layer, to) {
                    find(message);
                }
                continue;
            }
            if !in_tests {
                arrows.entry(from).or_default().insert(to);
            }
            let arrow = (from.to_owned(), to.to_owned());
            let named = layers.beside.contains(&arrow)
                || (in_tests && layers.beside_in_tests.contains(&arrow));
            if layers.of.get(to).is_none_or(|of| of >= layer) && !named {
                find(format!(
                    "`{from}` uses `{to}`, which is not of a layer below, nor named beside it"
                ));
            }
        }
    }
    for (from, only) in ONLY {
        for to in reached(&arrows, from)
            .into_iter()
            .filter(|to| !only.contains(to))
        {
            find(format!(
                "`{from}` reaches `{to}`: it may reach only {only:?}"
            ));
        }
    }
    for name in ours
        .iter()
        .filter(|name| reached(&arrows, name).contains(*name))
    {
        find(format!("`{name}` uses itself, over others"));
    }
    findings
}

fn foreign(from: &str, layer: usize, to: &str) -> Option<String> {
    if let Some((_, rooms)) = FOREIGN.iter().find(|(name, _)| *name == to)
        && !rooms.contains(&from)
    {
        return Some(format!("`{from}` uses `{to}`, which only {rooms:?} may"));
    }
    let forbidden = layer <= LAYERS_WITHOUT_ASYNC && ASYNC.contains(&to);
    forbidden.then(|| format!("`{from}` uses `{to}`: its layer neither waits nor talks"))
}

/// All crates that a crate uses, directly or indirectly.
fn reached<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = vec![from];
    while let Some(name) = next.pop() {
        for to in arrows.get(name).into_iter().flatten() {
            if reached.insert(*to) {
                next.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| layer | crate | what lives there |
| --- | --- | --- |
| pure | `types` | values |
| | `formats` | parsers |
| one disk | `disk` | files |
| services | `servers` | answers |
| | `daemons` | work |
| programs | `lab` | load |

Inside a layer these arrows and no others: `formats` → `types`;
in tests also `daemons` → `servers`.
";

    /// Findings for lines of "crate: dependencies"; `?` before a name is a dependency of tests
    /// only.
    fn findings(graph: &[(&str, &str)]) -> Vec<String> {
        let all = ["types", "formats", "disk", "servers", "daemons", "lab"];
        let packages: Vec<Package> = all.iter().map(|name| package(name, graph)).collect();
        let layers = Layers::parse(TABLE).expect("a table");
        check(&layers, &packages)
            .into_iter()
            .map(|f| f.message)
            .collect()
    }

    fn package(name: &str, graph: &[(&str, &str)]) -> Package {
        let uses = graph.iter().filter(|(from, _)| *from == name);
        let dependencies = uses.map(|(_, to)| Dependency {
            name: to.trim_start_matches('?').to_owned(),
            kind: to.starts_with('?').then(|| "dev".to_owned()),
            path: to.contains(PREFIX).then(|| (*to).to_owned()),
        });
        Package {
            name: format!("{PREFIX}{name}"),
            dependencies: dependencies.collect(),
        }
    }

    #[test]
    fn arrows_point_down() {
        let good = [
            ("formats", "cairn-types"),
            ("servers", "cairn-disk"),
            ("daemons", "?cairn-servers"),
            ("lab", "cairn-formats"),
            ("servers", "tokio"),
            // The external crate `http`, not ours.
            ("disk", "http"),
            ("disk", "?tokio"),
        ];
        assert_eq!(findings(&good), [""; 0]);
        for bad in [
            [("disk", "cairn-servers")],
            [("daemons", "cairn-servers")],
            [("types", "?cairn-formats")],
            [("lab", "cairn-disk")],
            [("disk", "tokio")],
            [("servers", "rusqlite")],
        ] {
            assert_eq!(findings(&bad).len(), 1, "{bad:?}");
        }
        // Each of the two also violates the order of layers.
        let circle = findings(&[("disk", "cairn-servers"), ("servers", "cairn-disk")]);
        assert!(
            circle.contains(&"`disk` uses itself, over others".to_owned()),
            "{circle:?}"
        );
    }

    #[test]
    fn the_table_and_the_workspace_name_the_same_crates() {
        let layers = Layers::parse(TABLE).expect("a table");
        let found = check(&layers, &[package("types", &[]), package("new", &[])]);
        let found: Vec<String> = found.into_iter().map(|f| f.message).collect();
        assert!(
            found.contains(&"crate `new` has no row in the table".to_owned()),
            "{found:?}"
        );
        assert!(found.contains(&"the table has a crate `disk` that is not there".to_owned()));
    }

    #[test]
    fn a_page_without_a_table_is_refused() {
        assert!(Layers::parse("# Architecture\n").is_err());
        assert!(Layers::parse(&TABLE.replace("Inside", "Beside")).is_err());
        assert!(Layers::parse(&TABLE.replace('→', "to")).is_err());
    }
}
