//! POST: sets metadata of an existing account.

use cairn_index::AccountBroker;

use super::{AccountRequest, AccountServer, deleted};
use crate::index_server::{Answer, status, timestamp};

impl AccountServer {
    pub(super) async fn post(&self, asked: AccountRequest) -> Answer {
        let internal = timestamp(asked.headers())?.internal();
        let metadata = self.new_metadata(&asked)?;
        let db = self.db_to_fill(&asked.target);
        let gone = db.write(None, move |broker| {
            let info = broker.info()?;
            if info.is_deleted() {
                return Ok(Some(info));
            }
            save_metadata(broker, &metadata, &internal)?;
            Ok(None)
        });
        match gone.await? {
            None => Ok(status::done()),
            Some(info) => Err(deleted(&info)),
        }
    }
}

pub(super) fn save_metadata(
    broker: &AccountBroker<'_>,
    metadata: &[(String, String)],
    internal: &str,
) -> cairn_index::Result<()> {
    let updates = metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str(), internal));
    broker.update_metadata(updates, true)
}
