//! Tests against a fake name server on loopback.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use simple_dns::rdata::{CNAME, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, ResourceRecord};
use tokio::net::UdpSocket;

use super::*;
use crate::testing::{self, Seen, filter_in, header, recorder, request};

const RECORDS: [(&str, &str); 5] = [
    ("mine.org", "c.auth-a.example.com"),
    ("far.org", "near.org"),
    ("near.org", "c.auth-b.example.com"),
    ("self.org", "self.org"),
    ("away.org", "other.net"),
];

/// A name server that answers for [`RECORDS`], fails for `broken.org`, and counts queries.
async fn name_server() -> (String, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let asked = count.clone();
    tokio::spawn(async move {
        let mut bytes = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
            asked.fetch_add(1, Ordering::SeqCst);
            let query = Packet::parse(&bytes[..length]).unwrap();
            let name = query.questions[0].qname.to_string();
            let mut reply = Packet::new_reply(query.id());
            reply.set_flags(PacketFlag::RECURSION_AVAILABLE);
            reply.questions = query.questions.clone();
            match RECORDS.iter().find(|(from, _)| *from == name) {
                Some((_, to)) => reply.answers.push(ResourceRecord::new(
                    query.questions[0].qname.clone(),
                    CLASS::IN,
                    30,
                    RData::CNAME(CNAME(Name::new_unchecked(to))),
                )),
                None if name == "broken.org" => *reply.rcode_mut() = RCODE::ServerFailure,
                None => *reply.rcode_mut() = RCODE::NameError,
            }
            // A forged answer is sent first, and must be ignored.
            let mut forged = Packet::new_reply(query.id().wrapping_add(1));
            forged.questions = query.questions.clone();
            let forged = forged.build_bytes_vec().unwrap();
            socket.send_to(&forged, from).await.unwrap();
            let reply = reply.build_bytes_vec().unwrap();
            socket.send_to(&reply, from).await.unwrap();
        }
    });
    (address, count)
}

fn app(server: &str, depth: &str) -> (Handler, Seen) {
    let (inner, seen) = recorder(|parts| {
        let mut response = respond::empty(StatusCode::OK);
        let host = respond::header(&parts.headers, "host").unwrap();
        respond::set(
            response.headers_mut(),
            "location",
            format!("http://{host}/o/"),
        );
        response
    });
    let options = [("nameservers", server), ("lookup_depth", depth)];
    (
        filter_in(&testing::env(), "cname_lookup", &options, inner),
        seen,
    )
}

async fn ask(app: &Handler, host: &str) -> (u16, Option<String>) {
    let answer = app.call(request("GET", "/o", &[("host", host)])).await;
    (answer.status().as_u16(), header(&answer, "location"))
}

#[tokio::test]
async fn hosts_are_followed() {
    let (server, count) = name_server().await;
    let (app, seen) = app(&server, "2");
    for (host, mapped) in [
        ("mine.org", "c.auth-a.example.com"),
        ("mine.org:8080", "c.auth-a.example.com:8080"),
        ("far.org", "c.auth-b.example.com"),
        ("c.auth-x.example.com", "c.auth-x.example.com"),
        ("example.com", "example.com"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
        ("[::1]", "[::1]"),
    ] {
        let (status, location) = ask(&app, host).await;
        assert_eq!(status, 200, "{host}");
        assert_eq!(location.unwrap(), format!("http://{host}/o/"));
        let (parts, _) = seen.lock().unwrap().pop().unwrap();
        assert_eq!(respond::header(&parts.headers, "host"), Some(mapped));
    }
    // mine.org is queried once, far.org took two queries.
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn hosts_that_lead_nowhere() {
    let (server, count) = name_server().await;
    let (app, _) = app(&server, "1");
    let long = "x".repeat(300);
    for host in [
        "far.org",
        "self.org",
        "away.org",
        "none.org",
        "broken.org",
        "a..b",
        &long,
    ] {
        assert_eq!(ask(&app, host).await.0, 400, "{host}");
    }
    let before = count.load(Ordering::SeqCst);
    ask(&app, "none.org").await;
    assert_eq!(
        count.load(Ordering::SeqCst),
        before,
        "absence is remembered"
    );
    ask(&app, "broken.org").await;
    assert_eq!(count.load(Ordering::SeqCst), before + 1, "failure is not");
}

/// Clients choose host names: a name server that does not respond must not cost a socket for each.
#[tokio::test]
async fn questions_under_way_are_bounded() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let (app, _) = app(&server, "1");
    let asking: Vec<_> = (0..200)
        .map(|index| {
            let app = app.clone();
            tokio::spawn(async move { ask(&app, &format!("{index}.org")).await.0 })
        })
        .collect();
    let mut bytes = [0; 512];
    let mut asked = std::collections::HashSet::new();
    while asking.iter().any(|one| !one.is_finished()) {
        // All of the first batch have sent queries before the first times out.
        let wait = std::time::Duration::from_millis(500);
        match tokio::time::timeout(wait, silent.recv_from(&mut bytes)).await {
            Ok(from) => drop(asked.insert(from.unwrap().1)),
            Err(_) => break,
        }
    }
    assert_eq!(asked.len(), 64);
    for one in asking {
        assert_eq!(one.await.unwrap(), 400);
    }
}

#[tokio::test]
async fn bad_nameservers_are_refused() {
    for (text, good) in [
        ("127.0.0.1", true),
        ("127.0.0.1:5353, ::1", true),
        ("[::1]:5353, [::1]", true),
        ("localhost", false),
        ("127.0.0.1:x", false),
    ] {
        let section = Section::from_pairs("filter:cname_lookup", &[("nameservers", text)]);
        let made = make(&section, testing::answers(200), &testing::env());
        assert_eq!(made.is_ok(), good, "{text}");
    }
}
