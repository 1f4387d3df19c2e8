//! DELETE of a container: marks an empty one as deleted, and updates the account.

use cairn_index::ContainerInfo;

use super::{ContainerRequest, ContainerServer, update_sync_store};
use crate::index_server::status::{self, Refused};
use crate::index_server::{Answer, timestamp};

enum Deleted {
    Gone {
        existed: bool,
        info: Box<ContainerInfo>,
    },
    NotEmpty,
    /// There is a later PUT.
    Outdated,
}

impl ContainerServer {
    pub(super) async fn delete(&self, asked: ContainerRequest) -> Answer {
        let internal = timestamp(asked.headers())?.internal();
        let db = self.db(&asked.target);
        let deleted = db.write(None, move |broker| {
            if !broker.is_empty()? {
                return Ok(Deleted::NotEmpty);
            }
            let before = broker.info()?;
            let put = cairn_index::broker::timestamp(&before.put_timestamp);
            let existed = !put.is_zero() && !before.is_deleted();
            broker.delete_db(&internal)?;
            update_sync_store(broker);
            let info = Box::new(broker.info()?);
            Ok(if info.is_deleted() {
                Deleted::Gone { existed, info }
            } else {
                Deleted::Outdated
            })
        });
        let (existed, info) = match deleted.await? {
            Deleted::Gone { existed, info } => (existed, info),
            Deleted::NotEmpty | Deleted::Outdated => return Err(Refused::Conflict),
        };
        self.update_account(&asked, &info).await?;
        if existed {
            Ok(status::done())
        } else {
            Err(Refused::NotFound)
        }
    }
}
