//! Revoked tokens, in memory and in a file that all processes of a host share.
//!
//! A token is listed by its audit id until it would have expired. The list is bounded without
//! refusing revocations: the entries of the user with the most of them are replaced by one
//! watermark, which revokes all tokens of logins up to that time.
//!
//! The file is rewritten when most of its lines have expired.

mod list_file;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tracing::error;

use self::list_file::{Line, ListFile};
use super::directory::id_of;
use super::token::Token;

/// Maximum entries of all users.
const ENTRIES_MAX: usize = 100_000;
/// Maximum entries of one user.
const USER_ENTRIES_MAX: usize = 1_000;
/// Number of expired lines for which the file is not rewritten.
const STALE_LINES_MAX: usize = 1_000;
/// User of lines without one.
const NO_USER: &str = "-";

pub(super) struct Revoked {
    known: RwLock<Known>,
    /// Time in seconds of the last check of the file.
    looked: AtomicU64,
    /// Lock for one reader or writer of the file at a time.
    file: Mutex<Option<ListFile>>,
}

#[derive(Default)]
struct Known {
    tokens: HashMap<String, Entry>,
    /// Number of entries in `tokens` of each user.
    counts: HashMap<String, usize>,
    watermarks: HashMap<String, Watermark>,
}

struct Entry {
    expires: u64,
    user: String,
    login: u64,
}

#[derive(Clone, Copy)]
struct Watermark {
    login: u64,
    expires: u64,
}

fn user_digest(user_id: &str) -> String {
    id_of("revoked", user_id)
}

impl Revoked {
    /// Reads the file; with `None`, revocations are lost when the process ends.
    pub(super) fn read(path: Option<PathBuf>, now: u64) -> Revoked {
        let revoked = Revoked {
            known: RwLock::default(),
            looked: AtomicU64::new(now),
            file: Mutex::new(path.map(ListFile::new)),
        };
        revoked.look(now);
        revoked
    }

    /// Has the token been revoked, or one that it was derived from, or its user's login?
    pub(super) fn has(&self, token: &Token) -> bool {
        let known = self.known.read();
        if known.tokens.is_empty() && known.watermarks.is_empty() {
            return false;
        }
        let mut ids = std::iter::once(&token.audit_id).chain(&token.parents);
        ids.any(|id| known.tokens.contains_key(id))
            || (!known.watermarks.is_empty()
                && known
                    .watermarks
                    .get(&user_digest(&token.user_id))
                    .is_some_and(|mark| token.login <= mark.login))
    }

    /// The login time in seconds for a login at `now`: later than every watermark of the user.
    pub(super) fn login_second(&self, user_id: &str, now: u64) -> u64 {
        let known = self.known.read();
        let mark = known.watermarks.get(&user_digest(user_id));
        mark.map_or(now, |mark| now.max(mark.login.saturating_add(1)))
    }

    /// Must the file be checked before tokens are validated in this second?
    pub(super) fn is_stale(&self, now: u64) -> bool {
        self.looked.load(Ordering::Acquire) != now
    }

    /// Reads the entries that other processes have written. Blocks.
    pub(super) fn look(&self, now: u64) {
        let mut file = self.file.lock();
        if let Some(file) = &mut *file {
            match file.news() {
                Ok(news) => drop(self.take(news, now)),
                Err(error) => error!(
                    %error, file = %file.path.display(),
                    "the list of revoked tokens cannot be read: those of other processes are not known"
                ),
            }
        }
        self.looked.store(now, Ordering::Release);
    }

    /// Revokes a token and those derived from it; false if that is not durable. Blocks.
    pub(super) fn add(&self, token: &Token, now: u64) -> bool {
        let line = Line::Token {
            id: token.audit_id.clone(),
            expires: token.expires,
            user: user_digest(&token.user_id),
            login: token.login,
        };
        let mut file = self.file.lock();
        let marks = self.take(vec![line.clone()], now);
        let Some(file) = &mut *file else {
            return true;
        };
        let mut lines = vec![line];
        lines.extend(marks);
        match self.write_down(file, &lines, now) {
            Ok(()) => true,
            Err(error) => {
                error!(%error, file = %file.path.display(), "a revoked token could not be written \
                       down: it would be valid again after a restart");
                false
            }
        }
    }

    fn write_down(&self, file: &mut ListFile, lines: &[Line], now: u64) -> io::Result<()> {
        let lock = file.lock()?;
        let news = file.news()?;
        self.take(news, now);
        file.append(lines)?;
        let live = {
            let known = self.known.read();
            known.tokens.len() + known.watermarks.len()
        };
        if file.lines > 2 * live + STALE_LINES_MAX {
            let mut known = self.known.write();
            known.forget_expired(now);
            let all = known.lines();
            drop(known);
            // The append is durable: failing to compact the file loses nothing.
            if let Err(error) = file.replace(&all) {
                error!(%error, file = %file.path.display(), "the list of revoked tokens stays long");
            }
        }
        drop(lock);
        Ok(())
    }

    /// Adds lines to the entries; returns the watermarks that this created.
    fn take(&self, lines: Vec<Line>, now: u64) -> Vec<Line> {
        if lines.is_empty() {
            return Vec::new();
        }
        let mut known = self.known.write();
        for line in lines {
            known.add(line, now);
        }
        known.make_room(now)
    }
}

impl Known {
    fn add(&mut self, line: Line, now: u64) {
        match line {
            Line::Token { expires, .. } | Line::Watermark { expires, .. } if expires <= now => {}
            Line::Token {
                id,
                expires,
                user,
                login,
            } => {
                let mark = self.watermarks.get_mut(&user);
                if let Some(mark) = mark.filter(|mark| login <= mark.login) {
                    mark.expires = mark.expires.max(expires);
                    return;
                }
                let entry = Entry {
                    expires,
                    user: user.clone(),
                    login,
                };
                if self.tokens.insert(id, entry).is_none() {
                    *self.counts.entry(user).or_default() += 1;
                }
            }
            Line::Watermark {
                expires,
                user,
                login,
            } => {
                let new = Watermark { login, expires };
                let mark = self.watermarks.entry(user).or_insert(new);
                mark.login = mark.login.max(login);
                mark.expires = mark.expires.max(expires);
            }
        }
    }

    /// Enforces the bounds: a user with too many entries gets a watermark instead.
    fn make_room(&mut self, now: u64) -> Vec<Line> {
        let mut made = Vec::new();
        loop {
            let heaviest = self
                .counts
                .iter()
                .filter(|(user, _)| *user != NO_USER)
                .max_by_key(|(_, count)| **count)
                .map(|(user, count)| (user.clone(), *count));
            let Some((user, count)) = heaviest else {
                return made;
            };
            if count <= USER_ENTRIES_MAX && self.tokens.len() <= ENTRIES_MAX {
                return made;
            }
            let before = self.tokens.len();
            self.forget_expired(now);
            if self.tokens.len() < before {
                continue;
            }
            made.push(self.collapse(user));
        }
    }

    /// Replaces all entries of a user by one watermark.
    fn collapse(&mut self, user: String) -> Line {
        let (mut login, mut expires) = (0, 0);
        self.tokens.retain(|_, entry| {
            if entry.user != user {
                return true;
            }
            login = login.max(entry.login);
            expires = expires.max(entry.expires);
            false
        });
        self.counts.remove(&user);
        let mark = self
            .watermarks
            .entry(user.clone())
            .or_insert(Watermark { login, expires });
        mark.login = mark.login.max(login);
        mark.expires = mark.expires.max(expires);
        Line::Watermark {
            expires: mark.expires,
            user,
            login: mark.login,
        }
    }

    fn forget_expired(&mut self, now: u64) {
        self.tokens.retain(|_, entry| entry.expires > now);
        self.watermarks.retain(|_, mark| mark.expires > now);
        self.counts.clear();
        for entry in self.tokens.values() {
            *self.counts.entry(entry.user.clone()).or_default() += 1;
        }
    }

    fn lines(&self) -> Vec<Line> {
        let tokens = self.tokens.iter().map(|(id, entry)| Line::Token {
            id: id.clone(),
            expires: entry.expires,
            user: entry.user.clone(),
            login: entry.login,
        });
        let marks = self.watermarks.iter().map(|(user, mark)| Line::Watermark {
            expires: mark.expires,
            user: user.clone(),
            login: mark.login,
        });
        tokens.chain(marks).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn token(user: &str, id: &str, login: u64) -> Token {
        Token {
            user_id: user.into(),
            project_id: None,
            issued: login,
            expires: NOW + 100,
            audit_id: id.into(),
            parents: Vec::new(),
            login,
        }
    }

    #[test]
    fn known_to_every_process_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ended");
        std::fs::write(&path, format!("old {}\nexpired {}\n", NOW + 9, NOW - 9)).unwrap();
        let (one, other) = (
            Revoked::read(Some(path.clone()), NOW),
            Revoked::read(Some(path.clone()), NOW),
        );
        assert!(one.has(&token("u", "old", NOW)) && !one.has(&token("u", "expired", NOW)));
        let ended = token("u", "a", NOW);
        assert!(!other.is_stale(NOW) && other.is_stale(NOW + 1));
        assert!(one.add(&ended, NOW));
        other.look(NOW + 1);
        assert!(other.has(&ended) && !other.is_stale(NOW + 1));
        let mut child = token("u", "b", NOW);
        child.parents = vec!["x".into(), "a".into()];
        assert!(other.has(&child), "made with it");
        assert!(Revoked::read(Some(path.clone()), NOW).has(&ended));
        assert!(
            !Revoked::read(Some(path.clone()), NOW + 100).has(&ended),
            "expired"
        );
        let mode = std::fs::metadata(&path).unwrap().mode();
        std::fs::remove_file(&path).unwrap();
        assert!(one.add(&token("u", "c", NOW), NOW));
        assert_eq!(mode & 0o777, 0o644, "the file that was there");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_line_that_was_cut_off_takes_no_other_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ended");
        let revoked = Revoked::read(Some(path.clone()), NOW);
        assert!(revoked.add(&token("u", "a", NOW), NOW));
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"torn 17").unwrap();
        assert!(revoked.add(&token("u", "b", NOW), NOW));
        let again = Revoked::read(Some(path), NOW);
        for id in ["a", "b"] {
            assert!(again.has(&token("u", id, NOW)), "{id}");
        }
        assert!(!again.has(&token("u", "torn", NOW)));
    }

    #[test]
    fn a_user_with_too_many_ends_up_with_a_watermark() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ended");
        let revoked = Revoked::read(Some(path.clone()), NOW);
        let other = token("other", "o", NOW);
        assert!(revoked.add(&other, NOW));
        for number in 0..=USER_ENTRIES_MAX {
            let one = token("many", &format!("t{number}"), NOW + number as u64 % 7);
            revoked.take(
                vec![
                    Line::parse(&format!(
                        "{} {} {} {}",
                        one.audit_id,
                        one.expires,
                        user_digest("many"),
                        one.login
                    ))
                    .unwrap(),
                ],
                NOW,
            );
        }
        assert!(revoked.add(&token("many", "last", NOW), NOW));
        assert!(revoked.has(&token("many", "never listed", NOW + 6)));
        assert!(revoked.has(&other) && !revoked.has(&token("other", "free", NOW)));
        let fresh = revoked.login_second("many", NOW);
        assert_eq!((fresh, revoked.login_second("other", NOW)), (NOW + 7, NOW));
        assert!(!revoked.has(&token("many", "new", fresh)));
        assert!(revoked.known.read().tokens.len() <= 2);
    }

    #[test]
    fn nobody_is_kept_from_revoking() {
        let revoked = Revoked::read(None, NOW);
        let per_user = 900;
        for number in 0..=ENTRIES_MAX {
            let user = format!("user{}", number / per_user);
            let line = format!("t{number} {} {} {NOW}", NOW + 9, user_digest(&user));
            revoked.take(vec![Line::parse(&line).unwrap()], NOW);
        }
        let mine = token("me", "mine", NOW);
        assert!(revoked.add(&mine, NOW) && revoked.has(&mine));
        assert!(revoked.known.read().tokens.len() <= ENTRIES_MAX);
        assert!(revoked.has(&token("user0", "t0", NOW)));
        assert!(!revoked.has(&token("me", "other", NOW)));
    }

    #[test]
    fn the_file_is_written_anew_when_most_of_it_expired() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ended");
        let old: String = (0..3000).map(|n| format!("t{n} {}\n", NOW + 1)).collect();
        std::fs::write(&path, old).unwrap();
        let (one, other) = (
            Revoked::read(Some(path.clone()), NOW + 2),
            Revoked::read(Some(path.clone()), NOW + 2),
        );
        let ended = token("u", "a", NOW);
        assert!(one.add(&ended, NOW + 2));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        other.look(NOW + 3);
        assert!(other.has(&ended));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text: String) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ended");
            std::fs::write(&path, &text).unwrap();
            let revoked = Revoked::read(Some(path), NOW);
            let ended = token("u", "a", NOW);
            assert!(revoked.add(&ended, NOW) && revoked.has(&ended));
        }
    }
}
