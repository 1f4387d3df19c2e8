//! Locks that are taken even if a holder panicked should be `parking_lot`'s, whose type shows it.
//! Where a half-changed state matters, `std`'s lock is right, and its error must be handled.

use super::ratchet::Measure;
use super::source::{Source, Token};

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let recovery = |line| Measure {
        rule: "poison",
        key: source.room().to_owned(),
        value: 1,
        limit: 0,
        line,
        file: source.path.clone(),
        message: "a lock's poison is overlooked: use parking_lot's lock, or heed the poison"
            .to_owned(),
    };
    let code: Vec<&Token> = source.tokens.iter().filter(|t| !t.test).collect();
    let named = source.find(&["PoisonError", "::", "into_inner"]);
    let lines = named.into_iter().chain(closures(&code));
    lines.map(recovery).collect()
}

/// Lines with `unwrap_or_else(|e| e.into_inner())`, by whatever name.
fn closures(code: &[&Token]) -> Vec<usize> {
    let is_one = |window: &&[&Token]| {
        let [call, open, bar, name, end, same, dot, method] = window else {
            return false;
        };
        let texts = [call, open, bar, end, dot, method].map(|t| t.text.as_str());
        texts == ["unwrap_or_else", "(", "|", "|", ".", "into_inner"] && name.text == same.text
    };
    let found = code.windows(8).filter(is_one);
    found.map(|window| window[0].line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recoveries_from_poison_are_found() {
        let text = "fn f() {\n let a = a.lock().unwrap_or_else(PoisonError::into_inner);\n\
                    let b = b.read().unwrap_or_else(|e| e.into_inner());\n\
                    let c = c.lock().unwrap_or_else(std::sync::PoisonError::into_inner);\n\
                    let d = d.lock().map_err(|_| Broken)?;\n let e = e.into_inner();\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { a.lock().unwrap_or_else(PoisonError::into_inner); } }\n";
        let source = Source::parse("crates/proxy/src/put.rs", text, false).expect("Rust");
        let mut lines: Vec<usize> = measure(&source).iter().map(|m| m.line).collect();
        lines.sort_unstable();
        assert_eq!(lines, [2, 3, 4]);
    }
}
