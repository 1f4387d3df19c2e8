//! Form uploads (FormPost): the signature covers a path prefix and limits, so nothing else in a
//! form, in its file parts' headers or in the request may name another object or reach another
//! path.

use anyhow::{Result, ensure};

use super::tenants::{self, SECRET, shows_the_secret};
use super::{Options, Store, all_held};
use cairn_testkit::wire::{Account, Connection};

const BOUNDARY: &str = "between-the-parts";
const CONTENT: &str = "what the browser sends";
const KEY: &str = "of-the-account";
/// Temporary-URL key of the container that receives the forms, and of no other.
const CONTAINER_KEY: &str = "of-the-container";

/// A form and its fields, as covered by the signature.
#[derive(Clone)]
struct Form<'a> {
    path: &'a str,
    redirect: &'a str,
    size: &'a str,
    count: &'a str,
    /// Expiry in seconds from now; negative: already expired.
    expires: i64,
    key: &'a str,
    /// Additional fields before the file.
    fields: &'a [(&'a str, &'a str)],
    /// Header lines of the file part.
    lines: &'a str,
    filename: &'a str,
    content: &'a str,
    files: usize,
}

impl Form<'_> {
    fn of(path: &str) -> Form<'_> {
        Form {
            path,
            redirect: "",
            size: "1000",
            count: "1",
            expires: 3600,
            key: KEY,
            fields: &[],
            lines: "Content-Type: text/plain\r\n",
            filename: "made",
            content: CONTENT,
            files: 1,
        }
    }

    /// A copy with one change.
    fn but(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut form = self.clone();
        change(&mut form);
        form
    }

    fn signature(&self) -> Result<(String, String)> {
        let expires = (tenants::now()? as i64 + self.expires).to_string();
        let signed = [self.path, self.redirect, self.size, self.count, &expires].join("\n");
        Ok((tenants::hmac_sha256(self.key, &signed)?, expires))
    }

    /// The request body made of `self`, with the signature of `signed`.
    fn body(&self, signed: &Form<'_>) -> Result<String> {
        let (signature, expires) = signed.signature()?;
        let mut fields = vec![
            ("redirect", self.redirect),
            ("max_file_size", self.size),
            ("max_file_count", self.count),
            ("expires", &expires),
            ("signature", &signature),
        ];
        fields.extend(self.fields);
        let mut body = String::new();
        for (name, value) in fields {
            body.push_str(&format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            ));
        }
        for _ in 0..self.files {
            body.push_str(&format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{}\"\r\n\
                 {}\r\n{}\r\n",
                self.filename, self.lines, self.content
            ));
        }
        Ok(body + &format!("--{BOUNDARY}--\r\n"))
    }

    /// Posts the form to `to` with the signature of `signed`; returns the status.
    fn post(&self, store: &Store, to: &str, signed: &Form<'_>, more: &[Header]) -> Result<u16> {
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let mut headers = vec![("Content-Type", kind.as_str())];
        headers.extend(more);
        let body = self.body(signed)?;
        let answer = Connection::new(store.port).call("POST", to, &headers, body.as_bytes())?;
        Ok(answer.status)
    }
}

type Header<'a> = (&'a str, &'a str);

/// Headers that make an object a copy of another, or a pointer to one.
const POINTERS: [Header<'static>; 8] = [
    ("X-Copy-From", "private/secret"),
    ("X-Copy-From-Account", "AUTH_test"),
    ("X-Object-Manifest", "private/s"),
    ("X-Symlink-Target", "private/secret"),
    ("X-Symlink-Target-Account", "AUTH_test"),
    ("X-Object-Sysmeta-Symlink-Target", "private/secret"),
    ("X-Object-Transient-Sysmeta-A", "b"),
    ("X-Backend-Allow-Reserved-Names", "true"),
];

pub(super) fn forms(store: &Store, _: &Options) -> Result<String> {
    let mut owner = tenants::owner(store)?;
    owner.must("POST", "", "", &[("X-Account-Meta-Temp-URL-Key", KEY)], b"")?;
    let container_key = [("X-Container-Meta-Temp-URL-Key", CONTAINER_KEY)];
    owner.must("PUT", "/formed", "", &container_key, b"")?;
    let mut broken = Vec::new();
    let mut tried = refused(store, &mut owner, &mut broken)?;
    tried += pointing(store, &mut owner, &mut broken)?;
    tried += elsewhere(store, &mut owner, &mut broken)?;
    all_held(broken, format!("{tried} ways tried"))
}

/// A forged form: its target, and the form that is signed instead.
struct Forged<'a> {
    words: &'static str,
    form: Form<'a>,
    to: &'a str,
    signed: Form<'a>,
}

/// Forms whose signature covers something else. `prefix` is a longer path than `path`.
fn forged<'a>(path: &'a str, prefix: &'a str, private: &'a str) -> Vec<Forged<'a>> {
    let good = Form::of(path);
    let as_good = |words, signed| Forged {
        words,
        form: Form::of(path),
        to: path,
        signed,
    };
    let signed_good = |words, form, to| Forged {
        words,
        form,
        to,
        signed: Form::of(path),
    };
    let longer = good.but(|f| (f.content, f.size) = ("more than may come", "14"));
    let elsewhere = good.but(|f| (f.path, f.key) = (private, CONTAINER_KEY));
    vec![
        as_good("expired", good.but(|f| f.expires = -60)),
        as_good("expired before 1970", good.but(|f| f.expires = -(1 << 40))),
        as_good("of another container", Form::of(private)),
        as_good("by an empty key", good.but(|f| f.key = "")),
        as_good("of a smaller file", good.but(|f| f.size = "5")),
        signed_good("used elsewhere", good.clone(), private),
        signed_good("used for a longer prefix", good.clone(), prefix),
        signed_good("of another redirect", good.but(|f| f.redirect = "/"), path),
        signed_good(
            "of fewer files",
            good.but(|f| (f.count, f.files) = ("2", 2)),
            path,
        ),
        Forged {
            words: "by the key of another container",
            form: elsewhere.clone(),
            to: private,
            signed: elsewhere,
        },
        Forged {
            words: "of as much, with more in it",
            form: longer.clone(),
            to: path,
            signed: longer,
        },
    ]
}

/// Checks that every forged form is refused.
fn refused(store: &Store, owner: &mut Account, broken: &mut Vec<String>) -> Result<usize> {
    let path = format!("{}/formed/", owner.path);
    let (prefix, private) = (format!("{path}a"), format!("{}/private/", owner.path));
    for key in [KEY, CONTAINER_KEY] {
        let good = Form::of(&path).but(|f| f.key = key);
        let status = good.post(store, &path, &good, &[])?;
        ensure!(
            status == 201,
            "a form signed by {key:?} is not taken: {status}"
        );
    }
    let tries = forged(&path, &prefix, &private);
    for Forged {
        words,
        form,
        to,
        signed,
    } in &tries
    {
        owner.call("DELETE", "/formed/made", "", &[], b"")?;
        let status = form.post(store, to, signed, &[])?;
        let is_there = ["/formed/made", "/formed/amade", "/private/made"]
            .into_iter()
            .map(|name| owner.call("HEAD", name, "", &[], b""))
            .any(|answer| answer.is_ok_and(|a| a.is_success()));
        if status / 100 == 2 || is_there {
            broken.push(format!("a signature {words}: {status}, made: {is_there}"));
        }
    }
    Ok(tries.len())
}

/// Sends pointer headers as fields, in the file part's header, behind a line break and on the
/// request: the stored object is the file that was sent, and nothing else.
fn pointing(store: &Store, owner: &mut Account, broken: &mut Vec<String>) -> Result<usize> {
    let path = &*format!("{}/formed/", owner.path);
    let good = Form::of(path);
    let lines = POINTERS.map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines = lines.concat();
    let kind = format!("text/plain\r\n{}", lines.trim_end());
    let smuggled = [("content-type", &*kind), ("content-encoding", &*kind)];
    let time = format!("9999999999\r\n{}", lines.trim_end());
    let late = [("x_delete_at", &*time)];
    let manifest = good.but(|f| f.content = r#"[{"path": "/private/secret"}]"#);
    let by_name = manifest.but(|f| f.filename = "made?multipart-manifest=put");
    let as_manifest = &*format!("{path}?multipart-manifest=put");
    let tries: [(&str, Form<'_>, &str, &[Header<'_>]); 7] = [
        ("fields", good.but(|f| f.fields = &POINTERS), path, &[]),
        ("the file's head", good.but(|f| f.lines = &lines), path, &[]),
        (
            "a line break",
            good.but(|f| f.fields = &smuggled),
            path,
            &[],
        ),
        ("a number", good.but(|f| f.fields = &late), path, &[]),
        ("the request's head", good.clone(), path, &POINTERS),
        ("a manifest", manifest, as_manifest, &[]),
        ("a manifest by the file's name", by_name, path, &[]),
    ];
    for (words, form, to, headers) in &tries {
        for row in owner.listing("/formed")? {
            let name = row["name"].as_str().unwrap_or_default();
            owner.call("DELETE", &format!("/formed/{name}"), "", &[], b"")?;
        }
        let status = form.post(store, to, &good, headers)?;
        for row in owner.listing("/formed")? {
            let name = format!("/formed/{}", row["name"].as_str().unwrap_or_default());
            let read = owner.call("GET", &name, "", &[], b"")?;
            let head = owner.call("HEAD", &name, "?symlink=get", &[], b"")?;
            let names = [
                "x-symlink-target",
                "x-object-manifest",
                "x-static-large-object",
            ];
            let points = names.into_iter().find(|name| head.header(name).is_some());
            if shows_the_secret(&read.body) || read.body != form.content.as_bytes() {
                broken.push(format!("pointers as {words}: read otherwise ({status})"));
            }
            if let Some(name) = points {
                broken.push(format!("pointers as {words}: it has {name} ({status})"));
            }
        }
    }
    Ok(tries.len())
}

/// File names with `..` and the like: the objects stay below the signed prefix.
fn elsewhere(store: &Store, owner: &mut Account, broken: &mut Vec<String>) -> Result<usize> {
    let path = &*format!("{}/formed/", owner.path);
    let good = Form::of(path);
    let below = format!("/{}", owner.path.trim_start_matches('/'));
    let absolute = format!("{below}/private/secret");
    let names = [
        "../private/secret",
        "../../../v1/AUTH_test/private/secret",
        "..%2fprivate%2fsecret",
        "%2e%2e/private/secret",
        "/../private/secret",
        "//private/secret",
        &absolute,
        "?x=/../../private/secret",
        "..\\private\\secret",
    ];
    for filename in names {
        let form = Form {
            filename,
            ..good.clone()
        };
        let status = form.post(store, path, &good, &[])?;
        let read = owner.must("GET", "/private/secret", "", &[], b"")?;
        let rows = owner.listing("/private")?;
        if read.body != SECRET.as_bytes() || rows.len() != 1 {
            broken.push(format!("a file named {filename:?} is elsewhere ({status})"));
            owner.must("PUT", "/private/secret", "", &[], SECRET.as_bytes())?;
        }
    }
    Ok(names.len())
}
