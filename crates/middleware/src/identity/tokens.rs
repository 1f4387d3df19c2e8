//! Tokens of this identity: Fernet messages (`gAAAA…`, as Keystone's own look) that outlive a
//! restart, and the list of those ended before their time.
//!
//! The message is `{"u": user id, "p": project id, "e": second of expiry, "a": audit id, "x":
//! proof}`. The proof is an HMAC over the user's id and password: a token ends when the password
//! changes or the user goes. Roles are those of the moment it is used.
//!
//! Ended tokens are kept in a file, one line `AUDIT-ID EXPIRY` each, until they would have expired.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_formats::hmac::sha256_of_parts;
use cairn_formats::ini::Section;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tracing::{error, warn};

use super::directory::{Directory, Person};
use crate::fernet::Fernet;
use crate::random::Random;
use crate::resellers::secret_option;
use crate::{FilterEnv, FilterError};

/// What every token begins with: Fernet's version and the first bytes of a time.
pub(super) const PREFIX: &str = "gAAAA";
/// Tokens ended before their time that are remembered at once.
const MOST_ENDED: usize = 100_000;

pub(super) struct Tokens {
    key: Fernet,
    proof_key: [u8; 32],
    pub(super) life: u64,
    random: Random,
    ended: Ended,
}

/// A valid token's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) user_id: String,
    pub(super) project_id: Option<String>,
    pub(super) issued: u64,
    pub(super) expires: u64,
    pub(super) audit_id: String,
}

impl Tokens {
    pub(super) fn read(section: &Section, env: &FilterEnv) -> Result<Tokens, FilterError> {
        let hash_path = &env.hash_path;
        let derive =
            |purpose: &[u8]| sha256_of_parts(purpose, &[&hash_path.prefix, &hash_path.suffix]);
        let key = match section.get("fernet_key").filter(|key| !key.is_empty()) {
            Some(text) => Fernet::from_text(text).ok_or_else(|| {
                let remedy = "expected 32 bytes in URL-safe base64";
                secret_option(section, "fernet_key", remedy)
            })?,
            None => {
                if hash_path.prefix.is_empty() && hash_path.suffix.is_empty() {
                    warn!(
                        "neither fernet_key nor a hash path prefix or suffix is set: identity's \
                           tokens rest on users' passwords alone"
                    );
                }
                Fernet::new(derive(b"cairn identity token 1"))
            }
        };
        let file = match section.get("ended_tokens").map(str::trim) {
            Some("") => None,
            Some(path) => Some(PathBuf::from(path)),
            None => {
                Some(Path::new(section.str_or("swift_dir", "/etc/swift")).join("identity.ended"))
            }
        };
        Ok(Tokens {
            key,
            proof_key: derive(b"cairn identity proof 1"),
            life: section.u64_or("token_life", 86_400)?,
            random: env.random.clone(),
            ended: Ended::read(file, env.clock.now().secs()),
        })
    }

    /// A new token. `parent`: the token it was made with, which it does not outlive.
    pub(super) fn make(
        &self,
        person: &Person,
        project_id: Option<&str>,
        parent: Option<&Token>,
        now: u64,
    ) -> (String, Token) {
        let token = Token {
            user_id: person.id.clone(),
            project_id: project_id.map(str::to_owned),
            issued: now,
            expires: parent.map_or(now.saturating_add(self.life), |token| token.expires),
            audit_id: URL_SAFE_NO_PAD.encode(self.random.bytes::<16>()),
        };
        let message = json!({
            "u": token.user_id,
            "p": token.project_id,
            "e": token.expires,
            "a": token.audit_id,
            "x": URL_SAFE_NO_PAD.encode(self.proof(person)),
        });
        let iv = self.random.bytes();
        (
            self.key.seal(message.to_string().as_bytes(), now, iv),
            token,
        )
    }

    /// The facts of a token that is valid now.
    pub(super) fn open(&self, text: &str, directory: &Directory, now: u64) -> Option<Token> {
        if !text.starts_with(PREFIX) {
            return None;
        }
        let opened = self.key.open(text, now, self.life)?;
        let message: Value = serde_json::from_slice(&opened.message).ok()?;
        let token = Token {
            user_id: message["u"].as_str()?.to_owned(),
            project_id: message["p"].as_str().map(str::to_owned),
            issued: opened.made,
            expires: message["e"].as_u64()?,
            audit_id: message["a"].as_str()?.to_owned(),
        };
        let person = directory.person(&token.user_id)?;
        let sent = URL_SAFE_NO_PAD.decode(message["x"].as_str()?).ok()?;
        let is_right = bool::from(self.proof(person).as_slice().ct_eq(&sent));
        let has_project = token
            .project_id
            .as_ref()
            .is_none_or(|id| person.roles.contains_key(id));
        let is_current = token.expires > now && !self.ended.has(&token.audit_id);
        (is_right && has_project && is_current).then_some(token)
    }

    /// Ends a token for good: false where that cannot be remembered. Blocks.
    pub(super) fn end(&self, token: &Token, now: u64) -> bool {
        self.ended.add(&token.audit_id, token.expires, now)
    }

    fn proof(&self, person: &Person) -> [u8; 32] {
        sha256_of_parts(
            &self.proof_key,
            &[person.id.as_bytes(), person.secret.bytes()],
        )
    }
}

/// Tokens ended before their time, by audit id, with the second they would have expired.
struct Ended {
    ids: RwLock<HashMap<String, u64>>,
    /// One writer at a time.
    file: Mutex<Option<PathBuf>>,
}

impl Ended {
    fn read(file: Option<PathBuf>, now: u64) -> Ended {
        let text = file
            .as_ref()
            .and_then(|path| std::fs::read_to_string(path).ok())
            .unwrap_or_default();
        let line = |line: &str| {
            let (id, expires) = line.split_once(' ')?;
            Some((id.to_owned(), expires.parse().ok()?))
        };
        let current = |(_, expires): &(String, u64)| *expires > now;
        Ended {
            ids: RwLock::new(text.lines().filter_map(line).filter(current).collect()),
            file: Mutex::new(file),
        }
    }

    fn has(&self, id: &str) -> bool {
        let ids = self.ids.read().unwrap_or_else(|e| e.into_inner());
        ids.contains_key(id)
    }

    fn add(&self, id: &str, expires: u64, now: u64) -> bool {
        let file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        let all: Vec<(String, u64)> = {
            let mut ids = self.ids.write().unwrap_or_else(|e| e.into_inner());
            ids.retain(|_, expires| *expires > now);
            if ids.len() >= MOST_ENDED {
                return false;
            }
            ids.insert(id.to_owned(), expires);
            ids.iter()
                .map(|(id, expires)| (id.clone(), *expires))
                .collect()
        };
        let Some(path) = &*file else {
            return true;
        };
        match write_file(path, &all) {
            Ok(()) => true,
            Err(error) => {
                error!(%error, file = %path.display(), "an ended token could not be written down: \
                       it would be valid again after a restart");
                false
            }
        }
    }
}

/// Writes a neighbour, syncs it and renames it into place.
fn write_file(path: &Path, ended: &[(String, u64)]) -> std::io::Result<()> {
    let mut text = String::new();
    for (id, expires) in ended {
        text.push_str(&format!("{id} {expires}\n"));
    }
    let staged = path.with_extension("ended.new");
    let mut file = std::fs::File::create(&staged)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&staged, path)?;
    std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::env;
    use cairn_formats::ini::Conf;

    const NOW: u64 = 1_700_000_000;

    fn directory(password: &str, roles: &str) -> Directory {
        let text = format!("[user:alice]\npassword = {password}\nroles = {roles}\n");
        Directory::read(&Conf::parse("identity.conf", &text).unwrap()).unwrap()
    }

    fn tokens(folder: &Path) -> Tokens {
        let dir = folder.to_str().unwrap();
        let options = [("swift_dir", dir), ("token_life", "100")];
        Tokens::read(&Section::from_pairs("filter:identity", &options), &env()).unwrap()
    }

    #[test]
    fn a_life_of_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let people = directory("x", "photos: member");
        let alice = people.people().next().unwrap();
        let (text, token) = tokens(folder.path()).make(alice, Some("photos"), None, NOW);
        assert!(text.starts_with(PREFIX), "{text}");
        // A restart in between: nothing is kept but the key.
        let later = tokens(folder.path());
        assert_eq!(later.open(&text, &people, NOW + 99), Some(token.clone()));
        assert_eq!(later.open(&text, &people, NOW + 100), None, "expired");
        for changed in [
            directory("y", "photos: member"),
            directory("x", "films: member"),
        ] {
            assert_eq!(later.open(&text, &changed, NOW), None);
        }
        let (_, child) = later.make(alice, None, Some(&token), NOW + 50);
        assert_eq!(child.expires, token.expires);
        assert!(later.end(&token, NOW));
        assert_eq!(later.open(&text, &people, NOW), None, "ended");
        assert_eq!(
            tokens(folder.path()).open(&text, &people, NOW),
            None,
            "ended for good"
        );
        for text in ["", "gAAAA", "gAAAAAB", "AUTH_tk"] {
            assert_eq!(later.open(text, &people, NOW), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_other_text_is_a_token(text: String, tail in "[A-Za-z0-9_=-]{0,200}") {
            let folder = std::path::Path::new("/nonexistent");
            let (tokens, people) = (tokens(folder), directory("x", "photos: member"));
            assert_eq!(tokens.open(&text, &people, NOW), None);
            assert_eq!(tokens.open(&format!("{PREFIX}{tail}"), &people, NOW), None);
        }
    }
}
