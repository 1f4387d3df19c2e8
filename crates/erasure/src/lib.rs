//! Erasure codes: segments of an object to fragments and back, in the byte format of liberasurecode
//! (versions 1.2 and later), so that fragments can be moved between OpenStack Swift's nodes and
//! Cairn's.
//!
//! A segment is padded and cut into `k` pieces; `m` more are linear combinations of them. Each
//! piece with an 80-byte header before it (`fragment.rs`) is a fragment; any `k` fragments of a
//! segment are enough to decode it. A fragment archive, which one object server keeps of an object,
//! is the concatenation of the fragments with one index, of all segments.
//!
//! Layer 0: no tokio, no files, no clock. Depends on `types` only.

mod codec;
mod combine;
mod fragment;
mod galois;
mod matrix;

pub use codec::{Codec, CodecError};
pub use fragment::{FragmentError, FragmentHeader, HEADER_LEN};
