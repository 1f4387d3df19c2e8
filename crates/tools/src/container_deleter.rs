//! `swift-container-deleter ACCOUNT CONTAINER`: queues a container's objects for the expirer, which
//! deletes them later. Requests go through the pipeline of an internal client's conf.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cairn_daemons::InternalClient;
use cairn_daemons::container_deleter::Deletion;
use cairn_formats::acl::repr;
use cairn_node::conf::ServerConf;
use cairn_node::embedded::Embedded;
use cairn_node::logging::{self, LogOptions};
use cairn_node::settings;
use cairn_types::Timestamp;
use clap::Parser;

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Queue what a container holds for the expirer, which deletes it later
///
/// Listings show the objects until they are deleted. Where this breaks off, begin again after the
/// last name that it told, with --marker.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
pub(crate) struct Arguments {
    account: String,
    container: String,

    /// The internal client's conf
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/swift/internal-client.conf"
    )]
    config: PathBuf,

    /// Ask so often
    #[arg(long, value_name = "N", default_value_t = 3)]
    request_tries: u32,

    /// Only objects whose names begin so
    #[arg(long, default_value = "")]
    prefix: String,

    /// Only objects after this name
    #[arg(long, default_value = "")]
    marker: String,

    /// Only objects before this name
    #[arg(long, default_value = "")]
    end_marker: String,

    /// Delete them as of this time [default: now]
    #[arg(long)]
    timestamp: Option<String>,
}

impl Arguments {
    fn deletion(self) -> Result<Deletion> {
        let at = match &self.timestamp {
            Some(text) => Timestamp::parse(text)
                .with_context(|| format!("{text:?} is no time, such as 1700000000.12345"))?,
            None => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                Timestamp::from_unix(now.unwrap_or_default())
            }
        };
        Ok(Deletion {
            account: self.account,
            container: self.container,
            prefix: self.prefix,
            marker: self.marker,
            end_marker: self.end_marker,
            at,
        })
    }
}

/// Queues all objects, and reports progress.
pub(crate) fn run(called: Arguments, out: &mut dyn Write) -> Result<()> {
    let path = std::path::absolute(&called.config)?;
    let conf = ServerConf::load(&path)?;
    logging::start(&LogOptions::default(), settings::log_level(&conf.app)?)?;
    let tries = called.request_tries;
    let deletion = called.deletion()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let pipeline = Embedded::open(&conf.app)?
            .internal_client(&path)
            .with_context(|| path.display().to_string())?;
        let client = InternalClient::new(pipeline, "Swift Container Deleter", tries);
        let mut told = Instant::now();
        let queued = deletion.queue(&client, |queued, last| {
            if told.elapsed() > PROGRESS_INTERVAL {
                told = Instant::now();
                let last = repr(last);
                // Standard output may be closed.
                let _ = writeln!(out, "Marked {queued} objects for deletion, through {last}");
            }
        });
        let queued = queued.await?;
        writeln!(out, "Finished. Marked {queued} objects for deletion.")?;
        Ok(())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments() {
        Arguments::command().debug_assert();
        let words = "x AUTH_a c --prefix=p --timestamp=1700000000.5".split(' ');
        let parsed = Arguments::try_parse_from(words).unwrap();
        assert_eq!(parsed.timestamp.as_deref(), Some("1700000000.5"));
    }
}
