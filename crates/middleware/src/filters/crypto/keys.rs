//! Keys and their ids, and how a filter behind the keymaster gets them.

use std::fmt;
use std::sync::Arc;

use cairn_formats::crypto_meta::KeyId;
use hmac::{Hmac, KeyInit, Mac};
use http::request::Parts;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::CryptoError;
use super::keymaster::Secrets;

pub(crate) const KEY_BYTES: usize = 32;

/// Secret bytes: erased when dropped, never printed.
#[derive(Clone)]
pub(crate) struct Key(Zeroizing<[u8; KEY_BYTES]>);

impl Key {
    pub(crate) fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Key(Zeroizing::new(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// HMAC-SHA256 of a text under this key.
    pub(crate) fn mac(&self, text: &[u8]) -> [u8; KEY_BYTES] {
        hmac_sha256(&self.0[..], text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

pub(super) fn hmac_sha256(key: &[u8], text: &[u8]) -> [u8; KEY_BYTES] {
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return [0; KEY_BYTES];
    };
    mac.update(text);
    mac.finalize().into_bytes().into()
}

/// The keys of one path.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) container: Option<Key>,
    pub(crate) object: Option<Key>,
    pub(crate) id: KeyId,
    /// Key ids under each root secret: which one encrypted something is known only after reading
    /// it.
    pub(crate) all_ids: Vec<KeyId>,
}

impl Keys {
    pub(crate) fn object(&self) -> Result<&Key, CryptoError> {
        let missing = || CryptoError::BadKeyId("no key of an object".into());
        self.object.as_ref().ok_or_else(missing)
    }

    pub(crate) fn container(&self) -> Result<&Key, CryptoError> {
        let missing = || CryptoError::BadKeyId("no key of a container".into());
        self.container.as_ref().ok_or_else(missing)
    }
}

/// Source of keys in a request's extensions, for the entities that the request names.
#[derive(Clone)]
pub(crate) struct KeySource {
    secrets: Arc<Secrets>,
    account: String,
    container: Option<String>,
    object: Option<String>,
    /// Source of a keymaster further out, which knows root secrets that this one does not.
    alternate: Option<Arc<KeySource>>,
}

impl KeySource {
    pub(super) fn new(
        secrets: Arc<Secrets>,
        account: String,
        container: Option<String>,
        object: Option<String>,
        alternate: Option<KeySource>,
    ) -> Self {
        KeySource {
            secrets,
            account,
            container,
            object,
            alternate: alternate.map(Arc::new),
        }
    }

    pub(crate) fn of(parts: &Parts) -> Result<&KeySource, CryptoError> {
        let source = parts.extensions.get::<KeySource>();
        source.ok_or(CryptoError::NoKeymaster)
    }

    /// The keys for encrypting.
    pub(crate) fn active(&self) -> Result<Keys, CryptoError> {
        self.keys(None)
    }

    /// The same, with an id whose path is authenticated.
    pub(crate) fn active_bound(&self) -> Result<Keys, CryptoError> {
        self.own(None, Some("3"))
    }

    /// The path of the request's object, for ids of version 3.
    pub(crate) fn path(&self) -> String {
        let part = |part: &Option<String>| part.as_deref().map(|p| format!("/{p}"));
        let container = part(&self.container).unwrap_or_default();
        let object = part(&self.object).unwrap_or_default();
        format!("/{}{container}{object}", self.account)
    }

    /// The keys that an id names; without one, those for encrypting.
    pub(crate) fn keys(&self, id: Option<&KeyId>) -> Result<Keys, CryptoError> {
        match self.own(id, None) {
            Err(CryptoError::UnknownSecret(unknown)) => match &self.alternate {
                Some(alternate) => alternate.keys(id),
                None => Err(CryptoError::UnknownSecret(unknown)),
            },
            result => result,
        }
    }

    /// The keys under all root secrets, the active one's first.
    pub(crate) fn every(&self) -> Result<Vec<Keys>, CryptoError> {
        let active = self.active()?;
        let others = active.all_ids.iter().filter(|id| **id != active.id);
        let others: Vec<Keys> = others
            .map(|id| self.keys(Some(id)))
            .collect::<Result<_, _>>()?;
        Ok([vec![active], others].concat())
    }

    fn own(&self, id: Option<&KeyId>, version: Option<&str>) -> Result<Keys, CryptoError> {
        let (names, version, secret_id) = match id {
            Some(id) => (self.names_of(id)?, id.version.clone(), id.secret_id.clone()),
            None => (
                Names {
                    account: self.account.clone(),
                    container: self.container.clone(),
                    object: self.object.clone(),
                },
                version.unwrap_or(&self.secrets.version_to_write).to_owned(),
                self.secrets.active.clone(),
            ),
        };
        let mut path = format!("/{}", names.account);
        let (mut container, mut object) = (None, None);
        if self.container.is_some() {
            path = format!("{path}/{}", names.container.unwrap_or_default());
            container = Some(self.secrets.key(&secret_id, &path)?);
            if self.object.is_some() {
                let name = names.object.unwrap_or_default();
                path = match name.starts_with('/') && version == "1" {
                    true => name,
                    false => format!("{path}/{name}"),
                };
                object = Some(self.secrets.key(&secret_id, &path)?);
            }
        }
        let id = |secret_id: Option<String>| KeyId {
            version: version.clone(),
            path: match version.as_str() {
                "1" | "2" => as_latin1(&path),
                _ => path.clone(),
            },
            secret_id,
        };
        let mut all_ids: Vec<KeyId> = self.secrets.ids().map(&id).collect();
        if let Some(alternate) = &self.alternate {
            all_ids.extend(alternate.active()?.all_ids);
        }
        Ok(Keys {
            container,
            object,
            id: id(secret_id),
            all_ids,
        })
    }

    /// The names in an id's path. Older versions of ids contain known faults.
    fn names_of(&self, id: &KeyId) -> Result<Names, CryptoError> {
        let version = id.version.as_str();
        if !["1", "2", "3"].contains(&version) {
            return Err(CryptoError::BadKeyId(format!("version {version:?}")));
        }
        if version == "1" && !id.path.starts_with(&format!("/{}/", self.account)) {
            // For an object name beginning with a slash, the path was that name alone.
            return Ok(self.as_read(Names {
                account: self.account.clone(),
                container: self.container.clone(),
                object: Some(id.path.clone()),
            }));
        }
        let names = Names::of(&id.path);
        let names = names.ok_or_else(|| CryptoError::BadKeyId(format!("path {:?}", id.path)))?;
        Ok(match version {
            "3" => names,
            _ => self.as_read(names),
        })
    }

    /// Versions 1 and 2 may contain UTF-8 bytes written as Latin-1 characters.
    fn as_read(&self, names: Names) -> Names {
        let expected = Names {
            account: self.account.clone(),
            container: self.container.clone().or_else(|| names.container.clone()),
            object: self.object.clone().or_else(|| names.object.clone()),
        };
        if names == expected {
            return names;
        }
        match names.read_from_latin1() {
            Some(other)
                if other == expected
                    || (self.object.is_none()
                        && other.account == expected.account
                        && other.container == expected.container) =>
            {
                other
            }
            _ => names,
        }
    }
}

#[derive(PartialEq)]
struct Names {
    account: String,
    container: Option<String>,
    object: Option<String>,
}

impl Names {
    /// Splits `/account[/container[/object]]`.
    fn of(path: &str) -> Option<Names> {
        let mut parts = path.strip_prefix('/')?.splitn(3, '/');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let names = Names {
            account: next()?.to_owned(),
            container: next().map(str::to_owned),
            object: next().map(str::to_owned),
        };
        Some(names)
    }

    fn read_from_latin1(&self) -> Option<Names> {
        let part = |part: &Option<String>| match part {
            Some(part) => from_latin1(part).map(Some),
            None => Some(None),
        };
        Some(Names {
            account: from_latin1(&self.account)?,
            container: part(&self.container)?,
            object: part(&self.object)?,
        })
    }
}

/// Each UTF-8 byte as a character.
fn as_latin1(text: &str) -> String {
    text.bytes().map(char::from).collect()
}

/// The text whose bytes these characters are, if they are bytes.
fn from_latin1(text: &str) -> Option<String> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
    String::from_utf8(bytes?).ok()
}
