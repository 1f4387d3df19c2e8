//! Deletion of many entities, a few at a time: objects first, then containers. Shared with the
//! deletion of large objects.

use std::pin::Pin;
use std::time::Duration;

use cairn_http::params::{quote, quote_path};
use cairn_http::{Handler, Response, respond};
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::{Method, StatusCode};

use super::{Refusal, answer, failed};
use crate::heartbeat::{self, Beats};
use crate::report::{FORMATS, Report};
use crate::subrequest::Subrequests;

/// Maximum bytes of an unused response that are read to keep its connection.
const DRAIN_MAX: u64 = 64 << 10;
/// Seconds before another attempt at a container that was not empty, to the power of the attempt's
/// number.
const RETRY_INTERVAL: f64 = 1.5;
const RETRY_WAIT_MAX: f64 = 600.0;

/// One entity to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deletion {
    /// Decoded `/container/object` or `/container`.
    pub(crate) name: String,
    /// Its name in the report.
    pub(crate) shown: String,
    pub(crate) version_id: Option<String>,
    /// The error, if the deletion is known beforehand to fail.
    pub(crate) error: Option<(StatusCode, String)>,
}

impl Deletion {
    pub(crate) fn of(name: &str) -> Self {
        Deletion {
            name: name.to_owned(),
            shown: quote_path(name),
            version_id: None,
            error: None,
        }
    }

    fn is_container(&self) -> bool {
        !self.name.trim_matches('/').contains('/')
    }
}

pub(crate) type NextDeletion<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Deletion>, Refusal>> + Send + 'a>>;

/// Source of the entities to delete, in order.
pub(crate) trait Targets: Send + 'static {
    /// Version and account of the names; called before the first name.
    fn place(&mut self) -> Result<Option<(String, String)>, Refusal> {
        Ok(None)
    }

    fn next<'a>(&'a mut self) -> NextDeletion<'a>;
}

pub(crate) struct Deleter {
    pub(crate) next: Handler,
    pub(crate) requests: Subrequests,
    pub(crate) concurrency: usize,
    /// Number of failures that end the operation.
    pub(crate) max_failed: usize,
    /// Number of attempts at a container that is not empty.
    pub(crate) retry_count: u32,
    pub(crate) version: String,
    pub(crate) account: String,
}

/// The response to a deletion request. `format` is the report's; `None` if the client accepts none.
pub(crate) async fn answer_deletion(
    mut deleter: Deleter,
    mut targets: impl Targets,
    format: Option<&'static str>,
    every: Duration,
) -> Response {
    let shown = format.unwrap_or(FORMATS[0]);
    let job = async move {
        let mut tally = Tally::default();
        let end = match format {
            Some(_) => deleter.run(&mut targets, &mut tally).await,
            None => Err(Refusal::of(StatusCode::NOT_ACCEPTABLE)),
        };
        tally.report(end).render(shown, "delete")
    };
    let body = heartbeat::body(job, Beats::when_slow(every, shown)).await;
    answer(body, shown)
}

/// Counts of outcomes.
#[derive(Default)]
struct Tally {
    deleted: u64,
    not_found: u64,
    errors: Vec<(String, String)>,
    server_failed: bool,
}

impl Tally {
    /// Counts entities that need no request; returns those that do.
    fn sift(&mut self, deletion: Deletion) -> Option<Deletion> {
        match deletion.error {
            None => (!deletion.name.is_empty()).then_some(deletion),
            Some((StatusCode::NOT_FOUND, _)) => {
                self.not_found += 1;
                None
            }
            Some((_, why)) => {
                self.errors.push((deletion.shown, why));
                None
            }
        }
    }

    fn note(&mut self, (shown, status): (String, StatusCode)) {
        match status {
            _ if status.is_success() => self.deleted += 1,
            StatusCode::NOT_FOUND => self.not_found += 1,
            _ => {
                self.server_failed |= status.is_server_error();
                self.errors.push((shown, respond::status_line(status)));
            }
        }
    }

    fn report(self, end: Result<(), Refusal>) -> Report {
        let mut report = match end {
            Err(refusal) => failed(&refusal),
            Ok(()) if !self.errors.is_empty() => failed(&Refusal::of(if self.server_failed {
                StatusCode::BAD_GATEWAY
            } else {
                StatusCode::BAD_REQUEST
            })),
            Ok(()) if self.deleted + self.not_found == 0 => {
                failed(&Refusal::bad("Invalid bulk delete."))
            }
            Ok(()) => failed(&Refusal::of(StatusCode::OK)),
        };
        report.set("Number Deleted", self.deleted);
        report.set("Number Not Found", self.not_found);
        report.errors = self.errors;
        report
    }
}

impl Deleter {
    async fn run(&mut self, targets: &mut impl Targets, tally: &mut Tally) -> Result<(), Refusal> {
        if let Some((version, account)) = targets.place()? {
            (self.version, self.account) = (version, account);
        }
        let mut containers = Vec::new();
        self.delete_all(targets, tally, Some(&mut containers))
            .await?;
        let mut containers = InMemory(containers.into_iter());
        self.delete_all(&mut containers, tally, None).await
    }

    /// Deletes all `targets`; containers are postponed if possible.
    async fn delete_all(
        &self,
        targets: &mut impl Targets,
        tally: &mut Tally,
        mut aside: Option<&mut Vec<Deletion>>,
    ) -> Result<(), Refusal> {
        let mut under_way = FuturesUnordered::new();
        let mut end = None;
        loop {
            while end.is_none() && under_way.len() < self.concurrency {
                match targets.next().await {
                    Err(refusal) => end = Some(Err(refusal)),
                    Ok(None) => end = Some(Ok(())),
                    Ok(Some(deletion)) => match &mut aside {
                        Some(aside) if deletion.is_container() => aside.push(deletion),
                        _ => under_way.extend(tally.sift(deletion).map(|d| self.delete(d))),
                    },
                }
            }
            // Requests in progress are completed even if no more are started.
            let Some(done) = under_way.next().await else {
                return end.unwrap_or(Ok(()));
            };
            tally.note(done);
            if tally.errors.len() >= self.max_failed && end.as_ref().is_none_or(Result::is_ok) {
                end = Some(Err(Refusal::bad("Max delete failures exceeded")));
            }
        }
    }

    /// Deletes one entity: returns its name for the report, and the response's status.
    async fn delete(&self, deletion: Deletion) -> (String, StatusCode) {
        let name = deletion.name.trim_start_matches('/');
        let path = format!("/{}/{}/{name}", self.version, self.account);
        let version_id = deletion.version_id.as_deref();
        let query = version_id.map(|id| format!("version-id={}", quote(id)));
        for round in 0.. {
            let request = self
                .requests
                .request(Method::DELETE, &path, query.as_deref());
            let Some(request) = request else {
                return (deletion.shown, StatusCode::URI_TOO_LONG);
            };
            let response = self.next.call(request).await;
            let status = response.status();
            response.into_body().drain(DRAIN_MAX).await;
            if status != StatusCode::CONFLICT || round >= self.retry_count {
                return (deletion.shown, status);
            }
            let wait = RETRY_INTERVAL.powi(i32::try_from(round + 1).unwrap_or(i32::MAX));
            tokio::time::sleep(Duration::from_secs_f64(wait.min(RETRY_WAIT_MAX))).await;
        }
        (deletion.shown, StatusCode::CONFLICT)
    }
}

/// Names that are known already.
struct InMemory(std::vec::IntoIter<Deletion>);

impl Targets for InMemory {
    fn next<'a>(&'a mut self) -> NextDeletion<'a> {
        let next = self.0.next();
        Box::pin(async move { Ok(next) })
    }
}
