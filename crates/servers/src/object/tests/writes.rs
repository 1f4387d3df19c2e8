//! PUT, POST, DELETE.

use cairn_http::{BodyError, SharedDigest};

use super::*;

async fn put_get_delete(kind: Kind) {
    let world = world(kind);
    assert_eq!(world.get("o", &[]).await.status, 404);
    let put = world.put("o", T[1], "content").await;
    assert_eq!(put.status, 201);
    assert_eq!(put.header("etag"), "\"9a0364b9e99bb480dd25e1f0284c8555\"");
    let get = world.get("o", &[]).await;
    assert_eq!((get.status, &get.body[..]), (200, &b"content"[..]));
    for (name, value) in [
        ("content-length", "7"),
        ("content-type", "text/plain"),
        ("etag", "\"9a0364b9e99bb480dd25e1f0284c8555\""),
        ("last-modified", "Tue, 02 Oct 2096 07:06:41 GMT"),
        ("x-timestamp", T[1]),
        ("x-backend-timestamp", T[1]),
        ("x-backend-data-timestamp", T[1]),
        ("x-backend-durable-timestamp", T[1]),
    ] {
        assert_eq!(get.header(name), value, "{name}");
    }
    let time = format!("x-timestamp: {}", T[2]);
    let delete = world.send("DELETE", "o", &[&time], "").await;
    assert_eq!(delete.status, 204);
    assert_eq!(delete.header("x-backend-timestamp"), T[2]);
    assert_eq!(delete.header("x-backend-content-type"), "text/plain");
    let get = world.get("o", &[]).await;
    assert_eq!((get.status, get.header("x-backend-timestamp")), (404, T[2]));
    let time = format!("x-timestamp: {}", T[3]);
    assert_eq!(world.send("DELETE", "o", &[&time], "").await.status, 404);
}

async fn older_writes_conflict(kind: Kind) {
    let world = world(kind);
    world.put("o", T[2], "new").await;
    for time in [T[1], T[2]] {
        let put = world.put("o", time, "old").await;
        assert_eq!((put.status, put.header("x-backend-timestamp")), (409, T[2]));
        let time = format!("x-timestamp: {time}");
        let delete = world.send("DELETE", "o", &[&time], "").await;
        assert_eq!(delete.status, 409);
        assert_eq!(delete.header("x-backend-timestamp"), T[2]);
        assert_eq!(world.send("POST", "o", &[&time], "").await.status, 409);
    }
    assert_eq!(world.get("o", &[]).await.body, "new");
}

async fn bad_requests(kind: Kind) {
    let world = world(kind);
    let time = "x-timestamp: 4000000001.00000";
    let typed = "content-type: a/b";
    let length = "content-length: 1";
    for (status, headers) in [
        (400, vec![typed, length]),
        (400, vec![typed, length, "x-timestamp: x"]),
        (400, vec![time, length]),
        (400, vec![time, typed, "content-length: x"]),
        (413, vec![time, typed, "content-length: 5368709123"]),
        (400, vec![time, typed, length, "x-delete-at: 1"]),
        (400, vec![time, typed, length, "x-delete-at: x"]),
        (400, vec![time, typed, length, "x-delete-after: x"]),
        (400, vec![time, typed, length, "x-object-meta-: x"]),
        (
            503,
            vec![time, typed, length, "x-backend-storage-policy-index: 9"],
        ),
        (422, vec![time, typed, length, "etag: 0"]),
        (499, vec![time, typed, "content-length: 2"]),
        (201, vec![time, typed, length]),
        (
            201,
            vec![
                "x-timestamp: 4000000002.00000",
                typed,
                length,
                "etag: \"9dd4e461268c8034f5c8564e155c67a6\"",
            ],
        ),
    ] {
        let answer = world.send("PUT", "o", &headers, "x").await;
        assert_eq!(answer.status, status, "{headers:?}");
    }
    let no_length = world.send("PUT", "o", &[time, typed], "").await;
    assert_eq!(no_length.status, 411);
    for (status, path) in [
        (507, "/sdb1/7/a/c/o"),
        (400, "/sda1/x/a/c/o"),
        (400, "/sda1/7/a/c"),
        (412, "/sda1/7/a/c/%ff"),
        (400, "/sda1/7/a/c/o%00"),
        (201, "/sda1/7/a/%00c/%00o"),
    ] {
        let headers = [time, typed, length];
        let answer = world.send_to("PUT", path, &headers, "x").await;
        assert_eq!(answer.status, status, "{path}");
    }
    assert_eq!(world.send("COPY", "o", &[], "").await.status, 405);
}

async fn if_none_match(kind: Kind) {
    let world = world(kind);
    let put = |time: &str, condition: &str| {
        let time = format!("x-timestamp: {time}");
        let condition = format!("if-none-match: {condition}");
        let world = &world;
        async move {
            let headers = ["content-type: a/b", "content-length: 1", &time, &condition];
            world.send("PUT", "o", &headers, "x").await.status
        }
    };
    assert_eq!(put(T[1], "*").await, 201);
    assert_eq!(put(T[2], "*").await, 412);
    assert_eq!(put(T[2], "9dd4e461268c8034f5c8564e155c67a6").await, 412);
    assert_eq!(put(T[2], "other").await, 201);
}

async fn uploads_in_pieces(kind: Kind) {
    let world = world_with(kind, |config| config.network_chunk_size = 100_000);
    let content: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8).collect();
    let chunks: Vec<Bytes> = content.chunks(30_000).map(Bytes::copy_from_slice).collect();
    let stream = |count: usize, length| {
        let chunks = chunks.clone().into_iter().take(count).map(Ok);
        Body::from_stream(futures_util::stream::iter(chunks), length)
    };
    let headers = |time: &str| {
        [
            "content-type: a/b".to_owned(),
            format!("x-timestamp: {time}"),
        ]
    };
    let put = async |object: &str, time: &str, more: &str, body| {
        let [a, b] = headers(time);
        world
            .send("PUT", object, &[&a, &b, more], body)
            .await
            .status
    };
    let length = "content-length: 700000";
    assert_eq!(put("o", T[1], length, stream(99, Some(700_000))).await, 201);
    assert_eq!(world.get("o", &[]).await.body, content);
    let chunked = "transfer-encoding: chunked";
    assert_eq!(put("p", T[1], chunked, stream(99, None)).await, 201);
    assert_eq!(world.get("p", &[]).await.body, content);
    let expect = "expect: 100-continue";
    assert_eq!(put("q", T[1], expect, stream(1, Some(30_000))).await, 201);
    // Broken off: nothing stays.
    assert_eq!(put("o", T[2], length, stream(3, Some(700_000))).await, 499);
    assert_eq!(put("o", T[2], length, stream(3, None)).await, 499);
    assert_eq!(world.get("o", &[]).await.body, content);
    assert!(world.files("tmp").is_empty());
    // Refused before it is looked at.
    let unread = futures_util::stream::poll_fn(|_| -> std::task::Poll<Option<_>> {
        panic!("the body is polled although the upload is refused")
    });
    let unread = Body::from_stream(unread, Some(700_000));
    assert_eq!(put("o", T[1], length, unread).await, 409);
}

async fn slow_uploads_time_out(kind: Kind) {
    let world = world_with(kind, |config| {
        config.client_timeout = Duration::from_millis(20)
    });
    let time = format!("x-timestamp: {}", T[1]);
    for length in ["content-length: 5", "content-length: 500000"] {
        let never = futures_util::stream::pending::<Result<Bytes, BodyError>>();
        let body = Body::from_stream(never, None);
        let headers = ["content-type: a/b", &time, length];
        assert_eq!(world.send("PUT", "o", &headers, body).await.status, 408);
    }
}

async fn a_shared_digest_is_taken(kind: Kind) {
    let world = world(kind);
    for (object, size) in [("small", 10), ("large", 200_000)] {
        let time = format!("x-timestamp: {}", T[1]);
        let length = format!("content-length: {size}");
        let headers = ["content-type: a/b", &time, &length];
        let path = format!("/sda1/7/a/c/{object}");
        let mut put = request("PUT", &path, &headers, vec![b'x'; size]);
        put.extensions_mut().insert(SharedDigest::of([7; 16]));
        let put = answer(world.call(put).await).await;
        assert_eq!(put.status, 201);
        assert_eq!(put.header("etag"), format!("\"{}\"", "07".repeat(16)));
    }
}

async fn metadata_and_post(kind: Kind) {
    let world = world(kind);
    let time = format!("x-timestamp: {}", T[1]);
    let headers = [
        "content-type: text/plain",
        "content-length: 1",
        &time,
        "x-object-meta-a: 1",
        "x-object-meta-e: \u{e9}",
        "x-object-sysmeta-s: s",
        "x-object-transient-sysmeta-t: t",
        "content-encoding: gzip",
        "x-unrelated: x",
    ];
    assert_eq!(world.send("PUT", "o", &headers, "x").await.status, 201);
    let head = world.head("o", &[]).await;
    assert_eq!(head.header("x-object-meta-a"), "1");
    assert_eq!(
        head.headers["x-object-meta-e"].as_bytes(),
        "\u{e9}".as_bytes()
    );
    assert_eq!(head.header("x-object-sysmeta-s"), "s");
    assert_eq!(head.header("x-object-transient-sysmeta-t"), "t");
    assert_eq!(head.header("content-encoding"), "gzip");
    assert_eq!(head.header("x-unrelated"), "");
    assert_eq!(head.header("content-length"), "1");
    assert!(head.body.is_empty());

    let time = format!("x-timestamp: {}", T[2]);
    let post = world
        .send("POST", "o", &[&time, "x-object-meta-b: 2"], "")
        .await;
    assert_eq!(post.status, 202);
    assert_eq!(post.header("x-object-sysmeta-s"), "s");
    assert_eq!(post.header("x-backend-content-type"), "text/plain");
    let head = world.head("o", &[]).await;
    assert_eq!(head.header("x-object-meta-a"), "");
    assert_eq!(head.header("x-object-meta-b"), "2");
    assert_eq!(head.header("x-object-transient-sysmeta-t"), "");
    assert_eq!(head.header("content-encoding"), "");
    assert_eq!(head.header("x-object-sysmeta-s"), "s");
    assert_eq!(head.header("x-backend-timestamp"), T[2]);
    assert_eq!(head.header("x-backend-data-timestamp"), T[1]);

    // A content type of an earlier time than the metadata, as a late POST brings it.
    let type_time = format!("content-type-timestamp: {}", T[1]);
    let headers = [&time, "content-type: a/b", &type_time];
    assert_eq!(world.send("POST", "o", &headers, "").await.status, 409);
    let type_time = "content-type-timestamp: 4000000001.50000";
    let headers = [&time, "content-type: a/b", type_time];
    let post = world.send("POST", "o", &headers, "").await;
    assert_eq!(post.status, 202);
    assert_eq!(post.header("x-backend-content-type"), "a/b");
    let head = world.head("o", &[]).await;
    assert_eq!(head.header("content-type"), "a/b");
    assert_eq!(head.header("x-object-meta-b"), "2", "metadata stays");
    assert_eq!(world.send("POST", "none", &[&time], "").await.status, 404);
}

async fn replication_names_its_headers(kind: Kind) {
    let world = world(kind);
    let time = format!("x-timestamp: {}", T[1]);
    let headers = [
        "content-type: text/plain",
        "content-length: 1",
        &time,
        "x-backend-replication: true",
        "x-backend-replication-headers: x-odd content-encoding",
        "x-odd: 1",
        "x-delete-at: 1",
    ];
    assert_eq!(world.send("PUT", "o", &headers, "x").await.status, 201);
    assert_eq!(world.get("o", &[]).await.status, 404, "it has expired");
    let get = world.get("o", &["x-backend-replication: true"]).await;
    assert_eq!((get.status, get.header("x-delete-at")), (200, "0000000001"));
}

async fn the_expirer_deletes_what_it_means(kind: Kind) {
    let world = world(kind);
    let time = format!("x-timestamp: {}", T[1]);
    let at = "x-delete-at: 4000000003";
    let headers = ["content-type: a/b", "content-length: 1", &time, at];
    assert_eq!(world.send("PUT", "o", &headers, "x").await.status, 201);
    let delete = async |time: &str, at: &str| {
        let time = format!("x-timestamp: {time}");
        let at = format!("x-if-delete-at: {at}");
        world.send("DELETE", "o", &[&time, &at], "").await.status
    };
    assert_eq!(delete(T[4], "x").await, 400);
    assert_eq!(delete(T[4], "4000000009").await, 412);
    assert_eq!(delete(T[0], "4000000003").await, 409);
    assert_eq!(delete(T[4], "4000000003").await, 204);
    let time = format!("x-timestamp: {}", T[5]);
    let headers = [&*time, "x-if-delete-at: 4000000003"];
    let other = world.send("DELETE", "none", &headers, "").await;
    assert_eq!(other.status, 404);
}

over_engines!(
    put_get_delete,
    older_writes_conflict,
    bad_requests,
    if_none_match,
    uploads_in_pieces,
    slow_uploads_time_out,
    a_shared_digest_is_taken,
    metadata_and_post,
    replication_names_its_headers,
    the_expirer_deletes_what_it_means,
);
