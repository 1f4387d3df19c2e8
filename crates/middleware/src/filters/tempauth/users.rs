//! The users of the section: `user_<account>_<user> = key group… [url]`, or `user64_…` with both
//! names in base64, for names with underscores.

use std::collections::HashMap;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use cairn_formats::ini::Section;
use cairn_http::params::{quote_path, unquote};

use crate::FilterError;
use crate::logins::Login;
use crate::resellers::secret_option;
use crate::secret::Secret;

pub(super) struct User {
    key: Secret,
    pub(super) url: String,
    groups: Vec<String>,
}

/// All users, by `account:user`.
pub(super) struct Users(HashMap<String, User>);

const STANDARD: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl Users {
    pub(super) fn read(section: &Section, prefixes: &[String]) -> Result<Users, FilterError> {
        let mut users = HashMap::new();
        for (option, value) in section.iter() {
            let (names, encoded) =
                match (option.strip_prefix("user_"), option.strip_prefix("user64_")) {
                    (Some(names), _) => (names, false),
                    (_, Some(names)) => (names, true),
                    _ => continue,
                };
            let bad = |remedy: &str| secret_option(section, option, remedy);
            let (account, user) = names
                .split_once('_')
                .filter(|(_, user)| !user.contains('_'))
                .ok_or_else(|| {
                    bad("expected user_<account>_<user>; names with underscores need user64_")
                })?;
            let decode = |name: &str| {
                if !encoded {
                    return Some(name.to_owned());
                }
                let bytes = STANDARD.decode(name.trim_end_matches('=')).ok()?;
                String::from_utf8(bytes).ok()
            };
            let (Some(account), Some(user)) = (decode(account), decode(user)) else {
                return Err(bad("expected both names in base64, without '='"));
            };
            let mut words: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                return Err(bad("has no key set"));
            }
            let key = Secret::read(&words.remove(0)).map_err(bad)?;
            let is_url = words
                .last()
                .is_some_and(|w| w.contains("://") || w.contains("$HOST"));
            let url = match words.pop_if(|_| is_url) {
                Some(url) => url,
                None => format!("$HOST/v1/{}{}", prefixes[0], quote_path(&account)),
            };
            users.insert(
                format!("{account}:{user}"),
                User {
                    key,
                    url,
                    groups: words,
                },
            );
        }
        Ok(Users(users))
    }

    /// The users in the form needed by filters that issue tokens of another kind.
    pub(super) fn logins(&self) -> impl Iterator<Item = Login> {
        self.0.iter().filter_map(|(account_user, user)| {
            let (account, name) = account_user.split_once(':')?;
            Some(Login {
                account: account.to_owned(),
                user: name.to_owned(),
                key: user.key.clone(),
                groups: user.groups.clone(),
                account_id: unquote(user.account_id()).ok()?,
            })
        })
    }

    pub(super) fn get(&self, account_user: &str) -> Option<&User> {
        self.0.get(account_user)
    }

    /// Keys to compare with: the user's; and if that is plain or the user does not exist while
    /// others have hashed keys, additionally the slowest of those, so that every response takes the
    /// same work. The second is compared only for the time it takes.
    pub(super) fn secrets(&self, account_user: &str) -> (Option<&Secret>, Option<&Secret>) {
        let own = self.get(account_user).map(|user| &user.key);
        if own.is_some_and(Secret::is_slow) {
            return (own, None);
        }
        let all = self.0.values().map(|user| &user.key);
        (
            own,
            all.filter(|key| key.is_slow())
                .max_by_key(|key| key.rounds()),
        )
    }
}

impl User {
    /// The account's stored name: the last part of the URL.
    pub(super) fn account_id(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or("")
    }

    pub(super) fn key(&self) -> &[u8] {
        self.key.bytes()
    }

    /// Groups of the user: account, `account:user`, and those configured; an administrator gets the
    /// accounts' names instead of `.admin`.
    pub(super) fn groups(&self, account_user: &str, prefixes: &[String]) -> Vec<String> {
        let account = account_user.split(':').next().unwrap_or("");
        let mut groups = vec![account.to_owned(), account_user.to_owned()];
        groups.extend(self.groups.iter().cloned());
        if let Some(at) = groups.iter().position(|g| g == ".admin") {
            groups.remove(at);
            let named = prefixes.iter().filter(|p| !p.is_empty());
            groups.extend(named.map(|prefix| format!("{prefix}{account}")));
            if !groups.iter().any(|g| g == self.account_id()) {
                groups.push(self.account_id().to_owned());
            }
        }
        groups
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn users(options: &[(&str, &str)], prefixes: &[&str]) -> Result<Users, FilterError> {
        let prefixes: Vec<String> = prefixes.iter().map(|p| (*p).to_owned()).collect();
        Users::read(&Section::from_pairs("filter:tempauth", options), &prefixes)
    }

    #[test]
    fn forms() {
        let users = users(
            &[
                ("user_test_tester", "testing .admin"),
                ("user_acc_urled", "key .admin group http://x/v1/AUTH_other"),
                ("user_acc_hosted", "key $HOST/v1/AUTH_third"),
                // The names are under_score and a:b.
                ("user64_dW5kZXJfc2NvcmU_YTpi", "key"),
                ("user_ünï_cödé", "kéy"),
                ("reseller_prefix", "AUTH"),
            ],
            &["AUTH_", "SERVICE_"],
        )
        .unwrap();
        let url = |name: &str| users.get(name).unwrap().url.clone();
        assert_eq!(url("test:tester"), "$HOST/v1/AUTH_test");
        assert_eq!(url("acc:urled"), "http://x/v1/AUTH_other");
        assert_eq!(url("acc:hosted"), "$HOST/v1/AUTH_third");
        assert_eq!(url("under_score:a:b"), "$HOST/v1/AUTH_under_score");
        assert_eq!(url("ünï:cödé"), "$HOST/v1/AUTH_%C3%BCn%C3%AF");
        let groups = |name: &str| {
            users
                .get(name)
                .unwrap()
                .groups(name, &["AUTH_".into(), "SERVICE_".into()])
        };
        assert_eq!(
            groups("test:tester"),
            ["test", "test:tester", "AUTH_test", "SERVICE_test"]
        );
        assert_eq!(
            groups("acc:urled"),
            [
                "acc",
                "acc:urled",
                "group",
                "AUTH_acc",
                "SERVICE_acc",
                "AUTH_other"
            ]
        );
        assert_eq!(groups("acc:hosted"), ["acc", "acc:hosted"]);
    }

    #[test]
    fn unknown_users_cost_what_known_ones_do() {
        let hashed =
            "{pbkdf2-sha256}1000$c2FsdHNhbHQ=$QHtvVQOPhsig3ze5wP3SU5+1kKGgIx19/rCmn1qY02g=";
        let users = users(
            &[("user_a_hashed", hashed), ("user_a_plain", "plain")],
            &["AUTH_"],
        )
        .unwrap();
        let (own, more) = users.secrets("a:hashed");
        assert!(own.unwrap().matches("testing") && more.is_none());
        let (own, more) = users.secrets("a:plain");
        assert!(own.unwrap().matches("plain") && more.unwrap().is_slow());
        let (own, more) = users.secrets("a:nobody");
        assert!(own.is_none() && more.unwrap().is_slow());
    }

    #[test]
    fn mistakes_are_named_without_the_key() {
        for (option, value) in [
            ("user_noaccount", "secret"),
            ("user_a_b_c", "secret"),
            ("user_a_b", ""),
            ("user_a_b", "{pbkdf2-sha256}secret"),
            ("user64_!_!", "secret"),
        ] {
            let Err(error) = users(&[(option, value)], &["AUTH_"]) else {
                panic!("{option} is accepted");
            };
            let error = error.to_string();
            assert!(
                error.contains(option) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
