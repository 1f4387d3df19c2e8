//! The store beside the console: what it says of itself (rings, devices, recon), and its
//! operations over the last minutes, sampled from the counters of its servers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cairn_http::metrics::Metrics;
use cairn_http::{Body, Context, Handler};
use http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::history::now;

const EVERY: Duration = Duration::from_secs(2);
/// Twenty minutes.
const SAMPLES: usize = 600;
/// What recon is asked, of each server.
const RECON: [(&str, &[&str]); 3] = [
    ("account", &["replication/account", "auditor/account"]),
    (
        "container",
        &[
            "updater/container",
            "replication/container",
            "auditor/container",
        ],
    ),
    (
        "object",
        &[
            "async",
            "quarantined",
            "updater/object",
            "replication/object",
            "auditor/object",
            "expirer/object",
        ],
    ),
];

/// A store as its process gives it to the console.
pub struct StoreView {
    /// The proxy with its pipeline.
    pub swift: Handler,
    /// `http://127.0.0.1:8080`
    pub endpoint: String,
    pub metrics: Arc<Metrics>,
    /// Looks at rings and devices. Blocks.
    pub state: Arc<dyn Fn() -> StoreState + Send + Sync>,
    pub recon: Vec<ReconSource>,
}

/// A server that answers `GET /recon/…`.
pub struct ReconSource {
    pub server: &'static str,
    pub handler: Handler,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreState {
    pub policies: Vec<PolicyState>,
    pub rings: Vec<RingState>,
    pub devices: Vec<DeviceState>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyState {
    pub index: u32,
    pub name: String,
    pub default: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RingState {
    /// `account`, `container`, `object`, `object-1`, …
    pub name: String,
    pub partitions: u32,
    pub replicas: f64,
    pub devices: usize,
    pub version: Option<u64>,
}

/// A device that a ring names.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceState {
    pub name: String,
    pub region: u32,
    pub zone: u32,
    /// `127.0.0.1:6200`
    pub address: String,
    /// By ring: its weight, and how many partitions it holds a replica of.
    pub rings: BTreeMap<String, DeviceShare>,
    /// Where it is a folder of this machine.
    pub space: Option<Space>,
    /// It should be here and is not.
    pub missing: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DeviceShare {
    pub weight: f64,
    pub partitions: u64,
}

/// Of the file system that holds a device; devices of one file system name the same one.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Space {
    pub file_system: u64,
    pub total: u64,
    pub used: u64,
    pub free: u64,
}

pub(crate) struct Store {
    pub(crate) view: StoreView,
    samples: Arc<Mutex<Samples>>,
}

#[derive(Default)]
struct Samples {
    last: Option<(u64, Counters)>,
    kept: VecDeque<Sample>,
}

/// What happened between two looks at the proxy's counters.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    /// Its end, milliseconds since 1970.
    at: u64,
    /// Requests a second by method.
    rates: BTreeMap<String, f64>,
    /// Answers a second with a status of 500 and more.
    failures: f64,
    in_flight: f64,
    connections: f64,
    /// Seconds, from the histogram's buckets: between two bounds a value is guessed evenly.
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Counters {
    methods: BTreeMap<String, f64>,
    failures: f64,
    in_flight: f64,
    connections: f64,
    /// Upper bound and requests up to it, in rising order; the last bound is infinite.
    buckets: Vec<(f64, f64)>,
}

impl Store {
    pub(crate) fn new(view: StoreView) -> Store {
        Store {
            view,
            samples: Arc::default(),
        }
    }

    /// Looks at the counters until `stop` turns true.
    pub(crate) fn sampler(
        &self,
        mut stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (metrics, samples) = (self.view.metrics.clone(), self.samples.clone());
        async move {
            let mut tick = tokio::time::interval(EVERY);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = tick.tick() => {
                        let counters = Counters::read(&metrics.encode());
                        samples.lock().add(now(), counters);
                    }
                    _ = stop.wait_for(|s| *s) => return,
                }
            }
        }
    }

    /// Everything a page shows of the store but its content.
    pub(crate) async fn describe(&self) -> Value {
        let look = self.view.state.clone();
        let state = tokio::task::spawn_blocking(move || look())
            .await
            .unwrap_or_default();
        let healthy = self.get(&self.view.swift, "/healthcheck").await.is_some();
        let mut recon = BTreeMap::new();
        for source in &self.view.recon {
            let asked = RECON.iter().find(|(server, _)| *server == source.server);
            for path in asked.map_or(&[][..], |(_, paths)| paths) {
                if let Some(body) = self.get(&source.handler, &format!("/recon/{path}")).await
                    && let Ok(value) = serde_json::from_slice::<Value>(&body)
                {
                    let server: &mut BTreeMap<_, _> = recon.entry(source.server).or_default();
                    server.insert(*path, value);
                }
            }
        }
        json!({
            "endpoint": self.view.endpoint,
            "healthy": healthy,
            "state": state,
            "recon": recon,
        })
    }

    pub(crate) fn samples(&self) -> Value {
        let samples = self.samples.lock();
        json!({"every": EVERY.as_secs(), "samples": samples.kept})
    }

    /// What a server of this process answers with 200.
    async fn get(&self, handler: &Handler, path: &str) -> Option<bytes::Bytes> {
        let mut request = http::Request::get(path).body(Body::empty()).ok()?;
        request.extensions_mut().insert(Context::default());
        let call = async {
            let response = handler.call(request).await;
            match response.status() {
                StatusCode::OK => response.into_body().collect(1 << 20).await.ok(),
                _ => None,
            }
        };
        tokio::time::timeout(Duration::from_secs(5), call)
            .await
            .ok()?
    }
}

impl Samples {
    fn add(&mut self, at: u64, counters: Counters) {
        if let Some((before_at, before)) = &self.last
            && at > *before_at
        {
            let seconds = (at - before_at) as f64 / 1000.0;
            self.kept
                .push_back(Sample::between(at, seconds, before, &counters));
            if self.kept.len() > SAMPLES {
                self.kept.pop_front();
            }
        }
        self.last = Some((at, counters));
    }
}

impl Sample {
    fn between(at: u64, seconds: f64, before: &Counters, after: &Counters) -> Sample {
        let since = |method: &String| before.methods.get(method).copied().unwrap_or(0.0);
        let rates = after.methods.iter();
        let deltas: Vec<(f64, f64)> = after
            .buckets
            .iter()
            .enumerate()
            .map(|(n, (bound, count))| (*bound, count - before.buckets.get(n).map_or(0.0, |b| b.1)))
            .collect();
        Sample {
            at,
            rates: rates
                .map(|(method, count)| (method.clone(), (count - since(method)).max(0.0) / seconds))
                .collect(),
            failures: (after.failures - before.failures).max(0.0) / seconds,
            in_flight: after.in_flight,
            connections: after.connections,
            p50: quantile(&deltas, 0.5),
            p95: quantile(&deltas, 0.95),
            p99: quantile(&deltas, 0.99),
        }
    }
}

/// Of cumulative counts by upper bound; `None` where there was nothing.
fn quantile(buckets: &[(f64, f64)], quantile: f64) -> Option<f64> {
    let total = buckets.last()?.1;
    if total <= 0.0 {
        return None;
    }
    let wanted = total * quantile;
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= wanted {
            if bound.is_infinite() || *count <= below {
                return Some(low);
            }
            return Some(low + (bound - low) * (wanted - below) / (count - below));
        }
        (low, below) = (*bound, *count);
    }
    Some(low)
}

impl Counters {
    /// The proxy's, of the exposition text.
    fn read(text: &str) -> Counters {
        let mut counters = Counters::default();
        for line in text.lines() {
            let Some((name, labels, value)) = parse(line) else {
                continue;
            };
            let label = |wanted: &str| {
                let found = labels.iter().find(|(name, _)| *name == wanted);
                found.map(|(_, value)| *value)
            };
            if label("server") != Some("proxy") {
                continue;
            }
            match name {
                "cairn_requests_total" => {
                    let method = label("method").unwrap_or("other").to_owned();
                    *counters.methods.entry(method).or_default() += value;
                    if label("status").is_some_and(|status| status.starts_with('5')) {
                        counters.failures += value;
                    }
                }
                "cairn_requests_in_flight" => counters.in_flight = value,
                "cairn_connections" => counters.connections = value,
                "cairn_request_duration_seconds_bucket" => {
                    let bound = label("le").and_then(|le| match le {
                        "+Inf" => Some(f64::INFINITY),
                        le => le.parse().ok(),
                    });
                    counters.buckets.extend(bound.map(|bound| (bound, value)));
                }
                _ => {}
            }
        }
        counters.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        counters
    }
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// A line's name, labels and value. Our own metrics' label values hold no quotes and no commas.
fn parse(line: &str) -> Option<(&str, Labels<'_>, f64)> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, labels) = head.strip_suffix('}')?.split_once('{')?;
    let labels = labels.split(',').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((name, value.trim_matches('"')))
    });
    Some((name, labels.collect(), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP cairn_requests Requests
cairn_requests_total{server="proxy",method="GET",status="200"} 10
cairn_requests_total{server="proxy",method="GET",status="503"} 2
cairn_requests_total{server="object",method="GET",status="200"} 99
cairn_requests_in_flight{server="proxy"} 3
cairn_request_duration_seconds_bucket{le="0.01",server="proxy"} 6
cairn_request_duration_seconds_bucket{le="+Inf",server="proxy"} 12
cairn_request_duration_seconds_bucket{le="0.1",server="proxy"} 12
"#;

    #[test]
    fn the_proxys_counters() {
        let counters = Counters::read(TEXT);
        assert_eq!(counters.methods["GET"], 12.0);
        assert_eq!((counters.failures, counters.in_flight), (2.0, 3.0));
        assert_eq!(counters.buckets[2], (f64::INFINITY, 12.0));
        let mut samples = Samples::default();
        samples.add(1000, Counters::default());
        samples.add(3000, counters.clone());
        samples.add(5000, counters);
        let first = &samples.kept[0];
        assert_eq!((first.rates["GET"], first.failures), (6.0, 1.0));
        assert_eq!(first.p50, Some(0.01));
        assert!((first.p95.unwrap_or_default() - 0.091).abs() < 1e-9);
        assert_eq!(
            (samples.kept[1].rates["GET"], samples.kept[1].p50),
            (0.0, None)
        );
    }
}
