//! HEAD and GET: properties of a container, and the listing of its objects.

use cairn_http::respond;
use cairn_index::{
    ContainerInfo, IndexError, ListCursor, ListPage, ListQuery, Metadata, ObjectEntry,
};
use http::HeaderMap;

use super::shards::{RecordType, ShardsFound, ShardsQuery};
use super::{ContainerRequest, ContainerServer, info_headers};
use crate::index_server::listing::{self, Format, Objects, PAGE_ROWS};
use crate::index_server::status::Refused;
use crate::index_server::{Answer, add_metadata, head, listed, policy_index, set};

/// Results of one read of the database.
struct Found {
    info: ContainerInfo,
    metadata: Metadata,
    page: Option<ListPage<ObjectEntry>>,
}

/// Result of a GET's read.
enum Seen {
    Objects(Box<Found>),
    Shards(Box<ShardsFound>),
    Deleted(Box<ContainerInfo>),
}

impl ContainerServer {
    pub(super) async fn head(&self, asked: ContainerRequest) -> Answer {
        let params = listing::params(asked.parts.uri.query())?;
        let format = Format::of(&params, asked.headers())?;
        let found = self.find(&asked).await?;
        let headers = self.headers_of(&found.info, &found.metadata);
        Ok(head(format.content_type(), headers))
    }

    pub(super) async fn get(&self, asked: ContainerRequest) -> Answer {
        let params = listing::params(asked.parts.uri.query())?;
        if params.contains("changes") {
            return self.changes(&asked, &params).await;
        }
        let limit_max = self.config.constraints.container_listing_limit;
        let query = listing::list_query(&params, asked.headers(), limit_max)?;
        let format = Format::of(&params, asked.headers())?;
        let shards = ShardsQuery::of(&params, asked.headers());
        let records = RecordType::of(asked.headers());
        let requested = match records {
            RecordType::Shards => None,
            _ => policy_index(asked.headers(), &self.config.policies)?,
        };
        // Errors in parameters of ranges matter only to requests for ranges.
        let asked_shards = match records {
            RecordType::Objects => None,
            _ => Some(shards?),
        };
        let look = asked_shards.clone();
        let db = self.db(&asked.target);
        let seen = db.read(move |broker| {
            let info = broker.info()?;
            if let Some(look) = look.filter(|_| records.is_shards(&info)) {
                return match look.refuses(&info) {
                    true => Ok(Seen::Deleted(Box::new(info))),
                    false => Ok(Seen::Shards(Box::new(look.find(broker, info)?))),
                };
            }
            if info.is_deleted() {
                return Ok(Seen::Deleted(Box::new(info)));
            }
            let storage_policy_index = requested.unwrap_or(info.storage_policy_index);
            let cursor = ListCursor::new(ListQuery {
                storage_policy_index,
                ..query
            });
            let page = broker.with_source(|source| source.list_objects(cursor, PAGE_ROWS))?;
            Ok(Seen::Objects(Box::new(Found {
                metadata: broker.metadata()?,
                info,
                page: Some(page),
            })))
        });
        let mut found = match seen.await {
            Ok(Seen::Objects(found)) => *found,
            Ok(Seen::Shards(found)) => {
                let headers = self.shard_headers(&found);
                let asked = asked_shards.ok_or(Refused::NotFound)?;
                return self.shards_listed(&asked, &found, format, headers);
            }
            Ok(Seen::Deleted(info)) => return Err(not_found(Ok(*info))),
            Err(error) => return Err(not_found(Err(error))),
        };
        let mut headers = self.headers_of(&found.info, &found.metadata);
        set(&mut headers, "X-Backend-Record-Type", "object");
        let policy = requested.unwrap_or(found.info.storage_policy_index);
        set(
            &mut headers,
            "X-Backend-Record-Storage-Policy-Index",
            policy,
        );
        let first = found.page.take().unwrap_or(ListPage {
            entries: Vec::new(),
            next: None,
        });
        let rows = Objects {
            container: asked.container().to_owned(),
        };
        let db = self.db(&asked.target);
        let body = listing::body(format, rows, first, move |cursor| {
            let db = db.clone();
            async move { db.list_objects(cursor, PAGE_ROWS).await }
        });
        Ok(listed(format.content_type(), headers, body))
    }

    /// Reads the container, unless it is deleted.
    async fn find(&self, asked: &ContainerRequest) -> Result<Found, Refused> {
        let db = self.db(&asked.target);
        let read = db.read(|broker| {
            Ok(Found {
                info: broker.info()?,
                metadata: broker.metadata()?,
                page: None,
            })
        });
        match read.await {
            Ok(found) if !found.info.is_deleted() => Ok(found),
            other => Err(not_found(other.map(|found| found.info))),
        }
    }

    pub(super) fn headers_of(&self, info: &ContainerInfo, metadata: &Metadata) -> HeaderMap {
        let mut headers = info_headers(info, false);
        add_metadata(&mut headers, metadata, |name| self.is_shown(name));
        let put = cairn_index::broker::timestamp(&info.put_timestamp);
        set(&mut headers, "Last-Modified", respond::http_date(put));
        headers
    }
}

/// The 404 of a deleted or nonexistent container, with backend headers.
pub(super) fn not_found(found: Result<ContainerInfo, IndexError>) -> Refused {
    let info = match found {
        Ok(info) => info,
        Err(IndexError::NotFound { .. }) => ContainerInfo::default(),
        Err(error) => return error.into(),
    };
    Refused::NotFoundWith(Box::new(info_headers(&info, true)))
}
