//! Calls of a proxy of this process, in place of requests: writes that are plain (`whole_write.rs`), and reads.

use std::sync::Arc;

use cairn_disk::ObjectKey;
use cairn_peer::calls::{Answering, Reading};
use cairn_peer::{Node, ObjectRead, TakesCalls, WholeWrite};
use cairn_types::HashPath;
use http::header::HeaderName;

use super::get::Asked;
use super::status::Refusal;
use super::target::Target;
use super::{Inner, ObjectServer};

/// Request header of daemons, whose reads yield to clients'.
const REPLICATION: HeaderName = HeaderName::from_static("x-backend-replication");

impl TakesCalls for ObjectServer {
    fn write(&self, write: &Arc<WholeWrite>, replica: usize, node: &Node) -> Option<Answering> {
        self.0.write_by_call(write, replica, node)
    }

    fn read<'a>(&'a self, read: &'a ObjectRead<'a>, node: &Node) -> Option<Reading<'a>> {
        let asked = self.0.asked_by_call(read, node)?;
        Some(Box::pin(async move {
            let answer = match read.is_head {
                true => Box::pin(self.0.head_asked(asked)).await,
                // Proxies fail over where content is unsound.
                false => self.0.get_asked(asked, true).await,
            };
            answer.unwrap_or_else(Refusal::into_response)
        }))
    }
}

impl Inner {
    /// Whether a call is of this cluster: another one's proxy has other hashes.
    pub(super) fn is_own(&self, hash_path: &HashPath) -> bool {
        *hash_path == self.config.hash_path
    }

    /// A read by a call; `None`: it is to come as a request.
    fn asked_by_call<'a>(&self, read: &ObjectRead<'a>, node: &Node) -> Option<Asked<'a>> {
        if !self.is_own(read.hash_path) || read.headers.contains_key(REPLICATION) {
            return None;
        }
        self.check_names(read.account, read.container, read.object)
            .ok()?;
        self.config.policies.by_index(read.policy)?;
        let target = Target {
            device: self.device(&node.device.device).ok()?,
            engine: self.engine(read.policy).ok()?,
            key: ObjectKey {
                policy: read.policy,
                partition: read.partition,
                hash: read.hash,
                name: read.path.clone(),
            },
            account: read.account.to_owned(),
            container: read.container.to_owned(),
            object: read.object.to_owned(),
        };
        Some(Asked {
            headers: read.headers,
            target,
            now: read.timestamp,
        })
    }
}
