//! Parsers and writers of external formats: conf files, Python pickles, ranges, conditions,
//! listings, signatures.
//!
//! Layer 0: no tokio, no files, no clock. Every parser here takes bytes from a network or a disk
//! and must return a value or an error in bounded memory, whatever the bytes are. May depend on
//! `types` only.

pub mod acl;
pub mod conditional;
pub mod content_type;
pub mod crypto_meta;
pub mod hmac;
pub mod ini;
pub mod json_ascii;
pub mod listing;
pub mod pickle;
pub mod range;
pub mod shard;
pub mod ssync;
pub mod swift_conf;
pub mod sync_realms;
pub mod tar;
