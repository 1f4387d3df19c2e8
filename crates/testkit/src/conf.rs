//! Conf files as text, whichever store they are of: options of a section are read and set, and the
//! sections of a pipeline's filters are written. Also what confs of every store have in common: the
//! users of `users.txt` and the root secrets of encryption.

use std::path::Path;

/// A user of TempAuth.
pub struct User {
    /// The part of `account:name` before the colon.
    pub account: String,
    /// The part behind it.
    pub name: String,
    /// The password.
    pub key: String,
    /// Groups beside its own: `.admin`, `.reseller_admin`, names of services.
    pub groups: Vec<String>,
}

/// The users of `users.txt`, which every store here has.
pub fn users() -> Vec<User> {
    let mut users = Vec::new();
    for line in include_str!("../users.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let mut words = line.split_whitespace().map(str::to_owned);
        if let (Some(name), Some(key)) = (words.next(), words.next())
            && let Some((account, name)) = name.split_once(':')
        {
            let (account, name) = (account.to_owned(), name.to_owned());
            users.push(User {
                account,
                name,
                key,
                groups: words.collect(),
            });
        }
    }
    users
}

/// Options of `keymaster`: two root secrets, the second of which encrypts new objects.
pub const KEYMASTER_OPTIONS: [(&str, &str); 3] = [
    (
        "encryption_root_secret",
        "Zm9yIHRlc3RzIGFuZCBiZW5jaG1hcmtzIG9ubHksIG51bWJlciAx",
    ),
    (
        "encryption_root_secret_2",
        "Zm9yIHRlc3RzIGFuZCBiZW5jaG1hcmtzIG9ubHksIG51bWJlciAy",
    ),
    ("active_root_secret_id", "2"),
];

/// A pipeline and the sections of its filters and of its app, each once and in its order. `options`
/// are the further lines of each, by its name.
pub fn pipeline(names: &str, mut options: impl FnMut(&str) -> String) -> String {
    let mut text = format!("[pipeline:main]\npipeline = {names}\n");
    let mut done = Vec::new();
    for name in names.split_whitespace() {
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        let (kind, entry_point) = match (name, name.strip_suffix("-server")) {
            (_, Some(role)) => ("app", role.to_owned()),
            ("cache", _) => ("filter", "memcache".to_owned()),
            _ => ("filter", name.replace('-', "_")),
        };
        let options = options(name);
        text.push_str(&format!(
            "[{kind}:{name}]\nuse = egg:swift#{entry_point}\n{options}"
        ));
    }
    text
}

/// A module of rsyncd.conf that may be written to.
pub fn rsync_module(name: &str, path: &Path, lock: &Path) -> String {
    format!(
        "[{name}]\nmax connections = 25\npath = {}\nread only = false\nlock file = {}\n",
        path.display(),
        lock.display()
    )
}

/// An option of a conf's section.
pub fn option_of<'a>(text: &'a str, section: &str, option: &str) -> Option<&'a str> {
    let header = format!("[{section}]");
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| *line == header)?;
    lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim() == option)
        .map(|(_, value)| value.trim())
}

/// The conf with one option of a section set; unchanged if the section is missing.
pub fn with_option(text: &str, section: &str, option: &str, value: &str) -> String {
    let header = format!("[{section}]");
    let (mut lines, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with('[') {
            inside = trimmed == header;
        } else if inside
            && trimmed
                .split('=')
                .next()
                .is_some_and(|name| name.trim() == option)
        {
            continue;
        }
        lines.push(line.to_owned());
        if trimmed == header {
            lines.push(format!("{option} = {value}"));
        }
    }
    lines.join("\n") + "\n"
}

/// Like [`with_option`], with the section added if it is missing.
pub fn with_option_added(text: &str, section: &str, option: &str, value: &str) -> String {
    let header = format!("[{section}]");
    if text.lines().any(|line| line.trim() == header) {
        return with_option(text, section, option, value);
    }
    with_option(&format!("{text}\n{header}\n"), section, option, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_an_option() {
        let text = "[a]\nx = 1\ny = 2\n[b]\nx = 3\n";
        assert_eq!(
            with_option(text, "a", "x", "9"),
            "[a]\nx = 9\ny = 2\n[b]\nx = 3\n"
        );
        assert_eq!(
            with_option(text, "b", "z", "9"),
            "[a]\nx = 1\ny = 2\n[b]\nz = 9\nx = 3\n"
        );
        assert_eq!(with_option(text, "c", "z", "9"), text);
    }

    #[test]
    fn adds_a_section() {
        assert_eq!(
            with_option_added("[a]\nx = 1\n", "a", "x", "9"),
            "[a]\nx = 9\n"
        );
        assert_eq!(
            with_option_added("[a]\nx = 1\n", "b", "x", "9"),
            "[a]\nx = 1\n\n[b]\nx = 9\n"
        );
    }

    #[test]
    fn writes_each_section_of_a_pipeline_once() {
        let options = |name: &str| match name {
            "cache" => "memcache_servers = here\n".to_owned(),
            _ => String::new(),
        };
        assert_eq!(
            pipeline("proxy-logging cache proxy-logging proxy-server", options),
            "[pipeline:main]\npipeline = proxy-logging cache proxy-logging proxy-server\n\
             [filter:proxy-logging]\nuse = egg:swift#proxy_logging\n\
             [filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = here\n\
             [app:proxy-server]\nuse = egg:swift#proxy\n"
        );
    }

    #[test]
    fn finds_an_option() {
        let text = "[a]\nx = 1\n# y = 2\n[b]\nx=3\n";
        assert_eq!(option_of(text, "a", "x"), Some("1"));
        assert_eq!(option_of(text, "b", "x"), Some("3"));
        assert_eq!(option_of(text, "a", "y"), None);
        assert_eq!(option_of(text, "c", "x"), None);
    }
}
