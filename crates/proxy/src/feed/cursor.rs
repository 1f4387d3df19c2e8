//! The cursor of a change feed: a text of which clients know nothing, with a place in each part of a
//! container, which are the container itself and its shards.
//!
//! `CONTAINER.DEVICE.PLACE` of each part, joined by `~`: a digest of the part's name, the ring's number
//! of the device whose replica it is a place of, and what that server calls it.

use std::time::Duration;

use cairn_http::params::Params;
use cairn_types::hex;
use md5::{Digest, Md5};

/// Maximum number of parts of a container that are followed; a cursor of them fits into a URL.
pub(crate) const PARTS_MAX: usize = 100;
/// Maximum characters of a cursor.
const CURSOR_CHARS_MAX: usize = 64 * PARTS_MAX;
/// Characters of a wrong value that are repeated to the client.
const SHOWN_CHARS: usize = 40;
const NAME_CHARS: usize = 8;
/// Rows of an answer without `limit`.
const ROWS: usize = 1000;

/// Parameters that a listing has and the feed has not.
const LISTING_PARAMS: [&str; 8] = [
    "marker",
    "end_marker",
    "prefix",
    "delimiter",
    "path",
    "reverse",
    "versions",
    "version_marker",
];

/// A place in a part of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// [`digest`] of its account and container.
    pub(super) container: String,
    pub(super) device: u32,
    /// The cursor of the device's server.
    pub(super) at: String,
}

/// The digest by which a cursor names a part.
pub(super) fn digest(account: &str, container: &str) -> String {
    hex::encode(Md5::digest(format!("{account}/{container}")))[..NAME_CHARS].to_owned()
}

fn is_hex(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    !text.is_empty() && text.bytes().all(is_digit)
}

impl Place {
    fn parse(text: &str) -> Option<Place> {
        let mut words = text.splitn(3, '.');
        let (container, device, at) = (words.next()?, words.next()?, words.next()?);
        let (token, row) = at.split_once('.')?;
        let is_row = !row.is_empty() && row.bytes().all(|byte| byte.is_ascii_digit());
        let is_place =
            container.len() == NAME_CHARS && is_hex(container) && is_hex(token) && is_row;
        let device = device.parse().ok().filter(|_| is_place)?;
        Some(Place {
            container: container.to_owned(),
            device,
            at: at.to_owned(),
        })
    }
}

/// Parses a cursor; none is empty.
fn parse(text: &str) -> Option<Vec<Place>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    if text.len() > CURSOR_CHARS_MAX {
        return None;
    }
    let places: Option<Vec<Place>> = text.split('~').map(Place::parse).collect();
    places.filter(|places| places.len() <= PARTS_MAX)
}

/// The text of a cursor.
pub(super) fn text<'p>(places: impl Iterator<Item = &'p Place>) -> String {
    let place = |place: &Place| format!("{}.{}.{}", place.container, place.device, place.at);
    places.map(place).collect::<Vec<_>>().join("~")
}

/// The parameters of a request for changes.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    /// None: from the present end.
    pub(super) places: Vec<Place>,
    pub(super) wait: Duration,
    pub(super) limit: usize,
}

impl Asked {
    /// Reads the parameters; the error is for the client.
    pub(super) fn of(params: &Params, wait_max: Duration, most: usize) -> Result<Asked, String> {
        if let Some(name) = LISTING_PARAMS.iter().find(|name| params.contains(name)) {
            return Err(format!(
                "{name}: the change feed has no such parameter; leave it out"
            ));
        }
        let cursor = params.get("changes").unwrap_or_default();
        let places = parse(cursor).ok_or_else(|| {
            let shown: String = cursor.chars().take(SHOWN_CHARS).collect();
            let text = "expected nothing, or the X-Container-Changes-Cursor of an earlier answer";
            format!("changes={shown:?}: {text}")
        })?;
        let wait = params.get("wait").filter(|text| !text.is_empty());
        let seconds = match wait.map(str::parse::<f64>) {
            None => 0.0,
            Some(Ok(seconds)) if (0.0..=wait_max.as_secs_f64()).contains(&seconds) => seconds,
            Some(_) => {
                let shown: String = wait.unwrap_or_default().chars().take(SHOWN_CHARS).collect();
                let most = wait_max.as_secs_f64();
                return Err(format!("wait={shown:?}: expected seconds, 0 to {most}"));
            }
        };
        let limit = params.get("limit").and_then(|text| text.parse().ok());
        Ok(Asked {
            places,
            wait: Duration::from_secs_f64(seconds),
            limit: limit.unwrap_or(ROWS).clamp(1, most.max(1)),
        })
    }

    /// The place in a part.
    pub(super) fn place(&self, container: &str) -> Option<&Place> {
        self.places
            .iter()
            .find(|place| place.container == container)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Asked, String> {
        let params = Params::parse(Some(query)).unwrap();
        Asked::of(&params, Duration::from_secs(60), 10_000)
    }

    #[test]
    fn cursors_are_read_as_they_were_written() {
        let place = |container: &str, device| Place {
            container: digest("AUTH_a", container),
            device,
            at: "0123456789ab.77".into(),
        };
        let places = vec![place("c", 0), place("d", u32::MAX)];
        let text = text(places.iter());
        let read = asked(&format!("changes={text}&wait=0.5&limit=7")).unwrap();
        let (wait, limit) = (Duration::from_millis(500), 7);
        assert_eq!(
            read,
            Asked {
                places,
                wait,
                limit
            }
        );
        assert_eq!(asked("changes=").unwrap().places, []);
    }

    #[test]
    fn wrong_values_are_named_with_their_remedy() {
        let many = vec!["00000000.0.00.1"; PARTS_MAX + 1].join("~");
        let long = "x".repeat(CURSOR_CHARS_MAX + 1);
        for bad in [
            "x",
            "~",
            "0.0.0.0",
            "0000000g.0.00.1",
            "00000000.-1.00.1",
            "00000000.4294967296.00.1",
            "00000000.0.00.-1",
            "00000000.0..1",
            "00000000.0.00.1~",
            &many,
            &long,
        ] {
            let error = asked(&format!("changes={bad}")).unwrap_err();
            assert!(error.starts_with("changes=\""), "{error}");
            assert!(error.contains("expected nothing, or the X-Container-Changes-Cursor"));
            assert!(error.len() < 200, "{error}");
        }
        for bad in ["-1", "60.1", "NaN", "inf", "soon", "1e99"] {
            let error = asked(&format!("changes=&wait={bad}")).unwrap_err();
            assert_eq!(error, format!("wait=\"{bad}\": expected seconds, 0 to 60"));
        }
        let error = asked("changes=&prefix=a").unwrap_err();
        assert_eq!(
            error,
            "prefix: the change feed has no such parameter; leave it out"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text: String) {
            if let Some(places) = parse(&text) {
                proptest::prop_assert_eq!(super::text(places.iter()), text);
            }
        }
    }
}
