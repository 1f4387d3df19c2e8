//! Top-level modules of a crate do not depend on each other in cycles: each has one concern, and
//! can be read without the others.
//!
//! Dependencies are paths that begin with `crate` or `super`. A use of the root's re-exports counts
//! as a use of the root, which is part of no cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::ratchet::Measure;
use super::source::{Source, Token};

/// For each crate, the top-level modules that each top-level module uses.
#[derive(Default)]
pub(crate) struct Uses(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Uses {
    pub(crate) fn add(&mut self, source: &Source) {
        let Some((room, modules)) = place(&source.path) else {
            return;
        };
        let Some(own) = modules.first() else {
            return;
        };
        let of_room = self.0.entry(room.to_owned()).or_default();
        let used = of_room.entry((*own).to_owned()).or_default();
        let code: Vec<&Token> = source.tokens.iter().filter(|t| !t.test).collect();
        for at in 0..code.len() {
            let names = match code[at].text.as_str() {
                "crate" => after(&code[at + 1..]),
                "super" if at < 2 || code[at - 2].text != "super" => {
                    let ups = code[at..]
                        .chunks(2)
                        .take_while(|c| c[0].text == "super")
                        .count();
                    // The path goes up to the crate root: the next name is a top-level module.
                    let to_the_top = ups == modules.len();
                    if !to_the_top {
                        continue;
                    }
                    after(&code[at + 2 * ups - 1..])
                }
                _ => continue,
            };
            used.extend(names.into_iter().filter(|name| name != own));
        }
    }

    pub(crate) fn measure(&self) -> Vec<Measure> {
        let mut measures = Vec::new();
        for (room, uses) in &self.0 {
            for module in uses.keys() {
                let Some(way) = way_back(uses, module) else {
                    continue;
                };
                measures.push(Measure {
                    rule: "circles",
                    key: room.clone(),
                    value: 1,
                    limit: 0,
                    line: 0,
                    file: format!("crates/{room}/src/{module}"),
                    message: format!("a circle of modules: {}", way.join(" → ")),
                });
            }
        }
        measures
    }
}

/// The crate of a source and its module path, its own module last; `None` for a crate's root.
fn place(path: &str) -> Option<(&str, Vec<&str>)> {
    let (room, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut modules: Vec<&str> = rest.strip_suffix(".rs")?.split('/').collect();
    if modules.last() == Some(&"mod") {
        modules.pop();
    }
    let is_root = matches!(modules[..], ["lib"] | ["main"]);
    Some((room, if is_root { Vec::new() } else { modules }))
}

/// First names of the paths after `crate` or `super`: `::a::…`, `::{a, b::…}`.
fn after(tokens: &[&Token]) -> Vec<String> {
    let text = |at: usize| tokens.get(at).map_or("", |t| t.text.as_str());
    if text(0) != "::" {
        return Vec::new();
    }
    if text(1) != "{" {
        return vec![text(1).to_owned()];
    }
    let mut names = Vec::new();
    let mut depth = 0;
    for at in 1..tokens.len() {
        match text(at) {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            name if depth == 1 && ["{", ","].contains(&text(at - 1)) => names.push(name.to_owned()),
            _ => (),
        }
    }
    names
}

/// The shortest path from a module over others back to itself.
fn way_back(uses: &BTreeMap<String, BTreeSet<String>>, from: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![from.to_owned()]];
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in way
                .last()
                .and_then(|last| uses.get(last))
                .into_iter()
                .flatten()
            {
                let mut way = way.clone();
                way.push(next.clone());
                if next == from {
                    return Some(way);
                }
                if uses.contains_key(next) && seen.insert(next.clone()) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let mut uses = Uses::default();
        for (file, text) in files {
            let path = format!("crates/disk/src/{file}");
            uses.add(&Source::parse(&path, *text, false).expect("Rust"));
        }
        uses.measure().into_iter().map(|m| m.message).collect()
    }

    #[test]
    fn a_circle_of_modules_is_found() {
        let found = circles(&[
            ("lib.rs", "mod a; pub use crate::a::A;"),
            ("a.rs", "use crate::{A, b::B, x::{y, c}};"),
            ("b/mod.rs", "mod part; fn f() { super::c::g() }"),
            ("b/part.rs", "use super::helper; use super::super::c::C;"),
            (
                "c.rs",
                "#[cfg(test)]\nmod tests { use crate::b::B; }\nuse crate::a::A;",
            ),
            ("d.rs", "use crate::a::A; use super::d::own;"),
        ]);
        assert_eq!(
            found,
            [
                "a circle of modules: a → b → c → a",
                "a circle of modules: b → c → a → b",
                "a circle of modules: c → a → b → c",
            ]
        );
    }

    #[test]
    fn uses_one_way_are_none() {
        let files = [
            ("a.rs", "use crate::b::B; use crate::c;"),
            ("b.rs", "use super::c::C;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }
}
