#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use cairn_formats::crypto_meta::{KeyId, append};
use cairn_http::params::unquote;
use cairn_http::{Handler, Request, Response, handler_fn, respond};

use super::*;

fn row(secret: Option<&str>) -> String {
    let meta = CryptoMeta {
        cipher: Some(crypto_meta::GCM.into()),
        key_id: Some(KeyId {
            version: "3".into(),
            path: "/a/c/o".into(),
            secret_id: secret.map(str::to_owned),
        }),
        ..CryptoMeta::default()
    };
    append("abcd", &meta)
}

/// Two containers, one with versions; pages of two; notes what orders come.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<String>>>);

const NAMES: [&str; 5] = ["active", "cannot", "failing", "old", "swifts"];

impl Store {
    fn handler(&self) -> Handler {
        let store = self.clone();
        handler_fn(move |request| {
            let store = store.clone();
            async move { store.answer(&request) }
        })
    }

    fn answer(&self, request: &Request) -> Response {
        let path = unquote(request.uri().path()).unwrap();
        let query = unquote(request.uri().query().unwrap_or_default()).unwrap();
        let marker = query.split_once("marker=").map_or("", |(_, marker)| marker);
        let after = |names: &[&str]| -> Vec<String> {
            let names = names.iter().filter(|name| **name > marker);
            names.take(2).map(|name| (*name).to_owned()).collect()
        };
        if let Some(order) = request.extensions().get::<Rekey>() {
            self.0.lock().unwrap().push(path.clone());
            return self.outcome(&path, *order);
        }
        let rows: Vec<Value> = match path.as_str() {
            "/v1/a" => after(&["\0versions\0c", "c", "d"])
                .iter()
                .map(|name| json!({"name": name}))
                .collect(),
            "/v1/a/d" => Vec::new(),
            "/v1/a/gone" => return respond::empty(StatusCode::NOT_FOUND),
            _ => after(&NAMES)
                .iter()
                .map(|name| {
                    let secret = (name != "old").then_some("x");
                    json!({"name": name, "hash": row(secret), "bytes": 1})
                })
                .collect(),
        };
        respond::typed(StatusCode::OK, "application/json", json!(rows).to_string())
    }

    fn outcome(&self, path: &str, order: Rekey) -> Response {
        let mut response = respond::empty(StatusCode::NO_CONTENT);
        let outcome = match path.rsplit_once('/').unwrap().1 {
            "active" => Rekeyed::Active,
            "cannot" => Rekeyed::Remains(Some("lost".into()), Reason::NotConfigured),
            "failing" => return respond::empty(StatusCode::BAD_GATEWAY),
            "old" if order.is_dry_run => Rekeyed::Remains(None, Reason::NotYet),
            "old" => Rekeyed::Done,
            "swifts" => Rekeyed::Remains(None, Reason::SwiftsFormat),
            _ => Rekeyed::Container {
                active: Some("new".into()),
                covered: vec![None],
                is_changed: false,
            },
        };
        response.extensions_mut().insert(outcome);
        response
    }

    fn rekeying(&self, is_dry_run: bool) -> Rekeying {
        let client = InternalClient::new(self.handler(), "test", 1);
        Rekeying {
            stored: client.clone(),
            filters: client,
            workers: 2,
            is_dry_run,
        }
    }
}

/// Ends a walk after so many pages.
struct Stop {
    pages: usize,
    place: Position,
    failed: usize,
}

impl Watch for Stop {
    fn page(&mut self, place: &Position, _: &Tally) -> std::io::Result<()> {
        self.place = place.clone();
        match self.pages {
            0 => Err(std::io::Error::other("enough")),
            _ => {
                self.pages -= 1;
                Ok(())
            }
        }
    }

    fn failed(&mut self, _: &InternalClientError) {
        self.failed += 1;
    }
}

fn expected(times: u64, is_dry_run: bool) -> Tally {
    let mut tally = Tally {
        active: times,
        failed: times,
        ..Tally::default()
    };
    match is_dry_run {
        true => _ = tally.remaining.insert((None, Reason::NotYet), times),
        false => tally.rekeyed = times,
    }
    let lost = (Some("lost".to_owned()), Reason::NotConfigured);
    tally.remaining.insert(lost, times);
    tally.remaining.insert((None, Reason::SwiftsFormat), times);
    tally.rows.insert(Some("x".into()), 4 * times);
    tally
}

#[tokio::test]
async fn every_container_and_its_versions() {
    for (target, times) in [("a", 2), ("a/c", 2), ("a/gone", 1)] {
        for is_dry_run in [true, false] {
            let store = Store::default();
            let targets = [Target::parse(target).unwrap()];
            let mut tally = Tally::default();
            let mut watch = Stop {
                pages: 99,
                place: Position::default(),
                failed: 0,
            };
            let rekeying = store.rekeying(is_dry_run);
            let run = rekeying.run(&targets, Position::default(), &mut tally, &mut watch);
            run.await.unwrap();
            assert_eq!(tally, expected(times, is_dry_run), "{target}");
            assert_eq!(watch.failed, times as usize);
            assert_eq!(tally.objects(), 5 * times);
            assert!(!tally.is_complete());
            assert_eq!(Tally::from_json(&tally.to_json()), Some(tally));
        }
    }
}

/// However often it is broken off, each page is counted once in what the runs hand on.
#[tokio::test]
async fn a_walk_goes_on_where_another_was() {
    for pages in 0..7 {
        let store = Store::default();
        let targets = ["a", "a/c"].map(|text| Target::parse(text).unwrap());
        let (mut place, mut tally) = (Position::default(), Tally::default());
        loop {
            let mut watch = Stop {
                pages,
                place: place.clone(),
                failed: 0,
            };
            let rekeying = store.rekeying(false);
            let run = rekeying.run(&targets, place, &mut tally, &mut watch).await;
            place = watch.place;
            if run.is_ok() {
                break;
            }
        }
        assert_eq!(tally, expected(4, false), "{pages}");
        let asked = store.0.lock().unwrap();
        let old = asked.iter().filter(|path| path.ends_with("c/old"));
        assert_eq!(old.count(), 4);
    }
}

#[test]
fn targets() {
    let target = |text: &str| Target::parse(text).map(|target| target.container);
    assert_eq!(target("AUTH_a"), Some(None));
    assert_eq!(target("AUTH_a/c d"), Some(Some("c d".into())));
    for text in ["", "/", "a/", "/c", "a/c/o"] {
        assert_eq!(target(text), None, "{text}");
    }
}
