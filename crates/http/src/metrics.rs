//! Metrics that every server keeps, in Prometheus' format. All names, units and labels are defined
//! here.

mod background;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub use background::{Background, DeviceWork, PassWork, StoreFigure};

/// Buckets of request durations in seconds; from a cached HEAD to a slow upload.
const DURATION_BUCKETS_SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    server: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ServerLabels {
    server: &'static str,
}

/// Outcome of a login.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum LoginOutcome {
    Accepted,
    Wrong,
    /// Not checked: too many attempts failed, or too many are waiting.
    HeldUp,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LoginLabels {
    outcome: LoginOutcome,
}

/// Logins of the whole process: filters authenticate users and do not know a server's metrics.
static LOGINS: LazyLock<Family<LoginLabels, Counter>> = LazyLock::new(Family::default);

pub fn count_login(outcome: LoginOutcome) {
    LOGINS.get_or_create(&LoginLabels { outcome }).inc();
}

/// Differences of clocks, counted for the process like logins.
static CLOCK_DIFFERENCES: LazyLock<Counter> = LazyLock::new(Counter::default);

pub fn count_clock_difference() {
    CLOCK_DIFFERENCES.inc();
}

static NO_EFFECT: LazyLock<Counter> = LazyLock::new(Counter::default);

/// Counts a write of an object that had no effect because the stored object is newer.
pub fn count_write_without_effect() {
    NO_EFFECT.inc();
}

/// Outcome of a read that was slow enough for a hedged request.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum HedgeOutcome {
    /// A second server was asked.
    Sent,
    /// No second server was asked: too many requests were slow.
    Withheld,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HedgeLabels {
    outcome: HedgeOutcome,
}

static HEDGES: LazyLock<Family<HedgeLabels, Counter>> = LazyLock::new(Family::default);

pub fn count_hedge(outcome: HedgeOutcome) {
    HEDGES.get_or_create(&HedgeLabels { outcome }).inc();
}

/// Metrics of a process, shared by all its servers.
pub struct Metrics {
    registry: RwLock<Registry>,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<ServerLabels, Histogram>,
    in_flight: Family<ServerLabels, Gauge>,
    connections: Family<ServerLabels, Gauge>,
    closed: Family<ServerLabels, Counter>,
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("cairn");
        let requests = Family::default();
        let seconds = Family::new_with_constructor(
            (|| Histogram::new(DURATION_BUCKETS_SECONDS.iter().copied())) as fn() -> Histogram,
        );
        let (in_flight, connections) = (Family::default(), Family::default());
        let closed = Family::default();
        registry.register(
            "requests",
            "Requests answered over a socket, by server, method and status",
            requests.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "From the request's head read to its answer's head ready",
            Unit::Seconds,
            seconds.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests being answered",
            in_flight.clone(),
        );
        registry.register(
            "connections",
            "Open client connections",
            connections.clone(),
        );
        registry.register(
            "connections_closed_for_room",
            "Connections closed, or turned away, because all places for clients were taken",
            closed.clone(),
        );
        registry.register(
            "logins",
            "Logins by key or password, by what came of them",
            LOGINS.clone(),
        );
        registry.register(
            "clock_differences",
            "Answers of storage servers whose clock is more than 10 seconds from this host's",
            CLOCK_DIFFERENCES.clone(),
        );
        registry.register(
            "writes_without_effect",
            "Writes of objects that changed nothing: what is there is newer by its timestamp",
            NO_EFFECT.clone(),
        );
        registry.register(
            "hedges",
            "Slow reads for which another storage server was to be asked, by whether it was",
            HEDGES.clone(),
        );
        Arc::new(Metrics {
            registry: RwLock::new(registry),
            requests,
            seconds,
            in_flight,
            connections,
            closed,
        })
    }

    /// Registers further metrics of another part of the program.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write());
    }

    /// Adds the state of background work to the output; `source` is called for each scrape.
    pub fn show_background(&self, source: Arc<dyn Fn() -> Background + Send + Sync>) {
        let source = Box::new(background::Source(source));
        self.register(|registry| registry.register_collector(source));
    }

    /// The metrics as text (OpenMetrics 1.0).
    pub fn encode(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.read();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &registry);
        out
    }

    pub const CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub(crate) fn in_flight(&self, server: &'static str) -> Gauge {
        self.in_flight.get_or_create_owned(&ServerLabels { server })
    }

    pub(crate) fn connections(&self, server: &'static str) -> Gauge {
        self.connections
            .get_or_create_owned(&ServerLabels { server })
    }

    pub(crate) fn closed_for_room(&self, server: &'static str) -> Counter {
        self.closed.get_or_create_owned(&ServerLabels { server })
    }

    pub(crate) fn answered(
        &self,
        server: &'static str,
        method: &http::Method,
        status: u16,
        took: Duration,
    ) {
        let labels = RequestLabels {
            server,
            method: known_method(method),
            status,
        };
        self.requests.get_or_create_owned(&labels).inc();
        self.seconds
            .get_or_create_owned(&ServerLabels { server })
            .observe(took.as_secs_f64());
    }
}

/// The method as a label: only known ones, so that a client cannot create new label values.
fn known_method(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "PUT" => "PUT",
        "POST" => "POST",
        "DELETE" => "DELETE",
        "COPY" => "COPY",
        "OPTIONS" => "OPTIONS",
        "PROMISE" => "PROMISE",
        "REPLICATE" => "REPLICATE",
        "SSYNC" => "SSYNC",
        "UPDATE" => "UPDATE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_work() {
        let metrics = Metrics::new();
        metrics.show_background(Arc::new(|| Background {
            devices: vec![DeviceWork {
                device: "/srv/node/sda".into(),
                share: 0.5,
                done: 7,
                seconds: 1.5,
            }],
            passes: vec![PassWork {
                daemon: "object-replicator",
                done: 3,
                of: 9,
                seconds_left: None,
            }],
            figures: vec![StoreFigure {
                store: "sda/pebbles".into(),
                name: "pebbles_objects",
                help: "Objects",
                value: 9.0,
            }],
        }));
        let text = metrics.encode();
        for line in [
            r#"cairn_pebbles_objects{store="sda/pebbles"} 9"#,
            r#"cairn_background_share{device="/srv/node/sda"} 0.5"#,
            r#"cairn_background_operations_total{device="/srv/node/sda"} 7"#,
            r#"cairn_background_wait_seconds_total{device="/srv/node/sda"} 1.5"#,
            r#"cairn_pass_partitions_done{daemon="object-replicator"} 3"#,
            r#"cairn_pass_partitions{daemon="object-replicator"} 9"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("remaining"), "{text}");
    }

    #[test]
    fn counts() {
        let metrics = Metrics::new();
        metrics.answered("proxy", &http::Method::GET, 200, Duration::from_millis(3));
        let text = metrics.encode();
        assert!(
            text.contains(r#"cairn_requests_total{server="proxy",method="GET",status="200"} 1"#),
            "{text}"
        );
    }
}
