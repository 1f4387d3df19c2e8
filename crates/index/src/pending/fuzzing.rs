//! Entry point of the fuzz target for pending files; a test runs it over its seeds.

use super::entry;

/// Parses a container's or account's pending file; each row must survive a round trip.
pub fn pending(input: &[u8]) {
    for tuple in entry::tuples(input).flatten() {
        let _ = entry::container_row(&tuple);
        let Some(row) = entry::object_row(&tuple) else {
            continue;
        };
        let mut text = String::new();
        entry::write_object_row(&row, &mut text);
        let mut again = entry::tuples(text.as_bytes()).map(|tuple| entry::object_row(&tuple?));
        assert_eq!(again.next(), Some(Some(row)));
        assert!(again.next().is_none(), "an entry is one entry");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[test]
    fn seeds() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/pending");
        for seed in std::fs::read_dir(folder).unwrap() {
            super::pending(&std::fs::read(seed.unwrap().path()).unwrap());
        }
    }
}
