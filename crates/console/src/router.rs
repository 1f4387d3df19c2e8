//! Routing of requests. All except the page itself and the sign-in need a session.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cairn_http::{Context, Request, Response, Service, ServiceFuture};
use cairn_lab::record::RunFolder;
use cairn_lab::rename::{run_name, tag};
use http::Method;
use http::header::{HeaderValue, RETRY_AFTER};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::json;

use crate::audit::{Facts, Watched};
use crate::command::Target as QueueTarget;
use crate::history::History;
use crate::json_body::read_json;
use crate::session::StoreUser;
use crate::status::{Answer, Refusal, done, json};
use crate::store::Store;
use crate::submission::{Read, Submission, Target, WORKLOAD_BYTES};
use crate::{Console, archive, assets, compare, figures, files, guard, live, swift};

/// Maximum bytes of a sign-in and other small bodies.
const SMALL_BODY_MAX_BYTES: u64 = 16 * 1024;
/// Maximum bytes of a workload as JSON: each byte may need six.
const SUBMISSION_MAX_BYTES: u64 = (6 * WORKLOAD_BYTES) as u64;

pub(crate) struct Router(pub(crate) Arc<Console>);

impl Service for Router {
    fn call<'a>(&'a self, mut request: Request) -> ServiceFuture<'a> {
        Box::pin(async move {
            let log = self.0.audit.as_ref();
            let watched = log.and_then(|log| Watched::begin(log, &mut request));
            let answer = answer(&self.0, request).await;
            if let Some(watched) = watched {
                watched.end(&answer);
            }
            let mut response = match answer {
                Ok(response) => response,
                Err(refusal) => refusal.response(),
            };
            guard::harden(&mut response);
            response
        })
    }
}

async fn answer(console: &Arc<Console>, request: Request) -> Answer {
    console.guard.check(&request)?;
    if request.method() == Method::GET
        && let Some(page) = assets::get(&request)
    {
        return Ok(page);
    }
    let path = request.uri().path().to_owned();
    if path == "/api/session" {
        return session(console, request).await;
    }
    if !console.sessions.is_open(request.headers()) {
        return Err(Refusal::not_signed_in());
    }
    if path.starts_with(swift::PREFIX) {
        let user = console
            .sessions
            .store_user(request.headers())
            .ok_or_else(Refusal::no_store_user)?;
        let remote = remote(&request);
        Facts::of(&request).add("user", &user.name);
        return swift::pass(store(console)?, &user, request, remote).await;
    }
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match (request.method().as_str(), &segments[..]) {
        ("GET", ["api", "runs"]) => {
            let history = console.history.clone();
            blocking(move || Ok(json(&history.list()))).await
        }
        ("POST", ["api", "runs"]) => submit(console, request).await,
        ("POST", ["api", "check"]) => check(console, request).await,
        ("POST", ["api", "compare"]) => compare::answer(console.history.clone(), request).await,
        ("GET", ["api", "store"]) => Ok(json(&store(console)?.describe().await)),
        ("GET", ["api", "store", "samples"]) => Ok(json(&store(console)?.samples())),
        (_, ["api", "store", "user"]) => store_user(console, request).await,
        (_, ["api", "runs", id, rest @ ..]) => {
            if !History::is_id(id) {
                return Err(Refusal::not_found(format!("the run {id:?}")));
            }
            let id = (*id).to_owned();
            if rest.is_empty() && request.method() == Method::PATCH {
                return rename(console, request, id).await;
            }
            match rest {
                ["files", name @ ..] if !name.is_empty() => {
                    let name = decoded(&name.join("/"))?;
                    let download = request.uri().query() == Some("download");
                    get(&request)?;
                    files::serve(console.history.folder(&id), name, download).await
                }
                _ => run(console, &request, id, rest).await,
            }
        }
        _ => Err(Refusal::not_found(format!("{} {path}", request.method()))),
    }
}

/// Requests for one run.
async fn run(console: &Arc<Console>, request: &Request, id: String, rest: &[&str]) -> Answer {
    let history = console.history.clone();
    let not_found = || Refusal::not_found(format!("the run {id:?}"));
    match (request.method().as_str(), rest) {
        ("GET", []) => {
            let (wanted, queue) = (id.clone(), console.queue.clone());
            let entry = blocking(move || {
                let ahead = queue.ahead(&wanted);
                Ok(history
                    .entry(&wanted)
                    .map(|e| json(&json!({"entry": e, "ahead": ahead}))))
            });
            entry.await?.ok_or_else(not_found)
        }
        ("DELETE", []) => {
            blocking(move || {
                let entry = history
                    .entry(&id)
                    .ok_or_else(|| Refusal::not_found("the run"))?;
                if !entry.note.state.is_over() {
                    let words = "this run is not over: cancel it first";
                    return Err(Refusal::conflict(words));
                }
                history
                    .remove(&id)
                    .map_err(|error| Refusal::internal(&error))?;
                Ok(done())
            })
            .await
        }
        ("POST", ["cancel"]) => {
            let queue = console.queue.clone();
            blocking(move || match queue.cancel(&id) {
                true => Ok(done()),
                false => Err(Refusal::conflict(
                    "this run neither waits nor is it under way here",
                )),
            })
            .await
        }
        ("GET", ["events"]) => {
            let wanted = id.clone();
            match blocking(move || Ok(history.entry(&wanted))).await? {
                Some(_) => Ok(live::events(console.clone(), id)),
                None => Err(not_found()),
            }
        }
        ("GET", ["stages"]) => {
            blocking(move || {
                let path = RunFolder::new(history.folder(&id)).stages();
                if !path.exists() {
                    return Ok(json(&json!([])));
                }
                match figures::read(&path) {
                    Ok(stages) => Ok(json(&figures::of(&stages))),
                    Err(error) => Err(Refusal::internal(&error)),
                }
            })
            .await
        }
        ("GET", ["workload"]) => {
            blocking(move || {
                let entry = history
                    .entry(&id)
                    .ok_or_else(|| Refusal::not_found("the run"))?;
                let text = history
                    .workload(&id)
                    .ok_or_else(|| Refusal::not_found("its workload"))?;
                Ok(json(
                    &json!({"file_name": entry.note.file_name, "text": text}),
                ))
            })
            .await
        }
        ("GET", ["files"]) => blocking(move || Ok(json(&files::list(&history.folder(&id))))).await,
        ("GET", ["archive"]) => {
            let folder = history.folder(&id);
            match folder.is_dir() {
                true => Ok(archive::tar(folder, id)),
                false => Err(not_found()),
            }
        }
        _ => Err(Refusal::not_found(request.uri().path())),
    }
}

/// The new name of a run, and all its tags.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rename {
    name: String,
    #[serde(default)]
    tags: Vec<String>,
}

/// Another name and other tags for a run that is over.
async fn rename(console: &Arc<Console>, request: Request, id: String) -> Answer {
    let facts = Facts::of(&request);
    let asked: Rename = read_json(request, SMALL_BODY_MAX_BYTES).await?;
    let name = run_name(&asked.name).map_err(|why| Refusal::field("name", why))?;
    let tags: Result<Vec<String>, String> = asked.tags.iter().map(|text| tag(text)).collect();
    let tags = tags.map_err(|why| Refusal::field("tags", why))?;
    facts.add("name", &name);
    let history = console.history.clone();
    blocking(move || {
        let entry = history
            .entry(&id)
            .ok_or_else(|| Refusal::not_found("the run"))?;
        if !entry.note.state.is_over() {
            return Err(Refusal::conflict("this run is not over: rename it then"));
        }
        let renamed = history.rename(&id, &name, tags);
        renamed.map_err(|error| Refusal::conflict(&format!("{error:#}")))?;
        Ok(done())
    })
    .await
}

fn get(request: &Request) -> Result<(), Refusal> {
    match request.method() {
        &Method::GET | &Method::HEAD => Ok(()),
        other => Err(Refusal::not_offered(other)),
    }
}

async fn submit(console: &Arc<Console>, request: Request) -> Answer {
    let user = console.sessions.store_user(request.headers());
    let facts = Facts::of(&request);
    let submission: Submission = read_json(request, SUBMISSION_MAX_BYTES).await?;
    facts.add("name", &submission.title());
    facts.add("file", &submission.file_name);
    submission.check()?;
    let target = queue_target(console, &submission, user)?;
    let shown = target.shown.split(['?', '#']).next();
    facts.add("target", shown.unwrap_or_default());
    let queue = console.queue.clone();
    let console = console.clone();
    blocking(move || {
        submission.read(target.url.as_deref(), &console.local)?;
        let id = queue.submit(submission, target)?;
        facts.add("run", &id);
        Ok(json(&json!({"id": id})))
    })
    .await
}

/// The store that a run of this submission drives.
fn queue_target(
    console: &Console,
    submission: &Submission,
    user: Option<StoreUser>,
) -> Result<QueueTarget, Refusal> {
    Ok(match &submission.target {
        Target::File => QueueTarget {
            shown: "as the workload says".into(),
            ..QueueTarget::default()
        },
        Target::Url { url, user, key } => QueueTarget {
            url: Some(url.trim().to_owned()),
            user: user.clone(),
            key: key.clone(),
            shown: url.trim().to_owned(),
            ..QueueTarget::default()
        },
        Target::Store => {
            let user = user.ok_or_else(|| {
                Refusal::field(
                    "target",
                    "target: sign in to this store first, or name a URL",
                )
            })?;
            let url = format!("{}{}", store(console)?.view.endpoint, user.account);
            let token = user.token.to_str().unwrap_or_default().to_owned();
            QueueTarget {
                shown: format!("{url} as {}", user.name),
                url: Some(url),
                token,
                ..QueueTarget::default()
            }
        }
    })
}

/// Validates a workload: what it would do and use, without executing it.
async fn check(console: &Arc<Console>, request: Request) -> Answer {
    let user = console.sessions.store_user(request.headers());
    let submission: Submission = read_json(request, SUBMISSION_MAX_BYTES).await?;
    submission.check()?;
    let target = queue_target(console, &submission, user)?;
    let console = console.clone();
    blocking(move || {
        let Read {
            workload,
            footprint,
        } = submission.read(target.url.as_deref(), &console.local)?;
        let stages = workload.plan.stages.iter().map(|stage| {
            let works = stage.works.iter().map(|work| {
                let operations: Vec<_> = work.operations.iter().map(|o| o.kind.as_str()).collect();
                let seconds = work.runtime.map(|runtime| runtime.as_secs_f64());
                json!({"kind": work.kind, "workers": work.workers, "seconds": seconds,
                       "rampup": work.rampup.as_secs_f64(), "operations": operations})
            });
            json!({"name": stage.name, "works": works.collect::<Vec<_>>()})
        });
        let notes: Vec<String> = workload
            .notes
            .iter()
            .cloned()
            .chain(workload.open_settings())
            .collect();
        Ok(json(&json!({
            "format": workload.format.as_str(),
            "name": workload.plan.name,
            "notes": notes,
            "uses": footprint.sentences(),
            "stages": stages.take(500).collect::<Vec<_>>(),
        })))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    password: String,
}

/// The current session; sign-in and sign-out.
async fn session(console: &Arc<Console>, request: Request) -> Answer {
    match *request.method() {
        Method::GET => {
            let headers = request.headers();
            let signed_in = console.sessions.is_open(headers);
            let mut about = json!({"signed_in": signed_in});
            if signed_in {
                about["version"] = json!(env!("CARGO_PKG_VERSION"));
                about["runs"] = json!(console.history.folder("").display().to_string());
                about["store"] = match &console.store {
                    None => json!(null),
                    Some(store) => {
                        let user = console.sessions.store_user(headers);
                        let user = user.map(|u| json!({"name": u.name, "account": u.account}));
                        json!({"endpoint": store.view.endpoint, "user": user})
                    }
                };
            }
            Ok(json(&about))
        }
        Method::POST => {
            let address = remote(&request).map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |r| r.ip());
            if let Err(wait) = console.sessions.begin_try(address) {
                return Ok(too_many(wait));
            }
            let given: SignIn = read_json(request, SMALL_BODY_MAX_BYTES).await?;
            if !console.password.is(&given.password) {
                tracing::warn!(%address, "a wrong password for the console");
                return Err(Refusal::wrong_password());
            }
            console.sessions.not_failed(address);
            let mut response = done();
            console.sessions.open(&mut response);
            Ok(response)
        }
        Method::DELETE => {
            let mut response = done();
            console.sessions.close(request.headers(), &mut response);
            Ok(response)
        }
        _ => Err(Refusal::not_found("this method")),
    }
}

fn too_many(wait: Duration) -> Response {
    let seconds = wait.as_secs() + 1;
    let mut response = Refusal::too_many_tries(seconds).response();
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoreSignIn {
    user: String,
    key: String,
}

async fn store_user(console: &Arc<Console>, request: Request) -> Answer {
    let store = store(console)?;
    let headers = request.headers().clone();
    match *request.method() {
        Method::POST => {
            let remote = remote(&request);
            let address = remote.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |r| r.ip());
            if let Err(wait) = console.sessions.begin_try(address) {
                return Ok(too_many(wait));
            }
            let facts = Facts::of(&request);
            let given: StoreSignIn = read_json(request, SMALL_BODY_MAX_BYTES).await?;
            facts.add("user", &given.user);
            match swift::sign_in(store, &given.user, &given.key, remote).await {
                Ok(user) => {
                    console.sessions.not_failed(address);
                    let about = json!({"name": user.name, "account": user.account});
                    console.sessions.set_store_user(&headers, Some(user));
                    Ok(json(&about))
                }
                Err(refusal) => {
                    if !refusal.is_forbidden() {
                        console.sessions.not_failed(address);
                    }
                    Err(refusal)
                }
            }
        }
        Method::DELETE => {
            if let Some(user) = console.sessions.store_user(&headers) {
                Facts::of(&request).add("user", &user.name);
            }
            console.sessions.set_store_user(&headers, None);
            Ok(done())
        }
        _ => Err(Refusal::not_found("this method")),
    }
}

fn store(console: &Console) -> Result<&Store, Refusal> {
    let none = || Refusal::not_found("a store beside this console");
    console.store.as_ref().ok_or_else(none)
}

fn remote(request: &Request) -> Option<SocketAddr> {
    Context::of_request(request).remote
}

fn decoded(text: &str) -> Result<String, Refusal> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| Refusal::malformed("path: not UTF-8"))
}

/// Runs file access off the event loop.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Refusal::internal(&error.into())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
