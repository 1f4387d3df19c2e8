//! Erasure codes: segments of an object to fragments and back, in the bytes that liberasurecode
//! writes and reads (versions 1.2 and later), so that fragments move freely between OpenStack
//! Swift's nodes and Cairn's.
//!
//! A segment is padded and cut into `k` pieces; `m` more are linear combinations of them. Each
//! piece with an 80 byte header before it (`fragment.rs`) is a fragment; any `k` fragments of a
//! segment give back the segment. A fragment archive, what one object server keeps of an object,
//! is the fragments of one index, of all segments, one after the other.
//!
//! Layer 0: no tokio, no files, no clock. Depends on `types` only.

mod codec;
mod combine;
mod fragment;
mod galois;
mod matrix;

pub use codec::{Codec, CodecError};
pub use fragment::{FragmentError, FragmentHeader, HEADER_LEN};
