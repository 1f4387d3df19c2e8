//! HEAD and GET: totals of an account, and the listing of its containers.

use cairn_http::respond;
use cairn_index::broker::timestamp;
use cairn_index::{
    AccountInfo, ContainerEntry, ContainerStats, ListCursor, ListPage, ListQuery, Metadata,
};
use cairn_types::PolicyIndex;
use http::HeaderMap;

use super::{AccountRequest, AccountServer, deleted};
use crate::index_server::listing::{self, Containers, Format, PAGE_ROWS};
use crate::index_server::status::Refused;
use crate::index_server::{Answer, add_metadata, head, listed, set};

/// Results of one read of the database.
struct Found {
    info: AccountInfo,
    stats: Vec<ContainerStats>,
    metadata: Metadata,
    page: Option<ListPage<ContainerEntry>>,
}

impl AccountServer {
    pub(super) async fn head(&self, asked: AccountRequest) -> Answer {
        let params = listing::params(asked.parts.uri.query())?;
        let format = Format::of(&params, asked.headers())?;
        let found = self.find(&asked, None).await?;
        Ok(head(format.content_type(), self.headers_of(&found)))
    }

    pub(super) async fn get(&self, asked: AccountRequest) -> Answer {
        let params = listing::params(asked.parts.uri.query())?;
        let limit_max = self.config.constraints.account_listing_limit;
        let mut query = listing::list_query(&params, asked.headers(), limit_max)?;
        query.path = None;
        let format = Format::of(&params, asked.headers())?;
        let mut found = self.find(&asked, Some(query)).await?;
        let first = found.page.take().unwrap_or(ListPage {
            entries: Vec::new(),
            next: None,
        });
        let rows = Containers {
            account: asked.target.account.clone(),
            policies: self.config.policies.clone(),
        };
        let db = self.db(&asked.target);
        let body = listing::body(format, rows, first, move |cursor| {
            let db = db.clone();
            async move { db.list_containers(cursor, PAGE_ROWS).await }
        });
        let headers = self.headers_of(&found);
        Ok(listed(format.content_type(), headers, body))
    }

    async fn find(
        &self,
        asked: &AccountRequest,
        query: Option<ListQuery>,
    ) -> Result<Found, Refused> {
        let db = self.db(&asked.target);
        let read = db.read(move |broker| {
            let info = broker.info()?;
            let page = query
                .filter(|_| !info.is_deleted())
                .map(|query| broker.list_containers(ListCursor::new(query), PAGE_ROWS))
                .transpose()?;
            Ok(Found {
                info,
                stats: broker.policy_stats()?,
                metadata: broker.metadata()?,
                page,
            })
        });
        let found = read.await?;
        if found.info.is_deleted() {
            return Err(deleted(&found.info));
        }
        Ok(found)
    }

    fn headers_of(&self, found: &Found) -> HeaderMap {
        let info = &found.info;
        let mut headers = HeaderMap::new();
        set(
            &mut headers,
            "X-Account-Container-Count",
            info.container_count,
        );
        set(&mut headers, "X-Account-Object-Count", info.object_count);
        set(&mut headers, "X-Account-Bytes-Used", info.bytes_used);
        set(
            &mut headers,
            "X-Timestamp",
            timestamp(&info.created_at).normal(),
        );
        set(
            &mut headers,
            "X-PUT-Timestamp",
            timestamp(&info.put_timestamp).normal(),
        );
        for stats in &found.stats {
            let index = u32::try_from(stats.storage_policy_index).ok();
            let policy = index.and_then(|index| self.config.policies.by_index(PolicyIndex(index)));
            let Some(policy) = policy else { continue };
            for (what, count) in [
                ("Container-Count", stats.container_count),
                ("Object-Count", stats.object_count),
                ("Bytes-Used", stats.bytes_used),
            ] {
                let name = format!("X-Account-Storage-Policy-{}-{what}", policy.name);
                respond::set(&mut headers, &name, count.to_string());
            }
        }
        add_metadata(&mut headers, &found.metadata, |_| true);
        headers
    }
}
