//! Check of `X-Container-Sync-To`: the hosts to which container sync may send objects.

use http::HeaderMap;

use super::ContainerServer;
use crate::index_server::status::Refused;
use crate::index_server::text;

impl ContainerServer {
    pub(super) fn check_sync_to(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let Some(value) = text(headers, "x-container-sync-to") else {
            return Ok(());
        };
        let hosts = &self.config.allowed_sync_hosts;
        let destination = self.config.sync_realms.destination(value, hosts);
        destination.map(|_| ()).map_err(Refused::BadRequest)
    }
}
