//! Sharded containers: listings assembled from shards, and the choice of the shard for an object's
//! row.
//!
//! A root responds to a listing with the namespaces of its shards; each is then listed in turn, as
//! a container of its own that may be sharded again. Namespaces are cached: those for listings only
//! if the root is completely sharded, those for updates for longer, since a shard forwards rows
//! that it no longer takes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cairn_formats::listing::{LastRow, Page};
use cairn_formats::shard::{self, Bounded, Namespace};
use cairn_http::params::{Params, is_true};
use cairn_http::{Body, Response, own_thread, respond};
use cairn_types::ServerKind;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tracing::{debug, error, warn};

use crate::headers;
use crate::info_cache::RootListing;
use crate::request::{Incoming, Target};
use crate::state::Proxy;
use crate::status;

/// Maximum bytes of a listing: ten thousand names of a kilobyte with their metadata, or as many
/// namespaces.
const LISTING_BYTES_MAX: u64 = 128 << 20;
/// Maximum nesting of shards; no real container reaches it.
const DEPTH_MAX: usize = 16;

pub(crate) const RECORD_TYPE: &str = "x-backend-record-type";
pub(crate) const SHARD_FORMAT: &str = "x-backend-record-shard-format";
const RECORD_POLICY: &str = "x-backend-record-storage-policy-index";

/// A listing, and whether its container headers come from the cache.
pub(crate) struct Listed {
    pub(crate) response: Response,
    pub(crate) cached: bool,
}

type ListedFuture<'a> = Pin<Box<dyn Future<Output = Listed> + Send + 'a>>;

fn key(account: &str, container: &str) -> String {
    format!("{account}/{container}")
}

impl Proxy {
    /// GET of a container: lists objects, sharded or not.
    pub(crate) async fn container_listing(&self, incoming: &mut Incoming) -> Listed {
        let explicit = incoming.header(RECORD_TYPE).is_some_and(|kind| {
            ["object", "shard"]
                .iter()
                .any(|k| kind.eq_ignore_ascii_case(k))
        });
        if explicit {
            return Listed {
                response: self.read_index(incoming, ServerKind::Container).await,
                cached: false,
            };
        }
        let mut listed = self.listing_of(incoming, Vec::new()).await;
        listed.response.headers_mut().remove(RECORD_TYPE);
        listed.response.headers_mut().remove(SHARD_FORMAT);
        listed
    }

    /// `history` lists the containers that led here; one that occurs again is asked for objects
    /// instead of shards.
    fn listing_of<'a>(
        &'a self,
        incoming: &'a mut Incoming,
        history: Vec<String>,
    ) -> ListedFuture<'a> {
        Box::pin(async move {
            let name = key(
                incoming.target.account(),
                incoming.target.container().unwrap_or_default(),
            );
            if let Some((response, namespaces)) = self.remembered_listing(incoming, &name) {
                let response = self
                    .put_together(incoming, response, namespaces, history)
                    .await;
                let cached = true;
                return Listed { response, cached };
            }
            let (response, namespaces) = self.ask_for_listing(incoming, &name).await;
            let response = match namespaces {
                Some(namespaces) => {
                    self.put_together(incoming, response, namespaces, history)
                        .await
                }
                None => response,
            };
            let cached = false;
            Listed { response, cached }
        })
    }

    fn remembers_listings(&self) -> bool {
        !self.options.recheck_listing_shard_ranges.is_zero()
    }

    fn remembered_listing(
        &self,
        incoming: &Incoming,
        name: &str,
    ) -> Option<(Response, Vec<Namespace>)> {
        if !self.remembers_listings() || headers::wants_newest(incoming) {
            return None;
        }
        let root = self.sharded_roots.get(name)?;
        let namespaces = self.listing_shards.get(name)?;
        debug!(
            container = name,
            count = namespaces.len(),
            "shards remembered"
        );
        let mut response = status::ok();
        *response.headers_mut() = root.headers.clone();
        Some((response, wanted(&incoming.params, namespaces.to_vec())))
    }

    /// Asks the container's servers; a sharded one returns namespaces.
    async fn ask_for_listing(
        &self,
        incoming: &mut Incoming,
        name: &str,
    ) -> (Response, Option<Vec<Namespace>>) {
        let asked = &mut incoming.parts.headers;
        headers::insert(asked, RECORD_TYPE, "auto");
        headers::insert(asked, SHARD_FORMAT, "namespace");
        headers::insert(asked, "x-backend-include-deleted", "false");
        if self.remembers_listings() {
            headers::insert(asked, "x-backend-override-shard-name-filter", "sharded");
        }
        incoming.params.set("states", "listing");
        let mut response = self.read_index(incoming, ServerKind::Container).await;
        incoming.params.remove("states");
        let all = response
            .headers_mut()
            .remove("x-backend-override-shard-name-filter")
            .is_some_and(|value| value.to_str().is_ok_and(is_true));
        let is = |response: &Response, name: &str, value: &str| {
            respond::header(response.headers(), name)
                .is_some_and(|text| text.eq_ignore_ascii_case(value))
        };
        if !is(&response, RECORD_TYPE, "shard") || !response.status().is_success() {
            return (response, None);
        }
        let (mut response, namespaces) = self.records(response, name, namespaces_of).await;
        let Some(mut namespaces) = namespaces else {
            return (status::unavailable(), None);
        };
        status::make_listing(&mut response);
        let sharded = is(&response, "x-backend-sharding-state", "sharded");
        if !namespaces.is_empty() && all && sharded {
            namespaces = shard::contiguous(namespaces);
            let headers = response.headers().clone();
            self.sharded_roots.put(
                name.to_owned(),
                Arc::new(RootListing { headers }),
                self.options.recheck_container_existence,
            );
            self.listing_shards.put(
                name.to_owned(),
                Arc::new(namespaces.clone()),
                self.options.recheck_listing_shard_ranges,
            );
            namespaces = wanted(&incoming.params, namespaces);
        }
        (response, Some(namespaces))
    }

    /// The response without its body, and the records parsed from that.
    pub(crate) async fn records<T: Send + 'static>(
        &self,
        response: Response,
        name: &str,
        read: fn(&[u8]) -> Result<T, String>,
    ) -> (Response, Option<T>) {
        let (parts, body) = response.into_parts();
        let body = body.collect(LISTING_BYTES_MAX);
        let body = tokio::time::timeout(self.options.node_timeout, body).await;
        let records = match body {
            Ok(Ok(body)) if parts.status == StatusCode::NO_CONTENT && body.is_empty() => {
                read(b"[]")
            }
            Ok(Ok(body)) => {
                let read_it = own_thread::heavy(body.len(), move || read(&body)).await;
                read_it.unwrap_or_else(|| Err("reading it panicked".into()))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it did not come in time".into()),
        };
        let records = records.inspect_err(|error| {
            error!(
                container = name,
                error, "a container's listing cannot be read"
            );
        });
        (Response::from_parts(parts, Body::empty()), records.ok())
    }

    /// Assembles a listing from shards.
    async fn put_together(
        &self,
        incoming: &mut Incoming,
        mut response: Response,
        namespaces: Vec<Namespace>,
        mut history: Vec<String>,
    ) -> Response {
        history.push(key(
            incoming.target.account(),
            incoming.target.container().unwrap_or_default(),
        ));
        // All shards list objects of the root's policy.
        let root_policy = incoming.header(headers::POLICY_INDEX).map(str::to_owned);
        let policy = root_policy
            .or_else(|| {
                respond::header(response.headers(), headers::POLICY_INDEX).map(str::to_owned)
            })
            .unwrap_or_default();
        headers::insert(&mut incoming.parts.headers, headers::POLICY_INDEX, &policy);
        let mut listing = Listing::of(&incoming.params, self.constraints.container_listing_limit);
        for namespace in &namespaces {
            if listing.is_over() {
                break;
            }
            if listing.skips(namespace) {
                continue;
            }
            let params = listing.params_for(&incoming.params, namespace);
            match self
                .shard_objects(incoming, namespace, params, &policy, &history)
                .await
            {
                Some(page) => listing.page.append(page),
                None => {
                    error!(
                        shard = namespace.name,
                        path = incoming.target.entity_path(),
                        "a listing is given up, as one of its shards cannot be listed"
                    );
                    return status::unavailable();
                }
            }
        }
        let head = response.headers_mut();
        headers::insert(head, RECORD_POLICY, &policy);
        if listing.is_whole(&incoming.params) {
            // These are more accurate than the root's own counts.
            let (count, bytes) = (listing.page.count, listing.page.bytes);
            headers::insert(head, "x-container-object-count", &count.to_string());
            headers::insert(head, "x-container-bytes-used", &bytes.to_string());
        }
        let body = listing.page.into_json();
        head.insert(CONTENT_LENGTH, body.len().into());
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        head.insert(CONTENT_TYPE, json);
        status::make_listing(&mut response);
        *response.body_mut() = Body::full(body);
        response
    }

    /// Lists a shard's objects; `None` if that failed, or its policy differs.
    async fn shard_objects(
        &self,
        incoming: &Incoming,
        namespace: &Namespace,
        params: Params,
        policy: &str,
        history: &[String],
    ) -> Option<Page> {
        let (account, container) = namespace.place();
        let target = Target::Container {
            account: account.to_owned(),
            container: container.to_owned(),
        };
        let mut shard = self.subrequest(incoming, target, params);
        let name = namespace.name.as_str();
        let again = history.iter().any(|visited| visited == name) || history.len() >= DEPTH_MAX;
        let response = if again {
            headers::insert(&mut shard.parts.headers, RECORD_TYPE, "object");
            self.read_index(&shard, ServerKind::Container).await
        } else {
            shard.parts.headers.remove(RECORD_TYPE);
            self.listing_of(&mut shard, history.to_vec()).await.response
        };
        if !response.status().is_success() {
            warn!(shard = name, status = %response.status(), "a shard cannot be listed");
            return None;
        }
        let head = response.headers();
        let its_policy = respond::header(head, RECORD_POLICY)
            .or_else(|| respond::header(head, headers::POLICY_INDEX))
            .unwrap_or_default();
        if its_policy != policy {
            error!(
                shard = name,
                policy = its_policy,
                expected = policy,
                "a shard's policy differs"
            );
            return None;
        }
        let page = |body: &[u8]| Page::parse(body).map_err(|error| error.to_string());
        self.records(response, name, page).await.1
    }

    /// The shard that gets an object's row. `None`: the container itself, which forwards the row if
    /// it is sharded after all.
    pub(crate) async fn update_shard(
        &self,
        incoming: &Incoming,
        account: &str,
        container: &str,
        object: &str,
    ) -> Option<Namespace> {
        let name = key(account, container);
        let keep = self.options.recheck_updating_shard_ranges;
        if keep.is_zero() {
            let shards = self.ask_for_shards(incoming, account, container, Some(object));
            return shards.await?.into_iter().next();
        }
        let known = match self.updating_shards.get(&name) {
            Some(known) => known,
            None => {
                let asked = self
                    .ask_for_shards(incoming, account, container, None)
                    .await?;
                let known = Arc::new(shard::contiguous(asked));
                if !known.is_empty() {
                    self.updating_shards.put(name, known.clone(), keep);
                }
                known
            }
        };
        shard::find(&known, object).cloned()
    }

    async fn ask_for_shards(
        &self,
        incoming: &Incoming,
        account: &str,
        container: &str,
        includes: Option<&str>,
    ) -> Option<Vec<Namespace>> {
        let mut params = Params::default();
        params.set("format", "json");
        params.set("states", "updating");
        if let Some(object) = includes {
            params.set("includes", object);
        }
        let target = Target::Container {
            account: account.to_owned(),
            container: container.to_owned(),
        };
        let mut asked = self.subrequest(incoming, target, params);
        // The headers of the upload do not apply.
        asked.parts.headers = HeaderMap::new();
        headers::insert(&mut asked.parts.headers, RECORD_TYPE, "shard");
        headers::insert(&mut asked.parts.headers, SHARD_FORMAT, "namespace");
        let response = self.read_index(&asked, ServerKind::Container).await;
        let is_shard = respond::header(response.headers(), RECORD_TYPE) == Some("shard");
        let name = key(account, container);
        if !response.status().is_success() || !is_shard {
            warn!(container = name, status = %response.status(), "shards cannot be asked for");
            return None;
        }
        self.records(response, &name, namespaces_of).await.1
    }
}

pub(crate) fn namespaces_of(body: &[u8]) -> Result<Vec<Namespace>, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn is_reversed(params: &Params) -> bool {
    params.get("reverse").is_some_and(is_true)
}

/// The namespaces that a listing needs, in its order.
fn wanted(params: &Params, namespaces: Vec<Namespace>) -> Vec<Namespace> {
    let param = |name| params.get(name).unwrap_or("");
    let (marker, end_marker) = (param("marker"), param("end_marker"));
    if is_reversed(params) {
        let mut some = shard::between(namespaces, end_marker, marker);
        some.reverse();
        some
    } else {
        shard::between(namespaces, marker, end_marker)
    }
}

/// The state of a listing in progress.
struct Listing {
    page: Page,
    limit: usize,
    reverse: bool,
    marker: String,
    end_marker: String,
    prefix: String,
}

impl Listing {
    fn of(params: &Params, limit_max: usize) -> Self {
        let param = |name| params.get(name).unwrap_or("").to_owned();
        let limit = params.get("limit").and_then(|limit| limit.parse().ok());
        Listing {
            page: Page::default(),
            limit: limit.unwrap_or(limit_max).min(limit_max),
            reverse: is_reversed(params),
            marker: param("marker"),
            end_marker: param("end_marker"),
            prefix: param("prefix"),
        }
    }

    fn is_over(&self) -> bool {
        if self.page.count >= self.limit && self.page.count > 0 {
            return true;
        }
        let last = self.page.last.as_ref();
        last.filter(|_| !self.end_marker.is_empty())
            .is_some_and(|last| match self.reverse {
                true => self.end_marker >= last.name,
                false => self.end_marker <= last.name,
            })
    }

    /// Can this namespace contribute nothing to the listing?
    fn skips(&self, namespace: &Namespace) -> bool {
        if !self.prefix.is_empty() {
            let begins_before = namespace.lower().text() < after_prefix(&self.prefix).as_str();
            let is_behind = !namespace.upper.is_empty() && namespace.upper < self.prefix;
            if is_behind || !begins_before {
                return true;
            }
        }
        let bound = if self.reverse {
            &namespace.lower
        } else {
            &namespace.upper
        };
        let subdir = self.page.last.as_ref().filter(|last| last.is_subdir);
        subdir.is_some_and(|subdir| bound.starts_with(&subdir.name))
    }

    /// Parameters for one shard. Markers are always set, so that misplaced rows in a shard are
    /// neither listed twice nor hide rows after them.
    fn params_for(&self, original: &Params, namespace: &Namespace) -> Params {
        let mut params = original.clone();
        params.remove("states");
        params.set("format", "json");
        params.set("limit", (self.limit - self.page.count).to_string());
        let last = self.page.last.as_ref();
        let marker = last.map_or(&self.marker, |LastRow { name, .. }| name);
        params.set("marker", marker.as_str());
        let end_marker = if !self.end_marker.is_empty() && namespace.contains(&self.end_marker) {
            self.end_marker.clone()
        } else if self.reverse {
            namespace.lower.clone()
        } else {
            namespace.end_marker()
        };
        params.set("end_marker", end_marker);
        params
    }

    /// Does the listing cover the whole container?
    fn is_whole(&self, params: &Params) -> bool {
        let given = |name: &&str| params.get(name).is_some_and(|value| !value.is_empty());
        let constrained = ["marker", "end_marker", "path", "prefix", "delimiter"];
        !constrained.iter().any(given) && self.page.count < self.limit
    }
}

/// A text that sorts after all names with this prefix.
fn after_prefix(prefix: &str) -> String {
    let mut text = prefix.to_owned();
    let Some(last) = text.pop() else {
        return text;
    };
    match char::from_u32(u32::from(last) + 1) {
        Some(next) => text.push(next),
        None => {
            text.push(last);
            text.push(char::MAX);
        }
    }
    text
}

/// Shows a reseller whether a container may be sharded.
pub(crate) fn show_sharding(response: &mut Response) {
    let enabled =
        respond::header(response.headers(), "x-container-sysmeta-sharding").is_some_and(is_true);
    let word = if enabled { "True" } else { "False" };
    headers::insert(response.headers_mut(), "x-container-sharding", word);
}

/// Converts a reseller's `X-Container-Sharding` into its stored form.
pub(crate) fn take_sharding(incoming: &mut Incoming) {
    if !incoming.context.reseller {
        return;
    }
    let Some(word) = incoming.header("x-container-sharding").map(str::to_owned) else {
        return;
    };
    let word = if is_true(&word) { "True" } else { "False" };
    headers::insert(
        &mut incoming.parts.headers,
        "x-container-sysmeta-sharding",
        word,
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn page(json: &str) -> Page {
        Page::parse(json.as_bytes()).unwrap()
    }

    fn namespace(name: &str, lower: &str, upper: &str) -> Namespace {
        Namespace {
            name: name.into(),
            lower: lower.into(),
            upper: upper.into(),
        }
    }

    fn listing(query: &str) -> (Listing, Params) {
        let params = Params::parse(Some(query)).unwrap();
        (Listing::of(&params, 10), params)
    }

    #[test]
    fn each_shard_is_asked_for_its_part() {
        let (mut under_way, params) = listing("marker=b&end_marker=x&limit=3");
        let first = under_way.params_for(&params, &namespace("a/1", "", "m"));
        assert_eq!(first.get("marker"), Some("b"));
        assert_eq!(first.get("end_marker"), Some("m\0"));
        under_way.page.append(page(r#"[{"name": "c"}]"#));
        let last = under_way.params_for(&params, &namespace("a/2", "m", ""));
        assert_eq!(last.get("marker"), Some("c"));
        assert_eq!(last.get("end_marker"), Some("x"));
        assert_eq!(last.get("limit"), Some("2"));
        assert!(!under_way.is_over());
        under_way.page.append(page(r#"[{"name": "x"}]"#));
        assert!(under_way.is_over());

        let (back, params) = listing("reverse=true");
        let asked = back.params_for(&params, &namespace("a/2", "m", ""));
        assert_eq!(asked.get("end_marker"), Some("m"));
    }

    #[test]
    fn shards_without_any_of_it_are_left_out() {
        let (prefixed, params) = listing("prefix=m");
        assert!(prefixed.skips(&namespace("a/1", "", "c")));
        assert!(!prefixed.skips(&namespace("a/1", "", "m")));
        assert!(!prefixed.skips(&namespace("a/1", "mm", "z")));
        assert!(prefixed.skips(&namespace("a/1", "n", "z")));
        assert!(!prefixed.is_whole(&params));
        let (mut delimited, params) = listing("delimiter=/");
        delimited.page.append(page(r#"[{"subdir": "d/"}]"#));
        assert!(delimited.skips(&namespace("a/1", "d/a", "d/z")));
        assert!(!delimited.skips(&namespace("a/1", "d/a", "e")));
        assert_eq!(wanted(&params, vec![namespace("a/1", "", "")]).len(), 1);
        let all = vec![namespace("a/1", "", "m"), namespace("a/2", "m", "")];
        let back = Params::parse(Some("reverse=on&marker=n&end_marker=c")).unwrap();
        let names: Vec<_> = wanted(&back, all).into_iter().map(|n| n.name).collect();
        assert_eq!(names, ["a/2", "a/1"]);
    }
}
