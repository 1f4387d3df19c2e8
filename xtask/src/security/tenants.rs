//! A tenant that wants another's data: by headers that name objects, by signatures, by links and by
//! versions.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{Options, Store, all_held};
use cairn_testkit::wire::{Account, Connection};

/// Content that only its owner may see.
pub(super) const SECRET: &str =
    "what only its owner may read, and a signature for something else does not open";

/// Logs in as the owner, whose container `private` holds `secret`.
pub(super) fn owner(store: &Store) -> Result<Account> {
    let mut owner = Account::login(store.port)?;
    owner.must("PUT", "/private", "", &[], b"")?;
    owner.must("PUT", "/private/secret", "", &[], SECRET.as_bytes())?;
    Ok(owner)
}

pub(super) fn stranger(store: &Store) -> Result<Account> {
    Account::login_as(store.port, "test2:tester2", "testing2")
}

pub(super) fn shows_the_secret(body: &[u8]) -> bool {
    body.windows(20)
        .any(|part| SECRET.as_bytes().starts_with(part))
}

/// Requests that name another object, with each header and parameter alone and combined: neither
/// the object that a stranger makes of them nor reads beyond the stranger's own account show the
/// secret.
pub(super) fn strangers(store: &Store, _: &Options) -> Result<String> {
    let mut owner = owner(store)?;
    let read = owner.must("GET", "/private/secret", "", &[], b"")?;
    ensure!(shows_the_secret(&read.body), "its owner cannot read it");
    let mut stranger = stranger(store)?;
    for container in ["/mine", "/made"] {
        stranger.must("PUT", container, "", &[], b"")?;
    }
    stranger.must("PUT", "/kept", "", &[("X-Versions-Enabled", "true")], b"")?;
    let mut broken = Vec::new();
    let (mut tried, mut made) = (0, 0);
    for from in ["mine/o", "kept/o"] {
        stranger.must("PUT", &format!("/{from}"), "", &[], b"of the stranger")?;
        stranger.must(
            "PUT",
            &format!("/{from}"),
            "",
            &[],
            b"of the stranger, later",
        )?;
        for extras in subsets(&EXTRAS) {
            for query in ["", "?symlink=get", "?multipart-manifest=get"] {
                for is_copy in [true, false] {
                    tried += 1;
                    let copy = Copy {
                        from,
                        to: "made/o",
                        query,
                        is_copy,
                    };
                    let (status, words) = copy.make(&mut stranger, &extras)?;
                    made += u32::from(status == 201);
                    if let Some(how) = seen(store, &mut stranger)? {
                        broken.push(format!("{words}: seen {how}"));
                    }
                }
            }
        }
    }
    for (path, headers) in DIRECT {
        tried += 1;
        let mut all = vec![("X-Auth-Token", stranger.token.as_str())];
        all.extend(headers);
        let answer = Connection::new(store.port).call("GET", path, &all, b"");
        if answer.is_ok_and(|a| shows_the_secret(&a.body)) {
            broken.push(format!("GET {path} {headers:?}"));
        }
    }
    ensure!(made > 0, "nothing was made at all");
    all_held(broken, format!("{tried} ways tried"))
}

type Headers = &'static [(&'static str, &'static str)];

/// Headers by which a request for one object names another or asks for more than its path.
const EXTRAS: [Headers; 6] = [
    &[("X-Fresh-Metadata", "true")],
    &[
        ("X-Symlink-Target", "private/secret"),
        ("X-Symlink-Target-Account", "AUTH_test"),
    ],
    &[("X-Object-Manifest", "private/s")],
    &[
        ("X-Copy-From-Account", "AUTH_test"),
        ("Destination-Account", "AUTH_test2"),
    ],
    &[
        ("X-Backend-Allow-Reserved-Names", "true"),
        ("X-Backend-Storage-Policy-Index", "0"),
        ("X-Backend-Replication", "true"),
    ],
    &[
        ("X-Object-Sysmeta-Symlink-Target", "private/secret"),
        ("X-Object-Sysmeta-Symlink-Target-Account", "AUTH_test"),
        ("X-Object-Sysmeta-Allow-Reserved-Names", "true"),
        ("X-Object-Sysmeta-Symloop-Extend", "true"),
    ],
];

/// Direct reads of the secret with a stranger's token.
const DIRECT: [(&str, Headers); 10] = [
    ("/v1/AUTH_test/private/secret", &[]),
    ("/v1/AUTH_test/private/secret?symlink=get", &[]),
    ("/v1/AUTH_test/private/secret?version-id=null", &[]),
    ("/v1/AUTH_test2/../AUTH_test/private/secret", &[]),
    ("/v1/AUTH_test2/%2e%2e/AUTH_test/private/secret", &[]),
    ("//v1/AUTH_test/private/secret", &[]),
    ("/v1//AUTH_test/private/secret", &[]),
    (
        "/v1/AUTH_test/private/secret",
        &[("X-Backend-Swift-Owner", "true"), ("X-Swift-Owner", "true")],
    ),
    (
        "/v1/AUTH_test/private/secret",
        &[("X-Identity-Status", "Confirmed"), ("X-Roles", "admin")],
    ),
    (
        "/private/secret",
        &[("X-Forwarded-Host", "AUTH-test.example.com")],
    ),
];

/// The headers of every subset of `all`.
fn subsets(all: &[Headers]) -> impl Iterator<Item = Vec<(&'static str, &'static str)>> {
    (0..1u32 << all.len()).map(|set| {
        let chosen = all.iter().enumerate();
        let chosen = chosen.filter(|(index, _)| set & (1 << index) != 0);
        chosen.flat_map(|(_, h)| h.iter().copied()).collect()
    })
}

/// Way to make an object of another one: `COPY`, or else `PUT` with `X-Copy-From`.
struct Copy<'a> {
    from: &'a str,
    to: &'a str,
    query: &'static str,
    is_copy: bool,
}

impl Copy<'_> {
    /// Makes the object anew, and returns the status and the method's name.
    fn make(&self, account: &mut Account, extras: &[(&str, &str)]) -> Result<(u16, String)> {
        let (from, to) = (self.from, format!("/{}", self.to));
        account.call("DELETE", &to, "", &[], b"")?;
        let mut headers = extras.to_vec();
        let (method, path) = if self.is_copy {
            headers.push(("Destination", self.to));
            ("COPY", format!("/{from}"))
        } else {
            headers.push(("X-Copy-From", from));
            ("PUT", to)
        };
        let query = self.query;
        let status = account.call(method, &path, query, &headers, b"")?.status;
        let words = format!("{method} {path}{query} {extras:?} ({status})");
        Ok((status, words))
    }
}

/// Checks whether the created object shows the secret.
fn seen(store: &Store, stranger: &mut Account) -> Result<Option<&'static str>> {
    for (how, query) in [
        ("by its name", ""),
        ("as a manifest", "?multipart-manifest=get"),
    ] {
        let body = stranger.call("GET", "/made/o", query, &[], b"")?.body;
        if shows_the_secret(&body) {
            return Ok(Some(how));
        }
    }
    let path = format!("{}/made/o", stranger.path);
    let body = Connection::new(store.port)
        .call("GET", &path, &[], b"")?
        .body;
    Ok(shows_the_secret(&body).then_some("without a login"))
}

/// Links that form a loop: an answer after a bounded number of steps, and no work that goes on
/// afterwards.
pub(super) fn circles(store: &Store, _: &Options) -> Result<String> {
    let mut owner = Account::login(store.port)?;
    owner.must("PUT", "/circle", "", &[], b"")?;
    let count = 4;
    for index in 0..count {
        let target = format!("circle/{}", (index + 1) % count);
        let path = format!("/circle/{index}");
        owner.must("PUT", &path, "", &[("X-Symlink-Target", &target)], b"")?;
    }
    ensure_bounded(&mut owner, "/circle/0")?;
    ensure_idle(store)?;
    Ok("409, and nothing goes on".to_owned())
}

/// Headers by which a client may try to give a link what marks a trusted one.
const MARKS: [Headers; 3] = [
    &[("X-Fresh-Metadata", "true")],
    &[("X-Backend-Allow-Reserved-Names", "true")],
    &[
        ("X-Object-Sysmeta-Allow-Reserved-Names", "true"),
        ("X-Object-Sysmeta-Symloop-Extend", "true"),
        ("X-Object-Sysmeta-Versions-Symlink", "true"),
    ],
];

/// Like [`circles`], of links made with the marks of trusted ones, in every way that sends headers
/// or copies metadata.
pub(super) fn marked_circles(store: &Store, _: &Options) -> Result<String> {
    let mut owner = Account::login(store.port)?;
    owner.must("PUT", "/marked", "", &[], b"")?;
    let versioned = [("X-Versions-Enabled", "true")];
    owner.must("PUT", "/marked-kept", "", &versioned, b"")?;
    // Without content, as links are.
    for source in SOURCES {
        owner.must("PUT", &format!("/{source}"), "", &[], b"")?;
    }
    let (mut tried, mut whole) = (0, 0);
    for marks in subsets(&MARKS) {
        for copied in ways() {
            let (mut is_whole, mut how) = (true, String::new());
            for (to, target) in [("marked/a", "marked/b"), ("marked/b", "marked/a")] {
                let mut headers = marks.clone();
                headers.push(("X-Symlink-Target", target));
                let (status, words) = match copied {
                    Some((from, query, is_copy)) => {
                        let copy = Copy {
                            from,
                            to,
                            query,
                            is_copy,
                        };
                        copy.make(&mut owner, &headers)?
                    }
                    None => {
                        let status = owner.call("PUT", &format!("/{to}"), "", &headers, b"")?;
                        (status.status, format!("PUT {headers:?}"))
                    }
                };
                is_whole &= status == 201;
                how = words;
            }
            tried += 1;
            if is_whole {
                whole += 1;
                ensure_bounded(&mut owner, "/marked/a").context(how)?;
            }
        }
    }
    ensure!(whole > 0, "no circle was made at all");
    ensure_idle(store)?;
    Ok(format!("{tried} ways tried, {whole} circles, all with 409"))
}

/// Objects that are copied; the second is itself a link to its latest version.
const SOURCES: [&str; 2] = ["marked/source", "marked-kept/source"];

/// Ways to make a link: all of [`Copy`], by source, query and whether it is `COPY`, and plainly.
fn ways() -> Vec<Option<(&'static str, &'static str, bool)>> {
    let mut ways = vec![None];
    for from in SOURCES {
        for query in ["", "?symlink=get"] {
            ways.extend([true, false].map(|is_copy| Some((from, query, is_copy))));
        }
    }
    ways
}

/// Reads of a link in a circle end with 409.
fn ensure_bounded(owner: &mut Account, link: &str) -> Result<()> {
    for (method, expected) in [("GET", 409), ("HEAD", 409), ("POST", 307)] {
        let headers = [("X-Object-Meta-A", "b")];
        let status = owner.call(method, link, "", &headers, b"")?.status;
        ensure!(status == expected, "{method}: {status}");
    }
    Ok(())
}

/// No work goes on after the last answer.
fn ensure_idle(store: &Store) -> Result<()> {
    let (start, before) = (Instant::now(), store.processor_seconds());
    std::thread::sleep(Duration::from_secs(2));
    let busy = (store.processor_seconds() - before) / start.elapsed().as_secs_f64();
    ensure!(busy < 0.5, "{busy:.2} processors busy afterwards");
    Ok(())
}

/// A temporary URL allows reads or writes of its own object only.
pub(super) fn signatures(store: &Store, _: &Options) -> Result<String> {
    let mut owner = owner(store)?;
    let key = "of-the-attack";
    owner.must("POST", "", "", &[("X-Account-Meta-Temp-URL-Key", key)], b"")?;
    owner.must("PUT", "/upload", "", &[], b"")?;
    let path = format!("{}/upload/new", owner.path);
    let put = signed("PUT", &path, key)?;
    let get = signed("GET", &path, key)?;
    let mut connection = Connection::new(store.port);
    let plain = connection.call("PUT", &put, &[], SECRET.as_bytes())?.status;
    let read = connection.call("GET", &get, &[], b"")?;
    ensure!(
        plain == 201 && shows_the_secret(&read.body),
        "a signature opens nothing at all: {plain}, {}",
        read.status
    );
    let namings: [Headers; 7] = [
        &[("X-Copy-From", "private/secret")],
        &[("X-Copy-From", "/private/secret")],
        &[
            ("X-Copy-From", "private/secret"),
            ("X-Copy-From-Account", "AUTH_test"),
        ],
        &[("X-Object-Manifest", "private/s")],
        &[("X-Symlink-Target", "private/secret")],
        &[
            ("X-Symlink-Target", "private/secret"),
            ("X-Symlink-Target-Account", "AUTH_test"),
        ],
        &[
            ("X-Object-Sysmeta-Symlink-Target", "private/secret"),
            ("X-Object-Transient-Sysmeta-A", "b"),
        ],
    ];
    let mut broken = Vec::new();
    for headers in namings {
        owner.call("DELETE", "/upload/new", "", &[], b"")?;
        let mut connection = Connection::new(store.port);
        let status = connection.call("PUT", &put, headers, b"")?.status;
        if shows_the_secret(&connection.call("GET", &get, &[], b"")?.body) {
            broken.push(format!("PUT with {headers:?} ({status})"));
        }
    }
    let manifest = br#"[{"path": "/private/secret"}]"#;
    let as_manifest = format!("{put}&multipart-manifest=put");
    let mut connection = Connection::new(store.port);
    let status = connection.call("PUT", &as_manifest, &[], manifest)?.status;
    if shows_the_secret(&connection.call("GET", &get, &[], b"")?.body) {
        broken.push(format!("PUT of a manifest ({status})"));
    }
    for method in ["COPY", "DELETE", "POST"] {
        let to = [("Destination", "upload/copied")];
        let status = connection.call(method, &put, &to, b"")?.status;
        if !matches!(status, 401 | 403 | 400) {
            broken.push(format!("{method} by what is signed for PUT: {status}"));
        }
    }
    all_held(broken, "11 ways tried".to_owned())
}

/// The URL's path and query, valid for an hour.
fn signed(method: &str, path: &str, key: &str) -> Result<String> {
    let expires = now()? + 3600;
    let signature = hmac_sha256(key, &format!("{method}\n{expires}\n{path}"))?;
    Ok(format!(
        "{path}?temp_url_sig={signature}&temp_url_expires={expires}"
    ))
}

/// Current time in seconds since 1970.
pub(super) fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

/// The HMAC-SHA-256 of a message in hex.
pub(super) fn hmac_sha256(key: &str, message: &str) -> Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes())?;
    mac.update(message.as_bytes());
    let bytes = mac.finalize().into_bytes();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A stranger cannot tell from the answers whether a version exists.
pub(super) fn versions(store: &Store, _: &Options) -> Result<String> {
    let mut owner = Account::login(store.port)?;
    owner.must(
        "PUT",
        "/versions",
        "",
        &[("X-Versions-Enabled", "true")],
        b"",
    )?;
    owner.must("PUT", "/versions/o", "", &[], b"one")?;
    let listing = owner.must("GET", "/versions", "?format=json&versions=true", &[], b"")?;
    let listing: serde_json::Value = serde_json::from_slice(&listing.body)?;
    let id = listing[0]["version_id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(!id.is_empty(), "no version-id in the listing");
    let mut stranger = stranger(store)?;
    stranger.path = owner.path.clone();
    let mut broken = Vec::new();
    for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
        let mut ask = |id: &str| -> Result<(u16, Vec<String>)> {
            let query = format!("?version-id={id}");
            let answer = stranger.call(method, "/versions/o", &query, &[], b"")?;
            let names = answer.headers.into_iter().map(|(name, _)| name).collect();
            Ok((answer.status, names))
        };
        let (there, not) = (ask(&id)?, ask("1111111111.00000")?);
        if there != not {
            broken.push(format!("{method}: {} and {}", there.0, not.0));
        }
    }
    all_held(broken, "the same answers".to_owned())
}
