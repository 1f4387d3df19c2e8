//! Sessions: random cookies, of which only digests are stored. Bounded in number and time; lost
//! when the process ends. Wrong passwords are rate-limited by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_http::Response;
use http::HeaderMap;
use http::header::{COOKIE, HeaderValue, SET_COOKIE};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Time without use after which a session ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
const SESSIONS_MAX: usize = 256;
/// Wrong passwords from one address within the window before the next attempt must wait.
const FAILURES_MAX: u32 = 10;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
const ADDRESSES_MAX: usize = 1024;

type Key = [u8; 32];

/// A user of the store, signed in through the console.
#[derive(Clone)]
pub(crate) struct StoreUser {
    pub(crate) name: String,
    pub(crate) token: HeaderValue,
    /// Path of the account, `/v1/AUTH_test`.
    pub(crate) account: String,
}

struct Session {
    used: Instant,
    store_user: Option<StoreUser>,
}

struct Failures {
    since: Instant,
    count: u32,
}

pub(crate) struct Sessions {
    cookie: String,
    /// The console uses TLS: browsers then send the cookie over TLS only.
    is_tls: bool,
    open: Mutex<HashMap<Key, Session>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

impl Sessions {
    pub(crate) fn new(port: u16, is_tls: bool) -> Sessions {
        Sessions {
            cookie: format!("cairn_console_{port}"),
            is_tls,
            open: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Opens a session and adds its cookie to the response.
    pub(crate) fn open(&self, response: &mut Response) {
        let secret = rand::random::<[u8; 32]>();
        let mut open = self.open.lock();
        let now = Instant::now();
        open.retain(|_, session| now.duration_since(session.used) < IDLE_TIMEOUT);
        if open.len() >= SESSIONS_MAX {
            let oldest = open.iter().min_by_key(|(_, s)| s.used).map(|(key, _)| *key);
            oldest.map(|key| open.remove(&key));
        }
        let session = Session {
            used: now,
            store_user: None,
        };
        open.insert(Sha256::digest(secret).into(), session);
        let value = URL_SAFE_NO_PAD.encode(secret);
        self.set_cookie(
            response,
            &format!("{value}; Max-Age={}", IDLE_TIMEOUT.as_secs()),
        );
    }

    pub(crate) fn close(&self, headers: &HeaderMap, response: &mut Response) {
        if let Some(key) = self.key(headers) {
            self.open.lock().remove(&key);
        }
        self.set_cookie(response, "; Max-Age=0");
    }

    fn set_cookie(&self, response: &mut Response, value: &str) {
        let secure = if self.is_tls { "; Secure" } else { "" };
        let name = &self.cookie;
        let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}");
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(SET_COOKIE, value);
        }
    }

    fn key(&self, headers: &HeaderMap) -> Option<Key> {
        let value = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(name, _)| *name == self.cookie)?
            .1;
        let secret = URL_SAFE_NO_PAD.decode(value).ok()?;
        Some(Sha256::digest(secret).into())
    }

    /// Calls `with` on the request's session, if it is valid.
    fn with<T>(&self, headers: &HeaderMap, with: impl FnOnce(&mut Session) -> T) -> Option<T> {
        let key = self.key(headers)?;
        let mut open = self.open.lock();
        let session = open.get_mut(&key)?;
        if session.used.elapsed() > IDLE_TIMEOUT {
            open.remove(&key);
            return None;
        }
        session.used = Instant::now();
        Some(with(session))
    }

    pub(crate) fn is_open(&self, headers: &HeaderMap) -> bool {
        self.with(headers, |_| ()).is_some()
    }

    pub(crate) fn store_user(&self, headers: &HeaderMap) -> Option<StoreUser> {
        self.with(headers, |session| session.store_user.clone())?
    }

    pub(crate) fn set_store_user(&self, headers: &HeaderMap, user: Option<StoreUser>) {
        self.with(headers, |session| session.store_user = user);
    }

    /// Counts an attempt as failed before its password is checked, so that parallel attempts cannot
    /// all pass; returns the refusal of `may_try`. A successful attempt is uncounted by
    /// `not_failed`.
    pub(crate) fn begin_try(&self, address: IpAddr) -> Result<(), Duration> {
        let mut all = self.failures.lock();
        may_try(&all, address)?;
        count(&mut all, address);
        Ok(())
    }

    pub(crate) fn not_failed(&self, address: IpAddr) {
        if let Some(failures) = self.failures.lock().get_mut(&address) {
            failures.count = failures.count.saturating_sub(1);
        }
    }
}

/// May this address try a password now? Otherwise returns the time to wait.
fn may_try(all: &HashMap<IpAddr, Failures>, address: IpAddr) -> Result<(), Duration> {
    match all.get(&address) {
        Some(failures) if failures.count >= FAILURES_MAX => {
            let left = FAILURE_WINDOW.checked_sub(failures.since.elapsed());
            left.map_or(Ok(()), Err)
        }
        _ => Ok(()),
    }
}

fn count(failures: &mut HashMap<IpAddr, Failures>, address: IpAddr) {
    failures.retain(|_, f| f.since.elapsed() < FAILURE_WINDOW);
    if failures.len() >= ADDRESSES_MAX {
        failures.clear();
    }
    let entry = failures.entry(address).or_insert(Failures {
        since: Instant::now(),
        count: 0,
    });
    entry.count += 1;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::Body;

    use super::*;

    fn cookie_of(response: &Response) -> (String, HeaderMap) {
        let set = response.headers()[SET_COOKIE].to_str().unwrap().to_owned();
        let mut headers = HeaderMap::new();
        let pair = set.split(';').next().unwrap();
        headers.insert(COOKIE, format!("a=b; {pair}").parse().unwrap());
        (set, headers)
    }

    #[test]
    fn opened_used_and_closed() {
        let sessions = Sessions::new(8081, false);
        let mut response = Response::new(Body::empty());
        sessions.open(&mut response);
        let (set, headers) = cookie_of(&response);
        assert!(set.starts_with("cairn_console_8081="), "{set}");
        assert!(set.contains("; HttpOnly; SameSite=Strict"), "{set}");
        assert!(!set.contains("; Secure"), "{set}");
        assert!(sessions.is_open(&headers));
        assert!(!sessions.is_open(&HeaderMap::new()));
        sessions.close(&headers, &mut response);
        assert!(!sessions.is_open(&headers));
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let sessions = Sessions::new(1, true);
        let mut response = Response::new(Body::empty());
        for _ in 0..SESSIONS_MAX + 5 {
            sessions.open(&mut response);
        }
        assert_eq!(sessions.open.lock().len(), SESSIONS_MAX);
        let (set, headers) = cookie_of(&response);
        assert!(sessions.is_open(&headers) && set.contains("; Secure"));
    }

    #[test]
    fn guessing_is_slowed_by_address() {
        let sessions = Sessions::new(1, true);
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for _ in 0..FAILURES_MAX {
            sessions.begin_try(one).unwrap();
        }
        assert!(sessions.begin_try(one).is_err());
        sessions.begin_try(other).unwrap();
        // One of them had the right password.
        sessions.not_failed(one);
        sessions.begin_try(one).unwrap();
    }
}
