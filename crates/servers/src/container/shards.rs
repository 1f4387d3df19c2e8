//! Shard ranges over HTTP: GET by proxies and sharders, PUT by sharders; and redirects of rows that
//! belong to a shard.
//!
//! `X-Backend-Record-Type: shard` requests ranges; `auto` requests ranges of a sharded container
//! and objects of any other; `X-Backend-Record-Shard-Format: namespace` reduces ranges to names and
//! bounds.

use cairn_formats::json_ascii;
use cairn_formats::shard::{ShardRange, State};
use cairn_http::params::{Params, is_true, quote_path};
use cairn_http::{Body, Response, respond};
use cairn_index::{ContainerBroker, ContainerInfo, DbState, Metadata, RangeQuery};
use cairn_types::Timestamp;
use http::HeaderMap;
use serde_json::{Value, json};

use super::put::{created_or_accepted, no_policy};
use super::{ContainerRequest, ContainerServer, info_headers, save_metadata};
use crate::index_server::listing::Format;
use crate::index_server::status::{self, Refused};
use crate::index_server::{
    Answer, is_yes, policy_index, read_body, set, set_content_type, text, timestamp,
};

/// Maximum size of a PUT of ranges, each of a few hundred bytes and a name or two.
const SHARDS_BYTES_MAX: u64 = 64 << 20;

/// Kind of records requested by a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordType {
    Objects,
    Shards,
    /// Selected by the container's state.
    Auto,
}

impl RecordType {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match text(headers, "x-backend-record-type") {
            Some(kind) if kind.eq_ignore_ascii_case("shard") => RecordType::Shards,
            Some(kind) if kind.eq_ignore_ascii_case("auto") => RecordType::Auto,
            _ => RecordType::Objects,
        }
    }

    pub(super) fn is_shards(self, info: &ContainerInfo) -> bool {
        let in_shards = [DbState::Sharding.name(), DbState::Sharded.name()];
        match self {
            RecordType::Objects => false,
            RecordType::Shards => true,
            RecordType::Auto => in_shards.contains(&info.db_state),
        }
    }
}

/// Parameters of a GET of ranges.
#[derive(Clone, Debug)]
pub(super) struct ShardsQuery {
    query: RangeQuery,
    /// Whether all ranges of a sharded container are returned, whatever the markers.
    all_if_sharded: bool,
    shows_deleted: bool,
    namespaces: bool,
}

/// Result of a GET of ranges.
pub(super) struct ShardsFound {
    pub(super) info: ContainerInfo,
    pub(super) metadata: Metadata,
    ranges: Vec<ShardRange>,
    all: bool,
}

impl ShardsQuery {
    pub(super) fn of(params: &Params, headers: &HeaderMap) -> Result<Self, Refused> {
        let param = |name: &str| params.get(name).unwrap_or("").to_owned();
        let mut query = RangeQuery {
            marker: param("marker"),
            end_marker: param("end_marker"),
            includes: params
                .get("includes")
                .filter(|n| !n.is_empty())
                .map(str::to_owned),
            reverse: params.get("reverse").is_some_and(is_true),
            include_deleted: is_yes(headers, "x-backend-include-deleted"),
            ..RangeQuery::default()
        };
        for word in param("states")
            .split(',')
            .map(str::trim)
            .filter(|w| !w.is_empty())
        {
            match word {
                "listing" => query.states.extend(State::LISTING),
                "updating" => query.states.extend(State::UPDATING),
                "auditing" => query.states.extend(State::AUDITING),
                word => query.states.push(
                    State::parse(word).ok_or_else(|| Refused::BadRequest("Bad state".into()))?,
                ),
            }
            query.fill_gaps |= matches!(word, "listing" | "updating");
            query.include_own |= word == "auditing";
        }
        let is = |name: &str, value: &str| {
            text(headers, name).is_some_and(|text| text.eq_ignore_ascii_case(value))
        };
        let namespaces = is("x-backend-record-shard-format", "namespace");
        if namespaces && query.include_deleted {
            let reason = "No include_deleted for namespace GET";
            return Err(Refused::BadRequest(reason.into()));
        }
        if namespaces && query.include_own {
            let reason = "No auditing state for namespace GET";
            return Err(Refused::BadRequest(reason.into()));
        }
        Ok(ShardsQuery {
            query,
            all_if_sharded: is("x-backend-override-shard-name-filter", "sharded"),
            shows_deleted: is_yes(headers, "x-backend-override-deleted"),
            namespaces,
        })
    }

    pub(super) fn find(
        &self,
        broker: &ContainerBroker<'_>,
        info: ContainerInfo,
    ) -> cairn_index::Result<ShardsFound> {
        let mut query = self.query.clone();
        let all = self.all_if_sharded && info.db_state == DbState::Sharded.name();
        if all {
            query.marker.clear();
            query.end_marker.clear();
            query.includes = None;
            query.reverse = false;
        }
        Ok(ShardsFound {
            metadata: broker.metadata()?,
            ranges: broker.list_shard_ranges(&query)?,
            info,
            all,
        })
    }

    pub(super) fn refuses(&self, info: &ContainerInfo) -> bool {
        info.is_deleted() && !self.shows_deleted
    }
}

fn escaped(name: &str) -> String {
    let pairs = [
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\r', "&#13;"),
        ('\n', "&#10;"),
        ('\t', "&#09;"),
    ];
    pairs
        .iter()
        .fold(name.to_owned(), |text, (from, to)| text.replace(*from, to))
}

fn full_record(range: &ShardRange) -> Value {
    let mut record = json!(range);
    let created = cairn_index::broker::timestamp(&range.timestamp);
    record["last_modified"] = json!(created.isoformat());
    record
}

impl ContainerServer {
    pub(super) fn shards_listed(
        &self,
        asked: &ShardsQuery,
        found: &ShardsFound,
        format: Format,
        mut headers: HeaderMap,
    ) -> Answer {
        set(&mut headers, "X-Backend-Record-Type", "shard");
        let shard_format = if asked.namespaces {
            "namespace"
        } else {
            "full"
        };
        set(&mut headers, "X-Backend-Record-Shard-Format", shard_format);
        if found.all {
            set(&mut headers, "X-Backend-Override-Shard-Name-Filter", "true");
        }
        let body = match format {
            Format::Json => {
                let record = |range: &ShardRange| match asked.namespaces {
                    true => json!(range.namespace()),
                    false => full_record(range),
                };
                json_ascii::to_string(&found.ranges.iter().map(record).collect())
            }
            Format::Plain => found
                .ranges
                .iter()
                .map(|r| format!("{}\n", r.name))
                .collect(),
            // No XML document has ranges; without any it equals that of an empty container.
            Format::Xml | Format::TextXml if found.ranges.is_empty() => format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<container name=\"{}\" />",
                escaped(&found.info.container)
            ),
            Format::Xml | Format::TextXml => return Err(Refused::NotAcceptable),
        };
        let mut response = status::listing((!body.is_empty()).then_some(body));
        response.headers_mut().extend(headers);
        set_content_type(response.headers_mut(), format.content_type());
        Ok(response)
    }

    pub(super) async fn put_shards(&self, asked: ContainerRequest, body: Body) -> Answer {
        let time = timestamp(asked.headers())?;
        let requested = policy_index(asked.headers(), &self.config.policies)?;
        let ranges = read_body(body, SHARDS_BYTES_MAX, ranges_of_json).await?;
        let new = self.new_db_for_row(&asked, time, requested.unwrap_or(0));
        if new.is_some() && requested.is_none() {
            return Err(no_policy());
        }
        let metadata = self.new_metadata(&asked)?;
        let internal = time.internal();
        let db = self.db_to_fill(&asked.target);
        let put = db.write(new, move |broker| {
            save_metadata(broker, &metadata, &internal)?;
            broker.merge_shard_ranges(ranges)?;
            Ok((broker.created(), broker.info()?.storage_policy_index))
        });
        let (created, policy) = put.await?;
        Ok(created_or_accepted(created, policy))
    }

    /// The redirect of a row to its shard, if the sender accepts redirects and there is a shard.
    pub(super) async fn redirect(
        &self,
        asked: &ContainerRequest,
    ) -> Result<Option<Response>, Refused> {
        if !is_yes(asked.headers(), "x-backend-accept-redirect") {
            return Ok(None);
        }
        let object = asked.target.object.clone().unwrap_or_default();
        let query = RangeQuery {
            includes: Some(object.clone()),
            states: State::UPDATING.to_vec(),
            ..RangeQuery::default()
        };
        let ranges = self
            .db(&asked.target)
            .read(move |broker| broker.list_shard_ranges(&query))
            .await;
        let range = match ranges {
            Ok(ranges) => ranges.into_iter().next(),
            // The row may create it.
            Err(cairn_index::IndexError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(range) = range else {
            return Ok(None);
        };
        let location = format!("/{}/{object}", range.name);
        let quoted = quote_path(&location);
        if location != quoted && !is_yes(asked.headers(), "x-backend-accept-quoted-location") {
            // The sender cannot parse a quoted location; the sharder moves the row later.
            return Ok(None);
        }
        let mut response = status::moved();
        let headers = response.headers_mut();
        set(headers, "Location", quoted);
        set(headers, "X-Backend-Location-Is-Quoted", "true");
        let time = Timestamp::parse(&range.timestamp).unwrap_or(Timestamp::ZERO);
        set(headers, "X-Backend-Redirect-Timestamp", time.internal());
        Ok(Some(response))
    }

    /// Headers of a response with ranges.
    pub(super) fn shard_headers(&self, found: &ShardsFound) -> HeaderMap {
        let mut headers = info_headers(&found.info, false);
        crate::index_server::add_metadata(&mut headers, &found.metadata, |name| {
            self.is_shown(name)
        });
        let put = cairn_index::broker::timestamp(&found.info.put_timestamp);
        set(&mut headers, "Last-Modified", respond::http_date(put));
        headers
    }
}

fn ranges_of_json(body: &[u8]) -> Result<Vec<ShardRange>, Refused> {
    let invalid = |reason: String| Refused::BadRequest(format!("Invalid body: {reason}"));
    let ranges: Vec<Value> =
        serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    let ranges = ranges.iter().map(ShardRange::from_json);
    ranges
        .collect::<Result<_, _>>()
        .map_err(|error| invalid(error.to_string()))
}
