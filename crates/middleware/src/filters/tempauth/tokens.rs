//! Making and opening of tokens.
//!
//! | token | message inside the Fernet | key |
//! | --- | --- | --- |
//! | `<prefix>ftk…` | groups, joined by commas | `fernet_key_<id>` |
//! | `<prefix>zftk…` | the same, zlib-compressed | `fernet_key_<id>` |
//! | `<prefix>tk…` | 32 bytes of proof, then `account:user` | derived from the cluster's hash path |
//!
//! The first two are OpenStack Swift's, with a last group of ours (`.proof:…`, which its proxies
//! treat as one that no ACL contains): like the third kind, such a token becomes invalid when its
//! user is changed; one made by a Swift proxy lacks it, and becomes invalid when its user is
//! removed. The third kind replaces Swift's memcached tokens: the proof is an HMAC over the user's
//! name, key, groups and URL, so a token becomes invalid when its user is changed or removed, and
//! the hash path alone is not sufficient to forge one. The groups of a request are always those in
//! the current conf, never the token's.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_formats::hmac::sha256_of_parts;
use cairn_formats::ini::Section;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use subtle::ConstantTimeEq;
use tracing::warn;

use super::users::{User, Users};
use crate::fernet::{Fernet, Opened};
use crate::random::Random;
use crate::resellers::secret_option;
use crate::{FilterEnv, FilterError};

/// Prefix of the group with the proof.
const PROOF_GROUP: &str = ".proof:";
/// Maximum bytes of groups in a compressed token.
const GROUPS_MAX_BYTES: u64 = 64 * 1024;

pub(super) struct Tokens {
    prefix: String,
    life: u64,
    keys: BTreeMap<String, Fernet>,
    active: Option<String>,
    /// Key of `tk` tokens, and of the proof in them.
    own: Fernet,
    proof_key: [u8; 32],
    random: Random,
}

impl Tokens {
    pub(super) fn read(
        section: &Section,
        prefix: &str,
        env: &FilterEnv,
    ) -> Result<Tokens, FilterError> {
        let mut keys = BTreeMap::new();
        for (option, value) in section.iter() {
            let Some(rest) = option.strip_prefix("fernet_key") else {
                continue;
            };
            let bad = |remedy: &str| secret_option(section, option, remedy);
            let id = rest.strip_prefix('_').filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| bad("expected fernet_key_<id>"))?;
            let key = Fernet::from_text(value)
                .ok_or_else(|| bad("expected 32 bytes in URL-safe base64"))?;
            keys.insert(id.to_owned(), key);
        }
        let active = section
            .get("active_fernet_key_id")
            .filter(|id| !id.is_empty());
        if active.is_some_and(|id| !keys.contains_key(id)) {
            let known: Vec<&str> = keys.keys().map(String::as_str).collect();
            let remedy = format!(
                "there is no such fernet_key_<id>; known: {}",
                known.join(", ")
            );
            return Err(section.bad("active_fernet_key_id", remedy).into());
        }
        let secret = &env.hash_path;
        if active.is_none() && secret.prefix.is_empty() && secret.suffix.is_empty() {
            warn!("swift.conf has no hash path prefix or suffix: tokens rest on users' keys alone");
        }
        let derive = |purpose: &[u8]| {
            let parts = [secret.prefix.as_slice(), &secret.suffix];
            sha256_of_parts(purpose, &parts)
        };
        Ok(Tokens {
            prefix: prefix.to_owned(),
            life: section.u64_or("token_life", 86_400)?,
            active: active.map(str::to_owned),
            keys,
            own: Fernet::new(derive(b"cairn tempauth token 1")),
            proof_key: derive(b"cairn tempauth proof 1"),
            random: env.random.clone(),
        })
    }

    /// Makes a token for a user.
    pub(super) fn make(
        &self,
        account_user: &str,
        user: &User,
        prefixes: &[String],
        now: u64,
    ) -> String {
        let iv = self.random.bytes();
        let Some(key) = self.active.as_ref().and_then(|id| self.keys.get(id)) else {
            let mut message = self.proof(account_user, user, prefixes).to_vec();
            message.extend_from_slice(account_user.as_bytes());
            return format!("{}tk{}", self.prefix, self.own.seal(&message, now, iv));
        };
        let mut groups = user.groups(account_user, prefixes);
        groups.push(self.proof_group(account_user, user, prefixes));
        let groups = groups.join(",");
        match compress(groups.as_bytes()).filter(|small| small.len() < groups.len()) {
            Some(small) => format!("{}zftk{}", self.prefix, key.seal(&small, now, iv)),
            None => format!("{}ftk{}", self.prefix, key.seal(groups.as_bytes(), now, iv)),
        }
    }

    /// The groups of a token, and the second in which it expires; `None` if it is invalid.
    pub(super) fn open(
        &self,
        token: &str,
        users: &Users,
        prefixes: &[String],
        now: u64,
    ) -> Option<(Vec<String>, u64)> {
        let token = token.strip_prefix(self.prefix.as_str())?;
        let expires = |opened: &Opened| opened.made.saturating_add(self.life);
        if let Some(sealed) = token.strip_prefix("tk") {
            let opened = self.own.open(sealed, now, self.life)?;
            let (proof, account_user) = opened.message.split_at_checked(32)?;
            let account_user = std::str::from_utf8(account_user).ok()?;
            let user = users.get(account_user)?;
            let expected = self.proof(account_user, user, prefixes);
            let is_right: bool = expected.as_slice().ct_eq(proof).into();
            return is_right.then(|| (user.groups(account_user, prefixes), expires(&opened)));
        }
        let (sealed, compressed) = match token.strip_prefix("zftk") {
            Some(sealed) => (sealed, true),
            None => (token.strip_prefix("ftk")?, false),
        };
        let opened = self
            .keys
            .values()
            .find_map(|key| key.open(sealed, now, self.life))?;
        let expires = expires(&opened);
        let message = if compressed {
            decompress(&opened.message)?
        } else {
            opened.message
        };
        let groups = String::from_utf8(message).ok()?;
        let mut groups = groups.split(',');
        let account_user = groups.nth(1)?;
        let user = users.get(account_user)?;
        if let Some(sent) = groups.find(|group| group.starts_with(PROOF_GROUP)) {
            let expected = self.proof_group(account_user, user, prefixes);
            if !bool::from(expected.as_bytes().ct_eq(sent.as_bytes())) {
                return None;
            }
        }
        Some((user.groups(account_user, prefixes), expires))
    }

    /// Is it a token of this program, whether or not its user has changed?
    pub(super) fn is_own(&self, token: &str, now: u64) -> bool {
        token
            .strip_prefix(self.prefix.as_str())
            .and_then(|token| token.strip_prefix("tk"))
            .is_some_and(|sealed| self.own.open(sealed, now, self.life).is_some())
    }

    /// Does OpenStack Swift look up such a token in memcached? Others are opened with keys.
    pub(super) fn is_looked_up(&self, token: &str) -> bool {
        token
            .strip_prefix(self.prefix.as_str())
            .is_some_and(|token| token.starts_with("tk"))
    }

    fn proof_group(&self, account_user: &str, user: &User, prefixes: &[String]) -> String {
        let proof = self.proof(account_user, user, prefixes);
        format!("{PROOF_GROUP}{}", URL_SAFE_NO_PAD.encode(proof))
    }

    fn proof(&self, account_user: &str, user: &User, prefixes: &[String]) -> [u8; 32] {
        let groups = user.groups(account_user, prefixes).join(",");
        let parts = [
            account_user.as_bytes(),
            user.key(),
            user.url.as_bytes(),
            groups.as_bytes(),
        ];
        sha256_of_parts(&self.proof_key, &parts)
    }
}

fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

fn decompress(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let read = ZlibDecoder::new(bytes)
        .take(GROUPS_MAX_BYTES + 1)
        .read_to_end(&mut out)
        .ok()?;
    (read as u64 <= GROUPS_MAX_BYTES).then_some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::env;
    use cairn_types::HashPath;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NOW: u64 = 1_700_000_000;
    /// Made by Python's cryptography and zlib.
    const ZFTK: &str = "AUTH_zftkgAAAAABlU_EAAAECAwQFBgcICQoLDA0ODxvIj9Pl_D9Mw9Znf__JtAULzmBIH7_MoTZW_BFdRDgpdTHTJvS0XQLbSiY6Z5SkhCdjcqV8ntzosvaADgPOZ5QPJX3SUkOKo3QmGR8yYElyDVfIBjPkrqdhGo2vrJLIuXoFkXtt-n5qr2LemoeQUFcf1CXqom1IdXk2RQ2u4ni_";

    fn prefixes() -> Vec<String> {
        vec!["AUTH_".into()]
    }

    fn tokens(options: &[(&str, &str)], env: &FilterEnv) -> Result<Tokens, FilterError> {
        Tokens::read(
            &Section::from_pairs("filter:tempauth", options),
            "AUTH_",
            env,
        )
    }

    fn users(value: &str) -> Users {
        let section = Section::from_pairs("filter:tempauth", &[("user_test_tester", value)]);
        Users::read(&section, &prefixes()).unwrap()
    }

    #[test]
    fn swifts_tokens() {
        let many = (0..20).fold("testing .admin".to_owned(), |all, i| {
            format!("{all} group{i}")
        });
        for (value, kind) in [("testing .admin", "AUTH_ftk"), (many.as_str(), "AUTH_zftk")] {
            let users = users(value);
            let options = [("fernet_key_one", KEY), ("active_fernet_key_id", "one")];
            let tokens = tokens(&options, &env()).unwrap();
            let user = users.get("test:tester").unwrap();
            let token = tokens.make("test:tester", user, &prefixes(), NOW);
            assert!(token.starts_with(kind), "{token}");
            let opened = tokens.open(&token, &users, &prefixes(), NOW);
            assert_eq!(
                opened,
                Some((user.groups("test:tester", &prefixes()), NOW + 86_400))
            );
        }
        let tokens = tokens(&[("fernet_key_one", KEY)], &env()).unwrap();
        // Made by a Swift proxy, when the user had other groups.
        let (groups, _) = tokens.open(ZFTK, &users("x g"), &prefixes(), NOW).unwrap();
        assert_eq!(groups, ["test", "test:tester", "g"]);
        let section = Section::from_pairs("filter:tempauth", &[("user_test_other", "x")]);
        let others = Users::read(&section, &prefixes()).unwrap();
        assert_eq!(
            tokens.open(ZFTK, &others, &prefixes(), NOW),
            None,
            "removed"
        );
    }

    #[test]
    fn swifts_kind_of_tokens_end_with_a_change_of_their_user() {
        let options = [("fernet_key_one", KEY), ("active_fernet_key_id", "one")];
        let tokens = tokens(&options, &env()).unwrap();
        let before = users("testing .admin");
        let user = before.get("test:tester").unwrap();
        let token = tokens.make("test:tester", user, &prefixes(), NOW);
        assert!(tokens.open(&token, &before, &prefixes(), NOW).is_some());
        for changed in ["changed .admin", "testing", "testing .admin g"] {
            let opened = tokens.open(&token, &users(changed), &prefixes(), NOW);
            assert_eq!(opened, None, "{changed}");
        }
    }

    #[test]
    fn own_tokens_live_through_a_restart_and_no_change() {
        let users = users("testing .admin");
        let options = [("token_life", "100")];
        let user = users.get("test:tester").unwrap();
        let token = tokens(&options, &env())
            .unwrap()
            .make("test:tester", user, &prefixes(), NOW);
        assert!(token.starts_with("AUTH_tk"), "{token}");
        let open = |env: &FilterEnv, users: &Users, now| {
            tokens(&options, env)
                .unwrap()
                .open(&token, users, &prefixes(), now)
        };
        let groups = ["test", "test:tester", "AUTH_test"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(open(&env(), &users, NOW + 100), Some((groups, NOW + 100)));
        assert_eq!(open(&env(), &users, NOW + 101), None, "expired");
        let other = FilterEnv {
            hash_path: HashPath::new("pref", "ix"),
            ..env()
        };
        assert_eq!(open(&other, &users, NOW), None, "another cluster");
        for changed in [
            "changed .admin",
            "testing",
            "testing .admin http://x/v1/AUTH_y",
        ] {
            assert_eq!(open(&env(), &self::users(changed), NOW), None, "{changed}");
        }
    }

    #[test]
    fn what_is_no_token() {
        let tokens = tokens(&[("fernet_key_one", KEY)], &env()).unwrap();
        for token in [
            "",
            "AUTH_",
            "AUTH_tk",
            "AUTH_tkAAAA",
            "AUTH_ftk",
            "AUTH_zftkx",
            "ftk",
            "é",
        ] {
            assert_eq!(tokens.open(token, &users("x"), &prefixes(), NOW), None);
        }
    }

    #[test]
    fn mistakes_are_named() {
        for options in [
            [("fernet_key_a", "short"), ("x", "")],
            [("fernet_keya", KEY), ("x", "")],
            [("fernet_key_a", KEY), ("active_fernet_key_id", "b")],
        ] {
            let error = tokens(&options, &env())
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("fernet_key") && !error.contains(KEY),
                "{error}"
            );
        }
    }
}
