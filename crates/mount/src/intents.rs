//! Intents: a write-ahead record of a directory's rename in `.segments/intents/`, written before
//! the first object is copied and removed after the last deletion. An intent that is not refreshed
//! for a while belongs to a mount that is gone; another mount then completes it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::commit::{Committer, random_id};
use crate::store::{Expect, Headers, Result, Row, SEGMENTS, Store, insist};
use crate::time::Time;

/// Interval at which an intent is refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(20);
/// Time without a refresh after which an intent counts as broken.
pub(crate) const BROKEN_AFTER: Duration = Duration::from_secs(120);
const BODY_MAX_BYTES: u64 = 64 << 10;
/// Separator: a byte that paths do not contain.
const SEPARATOR: char = '\0';

/// A rename in progress. If dropped before it is done, it stays on the store.
pub(crate) struct Intent<S> {
    store: Arc<S>,
    name: String,
    refresh: JoinHandle<()>,
}

impl<S> Drop for Intent<S> {
    fn drop(&mut self) {
        self.refresh.abort();
    }
}

impl<S: Store> Intent<S> {
    /// Both names are in their final state. An intent that stays would be carried out once more, with
    /// what is made under the old name until then: if removing it fails, it is tried again until another
    /// mount would take it up.
    pub(crate) async fn done(self) {
        self.refresh.abort();
        let (store, name) = (self.store.clone(), self.name.clone());
        let removed = insist(|| store.delete(&name, Expect::Anything)).await;
        let Err(error) = removed else {
            return;
        };
        tracing::warn!(intent = self.name, %error, "an intent that was carried out stays for now");
        let (store, name) = (self.store.clone(), self.name.clone());
        tokio::spawn(async move {
            for _ in 0..BROKEN_AFTER.as_secs() / REFRESH_INTERVAL.as_secs() {
                tokio::time::sleep(REFRESH_INTERVAL).await;
                if store.delete(&name, Expect::Anything).await.is_ok() {
                    return;
                }
            }
            tracing::warn!(intent = name, "an intent that was carried out stays");
        });
    }
}

/// An interrupted rename.
pub(crate) struct BrokenIntent {
    pub(crate) name: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) begun: Time,
}

fn body(from: &str, to: &str, begun: Time) -> Bytes {
    format!("{from}{SEPARATOR}{to}{SEPARATOR}{begun}").into()
}

fn parse(body: &[u8]) -> Option<(String, String, Time)> {
    let text = std::str::from_utf8(body).ok()?;
    let mut fields = text.split(SEPARATOR);
    let (from, to, begun) = (fields.next()?, fields.next()?, fields.next()?);
    let is_whole = fields.next().is_none() && !from.is_empty() && !to.is_empty() && from != to;
    // Neither name may be inside the other.
    let is_inside = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    let is_sound = is_whole && !is_inside(to, from) && !from.starts_with(SEGMENTS);
    let begun = Time::parse(begun)?;
    is_sound.then(|| (from.to_owned(), to.to_owned(), begun))
}

impl<S: Store> Committer<S> {
    /// Writes the intent of a rename.
    pub(crate) async fn intend(&self, from: &str, to: &str) -> Result<Intent<S>> {
        let name = format!("{SEGMENTS}/intents/{}", random_id());
        // The store's time, to which the times of objects under the new name are compared.
        let begun = Time {
            seconds: self.store_time().await?,
            nanos: 0,
        };
        let (body, headers) = (body(from, to, begun), Headers::new("text/plain"));
        let put = self
            .store
            .put(&name, &headers, vec![body.clone()], Expect::Anything);
        put.await?;
        let (store, again) = (self.store.clone(), name.clone());
        let refresh = tokio::spawn(async move {
            loop {
                tokio::time::sleep(REFRESH_INTERVAL).await;
                let body = vec![body.clone()];
                if let Err(error) = store.put(&again, &headers, body, Expect::Anything).await {
                    tracing::debug!(%error, "an intent is not written again");
                }
            }
        });
        Ok(Intent {
            store: self.store.clone(),
            name,
            refresh,
        })
    }

    /// Renames whose intents were not refreshed for `after`.
    pub(crate) async fn broken_intents(&self, after: Duration) -> Result<Vec<BrokenIntent>> {
        let prefix = format!("{SEGMENTS}/intents/");
        let rows = self.store.list(&prefix, "", true, 0).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let now = self.store_time().await?;
        let mut broken = Vec::new();
        for row in rows {
            let Row::Object { name, .. } = row else {
                continue;
            };
            // The listing may be out of date: the object decides.
            let Ok(stat) = self.store.head_newest(&name).await else {
                continue;
            };
            if now - stat.changed.seconds < after.as_secs() as i64 || stat.bytes > BODY_MAX_BYTES {
                continue;
            }
            match parse(&self.small_object(&name, stat.bytes).await?) {
                Some((from, to, begun)) => broken.push(BrokenIntent {
                    name,
                    from,
                    to,
                    begun,
                }),
                None => tracing::warn!(intent = name, "it cannot be understood, and stays"),
            }
        }
        Ok(broken)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn an_intent_is_read_as_it_was_written(from in "[a-z][a-z/é\n ]{0,30}", to in "[A-Z\n ]{1,30}") {
            let begun = Time { seconds: 1_700_000_000, nanos: 0 };
            let read = parse(&body(&from, &to, begun)).unwrap();
            proptest::prop_assert_eq!(read, (from, to, begun));
        }

        #[test]
        fn any_bytes_are_read_or_not(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60)) {
            if let Some((from, to, _)) = parse(&bytes) {
                proptest::prop_assert!(!from.is_empty() && !to.is_empty());
            }
        }
    }

    #[test]
    fn a_directory_is_not_moved_into_itself() {
        let begun = Time::default();
        assert!(parse(&body("a", "a/b", begun)).is_none());
        assert!(parse(&body("a", "ab", begun)).is_some());
        assert!(parse(&body(".segments/x", "y", begun)).is_none());
    }
}
