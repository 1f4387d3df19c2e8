//! DELETE of a manifest with all that it references: at once, a few objects at a time, recursively
//! through nested manifests, each after its segments; or later (`async=on`), by the expirer.

use std::collections::VecDeque;
use std::sync::Arc;

use cairn_http::context::Context;
use cairn_http::params::{Params, is_true, quote};
use cairn_http::{Handler, Request, Response, respond};
use http::header::{ACCEPT, HeaderValue, IF_MATCH, IF_NONE_MATCH, RANGE};
use http::request::Parts;
use http::{Method, StatusCode};
use tracing::error;

use super::manifest::{self, Stored};
use super::{Inner, SOURCE, X_STATIC_LARGE_OBJECT};
use crate::api_path::ObjectPath;
use crate::filters::bulk::{Deleter, Deletion, NextDeletion, Refusal, Targets, answer_deletion};
use crate::report;
use crate::segments::want_whole;
use crate::status;
use crate::subrequest::Subrequests;

const DRAIN_MAX: u64 = 64 << 10;

impl Inner {
    pub(super) async fn delete(
        self: Arc<Self>,
        request: Request,
        path: ObjectPath,
        params: Params,
    ) -> Response {
        let (parts, _) = request.into_parts();
        if [IF_MATCH, IF_NONE_MATCH]
            .iter()
            .any(|name| parts.headers.contains_key(name))
        {
            // Segments would be gone by the time the manifest is found not to match.
            let text = "Conditions are not available with multipart-manifest=delete: delete the \
                        manifest alone on the condition, then its segments";
            return status::not_on_a_condition(text);
        }
        let deleter = Deleter {
            next: self.next.clone(),
            requests: Subrequests::of(&parts, SOURCE, "MultipartDELETE"),
            concurrency: self.delete_concurrency,
            max_failed: 1000,
            retry_count: 0,
            version: path.version.clone(),
            account: path.account.clone(),
        };
        let version_id = params.get("version-id").map(str::to_owned);
        let own = format!("/{}/{}", path.container, path.object);
        let top = Pending::Manifest {
            name: own,
            version_id,
        };
        let tree = Tree {
            manifests: self.manifests(&parts),
            path,
            pending: VecDeque::from([top]),
            most: self.max_manifest_segments.saturating_mul(10),
        };
        let accept = respond::header(&parts.headers, ACCEPT.as_str());
        let format = report::format_for(accept);
        answer_deletion(deleter, tree, format, std::time::Duration::from_secs(10)).await
    }

    fn manifests(&self, parts: &Parts) -> Manifests {
        Manifests {
            next: self.next.clone(),
            requests: Subrequests::of(parts, SOURCE, "MultipartDELETE"),
            most: self.manifest_read_max(),
        }
    }

    /// `async=on`: queues all segments, which must be plain objects of one container, for the
    /// expirer, and deletes the manifest now.
    pub(super) async fn delete_later(
        &self,
        request: Request,
        path: ObjectPath,
        params: Params,
    ) -> Response {
        let (mut parts, body) = request.into_parts();
        match self.queue_segments(&mut parts, &path, &params).await {
            Ok(()) => self.next.call(Request::from_parts(parts, body)).await,
            Err(refused) => refused,
        }
    }

    async fn queue_segments(
        &self,
        parts: &mut Parts,
        path: &ObjectPath,
        params: &Params,
    ) -> Result<(), Response> {
        let version_id = params.get("version-id");
        let entries = self.manifests(parts).fetch(&path.path(), version_id).await;
        let entries = entries.map_err(|e| respond::text(e.status, e.message))?;
        let Some((container, objects)) = one_container(&entries)? else {
            return Ok(());
        };
        let context = Context::of(parts);
        let mut containers = vec![path.container.as_str()];
        if container != path.container {
            containers.push(&container);
        }
        if let Some(authorizer) = &context.authorizer
            && !context.authorized
        {
            for name in containers {
                let info = self.info_source.container(&context, &path.account, name);
                let info = info.await;
                authorizer
                    .authorize(parts, info.write_acl.as_deref())
                    .await?;
            }
        }
        let now = match respond::header_timestamp(&parts.headers, "x-timestamp") {
            Some(given) => given,
            None => self.clock.unique(),
        };
        // The segments' deletion has the same timestamp as the manifest's.
        respond::set(&mut parts.headers, "x-timestamp", now.internal());
        let unavailable = status::unavailable;
        let hash_path = &self.hash_path;
        let queue = &self.expirer;
        let request = queue.request(&context, hash_path, path, &container, &objects, now);
        let response = self.next.call(request.ok_or_else(unavailable)?).await;
        let status = response.status();
        response.into_body().drain(DRAIN_MAX).await;
        if !status.is_success() {
            error!(path = path.path(), %status, "segments could not be queued for deletion");
            return Err(unavailable());
        }
        Ok(())
    }
}

/// The single container of all segments, and their names; `None` if there are none.
fn one_container(entries: &[Stored]) -> Result<Option<(String, Vec<String>)>, Response> {
    let refuse = |text: String| respond::text(StatusCode::BAD_REQUEST, text);
    let mut containers: Vec<&str> = Vec::new();
    let mut objects = Vec::new();
    for name in entries.iter().filter_map(|entry| entry.name.as_deref()) {
        let (container, object) = name
            .trim_start_matches('/')
            .split_once('/')
            .unwrap_or((name, ""));
        if !containers.contains(&container) {
            containers.push(container);
        }
        objects.push(object.to_owned());
    }
    if containers.len() > 1 {
        let names: Vec<String> = containers
            .iter()
            .map(|c| format!("\"{}\"", quote(c)))
            .collect();
        return Err(refuse(format!(
            "All segments must be in one container. Found segments in {}",
            names.join(", ")
        )));
    }
    if entries.iter().any(|entry| entry.sub_slo == Some(true)) {
        return Err(refuse("No segments may be large objects.".into()));
    }
    Ok(containers.pop().map(|c| (c.to_owned(), objects)))
}

/// Reason why a manifest could not be read.
struct NoManifest {
    status: StatusCode,
    message: &'static str,
}

/// Reader of manifests that are to be deleted.
struct Manifests {
    next: Handler,
    requests: Subrequests,
    most: u64,
}

impl Manifests {
    /// The entries of the manifest at a decoded path.
    async fn fetch(&self, path: &str, version_id: Option<&str>) -> Result<Vec<Stored>, NoManifest> {
        let no = |status: u16, message| NoManifest {
            status: respond::status(status),
            message,
        };
        let unable = "Unable to load SLO manifest or segment.";
        let mut query = "multipart-manifest=get".to_owned();
        if let Some(version_id) = version_id {
            query.push_str(&format!("&version-id={}", quote(version_id)));
        }
        let request = self.requests.request(Method::GET, path, Some(&query));
        let mut request = request.ok_or_else(|| no(500, unable))?;
        // Reads a single byte of an object that is not a manifest.
        let last_byte = HeaderValue::from_static("bytes=-1");
        request.headers_mut().insert(RANGE, last_byte);
        want_whole(request.headers_mut(), "X-Static-Large-Object");
        let response = self.next.call(request).await;
        let status = response.status();
        match status {
            _ if status.is_success() => {}
            StatusCode::NOT_FOUND => return Err(no(404, "SLO manifest not found")),
            StatusCode::UNAUTHORIZED => return Err(no(401, "401 Unauthorized")),
            _ => return Err(no(500, unable)),
        }
        let mark = respond::header(response.headers(), X_STATIC_LARGE_OBJECT.as_str());
        if !mark.is_some_and(is_true) {
            response.into_body().drain(DRAIN_MAX).await;
            return Err(no(400, "Not an SLO manifest"));
        }
        let json = response.into_body().collect(self.most).await;
        let json = json.map_err(|_| no(500, "Unable to load SLO manifest"))?;
        manifest::parse(&json).map_err(|_| no(500, "Unable to load SLO manifest"))
    }
}

/// A pending deletion.
enum Pending {
    /// A manifest whose segments come first.
    Manifest {
        name: String,
        version_id: Option<String>,
    },
    Object(Deletion),
}

/// A manifest with all that it references, as a source of deletions.
struct Tree {
    manifests: Manifests,
    path: ObjectPath,
    pending: VecDeque<Pending>,
    /// Maximum number of pending deletions.
    most: usize,
}

impl Tree {
    async fn step(&mut self) -> Result<Option<Deletion>, Refusal> {
        while let Some(pending) = self.pending.pop_front() {
            if self.pending.len() >= self.most {
                return Err(Refusal {
                    status: StatusCode::BAD_REQUEST,
                    body: "Too many buffered slo segments to delete.".into(),
                });
            }
            match pending {
                Pending::Object(deletion) => return Ok(Some(deletion)),
                Pending::Manifest { name, version_id } => {
                    self.expand(name, version_id).await;
                }
            }
        }
        Ok(None)
    }

    /// Queues a manifest's segments, then the manifest itself.
    async fn expand(&mut self, name: String, version_id: Option<String>) {
        let path = self.path.sibling(&name);
        let fetched = self.manifests.fetch(&path, version_id.as_deref()).await;
        let mut own = Deletion::of(&name);
        own.version_id = version_id;
        match fetched {
            Err(NoManifest { status, message }) => {
                own.error = Some((status, message.to_owned()));
            }
            Ok(entries) => {
                for entry in entries {
                    let Some(name) = entry.name else { continue };
                    self.pending.push_back(if entry.sub_slo == Some(true) {
                        Pending::Manifest {
                            name,
                            version_id: None,
                        }
                    } else {
                        Pending::Object(Deletion::of(&name))
                    });
                }
            }
        }
        self.pending.push_back(Pending::Object(own));
    }
}

impl Targets for Tree {
    fn next<'a>(&'a mut self) -> NextDeletion<'a> {
        Box::pin(self.step())
    }
}
