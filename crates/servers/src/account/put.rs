//! PUT of an account: creates its database, or raises its put time and sets metadata.

use cairn_index::{AccountInfo, NewDb};

use super::post::save_metadata;
use super::{AccountRequest, AccountServer, status_headers};
use crate::index_server::status::{self, Refused};
use crate::index_server::{Answer, timestamp};

enum Put {
    Created,
    Accepted,
    /// Deleted and not yet reclaimed: it cannot be created again until then.
    Deleted(Box<AccountInfo>),
    Outdated,
}

impl AccountServer {
    pub(super) async fn put(&self, asked: AccountRequest) -> Answer {
        let internal = timestamp(asked.headers())?.internal();
        let metadata = self.new_metadata(&asked)?;
        let new = NewDb::Account {
            account: asked.target.account.clone(),
            put_timestamp: internal.clone(),
        };
        let db = self.db_to_fill(&asked.target);
        let put = db.write(Some(new), move |broker| {
            let mut created = broker.created();
            if !created {
                let before = broker.info()?;
                if before.is_status_deleted() {
                    return Ok(Put::Deleted(Box::new(before)));
                }
                created = before.is_deleted();
                broker.update_put_timestamp(&internal)?;
                if broker.is_deleted()? {
                    return Ok(Put::Outdated);
                }
            }
            save_metadata(broker, &metadata, &internal)?;
            Ok(if created { Put::Created } else { Put::Accepted })
        });
        match put.await? {
            Put::Created => Ok(status::created()),
            Put::Accepted => Ok(status::accepted()),
            Put::Deleted(info) => {
                let headers = Box::new(status_headers(&info));
                Err(Refused::RecentlyDeleted(headers))
            }
            Put::Outdated => Err(Refused::Conflict),
        }
    }
}
