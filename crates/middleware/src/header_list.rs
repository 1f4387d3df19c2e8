//! Lists of header names in conf files, separated by blanks; a name that ends in `*` is a prefix.

use cairn_formats::ini::Section;
use http::HeaderMap;
use http::header::HeaderName;

#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderList {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl HeaderList {
    pub(crate) fn parse(text: &str) -> HeaderList {
        let mut list = HeaderList::default();
        for name in text.split_whitespace() {
            let name = name.to_ascii_lowercase().replace('_', "-");
            match name.strip_suffix('*') {
                Some(prefix) => list.prefixes.push(prefix.to_owned()),
                None => list.exact.push(name),
            }
        }
        list
    }

    fn has(&self, name: &str) -> bool {
        self.exact.iter().any(|exact| exact == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// Headers to remove: those in one list that are not in the other.
#[derive(Clone, Debug)]
pub(crate) struct Removal {
    remove: HeaderList,
    allow: HeaderList,
}

impl Removal {
    /// Reads the options `DIRECTION_remove_headers` and `DIRECTION_allow_headers`.
    pub(crate) fn read(section: &Section, direction: &str, remove: &str, allow: &str) -> Removal {
        let list = |what: &str, default| {
            HeaderList::parse(section.str_or(&format!("{direction}_{what}_headers"), default))
        };
        Removal {
            remove: list("remove", remove),
            allow: list("allow", allow),
        }
    }

    pub(crate) fn clean(&self, headers: &mut HeaderMap) {
        let gone: Vec<HeaderName> = headers
            .keys()
            .filter(|name| self.remove.has(name.as_str()) && !self.allow.has(name.as_str()))
            .cloned()
            .collect();
        for name in gone {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_http::respond;

    #[test]
    fn removes_what_is_not_allowed() {
        let section = Section::from_pairs(
            "filter:tempurl",
            &[(
                "outgoing_allow_headers",
                "x-object-meta-public-* X-Object-Meta-A",
            )],
        );
        let removal = Removal::read(&section, "outgoing", "x-object-meta-* etag", "");
        let mut headers = HeaderMap::new();
        for name in [
            "x-object-meta-a",
            "x-object-meta-ab",
            "x-object-meta-public-b",
            "etag",
            "etags",
        ] {
            respond::set(&mut headers, name, "v");
        }
        removal.clean(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["etags", "x-object-meta-a", "x-object-meta-public-b"]);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a pattern of a shell would match: a star at the end is any text, others are stars.
        #[test]
        fn a_list_has_what_its_names_match(
            text in "([a-cA-C_*-]{1,4}[ \t\n]{1,2}){0,4}|.{0,30}",
            name in "[a-c-]{1,5}",
        ) {
            let list = HeaderList::parse(&text);
            let matches = |word: &str| {
                let word: Vec<u8> = word.to_ascii_lowercase().bytes().collect();
                let word: Vec<u8> = word.iter().map(|b| if *b == b'_' { b'-' } else { *b }).collect();
                match word.split_last() {
                    Some((b'*', prefix)) => name.as_bytes().get(..prefix.len()) == Some(prefix),
                    _ => word == name.as_bytes(),
                }
            };
            prop_assert_eq!(list.has(&name), text.split_whitespace().any(matches));
        }

        #[test]
        fn only_what_may_go_goes(
            remove in "([a-c-]{1,3}[*]? ){0,3}",
            allow in "([a-c-]{1,3}[*]? ){0,3}",
            names in proptest::collection::vec("[a-c-]{1,4}", 0..6),
        ) {
            let removal = Removal {
                remove: HeaderList::parse(&remove),
                allow: HeaderList::parse(&allow),
            };
            let mut headers = HeaderMap::new();
            for name in &names {
                cairn_http::respond::set(&mut headers, name, "v");
            }
            removal.clean(&mut headers);
            for name in &names {
                let goes = removal.remove.has(name) && !removal.allow.has(name);
                prop_assert_eq!(headers.contains_key(name), !goes);
            }
        }
    }
}
