//! The store beside the console: its state (rings, devices, recon), and its operations over the
//! last minutes, sampled from the metrics of its servers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cairn_client::{Call, Options, Retries, StoreUrl, Transport};
use cairn_console_api::StoreView;
use cairn_http::{Context, Handler};
use http::Method;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::history::now;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum bytes of an answer about a server.
const ANSWER_MAX_BYTES: u64 = 1 << 20;
/// Number of samples kept: twenty minutes.
const SAMPLES_MAX: usize = 600;
/// Recon checks requested from each kind of server.
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

pub(crate) struct Store {
    pub(crate) view: StoreView,
    samples: Arc<Mutex<Samples>>,
}

#[derive(Default)]
struct Samples {
    last: Option<(u64, Counters)>,
    kept: VecDeque<Sample>,
}

/// Activity between two samplings of the proxy's metrics.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    /// End of the interval, in milliseconds since 1970.
    at: u64,
    /// Requests per second by method.
    rates: BTreeMap<String, f64>,
    /// Responses per second with a status of 500 or above.
    failures: f64,
    in_flight: f64,
    connections: f64,
    /// Latency quantiles in seconds, interpolated linearly within the histogram's buckets.
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
    /// Upper bounds and cumulative request counts, ascending; the last bound is infinite.
    buckets: Vec<(f64, f64)>,
}

impl Store {
    pub(crate) fn new(view: StoreView) -> Store {
        Store {
            view,
            samples: Arc::default(),
        }
    }

    /// Samples the metrics until `stop` turns true.
    pub(crate) fn sampler(
        &self,
        mut stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (metrics, samples) = (self.view.metrics.clone(), self.samples.clone());
        async move {
            let mut tick = tokio::time::interval(SAMPLE_INTERVAL);
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

    /// The state of the store for the page, without its content.
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
        json!({"every": SAMPLE_INTERVAL.as_secs(), "samples": samples.kept})
    }

    /// The body that a server of this process returns with 2xx.
    async fn get(&self, handler: &Handler, path: &str) -> Option<bytes::Bytes> {
        let options = Options {
            answer_timeout: Duration::from_secs(5),
            retries: Retries::none(),
            ..Options::default()
        };
        let transport = Transport::in_process(handler.clone(), Context::default(), &options);
        let (url, mut call) = (StoreUrl::in_process(path), Call::new(Method::GET));
        let answer = transport.fetch(&url, &mut call, ANSWER_MAX_BYTES).await;
        Some(answer.ok()?.into_body())
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
            if self.kept.len() > SAMPLES_MAX {
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

/// A quantile of cumulative counts by upper bound; `None` without any counts.
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
    /// Parses the proxy's counters from the metrics text.
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

/// Name, labels and value of a line. Label values of our own metrics contain no quotes and no
/// commas.
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

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_line_is_read_or_passed_over(line in r#"[a-z_]{0,9}\{([a-z]{0,4}="[a-z]{0,4}",?){0,3}\} [0-9.e+-]{0,9}|.{0,60}"#) {
            let _ = parse(&line);
        }
    }
}
