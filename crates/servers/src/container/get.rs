//! HEAD and GET: facts about a container, and the listing of its objects.

use cairn_http::{Body, Response, respond};
use cairn_index::{
    ContainerInfo, IndexError, ListCursor, ListPage, ListQuery, Metadata, ObjectEntry,
};
use http::{HeaderMap, StatusCode, header};

use super::{Asked, ContainerServer, info_headers};
use crate::index_server::listing::{self, Format, Objects, PAGE_ROWS};
use crate::index_server::status::Refused;
use crate::index_server::{
    Answer, add_metadata, head, is_yes, policy_index, set, set_content_type, text,
};

/// What one visit to the database brings.
struct Found {
    info: ContainerInfo,
    metadata: Metadata,
    page: Option<ListPage<ObjectEntry>>,
}

impl ContainerServer {
    pub(super) async fn head(&self, asked: Asked) -> Answer {
        let params = listing::params(asked.parts.uri.query())?;
        let format = Format::of(&params, asked.headers())?;
        let found = self.find(&asked, |_| None).await?;
        let headers = self.headers_of(&found);
        Ok(head(format.content_type(), headers))
    }

    pub(super) async fn get(&self, asked: Asked) -> Answer {
        let params = listing::params(asked.parts.uri.query())?;
        let limit_max = self.config.constraints.container_listing_limit;
        let query = listing::list_query(&params, asked.headers(), limit_max)?;
        let format = Format::of(&params, asked.headers())?;
        if text(asked.headers(), "x-backend-record-type")
            .is_some_and(|kind| kind.eq_ignore_ascii_case("shard"))
        {
            return self.get_shards(asked, format).await;
        }
        let requested = policy_index(asked.headers(), &self.config.policies)?;
        let mut found = self
            .find(&asked, move |info| {
                let storage_policy_index = requested.unwrap_or(info.storage_policy_index);
                Some(ListQuery {
                    storage_policy_index,
                    ..query
                })
            })
            .await?;
        let mut headers = self.headers_of(&found);
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
        let db = self.db(&asked.place);
        let body = listing::body(format, rows, first, move |cursor| {
            let db = db.clone();
            async move { db.list_objects(cursor, PAGE_ROWS).await }
        });
        Ok(listed(format, headers, body))
    }

    /// A container that is not sharded has no shard ranges.
    async fn get_shards(&self, asked: Asked, format: Format) -> Answer {
        let shown_deleted = is_yes(asked.headers(), "x-backend-override-deleted");
        let found = match self.find_any(&asked, |_| None).await {
            Ok(found) if shown_deleted || !found.info.is_deleted() => found,
            other => return Err(not_found(other)),
        };
        let mut headers = self.headers_of(&found);
        set(&mut headers, "X-Backend-Record-Type", "shard");
        let namespace = text(asked.headers(), "x-backend-record-shard-format")
            .is_some_and(|format| format.eq_ignore_ascii_case("namespace"));
        let shard_format = if namespace { "namespace" } else { "full" };
        set(&mut headers, "X-Backend-Record-Shard-Format", shard_format);
        let rows = Objects {
            container: asked.container().to_owned(),
        };
        let none = ListPage {
            entries: Vec::new(),
            next: None,
        };
        let body = listing::body(format, rows, none, |_| async {
            Err::<ListPage<ObjectEntry>, _>(IndexError::Closed)
        });
        Ok(listed(format, headers, body))
    }

    /// The container, if it is not deleted; `query` says what to list of it, if anything.
    async fn find(
        &self,
        asked: &Asked,
        query: impl FnOnce(&ContainerInfo) -> Option<ListQuery> + Send + 'static,
    ) -> Result<Found, Refused> {
        match self.find_any(asked, query).await {
            Ok(found) if !found.info.is_deleted() => Ok(found),
            other => Err(not_found(other)),
        }
    }

    async fn find_any(
        &self,
        asked: &Asked,
        query: impl FnOnce(&ContainerInfo) -> Option<ListQuery> + Send + 'static,
    ) -> Result<Found, IndexError> {
        let db = self.db(&asked.place);
        let read = db.read(move |broker| {
            let info = broker.info()?;
            let query = query(&info).filter(|_| !info.is_deleted());
            let page = query
                .map(|query| broker.list_objects(ListCursor::new(query), PAGE_ROWS))
                .transpose()?;
            Ok(Found {
                metadata: broker.metadata()?,
                info,
                page,
            })
        });
        read.await
    }

    fn headers_of(&self, found: &Found) -> HeaderMap {
        let mut headers = info_headers(&found.info, false);
        add_metadata(&mut headers, &found.metadata, |name| self.is_shown(name));
        let put = cairn_index::broker::timestamp(&found.info.put_timestamp);
        set(&mut headers, "Last-Modified", respond::http_date(put));
        headers
    }
}

/// A container that is deleted, or never was, still has backend headers.
fn not_found(found: Result<Found, IndexError>) -> Refused {
    let info = match found {
        Ok(found) => found.info,
        Err(IndexError::NotFound { .. }) => ContainerInfo::default(),
        Err(error) => return error.into(),
    };
    Refused::NotFoundWith(Box::new(info_headers(&info, true)))
}

/// 200 with a body, 204 without one.
fn listed(format: Format, headers: HeaderMap, body: Option<Body>) -> Response {
    let mut response = match body {
        None => respond::empty(StatusCode::NO_CONTENT),
        Some(body) => respond::typed(StatusCode::OK, "text/plain", body),
    };
    let length = response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.headers_mut() = headers;
    if let Some(length) = length {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length);
    }
    set_content_type(response.headers_mut(), format.content_type());
    response
}
