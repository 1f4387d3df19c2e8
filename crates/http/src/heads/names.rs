//! Restoring of escaped header names in outgoing heads. hyper cannot write a name that is not a
//! token, so each is replaced by a placeholder of random digits, which is searched for in hyper's
//! output and replaced by the real bytes. (Bytes of the message before may still be in that output,
//! so the head's position is not known.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_types::header_name;
use cairn_types::metadata::title_case;
use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;

use crate::own_thread;

/// Does any of these headers need its name restored?
pub(crate) fn has_escapes(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| header_name::has_escapes(name.as_str()))
}

struct Placeholder {
    digits: Vec<u8>,
    name: Vec<u8>,
}

/// Placeholders shared by a connection and the messages sent over it.
#[derive(Clone, Default)]
pub(crate) struct Names {
    wait: Arc<AtomicBool>,
    names: Arc<Mutex<Vec<Placeholder>>>,
}

impl Names {
    /// Replaces escaped names by placeholders. These headers must be the next that are written.
    pub(crate) fn stand_in(&self, headers: &mut HeaderMap) {
        if !has_escapes(headers) {
            return;
        }
        let mut names = self.names.lock();
        names.clear();
        let mut last = None;
        let mut changed = HeaderMap::with_capacity(headers.len());
        for (name, value) in std::mem::take(headers) {
            // A repeated header is iterated without its name.
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

    /// Replaces placeholders by the real names; `None` if there are none in these bytes.
    pub(super) fn put_back(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        if !self.wait() {
            return None;
        }
        let mut names = self.names.lock();
        let mut changed: Option<Vec<u8>> = None;
        for Placeholder { digits, name } in names.iter() {
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

/// The placeholder for an escaped name, or the name itself.
fn stand_in(name: HeaderName, names: &mut Vec<Placeholder>) -> HeaderName {
    if !header_name::has_escapes(name.as_str()) {
        return name;
    }
    let (a, b) = (own_thread::random(), own_thread::random());
    let digits = format!("{a:020}{b:020}");
    let Ok(digits_name) = HeaderName::from_bytes(digits.as_bytes()) else {
        return name;
    };
    names.push(Placeholder {
        digits: digits.into_bytes(),
        name: header_name::unescape(&title_case(name.as_str())).into_owned(),
    });
    digits_name
}

/// Replaces every occurrence; `None` if there is none.
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
