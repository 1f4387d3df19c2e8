//! Responses of long operations: a blank every few seconds, so that no intermediary closes the
//! connection, then a report. The operation runs while its response's body is read, and stops if
//! the client disconnects.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{Body, BodyError};
use futures_util::{FutureExt, stream};

/// Format of the heartbeats.
pub(crate) struct Beats {
    pub(crate) every: Duration,
    /// The first beat; later ones are blanks.
    pub(crate) first: &'static str,
    /// Is the first beat sent at once, instead of after the first interval?
    pub(crate) at_once: bool,
    /// Text between beats and report.
    pub(crate) separator: &'static str,
}

impl Beats {
    /// Beats of an operation that sends none while it is short; a report in XML then begins with
    /// its declaration, as upstream.
    pub(crate) fn when_slow(every: Duration, format: &str) -> Self {
        let first = if format.ends_with("/xml") {
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        } else {
            " "
        };
        Beats {
            every,
            first,
            at_once: false,
            separator: "\r\n\r\n",
        }
    }
}

type Job = Pin<Box<dyn Future<Output = std::thread::Result<String>> + Send>>;

enum Stage {
    /// Waiting for the first beat.
    First(Job),
    Running(Job),
    Over,
}

/// The response body of `job`, whose result is the report. If no beat is sent at once, waits up to
/// one interval for the result; if it is there by then, the body has a known length.
pub(crate) async fn body<F>(job: F, beats: Beats) -> Body
where
    F: Future<Output = String> + Send + 'static,
{
    let every = beats.every.max(Duration::from_millis(1));
    let mut job: Job = Box::pin(AssertUnwindSafe(job).catch_unwind());
    if !beats.at_once
        && let Ok(done) = tokio::time::timeout(every, &mut job).await
    {
        return match done {
            Ok(report) => Body::full(report),
            Err(panic) => std::panic::resume_unwind(panic),
        };
    }
    let stream = stream::unfold(Stage::First(job), move |stage| {
        let (first, separator) = (beats.first, beats.separator);
        async move {
            let mut job = match stage {
                Stage::First(job) => {
                    let beat = Bytes::from_static(first.as_bytes());
                    return Some((Ok(beat), Stage::Running(job)));
                }
                Stage::Running(job) => job,
                Stage::Over => return None,
            };
            Some(match tokio::time::timeout(every, &mut job).await {
                Err(_) => (Ok(Bytes::from_static(b" ")), Stage::Running(job)),
                Ok(Ok(report)) => (Ok(format!("{separator}{report}").into()), Stage::Over),
                Ok(Err(_)) => {
                    let failed = BodyError::Source("the operation failed inside the server".into());
                    (Err(failed), Stage::Over)
                }
            })
        }
    });
    Body::from_stream(stream, None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn text(beats: Beats, lasts: Duration) -> (Option<u64>, String) {
        let job = async move {
            tokio::time::sleep(lasts).await;
            "report".to_owned()
        };
        let body = body(job, beats).await;
        let length = body.length();
        let all = body.collect(1000).await.unwrap();
        (length, String::from_utf8(all.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn beats_while_it_lasts() {
        let second = Duration::from_secs(1);
        let slow = |format| Beats::when_slow(second, format);
        let (length, all) = text(slow("text/plain"), second / 2).await;
        assert_eq!((length, all.as_str()), (Some(6), "report"));
        let (length, all) = text(slow("text/plain"), second * 7 / 2).await;
        assert_eq!((length, all.as_str()), (None, "   \r\n\r\nreport"));
        let (_, all) = text(slow("text/xml"), second * 5 / 2).await;
        assert_eq!(
            all,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n \r\n\r\nreport"
        );
        let at_once = Beats {
            every: second,
            first: " ",
            at_once: true,
            separator: "",
        };
        assert_eq!(text(at_once, second / 2).await.1, " report");
    }

    #[tokio::test]
    async fn a_panic_ends_the_body() {
        let at_once = Beats {
            every: Duration::from_secs(9),
            first: " ",
            at_once: true,
            separator: "",
        };
        let body = body(async { panic!("on purpose") }, at_once).await;
        assert!(body.collect(10).await.is_err());
    }
}
