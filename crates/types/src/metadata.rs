//! Classes of metadata headers: user metadata, system metadata, transient system metadata. Header
//! names are compared in lower case.

/// The three kinds of server, and of the entities they store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerKind {
    Account,
    Container,
    Object,
}

impl ServerKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            ServerKind::Account => "account",
            ServerKind::Container => "container",
            ServerKind::Object => "object",
        }
    }

    /// Prefix of user metadata headers, such as `x-object-meta-`.
    pub const fn user_meta_prefix(self) -> &'static str {
        match self {
            ServerKind::Account => "x-account-meta-",
            ServerKind::Container => "x-container-meta-",
            ServerKind::Object => "x-object-meta-",
        }
    }

    /// Prefix of system metadata headers, such as `x-object-sysmeta-`.
    pub const fn sys_meta_prefix(self) -> &'static str {
        match self {
            ServerKind::Account => "x-account-sysmeta-",
            ServerKind::Container => "x-container-sysmeta-",
            ServerKind::Object => "x-object-sysmeta-",
        }
    }
}

/// Prefix of system metadata that a POST to an object replaces together with the user metadata.
pub const OBJECT_TRANSIENT_SYSMETA_PREFIX: &str = "x-object-transient-sysmeta-";

/// Is this lower-case header name user metadata, with something after the prefix?
pub fn is_user_meta(kind: ServerKind, name: &str) -> bool {
    longer_than_prefix(name, kind.user_meta_prefix())
}

pub fn is_sys_meta(kind: ServerKind, name: &str) -> bool {
    longer_than_prefix(name, kind.sys_meta_prefix())
}

pub fn is_object_transient_sysmeta(name: &str) -> bool {
    longer_than_prefix(name, OBJECT_TRANSIENT_SYSMETA_PREFIX)
}

pub fn is_sys_or_user_meta(kind: ServerKind, name: &str) -> bool {
    is_user_meta(kind, name) || is_sys_meta(kind, name)
}

fn longer_than_prefix(name: &str, prefix: &str) -> bool {
    name.len() > prefix.len() && name.starts_with(prefix)
}

/// A lower-case header name in the form that Swift writes on disk and in databases:
/// `X-Object-Meta-Color`. Each letter that follows a non-letter is a capital, as in Python's
/// `str.title`.
pub fn title_case(name: &str) -> String {
    let mut after_letter = false;
    name.chars()
        .map(|c| {
            let c = if after_letter {
                c.to_ascii_lowercase()
            } else {
                c.to_ascii_uppercase()
            };
            after_letter = c.is_alphabetic();
            c
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_need_something_after_them() {
        assert!(is_user_meta(ServerKind::Object, "x-object-meta-a"));
        assert!(!is_user_meta(ServerKind::Object, "x-object-meta-"));
        assert!(!is_user_meta(ServerKind::Container, "x-object-meta-a"));
        assert!(is_sys_meta(ServerKind::Account, "x-account-sysmeta-a"));
    }

    #[test]
    fn titles() {
        assert_eq!(title_case("x-object-meta-color"), "X-Object-Meta-Color");
        assert_eq!(title_case("etag"), "Etag");
        assert_eq!(title_case("x-object-meta-a1b"), "X-Object-Meta-A1B");
    }
}
