//! PUT of a container into an account: a row update from a container server.

use cairn_index::{ContainerRow, NewDb};

use super::{AccountRequest, AccountServer};
use crate::index_server::status::{self, Refused};
use crate::index_server::{Answer, is_auto_created, required, required_number, text, timestamp};

impl AccountServer {
    pub(super) async fn put_container(&self, asked: AccountRequest) -> Answer {
        let headers = asked.headers();
        let time = if headers.contains_key("x-timestamp") {
            timestamp(headers)?
        } else {
            self.config.clock.now()
        };
        let row = row_of(&asked)?;
        let is_deletion = row.delete_timestamp > row.put_timestamp;
        let account = &asked.target.account;
        let new = is_auto_created(account, &self.config.constraints).then(|| NewDb::Account {
            account: account.clone(),
            put_timestamp: time.internal(),
        });
        let even_deleted = text(headers, "x-account-override-deleted")
            .is_some_and(|word| word.eq_ignore_ascii_case("yes"));
        let db = self.db(&asked.target);
        let put = db.write(new, move |broker| {
            if !even_deleted && broker.is_deleted()? {
                return Ok(false);
            }
            broker.merge_items(vec![row])?;
            Ok(true)
        });
        match put.await? {
            false => Err(Refused::NotFound),
            true if is_deletion => Ok(status::done()),
            true => Ok(status::created()),
        }
    }
}

fn row_of(asked: &AccountRequest) -> Result<ContainerRow, Refused> {
    let headers = asked.headers();
    let time = |name: &str| {
        let text = required(headers, name)?;
        match cairn_types::Timestamp::parse(text) {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err(Refused::BadRequest(format!("Invalid {name} header"))),
        }
    };
    let policy = match headers.get("x-backend-storage-policy-index") {
        Some(_) => required_number(headers, "x-backend-storage-policy-index")?,
        None => 0,
    };
    Ok(ContainerRow {
        name: asked.target.container.clone().unwrap_or_default(),
        put_timestamp: time("x-put-timestamp")?,
        delete_timestamp: time("x-delete-timestamp")?,
        object_count: required_number(headers, "x-object-count")?,
        bytes_used: required_number(headers, "x-bytes-used")?,
        deleted: false,
        storage_policy_index: policy,
    })
}
