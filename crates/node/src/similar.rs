//! "Did you mean": the known word nearest to a mistyped one.

/// ` (did you mean X?)`, or nothing if no known word is near.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let limit = (word.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| format!(" (did you mean {candidate}?)"))
        .unwrap_or_default()
}

/// Edit distance: letters to insert, delete or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_only() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(
            did_you_mean("bind_prot", ["bind_port", "bind_ip"]),
            " (did you mean bind_port?)"
        );
        assert_eq!(did_you_mean("zebra", ["bind_port"]), "");
    }
}
