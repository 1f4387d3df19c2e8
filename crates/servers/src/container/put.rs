//! PUT of a container: makes its database, brings a deleted one back, or moves its put time and
//! sets metadata; then tells the account.

use cairn_http::{Body, respond};
use cairn_index::{ContainerBroker, ContainerInfo, NewDb};
use http::StatusCode;

use super::{Asked, ContainerServer, save_metadata};
use crate::index_server::status::Refused;
use crate::index_server::{Answer, done, policy_index, text, timestamp};

/// Shard ranges are read only to see that there are none.
const SHARDS_BYTES_MAX: u64 = 1 << 20;

enum Put {
    Done {
        created: bool,
        info: Box<ContainerInfo>,
    },
    OtherPolicy(i64),
    Outdated,
}

impl ContainerServer {
    pub(super) async fn put(&self, asked: Asked, body: Body) -> Answer {
        let time = timestamp(asked.headers())?;
        self.check_sync_to(asked.headers())?;
        if text(asked.headers(), "x-backend-record-type")
            .is_some_and(|kind| kind.eq_ignore_ascii_case("shard"))
        {
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
            account: asked.place.account.clone(),
            container: asked.container().to_owned(),
            put_timestamp: internal.clone(),
            storage_policy_index: policy,
        };
        let db = self.db_to_fill(&asked.place);
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
        self.tell_account(&asked, &info).await?;
        Ok(created_or_accepted(created, policy))
    }

    /// Nothing here shards; a sharder elsewhere that sends ranges must not believe them kept.
    async fn put_shards(&self, asked: Asked, body: Body) -> Answer {
        let time = timestamp(asked.headers())?;
        let requested = policy_index(asked.headers(), &self.config.policies)?;
        let shards = body.collect(SHARDS_BYTES_MAX).await;
        let shards = shards.map_err(|error| Refused::BadRequest(error.to_string()))?;
        match serde_json::from_slice::<Vec<serde_json::Value>>(&shards) {
            Ok(shards) if shards.is_empty() => {}
            Ok(_) => return Err(Refused::NoSharding),
            Err(error) => return Err(Refused::BadRequest(format!("Invalid body: {error}"))),
        }
        let new = self.new_db_for_row(&asked, time, requested.unwrap_or(0));
        if new.is_some() && requested.is_none() {
            return Err(no_policy());
        }
        let metadata = self.new_metadata(&asked)?;
        let internal = time.internal();
        let db = self.db_to_fill(&asked.place);
        let put = db.write(new, move |broker| {
            save_metadata(broker, &metadata, &internal)?;
            Ok((broker.created(), broker.info()?.storage_policy_index))
        });
        let (created, policy) = put.await?;
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
        // Only a container that is gone may come back with another policy.
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

fn created_or_accepted(created: bool, policy: i64) -> cairn_http::Response {
    let mut response = done(if created {
        StatusCode::CREATED
    } else {
        StatusCode::ACCEPTED
    });
    respond::set(
        response.headers_mut(),
        "X-Backend-Storage-Policy-Index",
        policy.to_string(),
    );
    response
}
