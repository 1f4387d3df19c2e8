//! Re-keying: wraps the keys of every object in accounts or containers under the active root
//! secret, and counts those that need other secrets.
//!
//! The filter `encryption` does the work (`middleware/crypto/rekey.rs`): this walks, page by page,
//! with several objects concurrently, and reports its position after each page, from which a later
//! run can resume. Re-keying twice is harmless.

use std::collections::BTreeMap;

use cairn_formats::crypto_meta::{self, CryptoMeta};
use cairn_http::rekey::{Reason, Rekey, Rekeyed, SecretId};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};

use crate::internal_client::{InternalClient, InternalClientError};

/// Prefix of the container that holds older versions of a container's objects.
const VERSIONS_PREFIX: &str = "\0versions\0";

/// An account, or one container of it with its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub account: String,
    pub container: Option<String>,
}

impl Target {
    /// Parses `ACCOUNT` or `ACCOUNT/CONTAINER`.
    pub fn parse(text: &str) -> Option<Target> {
        let (account, container) = match text.split_once('/') {
            None => (text, None),
            Some((account, container)) => (account, Some(container)),
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains('/');
        (is_name(account) && container.is_none_or(is_name)).then(|| Target {
            account: account.to_owned(),
            container: container.map(str::to_owned),
        })
    }
}

/// Position of a walk: the target, and the last object processed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub target: usize,
    pub container: String,
    pub object: String,
}

/// Counts of objects found and re-keyed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub not_encrypted: u64,
    /// Already under the active root secret.
    pub active: u64,
    pub rekeyed: u64,
    /// Listed, but gone.
    pub gone: u64,
    /// Requests failed.
    pub failed: u64,
    pub remaining: BTreeMap<(SecretId, Reason), u64>,
    /// Listing rows whose ETag cannot be read without this secret.
    pub rows: BTreeMap<SecretId, u64>,
}

const REASONS: [(Reason, &str); 3] = [
    (Reason::NotYet, "not yet"),
    (Reason::SwiftsFormat, "swift's format"),
    (Reason::NotConfigured, "not configured"),
];

impl Tally {
    pub fn objects(&self) -> u64 {
        let remaining: u64 = self.remaining.values().sum();
        self.not_encrypted + self.active + self.rekeyed + self.gone + self.failed + remaining
    }

    /// Whether no other root secret is needed, as far as could be determined.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.remaining.is_empty() && self.rows.is_empty()
    }

    fn add(&mut self, outcome: Result<Rekeyed, InternalClientError>) {
        match outcome {
            Ok(Rekeyed::Gone) => self.gone += 1,
            Ok(Rekeyed::NotEncrypted) => self.not_encrypted += 1,
            Ok(Rekeyed::Active) => self.active += 1,
            Ok(Rekeyed::Done) => self.rekeyed += 1,
            Ok(Rekeyed::Remains(id, reason)) => {
                *self.remaining.entry((id, reason)).or_default() += 1;
            }
            Ok(Rekeyed::Container { .. }) | Err(_) => self.failed += 1,
        }
    }

    /// Serialised for resumption.
    pub fn to_json(&self) -> Value {
        let remaining = self.remaining.iter().map(|((id, reason), count)| {
            let reason = REASONS.iter().find(|(known, _)| known == reason);
            json!([id, reason.map(|(_, name)| name), count])
        });
        let rows = self.rows.iter().map(|(id, count)| json!([id, count]));
        json!({
            "not_encrypted": self.not_encrypted,
            "active": self.active,
            "rekeyed": self.rekeyed,
            "gone": self.gone,
            "failed": self.failed,
            "remaining": remaining.collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    pub fn from_json(value: &Value) -> Option<Tally> {
        let number = |name: &str| value.get(name)?.as_u64();
        let id = |value: &Value| match value {
            Value::Null => Some(None),
            value => Some(Some(value.as_str()?.to_owned())),
        };
        let mut tally = Tally {
            not_encrypted: number("not_encrypted")?,
            active: number("active")?,
            rekeyed: number("rekeyed")?,
            gone: number("gone")?,
            failed: number("failed")?,
            ..Tally::default()
        };
        for entry in value.get("remaining")?.as_array()? {
            let name = entry.get(1)?.as_str()?;
            let (reason, _) = REASONS.iter().find(|(_, known)| *known == name)?;
            let key = (id(entry.get(0)?)?, *reason);
            tally.remaining.insert(key, entry.get(2)?.as_u64()?);
        }
        for entry in value.get("rows")?.as_array()? {
            let key = id(entry.get(0)?)?;
            tally.rows.insert(key, entry.get(1)?.as_u64()?);
        }
        Some(tally)
    }
}

/// Observer of a walk.
pub trait Watch {
    /// Called after each page.
    ///
    /// # Errors
    /// The observer's, such as of a file that it writes. It ends the walk.
    fn page(&mut self, place: &Position, tally: &Tally) -> std::io::Result<()>;
    /// Called when a request about an object or a container fails.
    fn failed(&mut self, error: &InternalClientError);
}

/// Reasons for ending a walk early.
#[derive(Debug, thiserror::Error)]
pub enum RekeyError {
    #[error(transparent)]
    Listing(#[from] InternalClientError),
    #[error("how far it is cannot be noted: {0}")]
    Noting(#[from] std::io::Error),
}

/// The walk.
pub struct Rekeying {
    /// Client without filters: listings as stored.
    pub stored: InternalClient,
    /// The same behind the filters `keymaster` and `encryption`.
    pub filters: InternalClient,
    /// Maximum concurrent objects.
    pub workers: usize,
    pub is_dry_run: bool,
}

/// Secrets with which a container's rows can be read.
struct Rows {
    readable: Vec<SecretId>,
}

impl Rekeying {
    /// Walks all targets, starting at `place`.
    ///
    /// # Errors
    /// `Listing` for a failed listing, `Noting` for an error of `watch`. A failed object only
    /// counts.
    pub async fn run(
        &self,
        targets: &[Target],
        mut place: Position,
        tally: &mut Tally,
        watch: &mut impl Watch,
    ) -> Result<(), RekeyError> {
        while let Some(target) = targets.get(place.target) {
            if !place.container.is_empty() {
                self.container(&target.account, &mut place, tally, watch)
                    .await?;
            }
            loop {
                let names = self.containers(target, &place.container).await?;
                if names.is_empty() {
                    break;
                }
                for name in names {
                    place.container = name;
                    place.object.clear();
                    self.container(&target.account, &mut place, tally, watch)
                        .await?;
                }
            }
            place = Position {
                target: place.target + 1,
                ..Position::default()
            };
        }
        Ok(())
    }

    /// A page of containers after a name.
    async fn containers(
        &self,
        target: &Target,
        after: &str,
    ) -> Result<Vec<String>, InternalClientError> {
        if let Some(container) = &target.container {
            let versions = format!("{VERSIONS_PREFIX}{container}");
            return Ok(match after {
                "" => vec![container.clone(), versions],
                _ if after == container => vec![versions],
                _ => Vec::new(),
            });
        }
        let path = format!("/v1/{}", target.account);
        let page = self
            .stored
            .page(&path, after, &[StatusCode::NOT_FOUND])
            .await?;
        Ok(page.iter().filter_map(|row| text_of(row, "name")).collect())
    }

    async fn container(
        &self,
        account: &str,
        place: &mut Position,
        tally: &mut Tally,
        watch: &mut impl Watch,
    ) -> Result<(), RekeyError> {
        let path = format!("/v1/{account}/{}", place.container);
        let mut rows: Option<Rows> = None;
        loop {
            let also = [StatusCode::NOT_FOUND];
            let page = self.stored.page(&path, &place.object, &also).await?;
            let Some(last) = page.iter().rev().find_map(|row| text_of(row, "name")) else {
                return Ok(());
            };
            self.look_at_rows(&path, &page, &mut rows, tally, watch)
                .await;
            let names = page.iter().filter_map(|row| text_of(row, "name"));
            let outcomes = names.map(|name| {
                let path = format!("{path}/{name}");
                async move { self.order(&path).await }
            });
            let mut outcomes = stream::iter(outcomes).buffer_unordered(self.workers.max(1));
            while let Some(outcome) = outcomes.next().await {
                if let Err(error) = &outcome {
                    watch.failed(error);
                }
                tally.add(outcome);
            }
            place.object = last;
            watch.page(place, tally)?;
        }
    }

    /// Counts rows that need a secret to be removed. Before the objects: re-keying the container
    /// also informs proxies that its objects may have been re-keyed.
    async fn look_at_rows(
        &self,
        path: &str,
        page: &[Value],
        rows: &mut Option<Rows>,
        tally: &mut Tally,
        watch: &mut impl Watch,
    ) {
        for row in page {
            let Some(id) = text_of(row, "hash").as_deref().and_then(sealed_under) else {
                continue;
            };
            if rows.is_none() {
                let readable = match self.order(path).await {
                    Ok(Rekeyed::Container {
                        active, covered, ..
                    }) => [covered, vec![active]].concat(),
                    Ok(_) => Vec::new(),
                    Err(error) => {
                        watch.failed(&error);
                        tally.failed += 1;
                        Vec::new()
                    }
                };
                *rows = Some(Rows { readable });
            }
            if rows
                .as_ref()
                .is_some_and(|rows| !rows.readable.contains(&id))
            {
                *tally.rows.entry(id).or_default() += 1;
            }
        }
    }

    async fn order(&self, path: &str) -> Result<Rekeyed, InternalClientError> {
        let order = Rekey {
            is_dry_run: self.is_dry_run,
        };
        self.filters.rekey(path, order).await
    }
}

fn text_of(row: &Value, name: &str) -> Option<String> {
    row.get(name)?.as_str().map(str::to_owned)
}

/// The secret that sealed a row's ETag.
fn sealed_under(hash: &str) -> Option<SecretId> {
    let (_, meta) = crypto_meta::extract(hash).ok()?;
    let CryptoMeta { cipher, key_id, .. } = meta?;
    let is_sealed = cipher.as_deref() == Some(crypto_meta::GCM);
    key_id.filter(|_| is_sealed).map(|id| id.secret_id)
}

#[cfg(test)]
mod tests;
