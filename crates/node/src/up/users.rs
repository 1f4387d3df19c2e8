//! `--user ACCOUNT:USER=KEY[,GROUP…]`, and the equivalent line of a TempAuth section.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use cairn_formats::ini::Section;

/// A user of TempAuth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub account: String,
    pub user: String,
    pub key: String,
    pub groups: Vec<String>,
}

impl User {
    /// `test:tester`, key `testing`, an admin of its account.
    pub fn tester() -> User {
        User {
            account: "test".into(),
            user: "tester".into(),
            key: "testing".into(),
            groups: vec![".admin".into()],
        }
    }

    /// Whether its key is the well-known one.
    pub fn is_default(&self) -> bool {
        let tester = User::tester();
        (&self.account, &self.user, &self.key) == (&tester.account, &tester.user, &tester.key)
    }

    /// Option and value in the conf file: `user_test_tester` and `testing .admin`.
    pub fn conf_line(&self) -> (String, String) {
        let plain = |text: &str| {
            text.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
        };
        let option = if plain(&self.account) && plain(&self.user) {
            format!("user_{}_{}", self.account, self.user)
        } else {
            let base64 = |text: &str| STANDARD_NO_PAD.encode(text);
            format!("user64_{}_{}", base64(&self.account), base64(&self.user))
        };
        let mut value = self.key.clone();
        for group in &self.groups {
            value.push(' ');
            value.push_str(group);
        }
        (option, value)
    }

    /// The users of a TempAuth section; invalid lines are left for the middleware to refuse.
    pub fn of_section(section: &Section) -> Vec<User> {
        section
            .iter()
            .filter_map(|(option, value)| User::from_conf_line(option, value))
            .collect()
    }

    fn from_conf_line(option: &str, value: &str) -> Option<User> {
        let decoded = |text: &str| {
            let bytes = STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
            String::from_utf8(bytes).ok()
        };
        let (account, user) = if let Some(names) = option.strip_prefix("user64_") {
            let (account, user) = names.split_once('_')?;
            (decoded(account)?, decoded(user)?)
        } else {
            let (account, user) = option.strip_prefix("user_")?.split_once('_')?;
            (account.to_owned(), user.to_owned())
        };
        let mut words = value.split_whitespace().map(str::to_owned);
        let key = words.next()?;
        let groups = words.filter(|word| !word.contains("://") && !word.contains("$HOST"));
        Some(User {
            account,
            user,
            key,
            groups: groups.collect(),
        })
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        let form = "expected ACCOUNT:USER=KEY[,GROUP...], for example test:tester=testing,.admin";
        let (name, secret) = text.split_once('=').ok_or(form)?;
        let (account, user) = name.split_once(':').ok_or(form)?;
        let mut items = secret.split(',');
        let key = items.next().unwrap_or_default();
        let groups: Vec<&str> = items.collect();
        for (what, part) in [("ACCOUNT", account), ("USER", user), ("KEY", key)]
            .into_iter()
            .chain(groups.iter().map(|group| ("GROUP", *group)))
        {
            if part.is_empty() {
                return Err(format!("{what} is empty; {form}"));
            }
            if part.contains(|c: char| c.is_whitespace() || c.is_control()) {
                return Err(format!("{what} may not contain blanks; {form}"));
            }
        }
        if account.contains('/') || user.contains(':') {
            return Err(format!("ACCOUNT may not contain '/', nor USER ':'; {form}"));
        }
        if key.contains("%(") || key.contains("://") || groups.iter().any(|g| g.contains("://")) {
            return Err(format!(
                "'%(' and '://' have a meaning of their own in conf files; {form}"
            ));
        }
        Ok(User {
            account: account.into(),
            user: user.into(),
            key: key.into(),
            groups: groups.into_iter().map(str::to_owned).collect(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn to_the_conf_and_back() {
        for (text, option, value) in [
            (
                "test:tester=testing,.admin",
                "user_test_tester",
                "testing .admin",
            ),
            ("a:b=c", "user_a_b", "c"),
            ("a:b=k=y,x,y", "user_a_b", "k=y x y"),
            ("my_acc:joe@x=k", "user64_bXlfYWNj_am9lQHg", "k"),
        ] {
            let user: User = text.parse().unwrap();
            assert_eq!(user.conf_line(), (option.into(), value.into()));
            assert_eq!(User::from_conf_line(option, value), Some(user));
        }
        assert_eq!("test:tester=testing,.admin".parse(), Ok(User::tester()));
    }

    #[test]
    fn refusals_say_what_is_expected() {
        for text in [
            "", "a", "a:b", "a=b", ":b=c", "a:=c", "a:b=", "a:b=c,", "a:b=c d", "a/x:b=c",
        ] {
            let error = text.parse::<User>().unwrap_err();
            assert!(error.contains("ACCOUNT:USER=KEY"), "{text:?}: {error}");
        }
    }
}
