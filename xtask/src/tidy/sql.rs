//! SQL is written in `index` alone: other crates call its functions.

use super::{Finding, Source};

const ROOM: &str = "index";
/// Pairs of words; a string literal with both words of a pair is an SQL statement.
const STATEMENTS: [(&str, &str); 6] = [
    ("SELECT ", " FROM "),
    ("INSERT ", "INTO "),
    ("UPDATE ", " SET "),
    ("DELETE ", "FROM "),
    ("CREATE ", "TABLE "),
    ("PRAGMA ", ""),
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    if source.room() == ROOM || source.room() == "xtask" {
        return Vec::new();
    }
    let statement = |text: &str| {
        let is = |(first, second): &(&str, &str)| {
            text.find(first)
                .is_some_and(|at| text[at + first.len() - 1..].contains(second))
        };
        STATEMENTS.iter().any(is)
    };
    let code = source.tokens.iter().filter(|t| !t.test);
    let sql = code.filter(|t| match t.literal {
        true => statement(&t.text),
        false => t.text == "rusqlite",
    });
    let message = "SQL outside of `index`: give `index` a function for it";
    sql.map(|t| Finding::new(&source.path, t.line, message))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_is_found_outside_of_index() {
        let text = "fn f() {\n a(\"SELECT name FROM object\");\n rusqlite::open();\n b(\"UPDATE of a\");\n\
                     c(\"PRAGMA x\");\n d(\"DELETE FROM t\");\n}\n";
        let check = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            check(&source).iter().map(|f| f.line).collect::<Vec<_>>()
        };
        assert_eq!(check("crates/servers/src/a.rs"), [2, 3, 5, 6]);
        assert_eq!(check("crates/index/src/a.rs"), [0usize; 0]);
    }
}
