//! A service chooses its status codes in `status.rs`, so that each failure has one answer.
//!
//! The rule counts constants of `StatusCode` that are not compared with one, over a whole crate. A
//! middleware is a service of its own, and its file (or folder) is where it refuses: the rule holds
//! for what middlewares share, not below `filters/`.

use super::ratchet::Measure;
use super::source::{Source, Token};

/// Crates that answer clients or other servers.
const SERVICES: [&str; 7] = [
    "console",
    "http",
    "identity",
    "middleware",
    "node",
    "proxy",
    "servers",
];

/// The middlewares, each of which chooses the codes that only it answers.
const FILTERS: &str = "crates/middleware/src/filters/";

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let elsewhere = source.path.ends_with("/status.rs")
        || source.path.starts_with(FILTERS)
        || !SERVICES.contains(&source.room());
    if elsewhere || !source.path.contains("/src/") {
        return Vec::new();
    }
    let chosen = |line| Measure {
        rule: "statuses",
        key: source.room().to_owned(),
        value: 1,
        limit: 0,
        line,
        file: source.path.clone(),
        message: "a status code is chosen outside of status.rs: give the failure a variant there"
            .to_owned(),
    };
    choices(&source.tokens).into_iter().map(chosen).collect()
}

fn choices(tokens: &[Token]) -> Vec<usize> {
    let mut lines = Vec::new();
    for (at, window) in tokens.windows(3).enumerate() {
        let is_constant = window[0].text == "StatusCode"
            && window[1].text == "::"
            && window[2]
                .text
                .chars()
                .all(|c| c.is_ascii_uppercase() || c == '_');
        // `http :: StatusCode :: OK` begins two tokens earlier.
        let mut first = at;
        while first >= 2 && tokens[first - 1].text == "::" {
            first -= 2;
        }
        let before = first.checked_sub(1).map_or("", |i| tokens[i].text.as_str());
        let after = tokens.get(at + 3).map_or("", |t| t.text.as_str());
        let compared =
            ["==", "!=", "|"].contains(&before) || ["=>", "|", "==", "!="].contains(&after);
        if is_constant && !compared && !window[0].test {
            lines.push(window[0].line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_found_and_a_comparison_is_not() {
        let text = "fn f() {\n if s == StatusCode::OK || s == http::StatusCode::FOUND {}\n\
                    match s {\n StatusCode::CREATED | StatusCode::ACCEPTED => 1,\n\
                    StatusCode::CONFLICT => 2,\n }\n answer(StatusCode::NOT_FOUND);\n\
                    http::StatusCode::BAD_REQUEST\n}\n";
        let lines = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            measure(&source).iter().map(|m| m.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("crates/proxy/src/put.rs"), [7, 8]);
        assert_eq!(lines("crates/proxy/src/status.rs"), [0usize; 0]);
        assert_eq!(lines("crates/middleware/src/segments.rs"), [7, 8]);
        assert_eq!(lines("crates/middleware/src/filters/slo.rs"), [0usize; 0]);
        assert_eq!(lines("crates/disk/src/put.rs"), [0usize; 0]);
    }
}
