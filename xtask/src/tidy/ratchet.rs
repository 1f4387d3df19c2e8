//! A committed list of numbers that may only fall, for rules that do not hold everywhere yet.
//!
//! `xtask/tidy.ratchet` has a line for each: rule, key, number. A number above the list's breaks
//! the rule; lower numbers are written back by `cargo xtask tidy --lower`. Raising a number is an
//! edit of the list by hand, for a reviewer to see.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

const FILE: &str = "xtask/tidy.ratchet";

/// A number that a rule bounds. Those with the same rule and key are added up.
#[derive(Debug)]
pub(crate) struct Measure {
    pub(crate) rule: &'static str,
    /// A path, or a crate if the counted items may move between its files.
    pub(crate) key: String,
    pub(crate) value: u64,
    /// Number allowed without an entry.
    pub(crate) limit: u64,
    pub(crate) line: usize,
    pub(crate) file: String,
    /// Description of the rule and its remedy.
    pub(crate) message: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ratchet {
    allowed: BTreeMap<(String, String), u64>,
}

/// The sum of one rule and key, and its places in order.
struct Total<'a> {
    value: u64,
    limit: u64,
    places: Vec<&'a Measure>,
}

impl Ratchet {
    pub(crate) fn read(root: &Path) -> Result<Ratchet> {
        let path = root.join(FILE);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ratchet::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Ratchet> {
        let mut allowed = BTreeMap::new();
        for line in text
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
        {
            let words: Vec<&str> = line.split(' ').collect();
            let [rule, key, value] = words[..] else {
                anyhow::bail!("{line:?} is not a rule, a place and a number");
            };
            let value = value
                .parse()
                .with_context(|| format!("the number of {line:?}"))?;
            allowed.insert((rule.to_owned(), key.to_owned()), value);
        }
        Ok(Ratchet { allowed })
    }

    pub(crate) fn write(&self, root: &Path) -> Result<()> {
        let path = root.join(FILE);
        std::fs::write(&path, self.text()).with_context(|| path.display().to_string())
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "# Numbers that may only fall: xtask/src/tidy/ratchet.rs. Lowered by cargo xtask tidy --lower.\n",
        );
        for ((rule, key), value) in &self.allowed {
            text.push_str(&format!("{rule} {key} {value}\n"));
        }
        text
    }

    /// Findings beyond the list, and the number of entries that can be lowered.
    pub(crate) fn compare(&self, measures: &[Measure]) -> (Vec<Finding>, usize) {
        let totals = totals(measures);
        let mut findings = Vec::new();
        for (place, total) in &totals {
            let allowed = self.allowed.get(place).copied().unwrap_or(total.limit);
            if total.value <= allowed {
                continue;
            }
            // The new offender is among these; only the change itself can show which one it is.
            for measure in &total.places {
                let counted = match total.places.len() {
                    1 => String::new(),
                    _ => format!(" ({} in {}, {allowed} allowed)", total.value, place.1),
                };
                let message = format!("{}{counted}", measure.message);
                findings.push(Finding::new(&measure.file, measure.line, message));
            }
        }
        let lower = self.lowered(&totals);
        let fallen = |(place, value): (&_, &u64)| lower.get(place) != Some(value);
        (findings, self.allowed.iter().filter(|e| fallen(*e)).count())
    }

    pub(crate) fn lower(&mut self, measures: &[Measure]) {
        self.allowed = self.lowered(&totals(measures));
    }

    fn lowered(
        &self,
        totals: &BTreeMap<(String, String), Total<'_>>,
    ) -> BTreeMap<(String, String), u64> {
        let entry = |(place, allowed): (&(String, String), &u64)| {
            let total = totals.get(place)?;
            let value = total.value.min(*allowed);
            (value > total.limit).then(|| (place.clone(), value))
        };
        self.allowed.iter().filter_map(entry).collect()
    }
}

fn totals(measures: &[Measure]) -> BTreeMap<(String, String), Total<'_>> {
    let mut totals = BTreeMap::new();
    for measure in measures {
        let place = (measure.rule.to_owned(), measure.key.clone());
        let total = totals.entry(place).or_insert_with(|| Total {
            value: 0,
            limit: measure.limit,
            places: Vec::new(),
        });
        total.value += measure.value;
        total.places.push(measure);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(key: &str, value: u64) -> Measure {
        Measure {
            rule: "functions",
            key: key.to_owned(),
            value,
            limit: 100,
            line: 7,
            file: key.to_owned(),
            message: "too long".to_owned(),
        }
    }

    fn ratchet(text: &str) -> Ratchet {
        Ratchet::parse(text).expect("a list")
    }

    #[test]
    fn more_than_allowed_is_found() {
        let list = ratchet("# words\nfunctions a 120\n");
        let (findings, fallen) = list.compare(&[measure("a", 121), measure("b", 101)]);
        let at = |file| Finding::new(file, 7, "too long");
        assert_eq!(findings, [at("a"), at("b")]);
        assert_eq!(fallen, 0);
        assert_eq!(list.compare(&[measure("a", 120), measure("b", 100)]).0, []);
    }

    #[test]
    fn several_places_are_added_up() {
        let list = ratchet("functions a 150\n");
        let (findings, _) = list.compare(&[measure("a", 100), measure("a", 51)]);
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[0].message, "too long (151 in a, 150 allowed)");
    }

    #[test]
    fn numbers_only_fall() {
        let mut list = ratchet("functions a 120\nfunctions b 120\nfunctions c 120\n");
        let measures = [measure("a", 110), measure("b", 130), measure("c", 90)];
        assert_eq!(list.compare(&measures).1, 2);
        list.lower(&measures);
        assert_eq!(list, ratchet("functions a 110\nfunctions b 120\n"));
        assert_eq!(Ratchet::parse(&list.text()).expect("a list"), list);
        // Lowering does not add an entry for a new offender.
        list.lower(&[measure("d", 130)]);
        assert_eq!(list, Ratchet::default());
    }

    #[test]
    fn a_broken_line_is_refused() {
        for line in ["functions a", "functions a many", "functions a b 1"] {
            assert!(Ratchet::parse(line).is_err(), "{line}");
        }
    }
}
