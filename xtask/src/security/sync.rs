//! Container sync: a client with a container's key and the realm's puts objects into that
//! container, and reaches nothing else by the names in such a request or object.

use anyhow::{Result, ensure};
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use super::doors::REALM_KEY;
use super::tenants::{self, SECRET, shows_the_secret};
use super::{Options, Store, all_held};
use cairn_testkit::wire::{Connection, Response};

const KEY: &str = "of-the-container";

/// Inputs of a signature: the signed words and the keys.
#[derive(Clone, Copy)]
struct Signed<'a> {
    method: &'a str,
    path: &'a str,
    timestamp: &'a str,
    realm_key: &'a str,
    key: &'a str,
}

impl Signed<'_> {
    fn header(&self) -> Result<String> {
        let Signed {
            method,
            path,
            timestamp,
            realm_key,
            key,
        } = self;
        let mut mac = Hmac::<Sha1>::new_from_slice(realm_key.as_bytes())?;
        mac.update(format!("{method}\n{path}\n{timestamp}\nnonce\n{key}").as_bytes());
        let bytes = mac.finalize().into_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("realm nonce {hex}"))
    }
}

struct Door {
    port: u16,
    timestamp: String,
}

impl Door {
    fn signed<'a>(&'a self, method: &'a str, path: &'a str) -> Signed<'a> {
        let timestamp = &self.timestamp;
        Signed {
            method,
            path,
            timestamp,
            realm_key: REALM_KEY,
            key: KEY,
        }
    }

    /// Sends a request with the given signature (`auth`).
    fn send(
        &self,
        method: &str,
        path: &str,
        auth: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let mut headers = vec![
            ("X-Container-Sync-Auth", auth),
            ("X-Timestamp", &self.timestamp),
        ];
        headers.extend(more);
        Connection::new(self.port).call(method, path, &headers, body)
    }

    /// The correct inputs: the method and the path without its query.
    fn good(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let signed = path.split('?').next().unwrap_or_default();
        self.send(
            method,
            path,
            &self.signed(method, signed).header()?,
            more,
            body,
        )
    }
}

pub(super) fn synced(store: &Store, _: &Options) -> Result<String> {
    let door = Door {
        port: store.doors.hosts,
        timestamp: format!("{}.00000", tenants::now()?),
    };
    let mut owner = tenants::owner(store)?;
    owner.must("PUT", "/synced", "", &[("X-Container-Sync-Key", KEY)], b"")?;
    owner.must("PUT", "/unkeyed", "", &[], b"")?;
    let object = format!("{}/synced/o", owner.path);
    let put = door
        .good("PUT", &object, &[], b"of the other cluster")?
        .status;
    ensure!(put == 201, "what is signed does not get in: {put}");
    let mut broken = Vec::new();
    let mut tried = unsigned(&door, &owner.path, &mut broken)?;
    tried += pointing(&door, &object, &mut broken)?;
    let read = owner.must("GET", "/private/secret", "", &[], b"")?;
    if read.body != SECRET.as_bytes() || owner.listing("/private")?.len() != 1 {
        broken.push("the container with the secret was written to".to_owned());
    }
    all_held(broken, format!("{tried} ways tried"))
}

/// Sends requests with signatures of other requests.
fn unsigned(door: &Door, account: &str, broken: &mut Vec<String>) -> Result<usize> {
    let object = &*format!("{account}/synced/o");
    let other = &*format!("{account}/synced/other");
    let secret = &*format!("{account}/private/secret");
    let unkeyed = &*format!("{account}/unkeyed/o");
    let good = door.signed("PUT", object);
    let of_realm = |realm_key| Signed { realm_key, ..good };
    let of_container = |key| Signed { key, ..good };
    let earlier = Signed {
        timestamp: "0",
        ..good
    };
    let keyless = Signed {
        path: unkeyed,
        ..of_container("")
    };
    let put_secret = door.signed("PUT", secret);
    let get_secret = door.signed("GET", secret);
    let tries = [
        ("of another object", "PUT", other, good),
        ("of another container", "PUT", secret, good),
        ("for another method", "DELETE", object, good),
        ("for another method", "GET", object, good),
        ("of another time", "PUT", object, earlier),
        ("by another key of the realm", "PUT", object, of_realm("x")),
        ("by no key of the realm", "PUT", object, of_realm("")),
        ("by another key", "PUT", object, of_container("x")),
        ("by no key", "PUT", object, of_container("")),
        ("by no key where there is none", "PUT", unkeyed, keyless),
        ("by another container's key", "PUT", secret, put_secret),
        ("by another container's key", "GET", secret, get_secret),
    ];
    let body = |method| if method == "PUT" { &b"forged"[..] } else { b"" };
    for (words, method, path, signed) in tries {
        let status = door
            .send(method, path, &signed.header()?, &[], body(method))?
            .status;
        if status / 100 == 2 {
            broken.push(format!(
                "{method} {path} with a signature {words}: {status}"
            ));
        }
    }
    let header = good.header()?;
    let words: Vec<&str> = header.split(' ').collect();
    let headers = [
        String::new(),
        words[2].to_owned(),
        format!("realm {}", words[2]),
        format!("elsewhere nonce {}", words[2]),
        format!("realm nonce {} more", words[2]),
        format!("realm nonce {}", words[2].to_uppercase()),
        format!("realm nonce {}", &words[2][..39]),
        "realm nonce".to_owned(),
    ];
    for header in &headers {
        let status = door.send("PUT", object, header, &[], b"forged")?.status;
        if status / 100 == 2 {
            broken.push(format!("PUT with {header:?}: {status}"));
        }
    }
    Ok(tries.len() + headers.len())
}

type Headers<'a> = &'a [(&'a str, &'a str)];

/// Sends signed requests that name another object, whose content must not become readable by them.
fn pointing(door: &Door, object: &str, broken: &mut Vec<String>) -> Result<usize> {
    let as_manifest = &*format!("{object}?multipart-manifest=put");
    let copied = ("Destination", "synced/o");
    let secret = object.replace("/synced/o", "/private/secret");
    let tries: [(&str, &str, Headers<'_>, &[u8]); 8] = [
        ("PUT", object, &[("X-Copy-From", "private/secret")], b""),
        (
            "PUT",
            object,
            &[
                ("X-Copy-From", "/private/secret"),
                ("X-Copy-From-Account", "AUTH_test"),
            ],
            b"",
        ),
        (
            "PUT",
            object,
            &[("X-Symlink-Target", "private/secret")],
            b"",
        ),
        (
            "PUT",
            object,
            &[
                ("X-Symlink-Target", "private/secret"),
                ("X-Symlink-Target-Account", "AUTH_test"),
            ],
            b"",
        ),
        ("PUT", object, &[("X-Object-Manifest", "private/s")], b""),
        (
            "PUT",
            object,
            &[
                ("X-Object-Sysmeta-Symlink-Target", "private/secret"),
                ("X-Backend-Replication", "true"),
            ],
            b"",
        ),
        ("PUT", as_manifest, &[], br#"[{"path": "/private/secret"}]"#),
        ("COPY", &secret, &[copied], b""),
    ];
    for (index, (method, path, headers, body)) in tries.iter().enumerate() {
        // A newer timestamp for each request.
        let door = Door {
            port: door.port,
            timestamp: format!("{}.{:05}", tenants::now()?, index + 1),
        };
        let status = door.good(method, path, headers, body)?.status;
        if shows_the_secret(&door.good("GET", object, &[], b"")?.body) {
            broken.push(format!(
                "{method} with {headers:?} ({status}) shows the secret"
            ));
        }
        if matches!(
            (*method, headers.first()),
            ("COPY", _) | (_, Some(("X-Copy-From", _)))
        ) && status / 100 == 2
        {
            broken.push(format!("{method} with {headers:?} is taken: {status}"));
        }
    }
    Ok(tries.len())
}
