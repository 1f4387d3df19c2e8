//! Names with other bytes than a token's, on their way out. hyper would not write them: a name of
//! digits that nobody can guess stands in for each, and is found in what hyper writes. (Bytes of a
//! message before may still be on their way, so the head's place among them is not known.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_types::header_name;
use cairn_types::metadata::title_case;
use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;

use crate::own_thread;

/// Whether some name is to be put back before it is sent.
pub(crate) fn has_escapes(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| header_name::has_escapes(name.as_str()))
}

struct StandIn {
    digits: Vec<u8>,
    name: Vec<u8>,
}

/// What a connection shares with the messages sent over it.
#[derive(Clone, Default)]
pub(crate) struct Names {
    wait: Arc<AtomicBool>,
    names: Arc<Mutex<Vec<StandIn>>>,
}

impl Names {
    /// Makes headers such that hyper writes them. They are the next to be written.
    pub(crate) fn stand_in(&self, headers: &mut HeaderMap) {
        if !has_escapes(headers) {
            return;
        }
        let mut names = self.names.lock();
        names.clear();
        let mut last = None;
        let mut changed = HeaderMap::with_capacity(headers.len());
        for (name, value) in std::mem::take(headers) {
            // A further value has no name of its own.
            if let Some(name) = name {
                last = Some(stand_in(name, &mut names));
            }
            if let Some(name) = &last {
                changed.append(name.clone(), value);
            }
        }
        *headers = changed;
        self.wait.store(true, Ordering::Release);
    }

    pub(super) fn wait(&self) -> bool {
        self.wait.load(Ordering::Acquire)
    }

    /// The bytes with names put back; `None` where there are none in them.
    pub(super) fn put_back(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        if !self.wait() {
            return None;
        }
        let mut names = self.names.lock();
        let mut changed: Option<Vec<u8>> = None;
        for StandIn { digits, name } in names.iter() {
            let bytes = changed.as_deref().unwrap_or(bytes);
            changed = replaced(bytes, digits, name).or(changed);
        }
        if changed.is_some() {
            names.clear();
            self.wait.store(false, Ordering::Release);
        }
        changed
    }
}

/// A name that hyper writes.
fn stand_in(name: HeaderName, names: &mut Vec<StandIn>) -> HeaderName {
    if !header_name::has_escapes(name.as_str()) {
        return name;
    }
    let (a, b) = (own_thread::random(), own_thread::random());
    let digits = format!("{a:020}{b:020}");
    let Ok(digits_name) = HeaderName::from_bytes(digits.as_bytes()) else {
        return name;
    };
    names.push(StandIn {
        digits: digits.into_bytes(),
        name: header_name::unescape(&title_case(name.as_str())).into_owned(),
    });
    digits_name
}

/// Every occurrence; `None` where there is none.
fn replaced(bytes: &[u8], what: &[u8], by: &[u8]) -> Option<Vec<u8>> {
    let find = |from: usize| {
        let mut windows = bytes[from..].windows(what.len());
        windows.position(|w| w == what).map(|at| from + at)
    };
    let mut next = find(0);
    next?;
    let (mut out, mut copied) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(at) = next {
        out.extend_from_slice(&bytes[copied..at]);
        out.extend_from_slice(by);
        copied = at + what.len();
        next = find(copied);
    }
    out.extend_from_slice(&bytes[copied..]);
    Some(out)
}
