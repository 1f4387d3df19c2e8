//! Relocation of one misplaced write, depending on the object's current state.

use cairn_http::{Response, respond};
use cairn_types::{PolicyIndex, Timestamp};
use http::header::{CONNECTION, DATE, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};
use tracing::{debug, warn};

use super::{ContainerReconciler, Entry, slightly_later};

const POLICY_HEADER: &str = "x-backend-storage-policy-index";
/// Headers of the response that are not the object's.
const RESPONSE_HEADERS: [HeaderName; 5] = [
    CONNECTION,
    DATE,
    TRANSFER_ENCODING,
    HeaderName::from_static("x-trans-id"),
    HeaderName::from_static("x-openstack-request-id"),
];

/// Outcome of an entry, with the name of Swift's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Too few container servers agree on a policy.
    UnavailableContainer,
    /// The write went to the container's policy.
    NoopObject,
    /// A policy's partitions are being doubled.
    PpiSkip,
    UnavailableDestination,
    UnavailableSource,
    /// Not found for longer than the reclaim age.
    LostSource,
    CopyFailed,
    DeleteFailed,
    /// Moved, but not removed from the old policy.
    CleanupFailed,
    CleanupSuccess,
}

impl Outcome {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Outcome::UnavailableContainer => "unavailable_container",
            Outcome::NoopObject => "noop_object",
            Outcome::PpiSkip => "ppi_skip",
            Outcome::UnavailableDestination => "unavailable_destination",
            Outcome::UnavailableSource => "unavailable_source",
            Outcome::LostSource => "lost_source",
            Outcome::CopyFailed => "copy_failed",
            Outcome::DeleteFailed => "delete_failed",
            Outcome::CleanupFailed => "cleanup_failed",
            Outcome::CleanupSuccess => "cleanup_success",
        }
    }

    /// Whether the entry can be dequeued.
    pub(super) const fn is_done(self) -> bool {
        matches!(
            self,
            Outcome::NoopObject | Outcome::LostSource | Outcome::CleanupSuccess
        )
    }
}

impl ContainerReconciler {
    pub(super) async fn reconcile(&self, entry: &Entry) -> Outcome {
        let container = self.container_policy(&entry.account, &entry.container);
        let Some(destination) = container.await else {
            return Outcome::UnavailableContainer;
        };
        if destination == entry.policy {
            return Outcome::NoopObject;
        }
        if !self.is_settled(entry.policy) || !self.is_settled(destination) {
            return Outcome::PpiSkip;
        }
        let path = entry.path();
        let client = &self.parts.client;
        let there = client
            .ask(Method::HEAD, &path, &of_policy(destination), &CLIENT_ERRORS)
            .await;
        let Ok((_, there)) = there else {
            return Outcome::UnavailableDestination;
        };
        if backend_time(&there) >= entry.time {
            self.count("found_object");
            return self.remove_misplaced(entry).await;
        }
        self.count("misplaced_object");
        let source = match client.open(&path, None, &of_policy(entry.policy)).await {
            Ok(source) => source,
            Err(error) => {
                debug!(%error, "a misplaced object cannot be read");
                return self.no_source(entry);
            }
        };
        if entry.is_delete && source.status() == StatusCode::NOT_FOUND {
            return self.delete(entry, destination).await;
        }
        if !source.status().is_success() || backend_time(source.headers()) < entry.time {
            return self.no_source(entry);
        }
        self.copy(entry, destination, source).await
    }

    /// Whether the policy's ring is loaded and its partitions are not being doubled.
    fn is_settled(&self, policy: PolicyIndex) -> bool {
        let ring = self.parts.rings.object(policy);
        ring.is_some_and(|ring| ring.ring().next_part_power().is_none())
    }

    fn no_source(&self, entry: &Entry) -> Outcome {
        let age = self.config.reclaim_age.as_secs_f64();
        if entry.time.as_f64() < self.parts.clock.now().as_f64() - age {
            return Outcome::LostSource;
        }
        // A version at least as new as the entry is not readable yet.
        Outcome::UnavailableSource
    }

    async fn copy(&self, entry: &Entry, destination: PolicyIndex, source: Response) -> Outcome {
        let (head, body) = source.into_parts();
        let newest = backend_time(&head.headers).max(entry.time);
        let mut headers = head.headers;
        for name in RESPONSE_HEADERS {
            headers.remove(name);
        }
        set(&mut headers, POLICY_HEADER, &destination.to_string());
        let time = slightly_later(newest, 3);
        set(&mut headers, "x-timestamp", &time.internal());
        self.count("copy_attempt");
        let path = entry.path();
        if let Err(error) = self.parts.client.upload(&path, headers, body).await {
            warn!(%error, "a misplaced object is not copied");
            return Outcome::CopyFailed;
        }
        self.count("copy_success");
        self.remove_misplaced(entry).await
    }

    async fn delete(&self, entry: &Entry, destination: PolicyIndex) -> Outcome {
        let time = slightly_later(entry.time, 3);
        self.count("delete_attempt");
        let fine = [StatusCode::NOT_FOUND];
        if !self.delete_at(entry, destination, time, &fine).await {
            return Outcome::DeleteFailed;
        }
        self.count("delete_success");
        self.remove_misplaced(entry).await
    }

    async fn remove_misplaced(&self, entry: &Entry) -> Outcome {
        let time = slightly_later(entry.time, 1);
        self.count("cleanup_attempt");
        let fine = [StatusCode::NOT_FOUND];
        match self.delete_at(entry, entry.policy, time, &fine).await {
            true => Outcome::CleanupSuccess,
            false => Outcome::CleanupFailed,
        }
    }

    async fn delete_at(
        &self,
        entry: &Entry,
        policy: PolicyIndex,
        time: Timestamp,
        fine: &[StatusCode],
    ) -> bool {
        let mut headers = of_policy(policy).to_vec();
        headers.push(("x-timestamp", time.internal()));
        let (client, path) = (&self.parts.client, entry.path());
        match client.ask(Method::DELETE, &path, &headers, fine).await {
            Ok(_) => true,
            Err(error) => {
                debug!(policy = policy.0, %error, "a misplaced object is not deleted");
                false
            }
        }
    }
}

/// Statuses for an object that does not exist; they carry its tombstone's timestamp.
const CLIENT_ERRORS: [StatusCode; 4] = [
    StatusCode::NOT_FOUND,
    StatusCode::GONE,
    StatusCode::CONFLICT,
    StatusCode::PRECONDITION_FAILED,
];

fn of_policy(policy: PolicyIndex) -> [(&'static str, String); 1] {
    [(POLICY_HEADER, policy.to_string())]
}

/// Timestamp of the object or its tombstone.
fn backend_time(headers: &HeaderMap) -> Timestamp {
    respond::header_timestamp(headers, "x-backend-timestamp").unwrap_or_default()
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}
