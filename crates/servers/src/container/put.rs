//! PUT of a container: creates its database, recreates a deleted one, or raises its put time and
//! sets metadata; then updates the account.

use cairn_http::{Body, respond};
use cairn_index::{ContainerBroker, ContainerInfo, NewDb};

use super::shards::RecordType;
use super::{ContainerRequest, ContainerServer, save_metadata};
use crate::index_server::status::{self, Refused};
use crate::index_server::{Answer, policy_index, text, timestamp};

enum Put {
    Done {
        created: bool,
        info: Box<ContainerInfo>,
    },
    OtherPolicy(i64),
    Outdated,
}

impl ContainerServer {
    pub(super) async fn put(&self, asked: ContainerRequest, body: Body) -> Answer {
        let time = timestamp(asked.headers())?;
        self.check_sync_to(asked.headers())?;
        if RecordType::of(asked.headers()) == RecordType::Shards {
            return self.put_shards(asked, body).await;
        }
        let requested = policy_index(asked.headers(), &self.config.policies)?;
        let default = text(asked.headers(), "x-backend-storage-policy-default");
        let policy = match (requested, default) {
            (Some(index), _) => index,
            (None, Some(default)) => default.trim().parse().map_err(|_| {
                Refused::BadRequest("Invalid X-Backend-Storage-Policy-Default".into())
            })?,
            (None, None) => i64::from(self.config.policies.default_policy().index.0),
        };
        let metadata = self.new_metadata(&asked)?;
        let internal = time.internal();
        let new = NewDb::Container {
            account: asked.target.account.clone(),
            container: asked.container().to_owned(),
            put_timestamp: internal.clone(),
            storage_policy_index: policy,
        };
        let db = self.db_to_fill(&asked.target);
        let put = db.write(Some(new), move |broker| {
            let put = put_container(broker, &internal, policy, requested)?;
            if let Put::Done { .. } = &put {
                save_metadata(broker, &metadata, &internal)?;
            }
            Ok(put)
        });
        let (created, info) = match put.await? {
            Put::Done { created, info } => (created, info),
            Put::OtherPolicy(index) => return Err(Refused::OtherPolicy(index)),
            Put::Outdated => return Err(Refused::Conflict),
        };
        let policy = info.storage_policy_index;
        self.update_account(&asked, &info).await?;
        Ok(created_or_accepted(created, policy))
    }
}

pub(super) fn no_policy() -> Refused {
    Refused::BadRequest("X-Backend-Storage-Policy-Index header is required".into())
}

fn put_container(
    broker: &ContainerBroker<'_>,
    internal: &str,
    policy: i64,
    requested: Option<i64>,
) -> cairn_index::Result<Put> {
    if broker.created() {
        return Ok(Put::Done {
            created: true,
            info: Box::new(broker.info()?),
        });
    }
    let before = broker.info()?;
    let recreated = before.is_deleted();
    if recreated {
        // Only a deleted container may be recreated with another policy.
        broker.set_storage_policy_index(policy, internal)?;
    } else if requested.is_some_and(|requested| requested != before.storage_policy_index) {
        return Ok(Put::OtherPolicy(before.storage_policy_index));
    }
    broker.update_put_timestamp(internal)?;
    if broker.is_deleted()? {
        return Ok(Put::Outdated);
    }
    if recreated {
        broker.update_status_changed_at(internal)?;
    }
    Ok(Put::Done {
        created: recreated,
        info: Box::new(broker.info()?),
    })
}

pub(super) fn created_or_accepted(created: bool, policy: i64) -> cairn_http::Response {
    let mut response = match created {
        true => status::created(),
        false => status::accepted(),
    };
    respond::set(
        response.headers_mut(),
        "X-Backend-Storage-Policy-Index",
        policy.to_string(),
    );
    response
}
