//! Entry point of the fuzz target for a backend's responses to an upload; a test also runs it over
//! its seeds.

use futures_util::FutureExt;
use http::HeaderMap;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::{Event, wire};

/// A response's status (100 for an interim one), headers and body.
type ParsedResponse = (u16, HeaderMap, Vec<u8>);

/// Parses interim responses and a final one, in two parts cut at an offset given by the first two
/// bytes: the cut must not change the result. A head must be complete at exactly one length.
pub fn two_phase(input: &[u8]) {
    let [high, low, wire @ ..] = input else {
        return;
    };
    let cut = usize::from(u16::from_be_bytes([*high, *low])) % (wire.len() + 1);
    let whole = read(wire, &[]);
    assert_eq!(read(&wire[..cut], &wire[cut..]), whole);
    if let Ok(Some((_, _, length))) = wire::parse(wire) {
        assert!(length <= wire.len());
        let before = wire::parse(&wire[..cut.min(length.saturating_sub(1))]);
        assert!(!matches!(before, Ok(Some(_))), "a head that has not ended");
    }
}

/// All responses parsed, and whether a final one was among them.
fn read(first: &[u8], second: &[u8]) -> (Vec<ParsedResponse>, bool) {
    let (told, mut events) = mpsc::unbounded_channel();
    let read = wire::read(first.chain(second), &told).now_or_never();
    let ended = read.map(|result| result.is_ok());
    let mut said = Vec::new();
    while let Ok(event) = events.try_recv() {
        said.push(match event {
            Event::Continue(headers) => (100, headers, Vec::new()),
            Event::Answer(response) => {
                let (parts, mut body) = response.into_parts();
                let body = body.next_chunk().now_or_never().flatten();
                let body = body.and_then(Result::ok).unwrap_or_default();
                (parts.status.as_u16(), parts.headers, body.to_vec())
            }
        });
    }
    (said, ended == Some(true))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[test]
    fn seeds() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/two_phase");
        for seed in std::fs::read_dir(folder).unwrap() {
            super::two_phase(&std::fs::read(seed.unwrap().path()).unwrap());
        }
    }
}
