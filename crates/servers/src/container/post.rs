//! POST: sets metadata of an existing container.

use super::{ContainerRequest, ContainerServer, keeps_timestamp, save_metadata};
use crate::index_server::status::{self, Refused};
use crate::index_server::{Answer, timestamp};

impl ContainerServer {
    pub(super) async fn post(&self, asked: ContainerRequest) -> Answer {
        let internal = timestamp(asked.headers())?.internal();
        self.check_sync_to(asked.headers())?;
        let metadata = self.new_metadata(&asked)?;
        let touches = !keeps_timestamp(asked.headers());
        let db = self.db_to_fill(&asked.target);
        let posted = db.write(None, move |broker| {
            if broker.is_deleted()? {
                return Ok(false);
            }
            if touches {
                broker.update_put_timestamp(&internal)?;
            }
            save_metadata(broker, &metadata, &internal)?;
            Ok(true)
        });
        if posted.await? {
            Ok(status::done())
        } else {
            Err(Refused::NotFound)
        }
    }
}
