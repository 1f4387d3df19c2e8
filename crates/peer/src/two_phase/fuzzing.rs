//! Entry point of the fuzz target for answers to an upload, as a backend may send them; also run
//! over its seeds by a test.

use futures_util::FutureExt;
use http::HeaderMap;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::{Event, wire};

/// An answer's status (100 for an interim one), headers and body.
type Said = (u16, HeaderMap, Vec<u8>);

/// Interim answers and a final one, in two parts cut where the first two bytes say: the cut changes
/// nothing. A head is whole at one length only.
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

/// All that is told, and whether it came to a final answer.
fn read(first: &[u8], second: &[u8]) -> (Vec<Said>, bool) {
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
