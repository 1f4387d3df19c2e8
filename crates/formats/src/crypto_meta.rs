//! Crypto metadata: the parameters by which a value or a body was encrypted, as JSON with sorted
//! keys in form encoding, so that it fits into a header. It is a header of its own, or follows an
//! encrypted value: `<base64>; swift_meta=<crypto metadata>`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use thiserror::Error;

const IV_BYTES: usize = 16;

/// The IV of a counter-mode cipher.
pub type Iv = [u8; IV_BYTES];

/// Reasons why crypto metadata is invalid.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("bad crypto metadata: {0}")]
pub struct BadMeta(pub String);

fn bad(what: impl Into<String>) -> BadMeta {
    BadMeta(what.into())
}

/// Identifier of an encryption key, stored with the data that it encrypts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyId {
    /// Version of the path's encoding: 1, 2 or 3.
    pub version: String,
    pub path: String,
    pub secret_id: Option<String>,
}

/// AES-256 in counter mode.
pub const CTR: &str = "AES_CTR_256";

/// AES-256 in Galois/counter mode, for a value in one piece. An extension of Cairn's, unknown to
/// Swift.
pub const GCM: &str = "AES_256_GCM";

/// AES-256 in Galois/counter mode, for content in segments; also an extension.
pub const GCM_SEGMENTS: &str = "AES_256_GCM_SEGMENTS";

/// Maximum bytes of crypto metadata; longer texts are refused.
const META_BYTES_MAX: usize = 64 << 10;

/// A key encrypted by another key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    pub key: Vec<u8>,
    pub iv: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CryptoMeta {
    pub cipher: Option<String>,
    pub iv: Option<Vec<u8>>,
    pub body_key: Option<WrappedKey>,
    pub key_id: Option<KeyId>,
}

impl CryptoMeta {
    pub fn ctr(iv: &Iv) -> Self {
        CryptoMeta {
            cipher: Some(CTR.to_owned()),
            iv: Some(iv.to_vec()),
            ..CryptoMeta::default()
        }
    }

    /// Encodes for a header.
    pub fn dump(&self) -> String {
        let base64 = |bytes: &[u8]| json_text(&STANDARD.encode(bytes));
        let mut items = Vec::new();
        if let Some(wrapped) = &self.body_key {
            let (iv, key) = (base64(&wrapped.iv), base64(&wrapped.key));
            items.push(format!("\"body_key\": {{\"iv\": {iv}, \"key\": {key}}}"));
        }
        if let Some(cipher) = &self.cipher {
            items.push(format!("\"cipher\": {}", json_text(cipher)));
        }
        if let Some(iv) = &self.iv {
            items.push(format!("\"iv\": {}", base64(iv)));
        }
        if let Some(id) = &self.key_id {
            let secret = id.secret_id.as_ref();
            let secret = secret.map(|id| format!("\"secret_id\": {}, ", json_text(id)));
            items.push(format!(
                "\"key_id\": {{\"path\": {}, {}\"v\": {}}}",
                json_text(&id.path),
                secret.unwrap_or_default(),
                json_text(&id.version)
            ));
        }
        form_encoded(&format!("{{{}}}", items.join(", ")))
    }

    /// Parses a header, or the part of a value after `swift_meta=`.
    ///
    /// # Errors
    /// Text that is too long, not UTF-8 or no JSON object, and fields of the wrong type or not in
    /// base64, or a `body_key` without key or IV.
    pub fn load(text: &str) -> Result<Self, BadMeta> {
        if text.len() > META_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let json = form_decoded(text).ok_or_else(|| bad("it is not UTF-8"))?;
        let map: Map<String, Value> =
            serde_json::from_str(&json).map_err(|_| bad("it is no JSON"))?;
        let body_key = match map.get("body_key") {
            None => None,
            Some(Value::Object(wrapped)) => Some(WrappedKey {
                key: bytes(wrapped, "key")?.ok_or_else(|| bad("body_key has no key"))?,
                iv: bytes(wrapped, "iv")?.ok_or_else(|| bad("body_key has no iv"))?,
            }),
            Some(_) => return Err(bad("body_key")),
        };
        let key_id = match map.get("key_id") {
            None => None,
            Some(Value::Object(id)) => Some(KeyId {
                version: text_of(id, "v")?.unwrap_or_default(),
                path: text_of(id, "path")?.unwrap_or_default(),
                secret_id: text_of(id, "secret_id")?,
            }),
            Some(_) => return Err(bad("key_id")),
        };
        Ok(CryptoMeta {
            cipher: text_of(&map, "cipher")?,
            iv: bytes(&map, "iv")?,
            body_key,
            key_id,
        })
    }

    /// The IV of data encrypted in counter mode.
    ///
    /// # Errors
    /// Another cipher or none, and an IV that is absent or of the wrong length.
    pub fn ctr_iv(&self) -> Result<Iv, BadMeta> {
        if self.cipher.as_deref() != Some(CTR) {
            let cipher = self.cipher.as_deref().unwrap_or("none");
            return Err(bad(format!("the cipher must be {CTR}, not {cipher}")));
        }
        self.iv
            .as_deref()
            .map_or_else(|| Err(bad("iv is missing")), ctr_iv)
    }
}

/// Bytes as an IV.
///
/// # Errors
/// Bytes of any other length than an IV's.
pub fn ctr_iv(iv: &[u8]) -> Result<Iv, BadMeta> {
    let wrong = |_| bad(format!("iv must have {IV_BYTES} bytes"));
    iv.try_into().map_err(wrong)
}

fn text_of(map: &Map<String, Value>, name: &str) -> Result<Option<String>, BadMeta> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(bad(name)),
    }
}

fn bytes(map: &Map<String, Value>, name: &str) -> Result<Option<Vec<u8>>, BadMeta> {
    let Some(text) = text_of(map, name)? else {
        return Ok(None);
    };
    let bytes = STANDARD.decode(text);
    bytes.map(Some).map_err(|_| bad(name))
}

/// Appends the crypto metadata to a value: `value; swift_meta=…`.
pub fn append(value: &str, meta: &CryptoMeta) -> String {
    format!("{value}; swift_meta={}", meta.dump())
}

/// Splits a stored value into the value itself and its crypto metadata, if it has any.
///
/// # Errors
/// Crypto metadata that [`CryptoMeta::load`] refuses.
pub fn extract(value: &str) -> Result<(&str, Option<CryptoMeta>), BadMeta> {
    let Some((first, rest)) = value.split_once(';') else {
        return Ok((value, None));
    };
    let parameters = rest.split(';').filter_map(|item| item.split_once('='));
    let mut named = parameters.filter(|(name, _)| name.trim() == "swift_meta");
    match named.next_back() {
        Some((_, meta)) => Ok((first, Some(CryptoMeta::load(meta.trim())?))),
        None => Ok((first, None)),
    }
}

/// A JSON string in ASCII, as Python writes it.
fn json_text(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            ' '..='~' => json.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    json.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    json.push('"');
    json
}

/// `application/x-www-form-urlencoded`, like Python's `quote_plus`.
fn form_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn form_decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sample_of_swifts() {
        let text = "%7B%22body_key%22%3A+%7B%22iv%22%3A+%22PsiLnlzn%2FNL8rlWWpzT5Zg%3D%3D%22%2C+\
            %22key%22%3A+%22H6h5kqWaq9OPDDRNmACqBWtKKl79%2BGWqsI%2BKZzAOjMA%3D%22%7D%2C+%22cipher\
            %22%3A+%22AES_CTR_256%22%2C+%22iv%22%3A+%22JJjq6kE20Jlg0nPcrxWfvg%3D%3D%22%2C+%22key_id\
            %22%3A+%7B%22path%22%3A+%22%2FAUTH_test%2Fgolden-h-enc%2Fplain%22%2C+%22secret_id%22%3A\
            +%222026%22%2C+%22v%22%3A+%222%22%7D%7D";
        let meta = CryptoMeta::load(text).unwrap();
        assert_eq!(meta.dump(), text);
        let id = meta.key_id.as_ref().unwrap();
        assert_eq!(id.path, "/AUTH_test/golden-h-enc/plain");
        assert_eq!(id.secret_id.as_deref(), Some("2026"));
        assert_eq!(meta.ctr_iv().unwrap()[0], 0x24);
        let appended = append("dGV4dA==", &meta);
        assert_eq!(extract(&appended).unwrap(), ("dGV4dA==", Some(meta)));
    }

    #[test]
    fn what_is_no_metadata() {
        for text in [
            "",
            "1",
            "[]",
            "{",
            "%7B%22iv%22%3A+1%7D",
            "%ff",
            "{\"iv\": \"=\"}",
        ] {
            assert!(CryptoMeta::load(text).is_err(), "{text}");
        }
        assert_eq!(extract("a; slo_etag=b").unwrap(), ("a", None));
        assert_eq!(extract("a").unwrap(), ("a", None));
        assert!(CryptoMeta::load("{}").unwrap().ctr_iv().is_err());
        assert!(
            CryptoMeta::load("{\"cipher\": \"AES_CTR_256\", \"iv\": \"AAAA\"}")
                .unwrap()
                .ctr_iv()
                .is_err()
        );
    }

    fn text() -> impl Strategy<Value = String> {
        "\\PC{0,20}".prop_union("[\\x00-\\xff\u{1f600}\"\\\\]{0,20}")
    }

    proptest! {
        #[test]
        fn read_as_written(
            path in text(), secret in prop::option::of(text()), version in text(),
            iv in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        ) {
            let meta = CryptoMeta {
                cipher: Some(CTR.into()),
                iv,
                body_key: key.map(|key| WrappedKey { iv: key.clone(), key }),
                key_id: Some(KeyId { version, path, secret_id: secret }),
            };
            prop_assert_eq!(CryptoMeta::load(&meta.dump()), Ok(meta.clone()));
            let appended = append("dg==", &meta);
            prop_assert_eq!(extract(&appended), Ok(("dg==", Some(meta))));
        }

        #[test]
        fn never_panics(text in text()) {
            let _ = CryptoMeta::load(&text);
            let _ = extract(&text);
        }
    }
}
