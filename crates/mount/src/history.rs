//! Commit history of a file, stored with the object: `X-Object-Meta-Commits` lists the last commit
//! of each mount that recently wrote it. By this a mount recognises its own version if the response
//! to the commit was lost, even below later versions of others, and does not write it again.

use crate::store::Headers;

const META: &str = "commits";
/// Maximum number of mounts: as many as fit beside the largest extended attributes.
const MOUNTS_MAX: usize = 12;
const SEPARATOR: char = '-';

/// Token of a commit: the mount's id, and a number that is unique in this mount.
pub(crate) fn token(mount: &str, number: u64) -> String {
    format!("{mount}{SEPARATOR}{number:x}")
}

fn mount_of(token: &str) -> &str {
    token
        .split_once(SEPARATOR)
        .map_or(token, |(mount, _)| mount)
}

/// Inserts a commit before those in `headers`.
pub(crate) fn add(headers: &mut Headers, token: &str) {
    let before = headers.meta.get(META).map(String::as_str);
    let others = before.unwrap_or_default().split(',');
    let others = others.filter(|other| !other.is_empty() && mount_of(other) != mount_of(token));
    let all: Vec<&str> = std::iter::once(token)
        .chain(others)
        .take(MOUNTS_MAX)
        .collect();
    let all = all.join(",");
    headers.meta.insert(META.to_owned(), all);
}

/// The mounts that recently wrote an object.
pub(crate) fn mounts(headers: &Headers) -> Vec<&str> {
    let commits = headers.meta.get(META).map(String::as_str);
    let commits = commits.unwrap_or_default().split(',');
    commits.filter(|c| !c.is_empty()).map(mount_of).collect()
}

/// Does the object of `headers` follow the one of `before`, whose last commit it lists?
pub(crate) fn follows(headers: &Headers, before: &Headers) -> bool {
    let commits = before.meta.get(META).map(String::as_str);
    let last = commits.unwrap_or_default().split(',').next();
    last.is_some_and(|last| !last.is_empty() && has(headers, last))
}

/// Is a commit listed in `headers`?
pub(crate) fn has(headers: &Headers, token: &str) -> bool {
    let commits = headers.meta.get(META).map(String::as_str);
    commits.is_some_and(|commits| commits.split(',').any(|commit| commit == token))
}

/// Does `headers` list a commit, or a later one of the same mount?
pub(crate) fn reaches(headers: &Headers, token: &str) -> bool {
    let number_of = |token: &str| {
        let (_, number) = token.split_once(SEPARATOR)?;
        u64::from_str_radix(number, 16).ok()
    };
    let commits = headers.meta.get(META).map(String::as_str);
    let mut commits = commits.unwrap_or_default().split(',');
    let own = commits.find(|commit| mount_of(commit) == mount_of(token));
    let (own, wanted) = (own.and_then(number_of), number_of(token));
    own.zip(wanted).is_some_and(|(own, wanted)| own >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_has_its_last_commit() {
        let mut headers = Headers::new("t");
        for number in 0..100 {
            for mount in ["a", "b", "c"] {
                add(&mut headers, &token(mount, number));
            }
        }
        assert_eq!(headers.meta["commits"], "c-63,b-63,a-63");
        assert!(has(&headers, "a-63") && !has(&headers, "a-62") && !has(&headers, "a-6"));
        assert!(reaches(&headers, "a-63") && reaches(&headers, "a-9"));
        assert!(!reaches(&headers, "a-64") && !reaches(&headers, "d-0"));
        let before = headers.clone();
        add(&mut headers, "d-0");
        assert!(follows(&headers, &before) && !follows(&before, &headers));
        assert!(!follows(&headers, &Headers::new("t")));
    }

    #[test]
    fn it_is_no_longer_than_a_header() {
        let mut headers = Headers::new("t");
        for mount in 0..50u64 {
            add(&mut headers, &token(&format!("{mount:010x}"), 0xff_ffff));
        }
        assert!(headers.meta["commits"].len() <= 256);
        assert!(has(&headers, &token("0000000031", 0xff_ffff)));
    }
}
