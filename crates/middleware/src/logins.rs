//! Users who log in by name and key, provided by the filter that configures them (`tempauth`) to
//! others of the same pipeline that issue tokens of another kind (`identity`).

mod failures;
mod turns;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_http::Request;
use cairn_http::context::Context;
use cairn_http::metrics::{LoginOutcome, count_login};
use parking_lot::RwLock;

pub use failures::Address;
use failures::Failures;
use turns::{Full, Turns};

use crate::secret::Secret;

/// A user with a key to one account.
#[derive(Clone)]
pub struct Login {
    /// The name for logging in: `account:user`.
    pub account: String,
    pub user: String,
    pub key: Secret,
    pub groups: Vec<String>,
    /// The account's name in paths, with its prefix.
    pub account_id: String,
}

/// The users of a pipeline. Clones share them.
#[derive(Clone, Default)]
pub struct Logins(Arc<Shared>);

#[derive(Default)]
struct Shared {
    known: RwLock<Known>,
    failures: Failures,
    turns: Turns,
}

/// Reasons why a key is not checked.
#[derive(Debug)]
pub enum NotNow {
    /// Too many failures; the time to wait.
    HeldBack(Duration),
    /// Too many passwords are waiting to be hashed.
    Busy,
}

/// The client address of a request.
pub fn address_of(request: &Request) -> Address {
    let context = request.extensions().get::<Context>();
    let client = context.and_then(Context::client);
    Address::of(client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
}

/// Whole seconds for `Retry-After`.
pub fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + 1
}

#[derive(Default)]
struct Known {
    logins: Vec<Login>,
    /// Privileged roles in lower case.
    privileged: BTreeSet<String>,
}

impl Logins {
    pub(crate) fn tell(&self, logins: impl IntoIterator<Item = Login>) {
        let mut all = self.0.known.write();
        all.logins.extend(logins);
    }

    /// Sets the roles with a special meaning for the filter that authorizes by them: a group of the
    /// same name does not confer such a role.
    pub(crate) fn tell_privileged(&self, roles: impl IntoIterator<Item = String>) {
        let mut all = self.0.known.write();
        all.privileged.extend(roles);
    }

    pub fn privileged(&self) -> BTreeSet<String> {
        let all = self.0.known.read();
        all.privileged.clone()
    }

    pub fn all(&self) -> Vec<Login> {
        let all = self.0.known.read();
        all.logins.clone()
    }

    /// May this address check this user's key now?
    ///
    /// # Errors
    /// `HeldBack` after too many failures.
    pub fn may_try(&self, address: Address, user: &str) -> Result<(), NotNow> {
        let may = self.0.failures.may_try(address, user, Instant::now());
        may.map_err(|wait| {
            count_login(LoginOutcome::HeldUp);
            NotNow::HeldBack(wait)
        })
    }

    /// Records the outcome of an attempt.
    pub fn ended(&self, address: Address, user: &str, accepted: bool) {
        let now = Instant::now();
        match accepted {
            true => {
                count_login(LoginOutcome::Accepted);
                self.0.failures.accepted(address, user, now);
            }
            false => {
                count_login(LoginOutcome::Wrong);
                self.0.failures.failed(address, user, now);
            }
        }
    }

    /// Is it the password? Hashing runs on a thread of its own, by turns. An attempt that was
    /// blocked while waiting for its turn is refused.
    ///
    /// # Errors
    /// `Busy` if too many passwords wait, or the thread panics; `HeldBack` as [`Logins::may_try`].
    pub async fn matches(
        &self,
        address: Address,
        user: &str,
        secret: &Secret,
        password: &str,
    ) -> Result<bool, NotNow> {
        if !secret.is_slow() {
            return Ok(secret.matches(password));
        }
        let turn = self.0.turns.wait(address).await;
        let turn = turn.map_err(|Full| {
            count_login(LoginOutcome::HeldUp);
            NotNow::Busy
        })?;
        self.may_try(address, user)?;
        let (secret, password) = (secret.clone(), password.to_owned());
        // The turn belongs to the thread, which continues if the client disconnects.
        let hashing = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            secret.matches(&password)
        });
        hashing.await.map_err(|_| NotNow::Busy)
    }
}
