//! Metrics of a run sent to a gateway: `--push URL`. Every few seconds the newest figures go out,
//! by a task of their own; nothing waits for it, nothing is queued, and a gateway that does not
//! take them is told of once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::metrics::{Metrics, Stages, TextFormat};
use crate::target::{Post, TargetError, TargetOptions};

/// Maximum time of one push, and of the last one, which the end of a run waits for.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of one push. Beyond it only the stage under way is sent.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Settings of `--push`.
#[derive(Debug, Clone)]
pub(super) struct PushOptions {
    pub(super) url: String,
    pub(super) interval: Duration,
    pub(super) format: TextFormat,
    pub(super) token: Option<String>,
}

/// Counts of pushes, and the reason of the first that failed.
#[derive(Debug, Default)]
struct Outcome {
    sent: u64,
    failed: u64,
    first: Option<String>,
    /// The failure was told.
    told: bool,
}

/// A running task that pushes.
#[derive(Debug)]
pub(super) struct Push {
    url: String,
    outcome: Arc<Mutex<Outcome>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

struct Sender {
    post: Post,
    options: PushOptions,
    metrics: Metrics,
    outcome: Arc<Mutex<Outcome>>,
}

impl Push {
    /// Starts pushing; must be called within a runtime.
    ///
    /// # Errors
    /// The URL is none, or its host has no address. A gateway that does not answer is no error.
    pub(super) fn start(
        options: PushOptions,
        metrics: &Metrics,
        target: &TargetOptions,
    ) -> Result<Push> {
        let url = options.url.clone();
        let post = Post::new(&url, TIMEOUT, target).map_err(|error| match error {
            // The words of a store that is not there name other options.
            TargetError::Unreachable { url, why } => anyhow!("--push {url}: {why}"),
            error => anyhow!("--push: {error}"),
        })?;
        let outcome: Arc<Mutex<Outcome>> = Arc::default();
        let sender = Sender {
            post,
            options,
            metrics: metrics.clone(),
            outcome: outcome.clone(),
        };
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(sender.run(stopped));
        Ok(Push {
            url,
            outcome,
            stop,
            task,
        })
    }

    /// A sentence about the first failure, once.
    pub(super) fn news(&self) -> Option<String> {
        let mut outcome = self.outcome.lock();
        if outcome.told {
            return None;
        }
        let first = outcome.first.clone()?;
        outcome.told = true;
        Some(format!(
            "metrics cannot be pushed to {}: {first}; the run goes on, and so do the attempts",
            self.url
        ))
    }

    /// Pushes the final figures, and returns a note if any push failed.
    pub(super) async fn finish(mut self) -> Option<String> {
        let _ = self.stop.send(true);
        // The task's own push is bounded as well: this is for a stuck runtime.
        if tokio::time::timeout(TIMEOUT * 2, &mut self.task)
            .await
            .is_err()
        {
            self.task.abort();
        }
        let outcome = self.outcome.lock();
        let first = outcome.first.as_ref()?;
        Some(format!(
            "{} of {} pushes of metrics to {} failed, the first: {first}",
            outcome.failed,
            outcome.sent + outcome.failed,
            self.url
        ))
    }
}

impl Sender {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let is_over = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = tokio::time::sleep(self.options.interval) => false,
            };
            if is_over {
                return self.push().await;
            }
            // The end of the run does not wait for figures that are old by then.
            tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = self.push() => {}
            }
        }
    }

    fn body(&self) -> Result<String, String> {
        let format = self.options.format;
        for stages in [Stages::All, Stages::Current] {
            let text = self.metrics.text(format, stages);
            if text.len() <= BODY_BYTES_MAX {
                return Ok(text);
            }
        }
        Err(format!(
            "one stage's figures are more than {BODY_BYTES_MAX} bytes"
        ))
    }

    async fn push(&mut self) {
        let result = match self.body() {
            Ok(body) => self.send(&body).await,
            Err(why) => Err(why),
        };
        let mut outcome = self.outcome.lock();
        match result {
            Ok(()) => outcome.sent += 1,
            Err(why) => {
                outcome.failed += 1;
                outcome.first.get_or_insert(why);
            }
        }
    }

    async fn send(&mut self, body: &str) -> Result<(), String> {
        let token = self.options.token.as_ref();
        let token = token.map(|token| format!("Bearer {token}"));
        let mut headers = vec![("Content-Type", self.options.format.content_type())];
        headers.extend(token.as_deref().map(|token| ("Authorization", token)));
        // A pushgateway replaces a group by PUT; other receivers take POST.
        let method = match self.post.path().contains("/metrics/job") {
            true => "PUT",
            false => "POST",
        };
        self.post.send(method, &headers, body.as_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::controller::Progress;
    use crate::record::RunMeta;

    fn options(url: String, interval: Duration) -> PushOptions {
        PushOptions {
            url,
            interval,
            format: TextFormat::OpenMetrics,
            token: Some("secret".into()),
        }
    }

    fn metrics() -> Metrics {
        let metrics = Metrics::default();
        metrics.show(&Progress::Started {
            meta: Box::new(RunMeta {
                name: "pushed".into(),
                ..RunMeta::default()
            }),
            folder: "run".into(),
        });
        metrics
    }

    /// Answers every request with `answer`, or none if that is empty; passes requests on.
    async fn gateway(answer: &'static str) -> (String, tokio::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (came, requests) = tokio::sync::mpsc::channel(100);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let came = came.clone();
                tokio::spawn(async move {
                    let mut request = String::new();
                    loop {
                        let mut part = [0; 4096];
                        let got = stream.read(&mut part).await.unwrap_or(0);
                        if got == 0 {
                            return;
                        }
                        request.push_str(&String::from_utf8_lossy(&part[..got]));
                        if request.ends_with("# EOF\n") {
                            let _ = came.send(std::mem::take(&mut request)).await;
                            stream.write_all(answer.as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        (format!("http://{address}"), requests)
    }

    #[tokio::test]
    async fn figures_go_out_again_and_again_and_at_the_end() {
        let ok = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
        let (url, mut requests) = gateway(ok).await;
        let metrics = metrics();
        let group = format!("{url}/metrics/job/lab?x=1");
        let options = options(group, Duration::from_millis(20));
        let push = Push::start(options, &metrics, &TargetOptions::default()).unwrap();
        let first = requests.recv().await.unwrap();
        assert!(
            first.starts_with("PUT /metrics/job/lab?x=1 HTTP/1.1\r\n"),
            "{first}"
        );
        assert!(
            first.contains("Authorization: Bearer secret\r\n"),
            "{first}"
        );
        assert!(
            first.contains("cairn_lab_run_over{run=\"pushed\"} 0\n"),
            "{first}"
        );
        requests.recv().await.unwrap();
        metrics.show(&Progress::Finished(Box::default()));
        assert_eq!(push.news(), None);
        assert_eq!(push.finish().await, None);
        let mut last = String::new();
        while let Ok(request) = requests.try_recv() {
            last = request;
        }
        assert!(
            last.contains("cairn_lab_run_over{run=\"pushed\"} 1\n"),
            "{last}"
        );
    }

    #[tokio::test]
    async fn a_gateway_that_refuses_is_told_of_once() {
        let no = "HTTP/1.1 400 Bad Request\r\nContent-Length: 8\r\n\r\nno\nthing";
        let (url, mut requests) = gateway(no).await;
        let options = options(url.clone(), Duration::from_millis(5));
        let push = Push::start(options, &metrics(), &TargetOptions::default()).unwrap();
        let first = requests.recv().await.unwrap();
        assert!(first.starts_with("POST / HTTP/1.1\r\n"), "{first}");
        for _ in 0..2 {
            requests.recv().await.unwrap();
        }
        let news = push.news().unwrap();
        assert!(news.contains(&format!("{url}: HTTP 400: no; ")), "{news}");
        assert_eq!(push.news(), None);
        let note = push.finish().await.unwrap();
        assert!(note.contains(" pushes of metrics to "), "{note}");
    }

    /// The end of a run waits for one push at most, not for one that hangs and another.
    #[tokio::test]
    async fn a_gateway_that_hangs_holds_nothing_up() {
        let (url, mut requests) = gateway("").await;
        let options = options(url, Duration::from_millis(5));
        let push = Push::start(options, &metrics(), &TargetOptions::default()).unwrap();
        requests.recv().await.unwrap();
        let began = Instant::now();
        let note = push.finish().await.unwrap();
        let took = began.elapsed();
        assert!(took < TIMEOUT + Duration::from_secs(2), "{took:?}");
        assert!(note.contains("no answer in 5 s"), "{note}");
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_refused_at_once() {
        for (url, part) in [
            ("gateway:9091", "must begin with http"),
            ("http://gateway.invalid:9091/metrics/job/lab", "--push http"),
        ] {
            let options = options(url.to_owned(), TIMEOUT);
            let refused = Push::start(options, &metrics(), &TargetOptions::default());
            let told = refused.unwrap_err().to_string();
            assert!(told.contains(part), "{told}");
        }
    }
}
