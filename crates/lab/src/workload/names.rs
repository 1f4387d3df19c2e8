//! Helpers for several readers: unique names, and conversion of texts to numbered names.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::Names;
use crate::selector::Selector;

/// Generator of unique stage names.
#[derive(Debug, Default)]
pub(super) struct Unique {
    taken: BTreeSet<String>,
    /// The last number appended to a name, so that many equal names need no search.
    numbers: BTreeMap<String, usize>,
}

impl Unique {
    /// Returns `name`, or `name-2` and so on if it is taken.
    pub(super) fn take(&mut self, name: String) -> String {
        if self.taken.insert(name.clone()) {
            return name;
        }
        let number = self.numbers.entry(name.clone()).or_insert(1);
        loop {
            *number += 1;
            let candidate = format!("{name}-{number}");
            if self.taken.insert(candidate.clone()) {
                return candidate;
            }
        }
    }
}

/// Names of a single container given by its whole name. [`Names`] contains a number, so the last
/// digits of the name become it; `None` if there are none.
pub(super) fn one_name(name: &str) -> Option<Names> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| {
            at + name[at..].chars().next().map_or(1, char::len_utf8)
        });
    // A number has at most 15 digits; preceding digits stay text.
    let start = start.max(end.saturating_sub(12));
    Some(Names {
        prefix: name[..start].to_owned(),
        suffix: name[end..].to_owned(),
        digits: u8::try_from(end - start).ok()?,
        numbers: Selector::Constant(name[start..end].parse().ok()?),
    })
}
