//! Tests of writes that are handed over by a call: they do what their requests do, and what is not plain comes as
//! a request.

use cairn_peer::heads::{Expiry, Rows, Told};
use cairn_peer::whole_write::Prepared;
use cairn_peer::{Change, ObjectHeads, TakesCalls, WholeWrite};
use cairn_types::Timestamp;
use http::header::{HeaderName, HeaderValue};
use md5::{Digest, Md5};

use super::*;

/// A deletion with these headers more, whose row goes to `container`.
fn deletion_of(object: &str, time: &str, more: &[&str], container: SocketAddr) -> WholeWrite {
    let mut write = put_of(object, time, "", more, container);
    write.change = Change::Delete;
    write.heads.shared.remove("content-length");
    write.heads.shared.remove("content-type");
    write
}

/// A PUT of `body` with these headers more, whose row goes to `container`.
fn put_of(
    object: &str,
    time: &str,
    body: &'static str,
    more: &[&str],
    container: SocketAddr,
) -> WholeWrite {
    let mut shared = HeaderMap::new();
    let length = format!("content-length: {}", body.len());
    let stamp = format!("x-timestamp: {time}");
    let policy = "x-backend-storage-policy-index: 0";
    let lines = [
        "content-type: a/b",
        "x-trans-id: tx1",
        policy,
        &length,
        &stamp,
    ];
    for line in lines.iter().chain(more) {
        let (name, value) = line.split_once(": ").unwrap();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        shared.insert(name, HeaderValue::from_str(value).unwrap());
    }
    WholeWrite {
        hash_path: HashPath::new("", "endcap"),
        account: "a".into(),
        container: "c".into(),
        object: object.into(),
        hash: HashPath::new("", "endcap").hash("a", Some("c"), Some(object)),
        policy: PolicyIndex(0),
        partition: 7,
        timestamp: Timestamp::parse(time).unwrap(),
        change: Change::Put {
            body: Bytes::from_static(body.as_bytes()),
            md5: Md5::digest(body).into(),
        },
        heads: ObjectHeads {
            shared,
            replicas: 1,
            rows: Rows {
                told: Told {
                    partition: 5,
                    nodes: vec![node(9, "sdx", container)],
                    updates: 1,
                },
                db_state: "unsharded".into(),
                shard: None,
            },
            expiry: None,
        },
        prepared: Prepared::default(),
    }
}

impl World {
    /// The answer to a call; `None`: the server wants the request.
    async fn call_write(&self, write: WholeWrite, device: &str) -> Option<Answer> {
        let node = node(0, device, SERVER);
        let answering = self.server.write(&Arc::new(write), 0, &node)?;
        let called = answering.await;
        Some(Answer {
            status: called.status.as_u16(),
            headers: called.headers,
            body: called.body,
        })
    }
}

async fn a_call_does_what_its_request_does(kind: Kind) {
    let world = world(kind);
    let (container, seen) = world.container_server(201);
    let more = ["x-object-meta-color: red", "content-encoding: gzip"];
    let called = put_of("called", T[1], "four", &more, container);
    let head = called.heads.head(0);
    let called = world.call_write(called, "sda1").await.unwrap();

    let mut builder = http::Request::builder()
        .method("PUT")
        .uri("/sda1/7/a/c/asked");
    builder.headers_mut().unwrap().extend(head);
    let asked = world.call(builder.body("four".into()).unwrap()).await;
    let asked = answer(asked).await;
    assert_eq!((called.status, asked.status), (201, 201));
    assert_eq!(called.header("etag"), asked.header("etag"));
    assert!(called.body.is_empty() && asked.body.is_empty());

    let one = world.get("called", &[]).await;
    let other = world.get("asked", &[]).await;
    assert_eq!((one.status, &one.body[..]), (200, &b"four"[..]));
    assert_eq!(one.headers, other.headers);
    assert_eq!(one.header("x-object-meta-color"), "red");

    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].uri().path(), "/sdx/5/a/c/called");
    assert_eq!(seen[1].uri().path(), "/sdx/5/a/c/asked");
    let mut rows = [seen[0].headers().clone(), seen[1].headers().clone()];
    // It has the request's path.
    rows.iter_mut().for_each(|row| drop(row.remove("referer")));
    assert_eq!(rows[0], rows[1]);
}

async fn a_call_is_refused_as_its_request_is(kind: Kind) {
    let world = world(kind);
    let (container, _) = world.container_server(201);
    assert_eq!(world.put("o", T[2], "newer").await.status, 201);
    let put = put_of("o", T[1], "older", &[], container);
    let refused = world.call_write(put, "sda1").await.unwrap();
    let asked = world.put("o", T[1], "older").await;
    assert_eq!((refused.status, asked.status), (409, 409));
    assert_eq!(refused.headers, asked.headers);
    assert_eq!(world.get("o", &[]).await.body, "newer");
}

async fn an_expiry_that_is_replaced_is_taken_out_of_the_queue(kind: Kind) {
    let world = world(kind);
    let (container, _) = world.container_server(201);
    let expires = ["x-delete-at: 5000000000"];
    assert_eq!(world.put_with("o", T[1], &expires).await.status, 201);
    let put = put_of("o", T[2], "stays", &[], container);
    assert_eq!(world.call_write(put, "sda1").await.unwrap().status, 201);
    // No server was named for it, so that it is left to the updater.
    assert_eq!(world.pending_ops(), ["DELETE"]);
}

async fn a_called_deletion_does_what_its_request_does(kind: Kind) {
    let world = world(kind);
    let (container, seen) = world.container_server(201);
    let delete = async |object: &str, time: &str, is_called: bool| {
        let write = deletion_of(object, time, &[], container);
        if is_called {
            return world.call_write(write, "sda1").await.unwrap();
        }
        let uri = format!("/sda1/7/a/c/{object}");
        let mut builder = http::Request::builder().method("DELETE").uri(uri);
        builder.headers_mut().unwrap().extend(write.heads.head(0));
        answer(world.call(builder.body(Body::empty()).unwrap()).await).await
    };
    for (first, then) in [(Some(T[1]), T[2]), (None, T[2]), (Some(T[3]), T[2])] {
        let mut answers = Vec::new();
        for (object, is_called) in [("called", true), ("asked", false)] {
            let object = format!("{object}-{}", first.unwrap_or("none"));
            if let Some(first) = first {
                assert_eq!(world.put(&object, first, "x").await.status, 201);
            }
            let deleted = delete(&object, then, is_called).await;
            let again = delete(&object, then, is_called).await;
            let left = world.get(&object, &[]).await;
            let time = left.headers.get("x-backend-timestamp").cloned();
            let mut headers = deleted.headers.clone();
            // Clients are not told, and the request's answer has it where it was read.
            headers.remove("x-backend-content-type");
            answers.push((
                deleted.status,
                headers,
                deleted.body,
                again.status,
                left.status,
                time,
            ));
        }
        assert_eq!(answers[0], answers[1]);
    }
    let seen = seen.lock().unwrap();
    let told = |object: &str| {
        let of = seen.iter().filter(|request| {
            request.method() == "DELETE" && request.uri().path().contains(object)
        });
        let times = of.map(|request| request.headers()["x-timestamp"].clone());
        times.collect::<Vec<_>>()
    };
    assert_eq!(told("called").len(), 4);
    assert_eq!(told("called"), told("asked"));
}

async fn a_called_deletion_takes_an_expiry_out_of_the_queue(kind: Kind) {
    let world = world(kind);
    let (container, _) = world.container_server(201);
    let expires = ["x-delete-at: 5000000000"];
    assert_eq!(world.put_with("o", T[1], &expires).await.status, 201);
    let deletion = deletion_of("o", T[2], &[], container);
    assert_eq!(
        world.call_write(deletion, "sda1").await.unwrap().status,
        204
    );
    assert_eq!(world.pending_ops(), ["DELETE"]);
}

/// Names that begin with a NUL: the answer says what a version was.
async fn a_version_is_read_before_it_is_deleted(kind: Kind) {
    let world = world(kind);
    let path = "/sda1/7/a/%00versions%00c/%00o%001";
    let times = |at: &str| format!("x-timestamp: {at}");
    let headers = ["content-type: a/marker", "content-length: 0", &times(T[1])];
    let put = world.send_to("PUT", path, &headers, Body::empty()).await;
    assert_eq!(put.status, 201);
    let deleted = world
        .send_to("DELETE", path, &[&times(T[2])], Body::empty())
        .await;
    assert_eq!(deleted.status, 204);
    assert_eq!(deleted.header("x-backend-content-type"), "a/marker");
}

async fn a_deletion_that_is_not_plain_comes_as_a_request(kind: Kind) {
    let world = world(kind);
    let (container, _) = world.container_server(201);
    assert_eq!(world.put("o", T[1], "x").await.status, 201);
    for header in [
        "x-if-delete-at: 5000000000",
        "x-backend-promise-token: t",
        "x-backend-replication: true",
        "x-backend-clean-expiring-object-queue: no",
        "x-backend-next-part-power: 9",
    ] {
        let deletion = deletion_of("o", T[2], &[header], container);
        assert!(
            world.call_write(deletion, "sda1").await.is_none(),
            "{header}"
        );
    }
    // Whoever deletes a version is told what it was.
    let mut version = deletion_of("\0versions\0c", T[2], &[], container);
    version.container = "\0versions\0c".into();
    version.hash =
        HashPath::new("", "endcap").hash("a", Some("\0versions\0c"), Some(&version.object));
    assert!(world.call_write(version, "sda1").await.is_none());
    assert_eq!(world.get("o", &[]).await.status, 200);
}

async fn what_is_not_plain_comes_as_a_request(kind: Kind) {
    let world = world_with(kind, |config| config.constraints.max_object_name_length = 9);
    let (container, seen) = world.container_server(201);
    for header in [
        "x-delete-at: 5000000000",
        "x-delete-after: 60",
        "if-none-match: *",
        "if-match: abc",
        "expect: 100-continue",
        "transfer-encoding: chunked",
        "x-backend-promise-token: t",
        "x-backend-replication: true",
        "x-backend-no-commit: true",
        "x-backend-next-part-power: 9",
        "x-backend-container-update-override-size: 1",
        "x-backend-obj-multipart-mime-boundary: b",
        "etag: 00000000000000000000000000000000",
        "x-object-meta-: nameless",
    ] {
        let put = put_of("o", T[1], "x", &[header], container);
        assert!(world.call_write(put, "sda1").await.is_none(), "{header}");
    }
    let refused = |change: fn(&mut WholeWrite)| {
        let mut put = put_of("o", T[1], "x", &[], container);
        change(&mut put);
        put
    };
    for (what, change) in [
        (
            "of another cluster",
            (|put| put.hash_path = HashPath::new("", "other")) as fn(&mut WholeWrite),
        ),
        ("policy", |put| put.policy = PolicyIndex(7)),
        ("name", |put| put.object = "0123456789".into()),
        ("type", |put| drop(put.heads.shared.remove("content-type"))),
        ("size", |put| {
            let (body, md5) = (vec![0; 65_537].into(), [0; 16]);
            put.change = Change::Put { body, md5 };
        }),
        ("expiry", |put| {
            put.heads.expiry = Some(Expiry {
                told: put.heads.rows.told.clone(),
                container: "1".into(),
            });
        }),
    ] {
        let put = refused(change);
        assert!(world.call_write(put, "sda1").await.is_none(), "{what}");
    }
    let put = put_of("o", T[1], "x", &[], container);
    assert!(world.call_write(put, "../sda1").await.is_none());
    assert_eq!(world.get("o", &[]).await.status, 404);
    assert!(seen.lock().unwrap().is_empty());
}

async fn another_server_checks_for_itself(kind: Kind) {
    let (world, other) = (world(kind), world(kind));
    let (container, _) = world.container_server(201);
    let put = Arc::new(put_of("o", T[1], "x", &[], container));
    let node = node(0, "sda1", SERVER);
    assert!(world.server.write(&put, 0, &node).is_some());
    assert!(other.server.write(&put, 0, &node).is_none());
}

over_engines!(
    a_call_does_what_its_request_does,
    a_call_is_refused_as_its_request_is,
    an_expiry_that_is_replaced_is_taken_out_of_the_queue,
    what_is_not_plain_comes_as_a_request,
    another_server_checks_for_itself,
    a_called_deletion_does_what_its_request_does,
    a_called_deletion_takes_an_expiry_out_of_the_queue,
    a_version_is_read_before_it_is_deleted,
    a_deletion_that_is_not_plain_comes_as_a_request,
);
