//! Tokens of this identity service: Fernet messages (`gAAAA…`, like Keystone's) that stay valid
//! after a restart, and the list of revoked ones.
//!
//! The message is `{"u": user id, "p": project id, "e": second of expiry, "a": audit id, "c": audit
//! ids of the tokens it was made with, "l": second of the login that began them, "x": proof}`. The
//! proof is an HMAC over the user's id and password: a token becomes invalid when the password
//! changes or the user is removed. Its roles are those at the time of use.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_formats::hmac::sha256_of_parts;
use cairn_formats::ini::Section;
use cairn_middleware::fernet::Fernet;
use cairn_middleware::resellers::secret_option;
use cairn_middleware::{FilterEnv, FilterError, Random};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tracing::warn;

use super::directory::{Directory, Person};
use super::revoked::Revoked;
use super::token::Token;

/// Beginning of every token: Fernet's version and the first bytes of a time.
pub(super) const PREFIX: &str = "gAAAA";
/// Maximum depth of tokens derived from each other: all their ids are in the last one.
const PARENTS_MAX: usize = 32;

pub(super) struct Tokens {
    key: Fernet,
    proof_key: [u8; 32],
    pub(super) life: u64,
    random: Random,
    pub(super) revoked: Revoked,
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
            revoked: Revoked::read(file, env.clock.now().secs()),
        })
    }

    /// Makes a token. `parent` is the token that it is derived from, which it does not outlive.
    /// `None` if the chain is too long.
    pub(super) fn make(
        &self,
        person: &Person,
        project_id: Option<&str>,
        parent: Option<&Token>,
        now: u64,
    ) -> Option<(String, Token)> {
        let parents: Vec<String> = match parent {
            Some(parent) if parent.parents.len() >= PARENTS_MAX => return None,
            Some(parent) => parent
                .parents
                .iter()
                .chain([&parent.audit_id])
                .cloned()
                .collect(),
            None => Vec::new(),
        };
        let token = Token {
            user_id: person.id.clone(),
            project_id: project_id.map(str::to_owned),
            issued: now,
            expires: parent.map_or(now.saturating_add(self.life), |token| token.expires),
            audit_id: URL_SAFE_NO_PAD.encode(self.random.bytes::<16>()),
            parents,
            login: match parent {
                Some(parent) => parent.login,
                None => self.revoked.login_second(&person.id, now),
            },
        };
        let message = json!({
            "u": token.user_id,
            "p": token.project_id,
            "e": token.expires,
            "a": token.audit_id,
            "c": token.parents,
            "l": token.login,
            "x": URL_SAFE_NO_PAD.encode(self.proof(person)),
        });
        let iv = self.random.bytes();
        let text = self.key.seal(message.to_string().as_bytes(), now, iv);
        Some((text, token))
    }

    /// The fields of a token that is valid now.
    pub(super) fn open(&self, text: &str, directory: &Directory, now: u64) -> Option<Token> {
        if !text.starts_with(PREFIX) {
            return None;
        }
        let opened = self.key.open(text, now, self.life)?;
        let message: Value = serde_json::from_slice(&opened.message).ok()?;
        let parents = message["c"].as_array().into_iter().flatten();
        let token = Token {
            user_id: message["u"].as_str()?.to_owned(),
            project_id: message["p"].as_str().map(str::to_owned),
            issued: opened.made,
            expires: message["e"].as_u64()?,
            audit_id: message["a"].as_str()?.to_owned(),
            // Earlier versions wrote neither field.
            parents: parents
                .filter_map(|id| Some(id.as_str()?.to_owned()))
                .collect(),
            login: message["l"].as_u64().unwrap_or(opened.made),
        };
        let person = directory.person(&token.user_id)?;
        let sent = URL_SAFE_NO_PAD.decode(message["x"].as_str()?).ok()?;
        let is_right = bool::from(self.proof(person).as_slice().ct_eq(&sent));
        let has_project = token
            .project_id
            .as_ref()
            .is_none_or(|id| person.roles.contains_key(id));
        let is_current = token.expires > now && !self.revoked.has(&token);
        (is_right && has_project && is_current).then_some(token)
    }

    fn proof(&self, person: &Person) -> [u8; 32] {
        sha256_of_parts(
            &self.proof_key,
            &[person.id.as_bytes(), person.secret.bytes()],
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cairn_formats::ini::Conf;
    use cairn_middleware::testing::env;

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
        let (text, token) = tokens(folder.path())
            .make(alice, Some("photos"), None, NOW)
            .unwrap();
        assert!(text.starts_with(PREFIX), "{text}");
        // After a restart: nothing is kept but the key.
        let later = tokens(folder.path());
        assert_eq!(later.open(&text, &people, NOW + 99), Some(token.clone()));
        assert_eq!(later.open(&text, &people, NOW + 100), None, "expired");
        for changed in [
            directory("y", "photos: member"),
            directory("x", "films: member"),
        ] {
            assert_eq!(later.open(&text, &changed, NOW), None);
        }
        // The seeded random generators of both begin with the same id.
        later.make(alice, None, None, NOW).unwrap();
        let make = |parent| later.make(alice, None, Some(parent), NOW + 50).unwrap();
        let (child_text, child) = make(&token);
        let (grandchild_text, grandchild) = make(&child);
        assert_eq!(child.expires, token.expires);
        assert_eq!(
            later.open(&child_text, &people, NOW + 50),
            Some(child.clone())
        );
        assert!(later.revoked.add(&child, NOW));
        assert_eq!(later.open(&child_text, &people, NOW + 50), None);
        assert_eq!(later.open(&grandchild_text, &people, NOW + 50), None);
        assert!(
            later.open(&text, &people, NOW).is_some(),
            "its parent lives"
        );
        let (sibling_text, _) = make(&token);
        assert!(later.revoked.add(&token, NOW));
        assert_eq!(later.open(&text, &people, NOW), None, "ended");
        assert_eq!(later.open(&sibling_text, &people, NOW + 50), None);
        let mut deep = grandchild;
        while let Some((_, deeper)) = later.make(alice, None, Some(&deep), NOW) {
            deep = deeper;
        }
        assert_eq!(deep.parents.len(), PARENTS_MAX);
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
