//! Tokens in memcached, where OpenStack Swift's proxies store theirs:
//!
//! | key | value |
//! | --- | --- |
//! | `<prefix>/token/<token>` | `[expires, "group,group,…"]`, seconds since 1970 |
//! | `<prefix>/user/<account>:<user>` | the user's token, which the next login may reuse |

use cairn_http::Request;
use serde_json::{Value, json};

use super::{Core, TempAuth, X_AUTH_TOKEN, X_SERVICE_TOKEN, X_STORAGE_TOKEN, header};
use crate::filters::memcache::Shared;

/// Seconds for which a token found there is not looked up again; it may be revoked meanwhile.
const TRUST_SECONDS: u64 = 60;

/// The result of a login.
pub(super) struct Granted {
    pub(super) token: String,
    pub(super) account_user: String,
    pub(super) groups: Vec<String>,
    pub(super) now: u64,
}

fn token_key(core: &Core, token: &str) -> String {
    format!("{}/token/{token}", core.prefixes[0])
}

/// Stores a token for Swift's proxies, which cannot open it themselves.
pub(super) async fn share(core: &Core, shared: &Shared, granted: &Granted) {
    let token = granted.token.as_str();
    if !core.tokens.is_looked_up(token) {
        return;
    }
    let (life, now) = (core.token_life, granted.now);
    let value = json!([now.saturating_add(life), granted.groups.join(",")]);
    let key = token_key(core, token);
    shared.0.set(&key, &value, life, now).await;
    let key = format!("{}/user/{}", core.prefixes[0], granted.account_user);
    shared.0.set(&key, &json!(token), life, now).await;
}

impl TempAuth {
    /// Tokens of a request that must be looked up in memcached.
    pub(super) fn to_look_up(&self, request: &Request) -> Option<(Shared, Vec<String>)> {
        let shared = request.extensions().get::<Shared>()?;
        let headers = request.headers();
        let token = header(headers, &X_AUTH_TOKEN).or_else(|| header(headers, &X_STORAGE_TOKEN));
        let both = [token, header(headers, &X_SERVICE_TOKEN)];
        let now = self.core.clock.now().secs();
        // A copy in memcached does not make our own invalid token valid.
        let unknown = both.into_iter().flatten().filter(|token| {
            self.core.tokens.is_looked_up(token)
                && self.user(token).is_none()
                && !self.core.tokens.is_own(token, now)
        });
        let unknown: Vec<String> = unknown.map(str::to_owned).collect();
        (!unknown.is_empty()).then(|| (shared.clone(), unknown))
    }

    /// Looks up tokens in memcached, and caches their users.
    pub(super) async fn look_up(&self, shared: &Shared, tokens: &[String]) {
        for token in tokens {
            let value = shared.0.get(&token_key(&self.core, token)).await;
            let now = self.core.clock.now().secs();
            let Some((groups, expires)) = value.as_ref().and_then(read) else {
                continue;
            };
            // The user's current groups apply, not those at login.
            let core = &self.core;
            let known = groups
                .get(1)
                .and_then(|name| Some((name, core.users.get(name)?)));
            let Some((name, user)) = known else { continue };
            let groups = user.groups(name, &core.prefixes);
            if expires >= now {
                let until = expires.min(now.saturating_add(TRUST_SECONDS));
                self.remember(token, groups, until, now);
            }
        }
    }
}

/// Groups, and the second in which they expire.
fn read(value: &Value) -> Option<(Vec<String>, u64)> {
    let [expires, groups] = value.as_array()?.as_slice() else {
        return None;
    };
    let expires = expires.as_f64().filter(|seconds| *seconds >= 0.0)? as u64;
    let groups = groups.as_str()?.split(',').map(str::to_owned).collect();
    Some((groups, expires))
}
