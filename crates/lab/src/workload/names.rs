//! Makes names unique and texts into numbered names: what several readers need alike.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::Names;
use crate::selector::Selector;

/// Hands out stage names, each once.
#[derive(Debug, Default)]
pub(super) struct Unique {
    taken: BTreeSet<String>,
    /// The last number behind a name, so that many of one name are no search each.
    numbers: BTreeMap<String, usize>,
}

impl Unique {
    /// `name`, or `name-2` and so on where it is taken.
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

/// Names of exactly one container whose name is given as a whole. [`Names`] holds a number, so
/// the last digits of the name become it; `None` when there are none.
pub(super) fn one_name(name: &str) -> Option<Names> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| {
            at + name[at..].chars().next().map_or(1, char::len_utf8)
        });
    // A number has 15 digits at most; what stands before stays text.
    let start = start.max(end.saturating_sub(12));
    Some(Names {
        prefix: name[..start].to_owned(),
        suffix: name[end..].to_owned(),
        digits: u8::try_from(end - start).ok()?,
        numbers: Selector::Constant(name[start..end].parse().ok()?),
    })
}
