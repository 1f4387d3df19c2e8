//! Content negotiation: the choice among the offered content types by the client's `Accept`.

/// The header is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadAccept;

struct Range<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: f64,
}

/// The best of `offers`, by the client's quality values, exact types before patterns; the first
/// offer if there is no header, `None` if nothing fits.
pub(crate) fn best_match<'o>(
    accept: Option<&str>,
    offers: &[&'o str],
) -> Result<Option<&'o str>, BadAccept> {
    let Some(accept) = accept.filter(|a| !a.is_empty()) else {
        return Ok(offers.first().copied());
    };
    let mut ranges = accept
        .split(',')
        .map(parse)
        .collect::<Result<Vec<_>, _>>()?;
    let exact = |r: &Range<'_>| r.kind != "*" && r.subtype != "*";
    // A stable sort: equal qualities keep the client's order.
    ranges.sort_by(|a, b| {
        b.quality
            .total_cmp(&a.quality)
            .then_with(|| exact(b).cmp(&exact(a)))
    });
    let fits = |range: &Range<'_>, offer: &str| {
        offer.split_once('/').is_some_and(|(kind, subtype)| {
            (range.kind == "*" || range.kind == kind)
                && (range.subtype == "*" || range.subtype == subtype)
        })
    };
    Ok(ranges
        .iter()
        .find_map(|r| offers.iter().find(|o| fits(r, o)).copied()))
}

fn parse(item: &str) -> Result<Range<'_>, BadAccept> {
    let mut parts = item.split(';');
    let (kind, subtype) = parts
        .next()
        .unwrap_or("")
        .trim()
        .split_once('/')
        .ok_or(BadAccept)?;
    if !is_token(kind) || !is_token(subtype) {
        return Err(BadAccept);
    }
    let mut quality = None;
    for parameter in parts {
        let (name, value) = parameter.split_once('=').ok_or(BadAccept)?;
        let (name, value) = (name.trim(), value.trim());
        if !is_token(name) || !(is_token(value) || is_quoted(value)) {
            return Err(BadAccept);
        }
        if name == "q" {
            let q: f64 = value.parse().map_err(|_| BadAccept)?;
            if quality.replace(q).is_some() {
                return Err(BadAccept);
            }
        }
    }
    Ok(Range {
        kind,
        subtype,
        quality: quality.unwrap_or(1.0),
    })
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b > 0x20 && b != 0x7f && !b"()<>@,;:\"/[]?={}".contains(&b))
}

fn is_quoted(text: &str) -> bool {
    text.len() >= 2 && text.starts_with('"') && text.ends_with('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_upstream() {
        let offers = [
            "text/plain",
            "application/json",
            "application/xml",
            "text/xml",
        ];
        for (accept, best) in [
            (None, Ok(Some("text/plain"))),
            (Some(""), Ok(Some("text/plain"))),
            (Some("*/*"), Ok(Some("text/plain"))),
            (Some("application/*"), Ok(Some("application/json"))),
            (
                Some("text/*;q=0.5, application/xml"),
                Ok(Some("application/xml")),
            ),
            (Some("text/xml, */*;q=0.1"), Ok(Some("text/xml"))),
            (Some("*/*, application/json"), Ok(Some("application/json"))),
            (
                Some("application/xml;charset=\"x\";q=0.9,text/plain;q=.95"),
                Ok(Some("text/plain")),
            ),
            (
                Some("application/json ; q=0.3 , foo/bar"),
                Ok(Some("application/json")),
            ),
            (Some("foo/bar"), Ok(None)),
            (Some("text"), Err(BadAccept)),
            (Some("text/plain;"), Err(BadAccept)),
            (Some("text/plain;q"), Err(BadAccept)),
            (Some("text/plain;q=x"), Err(BadAccept)),
            (Some("text/plain;q=1;q=1"), Err(BadAccept)),
            (Some("text/plain,"), Err(BadAccept)),
            (Some("text/(plain)"), Err(BadAccept)),
        ] {
            assert_eq!(best_match(accept, &offers), best, "{accept:?}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(text in r#"([a-z*]{0,5}/[a-z*]{0,5}(;q=[0-9.e+-]{0,6})?,?){0,4}|.{0,40}"#) {
            let offers = ["text/plain", "application/json"];
            if let Ok(Some(best)) = best_match(Some(&text), &offers) {
                prop_assert!(offers.contains(&best));
            }
        }
    }
}
