//! Revoked tokens, and guesses at keys.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Options, Store, all_held};
use cairn_testkit::figures::median;
use cairn_testkit::wire::{Account, Connection};

/// A token that its user revoked grants nothing: unchanged, without its padding, with bytes
/// appended, and neither does a token made from it.
pub(super) fn ended(store: &Store, _: &Options) -> Result<String> {
    ensure!(store.is_cairn, "TempAuth's tokens cannot be ended");
    let mut connection = Connection::new(store.port);
    let login = |connection: &mut Connection, identity: serde_json::Value| -> Result<String> {
        let body = json!({"auth": {"identity": identity, "scope": {"project": {
            "name": "test", "domain": {"name": "Default"}}}}});
        let kind = [("Content-Type", "application/json")];
        let answer = connection.call(
            "POST",
            "/v3/auth/tokens",
            &kind,
            body.to_string().as_bytes(),
        )?;
        ensure!(
            answer.status == 201,
            "login: {} {}",
            answer.status,
            answer.text()
        );
        let token = answer.header("x-subject-token").context("no token")?;
        Ok(token.to_owned())
    };
    let password = json!({"methods": ["password"], "password": {"user": {
        "name": "tester", "domain": {"name": "Default"}, "password": "testing"}}});
    let token = login(&mut connection, password)?;
    let child = json!({"methods": ["token"], "token": {"id": token}});
    let child = login(&mut connection, child)?;
    let spellings = [
        token.clone(),
        token.trim_end_matches('=').to_owned(),
        format!("{token}="),
        format!("{}==", token.trim_end_matches('=')),
        format!(" {token}"),
        child,
    ];
    let mut status = |token: &str| -> Result<u16> {
        let headers = [("X-Auth-Token", token)];
        Ok(connection
            .call("HEAD", "/v1/AUTH_test", &headers, b"")?
            .status)
    };
    // By now every cache of tokens has seen all spellings.
    for spelling in &spellings {
        status(spelling)?;
    }
    ensure!(status(&token)? / 100 == 2, "the token opens nothing at all");
    let headers = [
        ("X-Auth-Token", token.as_str()),
        ("X-Subject-Token", token.as_str()),
    ];
    let answer = Connection::new(store.port).call("DELETE", "/v3/auth/tokens", &headers, b"")?;
    ensure!(answer.status == 204, "revocation: {}", answer.status);
    let mut broken = Vec::new();
    for (index, spelling) in spellings.iter().enumerate() {
        let status = status(spelling)?;
        if status / 100 == 2 {
            broken.push(format!("spelling {index} of an ended token: {status}"));
        }
    }
    all_held(broken, format!("{} spellings tried", spellings.len()))
}

/// Wrong guesses over many connections: their number is bounded, and a user with the right key
/// still gets in. The response times do not reveal which users exist.
pub(super) fn guesses(store: &Store, _: &Options) -> Result<String> {
    let port = store.port;
    let guess = move |user: String| -> Result<(u16, f64)> {
        let start = Instant::now();
        let headers = [("X-Auth-User", user.as_str()), ("X-Auth-Key", "wrong")];
        let answer = Connection::new(port).call("GET", "/auth/v1.0", &headers, b"")?;
        Ok((answer.status, start.elapsed().as_secs_f64()))
    };
    let mut broken = Vec::new();
    let middle = |user: &str| -> Result<f64> {
        let mut all = Vec::new();
        for index in 0..5 {
            // A different user each time, so that no back-off is measured.
            all.push(guess(user.replace('#', &index.to_string()))?.1);
        }
        median(all).context("five guesses")
    };
    let (known, unknown) = (middle("test:tester2")?, middle("test:nobody#")?);
    if known.max(unknown) > 0.02 && known.max(unknown) / known.min(unknown) > 3.0 {
        broken.push(format!(
            "{:.1} ms for a user that is there, {:.1} for others",
            known * 1000.0,
            unknown * 1000.0
        ));
    }
    // A user that has logged in from this address before.
    Account::login(port)?;
    let until = Instant::now() + Duration::from_secs(5);
    let threads: Vec<_> = (0..32)
        .map(|index| {
            std::thread::spawn(move || {
                let mut tried = 0u32;
                while Instant::now() < until {
                    let headers = [("X-Auth-User", "test:tester3"), ("X-Auth-Key", "wrong")];
                    let answer = Connection::new(port).call("GET", "/auth/v1.0", &headers, b"");
                    // 429 and 503 mean that the guess was not tried.
                    tried += u32::from(answer.is_ok_and(|a| a.status == 401));
                    if index % 8 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                tried
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    let login = Account::login(port);
    let waited = start.elapsed().as_secs_f64();
    let tried: u32 = threads.into_iter().filter_map(|t| t.join().ok()).sum();
    if let Err(error) = login {
        broken.push(format!("another user's login: {error:#}"));
    }
    if waited > 3.0 {
        broken.push(format!("another user's login took {waited:.1} s"));
    }
    if tried > 500 {
        broken.push(format!("{} guesses a second were tried", tried / 5));
    }
    all_held(
        broken,
        format!(
            "{:.1} guesses a second tried, another user's login in {:.0} ms",
            f64::from(tried) / 5.0,
            waited * 1000.0
        ),
    )
}
