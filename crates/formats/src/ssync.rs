//! The lines of SSYNC, the replication protocol between object servers: the sender offers objects,
//! the receiver answers which parts it lacks, and the sender transfers those, all inside the bodies
//! of one HTTP request and its response.
//!
//!
//! ```text
//! sender                                     receiver
//! :MISSING_CHECK: START
//! <hash> <data time> [m:<hex>[,t:<hex>]]     (one line for each object)
//! :MISSING_CHECK: END
//!                                            :MISSING_CHECK: START
//!                                            <hash> [d][m]        (what it wants)
//!                                            :MISSING_CHECK: END
//! :UPDATES: START
//! PUT /a/c/o                                 (head of a request, blank line, content)
//! :UPDATES: END
//!                                            :UPDATES: START
//!                                            :UPDATES: END
//! ```
//!
//! Lines end with CR LF; a receiver that fails sends `:ERROR: <status> <reason>`. In an offer, `m:`
//! and `t:` are the ticks from the data's time to those of the metadata and of the content type, in
//! hex, each with `__<offset>` where it has one; `durable:False` marks a fragment that is not
//! committed yet.

use cairn_types::{ObjectHash, Timestamp};
use thiserror::Error;

pub const MISSING_CHECK_START: &str = ":MISSING_CHECK: START";
pub const MISSING_CHECK_END: &str = ":MISSING_CHECK: END";
pub const UPDATES_START: &str = ":UPDATES: START";
pub const UPDATES_END: &str = ":UPDATES: END";

/// A line that does not belong to the SSYNC protocol.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("not a line of ssync: {0:?}")]
pub struct SsyncError(pub String);

/// Timestamps of an object that the sender has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub hash: ObjectHash,
    /// Time of the content, or of the tombstone.
    pub data: Timestamp,
    /// Time of the newest metadata; that of the data if there is no `.meta` file.
    pub meta: Timestamp,
    /// Time of the content type; that of the data if no later POST set it.
    pub content_type: Timestamp,
    pub is_durable: bool,
}

/// Parts of an object that a receiver lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub data: bool,
    pub meta: bool,
}

/// Timestamps of an object that the receiver has. For a tombstone only the data's time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub data: Timestamp,
    pub meta: Option<Timestamp>,
    pub content_type: Option<Timestamp>,
}

fn bad(line: &str) -> SsyncError {
    SsyncError(line.chars().take(200).collect())
}

impl Offer {
    /// The line of the offer, without its line end.
    pub fn encode(&self) -> String {
        let mut line = format!("{} {}", self.hash.hex(), self.data.internal());
        let mut parts = Vec::new();
        let delta = |name: &str, time: Timestamp| {
            let ticks = time.ticks().saturating_sub(self.data.ticks());
            match time.offset() {
                0 => format!("{name}:{ticks:x}"),
                offset => format!("{name}:{ticks:x}__{offset:x}"),
            }
        };
        if self.meta != self.data {
            parts.push(delta("m", self.meta));
            if self.content_type != self.data {
                parts.push(delta("t", self.content_type));
            }
        }
        if !self.is_durable {
            parts.push("durable:False".into());
        }
        if !parts.is_empty() {
            line.push(' ');
            line.push_str(&parts.join(","));
        }
        line
    }

    /// Parses a line of [`Offer::encode`].
    ///
    /// # Errors
    /// A line without a hash and a timestamp, or whose `m` or `t` is no hexadecimal difference.
    pub fn decode(line: &str) -> Result<Offer, SsyncError> {
        let mut words = line.split_ascii_whitespace();
        let hash = words.next().and_then(ObjectHash::from_hex);
        let data = words.next().and_then(|text| Timestamp::parse(text).ok());
        let (Some(hash), Some(data)) = (hash, data) else {
            return Err(bad(line));
        };
        let mut offer = Offer {
            hash,
            data,
            meta: data,
            content_type: data,
            is_durable: true,
        };
        let extra = words.next().unwrap_or("");
        // Unknown names are ignored; newer versions may send them.
        for (name, value) in extra.split(',').filter_map(|item| item.split_once(':')) {
            match name {
                "m" => offer.meta = later(data, value).ok_or_else(|| bad(line))?,
                "t" => offer.content_type = later(data, value).ok_or_else(|| bad(line))?,
                "durable" => {
                    let yes = ["true", "1", "yes", "on", "t", "y"];
                    offer.is_durable = yes.iter().any(|word| value.eq_ignore_ascii_case(word));
                }
                _ => {}
            }
        }
        Ok(offer)
    }

    /// The parts of this offer that a receiver lacks if it has `held`; `None` if it lacks nothing.
    /// As in OpenStack Swift but for a tombstone, behind which Swift asks for the data alone: a handoff
    /// that has sent those removes its copy, and the newer metadata with it.
    pub fn wanted(&self, held: Option<&Held>) -> Option<Wanted> {
        let Some(held) = held else {
            return Some(Wanted {
                data: true,
                meta: true,
            });
        };
        let newer_meta = held.meta.is_some_and(|meta| self.meta > meta);
        let newer_type = held
            .content_type
            .is_some_and(|time| self.content_type > time && self.content_type > self.data);
        let data = self.data > held.data;
        let over_tombstone = data && held.meta.is_none() && self.meta > self.data;
        let wanted = Wanted {
            data,
            meta: newer_meta || newer_type || over_tombstone,
        };
        (wanted.data || wanted.meta).then_some(wanted)
    }
}

/// Parses `1f` or `1f__2`: ticks after `data`, and an offset. The data's own offset is not
/// included.
fn later(data: Timestamp, text: &str) -> Option<Timestamp> {
    let (ticks, offset) = text.split_once("__").unwrap_or((text, "0"));
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(data.plus_ticks(hex(ticks)?).with_offset(hex(offset)?))
}

impl Wanted {
    /// The line that requests these parts of an object, without its line end.
    pub fn encode(&self, hash: ObjectHash) -> String {
        let data = if self.data { "d" } else { "" };
        let meta = if self.meta { "m" } else { "" };
        format!("{} {data}{meta}", hash.hex())
    }

    /// Parses a line; one without parts comes from a receiver that requests content only.
    ///
    /// # Errors
    /// A line that does not begin with a hash.
    pub fn decode(line: &str) -> Result<(ObjectHash, Wanted), SsyncError> {
        let mut words = line.split_ascii_whitespace();
        let hash = words.next().and_then(ObjectHash::from_hex);
        let hash = hash.ok_or_else(|| bad(line))?;
        let parts = words.next().unwrap_or("");
        let (data, meta) = (parts.contains('d'), parts.contains('m'));
        let wanted = Wanted {
            data: data || !meta,
            meta,
        };
        Ok((hash, wanted))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "9d41d8cd98f00b204e9800998ecf0abc";

    fn offer(meta: u64, content_type: u64) -> Offer {
        let data = Timestamp::parse("1380144470.00000").unwrap();
        Offer {
            hash: ObjectHash::from_hex(HASH).unwrap(),
            data,
            meta: data.plus_ticks(meta),
            content_type: data.plus_ticks(content_type),
            is_durable: true,
        }
    }

    #[test]
    fn offers_as_upstream_writes_them() {
        let line = |rest: &str| format!("{HASH} 1380144470.00000{rest}");
        for (offer, rest) in [
            (offer(0, 0), ""),
            (offer(444_444, 0), " m:6c81c"),
            (offer(444_444, 1), " m:6c81c,t:1"),
        ] {
            assert_eq!(offer.encode(), line(rest));
            assert_eq!(Offer::decode(&line(rest)), Ok(offer));
        }
        let mut with_offset = offer(2, 0);
        with_offset.data = with_offset.data.with_offset(1);
        with_offset.meta = with_offset.meta.with_offset(17);
        with_offset.content_type = with_offset.data;
        let text = format!("{HASH} 1380144470.00000_0000000000000001 m:2__11");
        assert_eq!(with_offset.encode(), text);
        assert_eq!(Offer::decode(&text), Ok(with_offset));
        let future = Offer::decode(&line(" m:1,new:thing,durable:False,junk")).unwrap();
        assert!(!future.is_durable);
        assert_eq!(future.meta, offer(1, 0).meta);
        for bad in ["", "x", HASH, &line(" m:z"), "short 1380144470.00000"] {
            assert!(Offer::decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn wanted_as_upstream_but_over_a_tombstone() {
        let held = |offer: &Offer| Held {
            data: offer.data,
            meta: Some(offer.meta),
            content_type: Some(offer.content_type),
        };
        let wanted = |data, meta| Some(Wanted { data, meta });
        assert_eq!(offer(0, 0).wanted(None), wanted(true, true));
        assert_eq!(offer(5, 3).wanted(Some(&held(&offer(5, 3)))), None);
        let newer_meta = offer(5, 0).wanted(Some(&held(&offer(0, 0))));
        assert_eq!(newer_meta, wanted(false, true));
        let newer_type = offer(5, 4).wanted(Some(&held(&offer(5, 3))));
        assert_eq!(newer_type, wanted(false, true));
        let tombstone = Held {
            data: Timestamp::from_secs(1),
            meta: None,
            content_type: None,
        };
        assert_eq!(offer(5, 0).wanted(Some(&tombstone)), wanted(true, true));
        assert_eq!(offer(0, 0).wanted(Some(&tombstone)), wanted(true, false));
        for (parts, data, meta) in [
            (" d", true, false),
            (" m", false, true),
            (" dm", true, true),
            ("", true, false),
        ] {
            let (hash, wanted) = Wanted::decode(&format!("{HASH}{parts}")).unwrap();
            assert_eq!((wanted.data, wanted.meta), (data, meta));
            assert_eq!(hash.hex(), HASH);
        }
        assert_eq!(
            wanted(true, true).unwrap().encode(offer(0, 0).hash),
            format!("{HASH} dm")
        );
    }

    proptest! {
        #[test]
        fn offers_round_trip(
            data in 0..10u64.pow(14), meta in 0..1u64 << 40, kind in 0..1u64 << 40,
            offset in 0..1000u64,
        ) {
            let data = Timestamp::from_ticks(data);
            let offer = Offer {
                hash: ObjectHash([7; 16]),
                data,
                meta: data.plus_ticks(meta + 1).with_offset(offset),
                content_type: data.plus_ticks(kind + 1),
                is_durable: true,
            };
            prop_assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        }

        #[test]
        fn noise_never_panics(noise in ".{0,80}") {
            let _ = Offer::decode(&noise);
            let _ = Wanted::decode(&noise);
        }
    }
}
