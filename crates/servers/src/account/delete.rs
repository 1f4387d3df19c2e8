//! DELETE: marks an account as deleted. The reaper deletes its containers.

use super::{AccountRequest, AccountServer, deleted, status_headers};
use crate::index_server::{Answer, status, timestamp};

impl AccountServer {
    pub(super) async fn delete(&self, asked: AccountRequest) -> Answer {
        let internal = timestamp(asked.headers())?.internal();
        let db = self.db(&asked.target);
        let write = db.write(None, move |broker| {
            let before = broker.info()?;
            if before.is_deleted() {
                return Ok((false, before));
            }
            broker.delete_db(&internal)?;
            Ok((true, broker.info()?))
        });
        match write.await? {
            (true, info) => {
                let mut response = status::done();
                response.headers_mut().extend(status_headers(&info));
                Ok(response)
            }
            (false, info) => Err(deleted(&info)),
        }
    }
}
