//! The mixed load of one connection: PUT, overwrite, POST, DELETE and GET on its own keys until the
//! connection breaks. Each key has at most one request in flight, so that its possible states stay
//! few and exact.

use std::sync::atomic::{AtomicBool, Ordering};

use super::keys::{Key, State, Write, next_version, payload, version_of};
use crate::random::Random;
use crate::wire::Account;

/// Outcomes of the requests.
#[derive(Default)]
pub struct Counts {
    /// Number of writes that were acknowledged.
    pub acknowledged: u64,
    /// Number of writes without an answer.
    pub cut_off: u64,
    /// Number of refused requests (5xx), which a store may answer while disks fail: the write may
    /// or may not have been applied. `None` where no refusal is allowed.
    pub refused: Option<u64>,
    /// Answers that are wrong under all circumstances.
    pub wrong: Vec<String>,
}

impl Counts {
    /// Counters for a store whose disks fail, which may refuse.
    pub fn tolerant() -> Counts {
        Counts {
            refused: Some(0),
            ..Counts::default()
        }
    }

    /// Adds other counts; wrong answers are collected in `wrong`.
    pub fn add(&mut self, other: Counts, wrong: &mut Vec<String>) {
        self.acknowledged += other.acknowledged;
        self.cut_off += other.cut_off;
        self.refused = match (self.refused, other.refused) {
            (None, None) => None,
            (mine, theirs) => Some(mine.unwrap_or(0) + theirs.unwrap_or(0)),
        };
        wrong.extend(other.wrong);
    }
}

/// Runs the load until `stop` is set, the connection breaks, or an answer is wrong.
pub fn worker(
    mut account: Account,
    keys: &mut [Key],
    mut random: Random,
    stop: &AtomicBool,
) -> Counts {
    let mut counts = Counts::default();
    while !stop.load(Ordering::Relaxed) && counts.wrong.is_empty() {
        let index = random.below(keys.len() as u64) as usize;
        let key = &mut keys[index];
        let connected = match random.below(10) {
            0..=1 => read(&mut account, key, &mut counts),
            2..=3 => write(&mut account, key, Write::Delete, 0, &mut counts),
            // POST is sent only if the object's state is certain, so that the right answer is
            // known.
            4..=5 if matches!(key.settled(), Some(State::Present { .. })) => {
                let post = Write::Post {
                    number: next_version(),
                };
                write(&mut account, key, post, 0, &mut counts)
            }
            _ => {
                let put = Write::Put {
                    version: next_version(),
                };
                let size = size(&mut random);
                write(&mut account, key, put, size, &mut counts)
            }
        };
        if !connected {
            break;
        }
    }
    counts
}

/// A random object size: mostly small ones, around the sizes of blocks and buffers, and some large
/// ones.
pub fn size(random: &mut Random) -> usize {
    let base = *random.pick(&[0, 100, 4096, 4096, 16_384, 65_536, 65_537, 300_000, 1 << 20]);
    base + random.below(100) as usize
}

/// Sends a write and updates the model. Returns false when the connection broke.
pub fn write(
    account: &mut Account,
    key: &mut Key,
    write: Write,
    size: usize,
    counts: &mut Counts,
) -> bool {
    let path = key.path();
    let before = key.sent(write);
    let response = match write {
        Write::Put { version } => {
            account.call("PUT", &path, "", &[], &payload(&path, version, size))
        }
        Write::Post { number } => account.call(
            "POST",
            &path,
            "",
            &[("X-Object-Meta-Posted", &number.to_string())],
            b"",
        ),
        Write::Delete => account.call("DELETE", &path, "", &[], b""),
    };
    let Ok(response) = response else {
        counts.cut_off += 1;
        return false;
    };
    match (write, response.status) {
        (Write::Put { .. }, 201) | (Write::Post { .. }, 202) | (Write::Delete, 204) => {
            counts.acknowledged += 1;
            key.acknowledged(write, &before);
        }
        (Write::Delete, 404) if before.contains(&State::Absent) => {
            counts.acknowledged += 1;
            key.acknowledged(write, &before);
        }
        // A 404 to a DELETE while disks fail: most of the answering servers did not have the
        // object; they have its tombstone now.
        (Write::Delete, 404) if counts.refused.is_some() => {
            counts.acknowledged += 1;
            key.acknowledged(write, &before);
        }
        (_, status) => match &mut counts.refused {
            Some(refused) if status >= 500 => *refused += 1,
            Some(refused) if status == 404 && matches!(write, Write::Post { .. }) => *refused += 1,
            _ => counts
                .wrong
                .push(format!("{write:?} of {path}: {status}; it was {before:?}")),
        },
    }
    true
}

/// Reads the object. Returns false when the connection broke. Any answer but a whole version, or
/// 404, is wrong.
pub fn read(account: &mut Account, key: &Key, counts: &mut Counts) -> bool {
    let path = key.path();
    let Ok(response) = account.call("GET", &path, "", &[], b"") else {
        return false;
    };
    let whole = match response.status {
        200 => version_of(&path, &response.body).is_some(),
        500.. if counts.refused.is_some() => true,
        status => status == 404,
    };
    if !whole {
        counts
            .wrong
            .push(format!("GET {path}: {}, no whole version", response.status));
    }
    true
}
