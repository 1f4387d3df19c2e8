//! GET, HEAD, REPLICATE.

use super::*;

async fn conditions(kind: Kind) {
    let world = world(kind);
    world.put("o", T[1], "content").await;
    let etag = "9a0364b9e99bb480dd25e1f0284c8555";
    let modified = "Tue, 02 Oct 2096 07:06:41 GMT";
    for (header, status) in [
        (format!("if-match: {etag}"), 200),
        ("if-match: other".into(), 412),
        ("if-match: *".into(), 200),
        (format!("if-none-match: \"{etag}\""), 304),
        ("if-none-match: other".into(), 200),
        (format!("if-modified-since: {modified}"), 304),
        (format!("if-unmodified-since: {modified}"), 200),
        (
            "if-modified-since: Tue, 02 Oct 2096 07:06:40 GMT".into(),
            200,
        ),
        (
            "if-unmodified-since: Tue, 02 Oct 2096 07:06:40 GMT".into(),
            412,
        ),
    ] {
        let get = world.get("o", &[&header]).await;
        assert_eq!(get.status, status, "{header}");
        assert_eq!(get.body.is_empty(), status != 200);
        assert_eq!(get.header("etag"), format!("\"{etag}\""));
        assert_eq!(world.head("o", &[&header]).await.status, status);
    }
    assert_eq!(world.get("none", &["if-match: *"]).await.status, 412);
    // Another ETag, kept in metadata.
    let etag = "x-object-sysmeta-crypto-etag: theirs";
    world.put_with("o", T[2], &[etag]).await;
    let at = "x-backend-etag-is-at: x-none, x-object-sysmeta-crypto-etag";
    let get = world.get("o", &["if-none-match: theirs", at]).await;
    assert_eq!(get.status, 304);
}

async fn ranges(kind: Kind) {
    let world = world_with(kind, |config| config.disk_chunk_size = 7000);
    let large: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    for (object, content) in [("small", b"0123456789".to_vec()), ("large", large)] {
        let time = format!("x-timestamp: {}", T[1]);
        let length = format!("content-length: {}", content.len());
        let headers = ["content-type: a/b", &time, &length];
        world.send("PUT", object, &headers, content.clone()).await;
        let size = content.len();

        let get = world.get(object, &["range: bytes=2-5"]).await;
        assert_eq!((get.status, &get.body[..]), (206, &content[2..6]));
        assert_eq!(get.header("content-range"), format!("bytes 2-5/{size}"));
        assert_eq!(get.header("content-length"), "4");
        let get = world.get(object, &["range: bytes=-3"]).await;
        assert_eq!((get.status, &get.body[..]), (206, &content[size - 3..]));
        let get = world.get(object, &["range: bytes=1-"]).await;
        assert_eq!((get.status, &get.body[..]), (206, &content[1..]));

        let get = world.get(object, &["range: bytes=0-1,5-5"]).await;
        assert_eq!(get.status, 206);
        let boundary = get.header("content-type");
        let boundary = boundary
            .strip_prefix("multipart/byteranges;boundary=")
            .unwrap();
        let mut expected = Vec::new();
        for (range, part) in [("0-1", &content[..2]), ("5-5", &content[5..6])] {
            expected.extend(format!("--{boundary}\r\nContent-Type: a/b\r\n").bytes());
            expected.extend(format!("Content-Range: bytes {range}/{size}\r\n\r\n").bytes());
            expected.extend(part);
            expected.extend(b"\r\n");
        }
        expected.extend(format!("--{boundary}--").bytes());
        assert_eq!(get.body, expected);
        assert_eq!(get.header("content-length"), expected.len().to_string());

        let get = world.get(object, &["range: bytes=100000-"]).await;
        assert_eq!(get.status, 416);
        assert_eq!(get.header("content-range"), format!("bytes */{size}"));
        for header in ["range: bytes=5-3", "range: x"] {
            assert_eq!(world.get(object, &[header]).await.body, content);
        }
        let ignore = "x-backend-ignore-range-if-metadata-present: x-none, etag";
        let get = world.get(object, &["range: bytes=0-1", ignore]).await;
        assert_eq!((get.status, get.body.len()), (200, size));
        let head = world.head(object, &["range: bytes=0-1"]).await;
        assert_eq!(head.status, 200);
    }
    world.put("empty", T[1], "").await;
    assert_eq!(world.get("empty", &["range: bytes=-5"]).await.status, 200);
    assert_eq!(world.get("empty", &["range: bytes=0-"]).await.status, 416);
}

async fn damage_breaks_the_body_and_quarantines(kind: Kind) {
    let world = world(kind);
    let content = vec![b'x'; 1_000_000];
    let time = format!("x-timestamp: {}", T[1]);
    let headers = ["content-type: a/b", "content-length: 1000000", &*time];
    world.send("PUT", "o", &headers, content.clone()).await;
    let mut damaged = content;
    damaged[999_999] = b'y';
    world.damage("o", &damaged);
    let refuse = "x-backend-refuse-unsound: true";
    let get = request("GET", "/sda1/7/a/c/o", &[refuse], Body::empty());
    let response = world.call(get).await;
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect(2_000_000).await.is_err());
    assert_eq!(world.get("o", &[]).await.status, 404);
    assert_eq!(world.quarantined(), 1);

    world.put("p", T[1], "small").await;
    world.damage("p", b"SMALL");
    assert_eq!(world.get("p", &[refuse]).await.status, 404);
    assert_eq!(world.quarantined(), 2);
}

async fn damage_is_given_once_to_who_checks_it_himself(kind: Kind) {
    let world = world(kind);
    world.put("p", T[1], "small").await;
    world.damage("p", b"SMALL");
    let part = world.get("p", &["range: bytes=0-2"]).await;
    assert_eq!((part.status, &part.body[..]), (206, &b"SMA"[..]));
    let whole = world.get("p", &[]).await;
    assert_eq!((whole.status, &whole.body[..]), (200, &b"SMALL"[..]));
    assert_eq!(world.get("p", &[]).await.status, 404);
    assert_eq!(world.quarantined(), 1);
}

#[tokio::test]
async fn a_check_is_claimed_where_there_is_one() {
    let refuse = "x-backend-refuse-unsound: true";
    for (percent, claimed) in [(100.0, "true"), (0.0, "")] {
        let world = world_of(WorldOptions {
            diskfile: DiskFileConfig {
                etag_validate_pct: percent,
                etag_recheck_interval: Duration::ZERO,
                ..DiskFileConfig::default()
            },
            ..WorldOptions::default()
        });
        world.put("p", T[1], "small").await;
        for _ in 0..2 {
            let get = world.get("p", &[refuse]).await;
            assert_eq!((get.status, &get.body[..]), (200, &b"small"[..]));
            let header = get.header("x-backend-refuse-unsound");
            assert_eq!(header, claimed, "{percent} %");
        }
    }
}

async fn expired_objects_are_not_found(kind: Kind) {
    let world = world(kind);
    let put = world.put_with("o", T[1], &["x-delete-after: 2"]).await;
    assert_eq!(put.status, 201);
    let at = |time: &str| format!("x-timestamp: {time}");
    let get = world.get("o", &[&at(T[2])]).await;
    assert_eq!((get.status, get.header("x-delete-at")), (200, "4000000003"));
    let get = world.get("o", &[&at(T[3])]).await;
    assert_eq!((get.status, get.header("x-backend-timestamp")), (404, T[1]));
    let open = "x-backend-open-expired: true";
    assert_eq!(world.get("o", &[&at(T[3]), open]).await.status, 200);
    assert_eq!(world.send("POST", "o", &[&at(T[3])], "").await.status, 404);
    assert_eq!(
        world.send("DELETE", "o", &[&at(T[4])], "").await.status,
        404
    );
    assert_eq!(world.data_count(), 0);
}

async fn suffix_hashes(kind: Kind) {
    let world = world(kind);
    world.put("o", T[1], "x").await;
    let hashes = async |path: &str| {
        let answer = world.send_to("REPLICATE", path, &[], Body::empty()).await;
        assert_eq!(answer.status, 200);
        cairn_formats::pickle::loads(&answer.body).unwrap()
    };
    let first = hashes("/sda1/7").await;
    assert!(first.get("a83").is_some());
    assert!(hashes("/sda1/7/a83-xyz").await.is_none());
    assert_eq!(hashes("/sda1/7").await, first);
    assert_eq!(hashes("/sda1/8").await.as_dict(), Some(&[][..]));
    let missing = world.send_to("REPLICATE", "/sdb1/7", &[], "").await;
    assert_eq!(missing.status, 507);
}

over_engines!(
    conditions,
    ranges,
    damage_breaks_the_body_and_quarantines,
    damage_is_given_once_to_who_checks_it_himself,
    expired_objects_are_not_found,
    suffix_hashes,
);

/// With an index in memory an absent name needs none of the device's threads, nor does a promise to write it.
#[tokio::test]
async fn an_indexed_engine_answers_for_absent_names_while_all_threads_are_busy() {
    let world = world(Kind::Memory);
    let device = world.devices.get("sda1").unwrap();
    let (free, busy) = std::sync::mpsc::channel::<()>();
    let busy = Arc::new(Mutex::new(busy));
    let hold = || {
        let busy = busy.clone();
        device.read(move |_| {
            let _ = busy.lock().unwrap().recv();
            Ok(())
        })
    };
    let held: Vec<_> = (0..16).map(|_| hold()).collect();
    let asked = async {
        assert_eq!(world.head("o", &[]).await.status, 404);
        let headers = [
            "x-timestamp: 4000000000.00000",
            "x-backend-promise-token: a",
            "x-backend-promise-action: look",
        ];
        let looked = world.send("PROMISE", "o", &headers, "").await;
        assert_eq!(looked.status, 204);
    };
    let asked = tokio::time::timeout(Duration::from_secs(10), asked).await;
    drop(free);
    asked.unwrap();
    drop(held);
}
