//! Metrics of a run for Prometheus: `--metrics HOST:PORT` serves `GET /metrics` during the run, in
//! text format 0.0.4, or as OpenMetrics where a scraper accepts that; [`push`](super::push) sends
//! the same. Counters include everything that ended, ramps included; gauges cover the last second
//! or so.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::controller::Progress;
use crate::record::Sample;

/// Maximum concurrent scrapers; others wait to be accepted.
const SCRAPERS_MAX: usize = 16;
const HEAD_BYTES_MAX: usize = 8 << 10;
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Format of the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TextFormat {
    #[default]
    Prometheus,
    OpenMetrics,
}

impl TextFormat {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that a request's head asks for.
    fn accepted(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let mut accepts = head.lines().filter(|line| line.starts_with("accept:"));
        match accepts.any(|line| line.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }
}

/// Stages in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stages {
    All,
    /// Only the one under way.
    Current,
}

/// Key of a series: stage, work, operation and size class.
type Key = [String; 4];

#[derive(Debug, Default)]
struct Series {
    ops: u64,
    failures: u64,
    bytes: u64,
    /// Rate of the last interval, and its p50, p95, p99 and maximum latency in seconds. `None` if
    /// nothing succeeded.
    rate: f64,
    latency: Option<[f64; 4]>,
}

#[derive(Debug, Default)]
struct State {
    run: String,
    is_over: bool,
    stage: String,
    workers: u32,
    progress: BTreeMap<String, f64>,
    series: BTreeMap<Key, Series>,
}

/// Live figures of a run; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics {
    state: Arc<Mutex<State>>,
}

impl Metrics {
    pub(super) fn show(&self, progress: &Progress) {
        let mut state = self.state.lock();
        match progress {
            Progress::Started { meta, .. } => state.run.clone_from(&meta.name),
            Progress::StageStarted { name, workers, .. } => {
                state.stage.clone_from(name);
                state.workers = *workers;
                state.progress.clear();
                // A finished stage has no rate any more; its counts stay.
                state.series.values_mut().for_each(Series::rest);
            }
            Progress::Sample(sample) => state.add(sample),
            Progress::Finished(_) => {
                state.is_over = true;
                state.series.values_mut().for_each(Series::rest);
            }
            _ => {}
        }
    }

    pub(super) fn text(&self, format: TextFormat, stages: Stages) -> String {
        let state = self.state.lock();
        state.text(format, stages)
    }

    /// Binds and serves until the runtime ends; must be called within a runtime.
    pub(super) async fn serve(&self, bind: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(bind).await?;
        let address = listener.local_addr()?;
        let metrics = self.clone();
        let places = Arc::new(Semaphore::new(SCRAPERS_MAX));
        tokio::spawn(async move {
            while let Ok(place) = places.clone().acquire_owned().await {
                let Ok((stream, _)) = listener.accept().await else {
                    // Probably out of file descriptors: other connections must end first.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    let answered = answer(stream, &metrics);
                    let _ = tokio::time::timeout(SCRAPE_TIMEOUT, answered).await;
                    drop(place);
                });
            }
        });
        Ok(address)
    }
}

async fn answer(mut stream: TcpStream, metrics: &Metrics) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let got = stream.read(&mut part).await?;
        if got == 0 || head.len() + got > HEAD_BYTES_MAX {
            return Ok(());
        }
        head.extend_from_slice(&part[..got]);
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let format = TextFormat::accepted(&head);
    let (status, body) = match line {
        line if line.starts_with(b"GET /metrics ") || line.starts_with(b"GET /metrics?") => {
            ("200 OK", metrics.text(format, Stages::All))
        }
        line if line.starts_with(b"GET ") => ("404 Not Found", "it is at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET alone\n".to_owned()),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        format.content_type(),
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// A metric with one value per operation.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Series) -> f64,
}

const FAMILIES: [Family; 4] = [
    Family {
        name: "operations_total",
        kind: "counter",
        help: "Operations that succeeded",
        value: |series| series.ops as f64,
    },
    Family {
        name: "failures_total",
        kind: "counter",
        help: "Operations that failed",
        value: |series| series.failures as f64,
    },
    Family {
        name: "bytes_total",
        kind: "counter",
        help: "Bytes that those moved",
        value: |series| series.bytes as f64,
    },
    Family {
        name: "operations_per_second",
        kind: "gauge",
        help: "Rate of the last interval",
        value: |series| series.rate,
    },
];

impl Series {
    fn rest(&mut self) {
        self.rate = 0.0;
        self.latency = None;
    }
}

impl State {
    fn add(&mut self, sample: &Sample) {
        self.progress.insert(sample.work.clone(), sample.progress);
        let of_work = |key: &Key| key[0] == sample.stage && key[1] == sample.work;
        let own = self.series.iter_mut().filter(|(key, _)| of_work(key));
        own.for_each(|(_, series)| series.rest());
        for operation in &sample.operations {
            let key = [
                sample.stage.clone(),
                sample.work.clone(),
                operation.name.clone(),
                operation.size_class.clone(),
            ];
            let series = self.series.entry(key).or_default();
            series.ops += operation.ops;
            series.failures += operation.errors;
            series.bytes += operation.bytes;
            series.rate = operation.ops as f64 / sample.seconds.max(1e-3);
            let seconds = |ns: u64| ns as f64 / 1e9;
            series.latency = (operation.ops > 0).then(|| {
                [
                    seconds(operation.p50_ns),
                    seconds(operation.p95_ns),
                    seconds(operation.p99_ns),
                    seconds(operation.max_ns),
                ]
            });
        }
    }

    fn text(&self, format: TextFormat, stages: Stages) -> String {
        let mut text = Text {
            out: String::new(),
            format,
        };
        let run = label(&self.run);
        text.head("run_over", "gauge", "1 when the run has ended");
        let over = u8::from(self.is_over);
        text.value("run_over", &format!("run=\"{run}\""), f64::from(over));
        text.head("workers", "gauge", "Workers of the stage under way");
        let stage = label(&self.stage);
        let workers = if self.is_over { 0 } else { self.workers };
        let of_stage = format!("run=\"{run}\",stage=\"{stage}\"");
        text.value("workers", &of_stage, f64::from(workers));
        text.head("progress", "gauge", "Part of a work that is done");
        for (work, progress) in &self.progress {
            let work = label(work);
            let labels = format!("run=\"{run}\",stage=\"{stage}\",work=\"{work}\"");
            text.value("progress", &labels, *progress);
        }
        let shown = |key: &Key| stages == Stages::All || key[0] == self.stage;
        let series: Vec<(String, &Series)> = self
            .series
            .iter()
            .filter(|(key, _)| shown(key))
            .map(|(key, series)| (labels(&run, key), series))
            .collect();
        for family in &FAMILIES {
            text.head(family.name, family.kind, family.help);
            for (labels, series) in &series {
                text.value(family.name, labels, (family.value)(series));
            }
        }
        let help = "Latencies of the last interval, to the last byte";
        text.head("latency_seconds", "gauge", help);
        for (labels, series) in &series {
            let Some(latency) = series.latency else {
                continue;
            };
            for (quantile, seconds) in ["0.5", "0.95", "0.99", "1"].iter().zip(latency) {
                let labels = format!("{labels},quantile=\"{quantile}\"");
                text.value("latency_seconds", &labels, seconds);
            }
        }
        text.end()
    }
}

/// The text as it is made. Writing to a String cannot fail.
struct Text {
    out: String,
    format: TextFormat,
}

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // In OpenMetrics a counter's name is that of its sample without the ending.
        let name = match self.format {
            TextFormat::Prometheus => name,
            TextFormat::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        };
        let name = format!("cairn_lab_{name}");
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.out, "cairn_lab_{name}{{{labels}}} {value}");
    }

    fn end(mut self) -> String {
        if self.format == TextFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

fn labels(run: &str, [stage, work, operation, class]: &Key) -> String {
    format!(
        "run=\"{run}\",stage=\"{}\",work=\"{}\",operation=\"{}\",size_class=\"{}\"",
        label(stage),
        label(work),
        label(operation),
        label(class)
    )
}

/// Escapes a label's value.
fn label(text: &str) -> String {
    let text = text.replace('\\', "\\\\");
    text.replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::OperationSample;

    fn sample(ops: u64, errors: u64) -> Progress {
        Progress::Sample(Box::new(Sample {
            stage: "main".into(),
            work: "w \"1\"".into(),
            seconds: 2.0,
            progress: 0.5,
            operations: vec![OperationSample {
                name: "read".into(),
                ops,
                errors,
                bytes: ops * 10,
                p99_ns: 5_000_000,
                ..OperationSample::default()
            }],
            ..Sample::default()
        }))
    }

    #[tokio::test]
    async fn a_scrape_has_what_happened() {
        let metrics = Metrics::default();
        let address = metrics.serve(([127, 0, 0, 1], 0).into()).await.unwrap();
        let accepts = |head: &[u8]| TextFormat::accepted(head);
        assert_eq!(
            accepts(b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;q=0.7\r\n\r\n"),
            TextFormat::OpenMetrics
        );
        assert_eq!(
            accepts(b"GET /metrics?accept:application/openmetrics-text HTTP/1.1\r\n\r\n"),
            TextFormat::Prometheus
        );
        let scrape = |path: &'static str| async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        metrics.show(&sample(10, 0));
        metrics.show(&sample(6, 2));
        let labels = "run=\"\",stage=\"main\",work=\"w \\\"1\\\"\",operation=\"read\",\
                      size_class=\"\"";
        let answer = scrape("/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        for line in [
            format!("cairn_lab_operations_total{{{labels}}} 16"),
            format!("cairn_lab_failures_total{{{labels}}} 2"),
            format!("cairn_lab_bytes_total{{{labels}}} 160"),
            format!("cairn_lab_operations_per_second{{{labels}}} 3"),
            format!("cairn_lab_latency_seconds{{{labels},quantile=\"0.99\"}} 0.005"),
        ] {
            assert!(
                answer.lines().any(|found| found == line),
                "{line}\n{answer}"
            );
        }
        let open = metrics.text(TextFormat::OpenMetrics, Stages::All);
        assert!(open.ends_with("\n# EOF\n"), "{open}");
        for line in [
            "# TYPE cairn_lab_operations counter".to_owned(),
            format!("cairn_lab_operations_total{{{labels}}} 16"),
        ] {
            assert!(open.lines().any(|found| found == line), "{line}\n{open}");
        }
        // After an interval without successes there is no latency, and the count stays.
        metrics.show(&sample(0, 1));
        let answer = scrape("/metrics").await;
        assert!(!answer.contains("quantile="), "{answer}");
        assert!(answer.contains("} 16\n"), "{answer}");
        assert!(scrape("/").await.starts_with("HTTP/1.1 404"));
    }
}
