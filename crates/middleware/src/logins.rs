//! People who log in by name and key, told by the filter that has them (`tempauth`) and asked by
//! others of the same pipeline that hand out tokens of another kind (`identity`).

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

pub(crate) use failures::Address;
use failures::Failures;
use turns::{Full, Turns};

use crate::secret::Secret;

/// Somebody with a key to one account.
#[derive(Clone)]
pub(crate) struct Login {
    /// As typed when logging in: `account:user`.
    pub(crate) account: String,
    pub(crate) user: String,
    pub(crate) key: Secret,
    pub(crate) groups: Vec<String>,
    /// The account's name in paths, its prefix included.
    pub(crate) account_id: String,
}

/// All of a pipeline's. Cloning shares it.
#[derive(Clone, Default)]
pub struct Logins(Arc<Shared>);

#[derive(Default)]
struct Shared {
    known: RwLock<Known>,
    failures: Failures,
    turns: Turns,
}

/// Why a key is not looked at.
#[derive(Debug)]
pub(crate) enum NotNow {
    /// After failures, for so long.
    HeldBack(Duration),
    /// Too many passwords wait to be hashed.
    Busy,
}

/// The address that a request comes from.
pub(crate) fn address_of(request: &Request) -> Address {
    let context = request.extensions().get::<Context>();
    let remote = context.and_then(|context| context.remote);
    Address::of(remote.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |r| r.ip()))
}

/// Whole seconds for `Retry-After`.
pub(crate) fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + 1
}

#[derive(Default)]
struct Known {
    logins: Vec<Login>,
    /// In lower case.
    privileged: BTreeSet<String>,
}

impl Logins {
    pub(crate) fn tell(&self, logins: impl IntoIterator<Item = Login>) {
        let mut all = self.0.known.write();
        all.logins.extend(logins);
    }

    /// Roles that mean more than their name, as the filter that decides by them has them: a group
    /// of that name is none of them.
    pub(crate) fn tell_privileged(&self, roles: impl IntoIterator<Item = String>) {
        let mut all = self.0.known.write();
        all.privileged.extend(roles);
    }

    pub(crate) fn privileged(&self) -> BTreeSet<String> {
        let all = self.0.known.read();
        all.privileged.clone()
    }

    pub(crate) fn all(&self) -> Vec<Login> {
        let all = self.0.known.read();
        all.logins.clone()
    }

    /// May this address try this user's key now?
    pub(crate) fn may_try(&self, address: Address, user: &str) -> Result<(), NotNow> {
        let may = self.0.failures.may_try(address, user, Instant::now());
        may.map_err(|wait| {
            count_login(LoginOutcome::HeldUp);
            NotNow::HeldBack(wait)
        })
    }

    /// How a try ended.
    pub(crate) fn ended(&self, address: Address, user: &str, accepted: bool) {
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

    /// Is it the password? Hashing has a thread, and a turn, of its own. Whoever was held back
    /// while waiting for it is not heard.
    pub(crate) async fn matches(
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
        // The turn goes with the thread, which goes on where the client went away.
        let hashing = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            secret.matches(&password)
        });
        hashing.await.map_err(|_| NotNow::Busy)
    }
}
