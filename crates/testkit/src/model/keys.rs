//! One object name under test: its possible states, and payloads that identify themselves.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::random::Random;

/// A state of an object, as a client can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no object: 404.
    Absent,
    /// There is one.
    Present {
        /// The version that its content names.
        version: u64,
        /// The version set by the last POST since the PUT.
        posted: Option<u64>,
    },
}

/// A request that changes an object.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    /// A PUT of this version's content.
    Put {
        /// See [`next_version`].
        version: u64,
    },
    /// A POST of this number as metadata.
    Post {
        /// See [`next_version`].
        number: u64,
    },
    /// A DELETE.
    Delete,
}

impl Write {
    /// The state after this write; `None` if it cannot have been applied (POST to a missing
    /// object).
    fn after(self, state: State) -> Option<State> {
        match (self, state) {
            (Write::Put { version }, _) => Some(State::Present {
                version,
                posted: None,
            }),
            (Write::Delete, _) => Some(State::Absent),
            (Write::Post { number }, State::Present { version, .. }) => Some(State::Present {
                version,
                posted: Some(number),
            }),
            (Write::Post { .. }, State::Absent) => None,
        }
    }
}

/// An object and what may have become of it.
pub struct Key {
    /// The container's path below the account: `/c`.
    pub container: String,
    /// Its name in the container.
    pub name: String,
    /// Possible states: one when the last write was acknowledged, more after writes without an
    /// answer.
    pub possible: Vec<State>,
}

impl Key {
    /// An object that was never written.
    pub fn new(container: &str, name: String) -> Self {
        Key {
            container: container.to_owned(),
            name,
            possible: vec![State::Absent],
        }
    }

    /// Its path below the account: `/c/o`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.container, self.name)
    }

    /// Records that a write is about to be sent: from now on it may have been applied. Returns the
    /// states before it.
    pub fn sent(&mut self, write: Write) -> Vec<State> {
        let before = self.possible.clone();
        for after in before.iter().filter_map(|state| write.after(*state)) {
            if !self.possible.contains(&after) {
                self.possible.push(after);
            }
        }
        before
    }

    /// Records that the write was acknowledged: it has been applied.
    pub fn acknowledged(&mut self, write: Write, before: &[State]) {
        self.possible.clear();
        for after in before.iter().filter_map(|state| write.after(*state)) {
            if !self.possible.contains(&after) {
                self.possible.push(after);
            }
        }
    }

    /// The only possible state, if there is no uncertainty.
    pub fn settled(&self) -> Option<State> {
        match self.possible[..] {
            [state] => Some(state),
            _ => None,
        }
    }
}

/// A version number that no other PUT or POST of this process has.
pub fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A payload of about `size` bytes: a line that names the object and version, then bytes generated
/// from the version.
pub fn payload(path: &str, version: u64, size: usize) -> Vec<u8> {
    let mut bytes = format!("cairn {version} {size} {path}\n").into_bytes();
    let rest = size.saturating_sub(bytes.len());
    bytes.extend(Random::new(version).bytes(rest));
    bytes
}

/// The version of a payload, if it is whole and belongs to this object.
pub fn version_of(path: &str, body: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(body.split(|b| *b == b'\n').next()?).ok()?;
    let mut words = line.splitn(4, ' ').skip(1);
    let version = words.next()?.parse().ok()?;
    let size = words.next()?.parse().ok()?;
    (size <= 16 << 20 && payload(path, version, size) == body).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_tell_what_they_are() {
        for size in [0, 10, 4096] {
            let mut body = payload("/c/o", 7, size);
            assert_eq!(version_of("/c/o", &body), Some(7));
            assert_eq!(version_of("/c/p", &body), None);
            assert_eq!(version_of("/c/o", &body[..body.len() - 1]), None);
            *body.last_mut().expect("never empty") ^= 1;
            assert_eq!(version_of("/c/o", &body), None);
        }
    }

    #[test]
    fn cut_off_writes_leave_doubt() {
        let mut key = Key::new("/c", "o".into());
        let put = Write::Put { version: 1 };
        let before = key.sent(put);
        assert_eq!(key.possible.len(), 2);
        key.acknowledged(put, &before);
        assert_eq!(
            key.settled(),
            Some(State::Present {
                version: 1,
                posted: None
            })
        );
        key.sent(Write::Post { number: 2 });
        key.sent(Write::Delete);
        assert_eq!(key.possible.len(), 3);
        assert_eq!(key.settled(), None);
    }
}
