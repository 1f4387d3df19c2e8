//! Filter `keymaster`: root secrets from the conf, and keys derived from them, which the filters
//! behind it get with the request.
//!
//! The key of a path is its HMAC-SHA256 under a root secret, so keys are stored nowhere. There may
//! be several secrets: `encryption_root_secret` and `encryption_root_secret_ID`. New data is
//! encrypted with that of `active_root_secret_id`, and records the id; the others are for reading.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_formats::ini::{Conf, Section};
use cairn_http::{Handler, Request, Service, ServiceFuture};
use http::Method;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use tracing::warn;
use zeroize::Zeroizing;

use super::CryptoError;
use super::keys::{Key, KeySource, hmac_sha256};
use crate::names::Names;
use crate::{FilterEnv, FilterError};

const SECRET_PREFIX: &str = "encryption_root_secret";
const ACTIVE: &str = "active_root_secret_id";
const CONFIG_PATH: &str = "keymaster_config_path";
const SECRET_BYTES_MIN: usize = 32;

/// The root secrets by id. No `Debug` implementation: they must not be printed.
pub(crate) struct Secrets {
    by_id: BTreeMap<Option<String>, Zeroizing<Vec<u8>>>,
    /// Id of the secret for new data.
    pub(super) active: Option<String>,
    /// Version of key ids for new data.
    pub(super) version_to_write: String,
}

impl Secrets {
    pub(super) fn key(&self, id: &Option<String>, path: &str) -> Result<Key, CryptoError> {
        let secret = self.by_id.get(id);
        let secret = secret.ok_or_else(|| CryptoError::UnknownSecret(id.clone()))?;
        Ok(Key::new(hmac_sha256(secret, path.as_bytes())))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = Option<String>> + '_ {
        self.by_id.keys().cloned()
    }

    fn read(section: &Section) -> Result<Self, FilterError> {
        let mut by_id = BTreeMap::new();
        for (option, value) in section.iter() {
            let Some(rest) = option.strip_prefix(SECRET_PREFIX) else {
                continue;
            };
            let id = match rest.strip_prefix('_').filter(|id| !id.is_empty()) {
                Some(id) => Some(id.to_owned()),
                None if rest.is_empty() => None,
                None => {
                    return Err(FilterError::Setting(format!(
                        "{}: {option} is no option of keymaster: {SECRET_PREFIX}_ID",
                        section.file()
                    )));
                }
            };
            by_id.insert(id, decoded(section, option, value)?);
        }
        let active = section.get(ACTIVE).filter(|id| !id.is_empty());
        let active = active.map(str::to_owned);
        if !by_id.contains_key(&active) {
            let option = match &active {
                Some(id) => format!("{SECRET_PREFIX}_{id}"),
                None => SECRET_PREFIX.to_owned(),
            };
            return Err(FilterError::Setting(format!(
                "{}: [{}] {option} is missing, with which objects are to be encrypted: make one \
                 by `openssl rand -base64 32`, keep it for as long as the objects, and see \
                 {ACTIVE}",
                section.file(),
                section.name()
            )));
        }
        let version = section.str_or("meta_version_to_write", "2");
        if !["1", "2", "3"].contains(&version) {
            return Err(section
                .bad("meta_version_to_write", "must be 1, 2 or 3")
                .into());
        }
        Ok(Secrets {
            by_id,
            active,
            version_to_write: version.to_owned(),
        })
    }
}

/// Decodes a secret of the conf. Errors do not contain its value.
fn decoded(
    section: &Section,
    option: &str,
    value: &str,
) -> Result<Zeroizing<Vec<u8>>, FilterError> {
    let text: Zeroizing<String> = Zeroizing::new(value.replace(['\r', '\n'], ""));
    match STANDARD.decode(text.as_bytes()) {
        Ok(secret) if secret.len() >= SECRET_BYTES_MIN => Ok(Zeroizing::new(secret)),
        _ => Err(FilterError::Setting(format!(
            "{}: [{}] {option} must be at least {SECRET_BYTES_MIN} bytes in base64, as \
             `openssl rand -base64 32` makes them",
            section.file(),
            section.name()
        ))),
    }
}

struct Keymaster {
    next: Handler,
    secrets: Arc<Secrets>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    _: &FilterEnv,
) -> Result<Handler, FilterError> {
    let (secrets, file) = match section.get(CONFIG_PATH).filter(|path| !path.is_empty()) {
        None => (Secrets::read(section)?, section.file().to_owned()),
        Some(path) => (Secrets::read(&own_file(section, path)?)?, path.to_owned()),
    };
    warn_if_readable(&file);
    Ok(Arc::new(Keymaster {
        next,
        secrets: Arc::new(secrets),
    }))
}

/// The section of a separate keymaster conf.
fn own_file(section: &Section, path: &str) -> Result<Section, FilterError> {
    let is_own = |option: &str| option.starts_with(SECRET_PREFIX) || option == ACTIVE;
    let beside: Vec<&str> = section.iter().map(|(option, _)| option).collect();
    if let Some(option) = beside.into_iter().find(|option| is_own(option)) {
        return Err(FilterError::Setting(format!(
            "{}: {CONFIG_PATH} is set, and {option} too: secrets are read from one of them",
            section.file()
        )));
    }
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|error| {
        let remedy = format!("cannot be read: {error}");
        section.bad(CONFIG_PATH, remedy)
    })?;
    Ok(Conf::parse(path, &text)?.section("keymaster")?)
}

/// Warns if others can read the file: with a root secret and a disk, every object can be read.
fn warn_if_readable(file: &str) {
    let Ok(metadata) = std::fs::metadata(Path::new(file)) else {
        return;
    };
    if metadata.permissions().mode() & 0o004 != 0 {
        warn!(
            file,
            "this file has root secrets of encryption and every user of this host may read it: \
             chmod o-r"
        );
    }
}

impl Service for Keymaster {
    fn call<'a>(&'a self, mut request: Request) -> ServiceFuture<'a> {
        let method = request.method();
        let has_condition = || {
            [IF_MATCH, IF_NONE_MATCH]
                .iter()
                .any(|name| request.headers().contains_key(name))
        };
        let needs_keys = [Method::GET, Method::HEAD, Method::PUT, Method::POST].contains(method)
            || (*method == Method::DELETE && has_condition());
        if needs_keys && let Some(names) = Names::of(request.uri().path()) {
            let extensions = request.extensions_mut();
            let source = KeySource::new(
                self.secrets.clone(),
                names.account,
                names.container,
                names.object,
                extensions.remove::<KeySource>(),
            );
            extensions.insert(source);
        }
        self.next.call(request)
    }
}

pub(crate) fn make_kmip(_: &Section, _: Handler, _: &FilterEnv) -> Result<Handler, FilterError> {
    Err(instead(
        "kmip_keymaster",
        "a root secret from a KMIP server",
        "your KMIP client",
    ))
}

pub(crate) fn make_kms(_: &Section, _: Handler, _: &FilterEnv) -> Result<Handler, FilterError> {
    Err(instead(
        "kms_keymaster",
        "a root secret from Barbican",
        "`openstack secret get --payload HREF`",
    ))
}

fn instead(name: &str, what: &str, how: &str) -> FilterError {
    FilterError::Setting(format!(
        "the filter {name:?}, which fetches {what}, is not built. Use keymaster instead: before the \
         proxy starts, have the secret fetched by {how} and written, in base64, as \
         encryption_root_secret into a file of [keymaster] that only the proxy's user may read \
         (on a tmpfs, where it shall not be on a disk), and name that in {CONFIG_PATH}. The \
         objects stay readable: keys are derived in the same way"
    ))
}
