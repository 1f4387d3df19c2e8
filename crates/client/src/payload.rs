//! Request bodies: bytes that can be sent again, or a stream that can be sent once.

use bytes::Bytes;
use cairn_http::Body;

/// A request's body.
pub enum Payload {
    Empty,
    /// Pieces in memory, sent in order; a further attempt sends them again.
    Bytes(Vec<Bytes>),
    /// A stream sent once: a failure is final.
    Stream(Body),
}

impl Payload {
    pub fn len(&self) -> Option<u64> {
        match self {
            Payload::Empty => Some(0),
            Payload::Bytes(pieces) => Some(pieces.iter().map(|piece| piece.len() as u64).sum()),
            Payload::Stream(body) => body.length(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The body for one attempt; `None` for a stream that has been used.
    pub(crate) fn attempt(&mut self) -> Option<Body> {
        match self {
            Payload::Empty => Some(Body::empty()),
            Payload::Bytes(pieces) if pieces.len() <= 1 => {
                Some(pieces.first().cloned().map_or(Body::empty(), Body::full))
            }
            Payload::Bytes(pieces) => {
                let length = pieces.iter().map(|piece| piece.len() as u64).sum();
                let pieces = pieces.clone().into_iter().filter(|piece| !piece.is_empty());
                let stream = futures_util::stream::iter(pieces.map(Ok));
                Some(Body::from_stream(stream, Some(length)))
            }
            Payload::Stream(_) => match std::mem::replace(self, Payload::Empty) {
                Payload::Stream(body) => {
                    *self = Payload::Stream(Body::empty());
                    Some(body)
                }
                _ => None,
            },
        }
    }

    /// Would another attempt send the same bytes?
    pub(crate) fn can_repeat(&self) -> bool {
        !matches!(self, Payload::Stream(_))
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        Payload::Bytes(vec![bytes])
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::Bytes(vec![bytes.into()])
    }
}
