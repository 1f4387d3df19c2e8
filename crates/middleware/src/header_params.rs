//! Values with parameters, `value; name=value; …`: content types, and the hash column of container
//! rows, in which filters store data for listings.

/// Splits into the value and its parameters in order, without surrounding blanks.
pub(crate) fn split(text: &str) -> (&str, Vec<(&str, &str)>) {
    let mut pieces = text.split(';');
    let value = pieces.next().unwrap_or("");
    let params = pieces
        .map(|piece| piece.split_once('=').unwrap_or((piece, "")))
        .map(|(name, value)| (name.trim(), value.trim()))
        .filter(|(name, _)| !name.is_empty())
        .collect();
    (value.trim_end(), params)
}

/// Joins a value and its parameters: the inverse of [`split`].
pub(crate) fn join<'p>(
    value: &str,
    params: impl IntoIterator<Item = (&'p str, &'p str)>,
) -> String {
    let mut text = value.to_owned();
    for (name, value) in params {
        text.push_str(&format!("; {name}={value}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let text = "md5; symlink_target=c/o%3B; slo_etag=x";
        let (value, params) = split(text);
        assert_eq!(value, "md5");
        assert_eq!(params, [("symlink_target", "c/o%3B"), ("slo_etag", "x")]);
        assert_eq!(join(value, params), text);
        assert_eq!(split("md5"), ("md5", vec![]));
        assert_eq!(split(" ;;a ; b = c"), ("", vec![("a", ""), ("b", "c")]));
    }
}
