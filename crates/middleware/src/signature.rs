//! Keyed signatures that a client sends instead of a token: the digests that an operator allows,
//! the forms of a signature (hex, or `sha256:` and base64), and the keys stored with accounts and
//! containers. Shared by `tempurl` and `formpost`. Keys and signatures are compared in constant
//! time and never shown.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use cairn_formats::ini::Section;
use cairn_http::{AccountInfo, ContainerInfo};
use cairn_types::hex;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use subtle::ConstantTimeEq;
use tracing::warn;

use crate::FilterError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Digest {
    Sha1,
    Sha256,
    Sha512,
}

const ALL: [Digest; 3] = [Digest::Sha1, Digest::Sha256, Digest::Sha512];

impl Digest {
    fn name(self) -> &'static str {
        match self {
            Digest::Sha1 => "sha1",
            Digest::Sha256 => "sha256",
            Digest::Sha512 => "sha512",
        }
    }

    fn by_name(name: &str) -> Option<Digest> {
        ALL.into_iter().find(|digest| digest.name() == name)
    }

    fn by_hex_length(length: usize) -> Option<Digest> {
        match length {
            40 => Some(Digest::Sha1),
            64 => Some(Digest::Sha256),
            128 => Some(Digest::Sha512),
            _ => None,
        }
    }

    pub(crate) fn mac(self, key: &[u8], message: &[u8]) -> Option<Vec<u8>> {
        match self {
            Digest::Sha1 => mac::<Hmac<Sha1>>(key, message),
            Digest::Sha256 => mac::<Hmac<Sha256>>(key, message),
            Digest::Sha512 => mac::<Hmac<Sha512>>(key, message),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], message: &[u8]) -> Option<Vec<u8>> {
    let mut mac = <M as KeyInit>::new_from_slice(key).ok()?;
    mac.update(message);
    Some(mac.finalize().into_bytes().to_vec())
}

/// A client's signature, with its digest algorithm.
pub(crate) struct Signature {
    digest: Digest,
    mac: Vec<u8>,
}

impl Signature {
    /// Parses `DIGEST:BASE64` in either alphabet, padded or not; or lower-case hex, whose length
    /// determines the digest.
    pub(crate) fn parse(text: &str) -> Option<Signature> {
        match text.split_once(':') {
            Some((name, encoded)) => Some(Signature {
                digest: Digest::by_name(name)?,
                mac: from_base64(encoded)?,
            }),
            None => Some(Signature {
                digest: Digest::by_hex_length(text.len())?,
                mac: from_hex(text)?,
            }),
        }
    }

    /// Is this the signature of a message with this key?
    pub(crate) fn signs(&self, key: &str, message: &[u8]) -> bool {
        self.digest
            .mac(key.as_bytes(), message)
            .is_some_and(|valid| valid.ct_eq(&self.mac).into())
    }

    pub(crate) fn to_hex(&self) -> String {
        hex::encode(&self.mac)
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(nibble(*high)? << 4 | nibble(*low)?),
            _ => None,
        })
        .collect()
}

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let url_safe = text.contains(['-', '_']) && !text.contains(['+', '/']);
    let text = if url_safe {
        text.replace('-', "+").replace('_', "/")
    } else {
        text.to_owned()
    };
    LENIENT.decode(text.trim_end_matches('=')).ok()
}

/// Digests allowed by the conf (`allowed_digests`, separated by blanks; all by default).
#[derive(Clone, Debug)]
pub(crate) struct AllowedDigests(Vec<Digest>);

impl AllowedDigests {
    pub(crate) fn read(section: &Section) -> Result<Self, FilterError> {
        const OPTION: &str = "allowed_digests";
        let named = section.str_or(OPTION, "").to_lowercase();
        let mut allowed = Vec::new();
        for name in named.split_whitespace() {
            match Digest::by_name(name) {
                Some(Digest::Sha1) => {
                    warn!("{OPTION}: sha1 is deprecated; clients should sign with sha256");
                    allowed.push(Digest::Sha1);
                }
                Some(digest) => allowed.push(digest),
                None => warn!("{OPTION}: {name} is not supported; sha1, sha256 and sha512 are"),
            }
        }
        if named.trim().is_empty() {
            allowed = ALL.to_vec();
        }
        if allowed.is_empty() {
            let remedy = "none of these is supported: sha1, sha256 and sha512 are";
            return Err(section.bad(OPTION, remedy).into());
        }
        allowed.sort_unstable();
        allowed.dedup();
        Ok(AllowedDigests(allowed))
    }

    pub(crate) fn allow(&self, signature: &Signature) -> bool {
        self.0.contains(&signature.digest)
    }

    /// Their description in `/info`.
    pub(crate) fn info(&self) -> Value {
        let names: Vec<&str> = self.0.iter().map(|digest| digest.name()).collect();
        let mut info = json!({ "allowed_digests": names });
        if self.0.contains(&Digest::Sha1) {
            info["deprecated_digests"] = json!(["sha1"]);
        }
        info
    }
}

/// Owner of a key, which limits what a signature made with it can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOwner {
    Account,
    Container,
}

/// The up to four keys `Temp-URL-Key[-2]` of an account and a container.
pub(crate) fn keys<'i>(
    account: &'i AccountInfo,
    container: &'i ContainerInfo,
) -> Vec<(&'i str, KeyOwner)> {
    let of = |meta: &'i BTreeMap<String, String>, owner| {
        ["temp-url-key", "temp-url-key-2"]
            .into_iter()
            .filter_map(|name| meta.get(name))
            .filter(|key| !key.is_empty())
            .map(move |key| (key.as_str(), owner))
    };
    of(&account.meta, KeyOwner::Account)
        .chain(of(&container.meta, KeyOwner::Container))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// From Python: hmac.new(b'key', b'message', digest).hexdigest()
    const SHA1: &str = "2088df74d5f2146b48146caf4965377e9d0be3a4";
    const SHA256: &str = "6e9ef29b75fffc5b7abae527d58fdadb2fe42e7219011976917343065f58ed4a";

    fn signs(text: &str) -> bool {
        Signature::parse(text).is_some_and(|s| s.signs("key", b"message"))
    }

    #[test]
    fn every_way_to_write_a_signature() {
        assert!(signs(SHA1) && signs(SHA256));
        let sha512 = hex::encode(Digest::Sha512.mac(b"key", b"message").unwrap());
        assert!(signs(&sha512));
        let bytes = from_hex(SHA256).unwrap();
        let standard = base64::engine::general_purpose::STANDARD.encode(&bytes);
        let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&bytes);
        assert!(signs(&format!("sha256:{standard}")));
        assert!(signs(&format!("sha256:{url_safe}")));
        for wrong in [
            "",
            "00",
            "sha256:",
            "md5:AAAA",
            "sha256:a b",
            &SHA256.to_uppercase(),
            &SHA256.replace('6', "7"),
            &SHA256[1..],
            &format!("sha512:{standard}"),
            &format!("sha256:{SHA256}"),
        ] {
            assert!(!signs(wrong), "{wrong}");
        }
    }

    #[test]
    fn digests_of_a_conf() {
        let read = |value: &str| {
            let section = Section::from_pairs("filter:tempurl", &[("allowed_digests", value)]);
            AllowedDigests::read(&section)
        };
        assert_eq!(
            read("").unwrap().info(),
            json!({"allowed_digests": ["sha1", "sha256", "sha512"], "deprecated_digests": ["sha1"]})
        );
        assert_eq!(
            read("SHA512 md4 sha256").unwrap().info(),
            json!({"allowed_digests": ["sha256", "sha512"]})
        );
        assert!(
            !read("sha512")
                .unwrap()
                .allow(&Signature::parse(SHA1).unwrap())
        );
        let error = read("md5").unwrap_err().to_string();
        assert!(error.contains("allowed_digests = \"md5\""), "{error}");
    }
}
