//! `swift-container-deleter ACCOUNT CONTAINER`: queues a container's objects for the expirer, which
//! deletes them later. Requests go through the pipeline of an internal client's conf.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cairn_daemons::InternalClient;
use cairn_daemons::container_deleter::Deletion;
use cairn_formats::acl::repr;
use cairn_http::Clock;
use cairn_peer::Backends;
use cairn_types::Timestamp;

use crate::backend_tls;
use crate::cluster::Clusters;
use crate::conf::ServerConf;
use crate::daemons;
use crate::logging::{self, LogOptions};
use crate::settings::{self, Place};

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Arguments of the program.
#[derive(Clone, Debug)]
pub struct Called {
    /// Conf file of the internal client.
    pub conf: PathBuf,
    /// Attempts per request.
    pub tries: u32,
    pub account: String,
    pub container: String,
    /// Selects names with this prefix, after `marker` and before `end_marker`; empty imposes no
    /// condition.
    pub prefix: String,
    pub marker: String,
    pub end_marker: String,
    /// Timestamp of the deletion; `None` is now.
    pub timestamp: Option<String>,
}

impl Called {
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
pub fn run(called: Called, out: &mut dyn Write) -> Result<()> {
    let path = std::path::absolute(&called.conf)?;
    let conf = ServerConf::load(&path)?;
    logging::start(&LogOptions::default(), settings::log_level(&conf.app)?)?;
    let tries = called.tries;
    let deletion = called.deletion()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let cluster = Clusters::default().get(&Place::read(&conf.app).swift_dir)?;
        let timeout = conf.app.seconds_or("conn_timeout", 0.5)?;
        let backends = Backends::with_tls(timeout, backend_tls::of(&conf.app)?);
        let pipeline = daemons::read_pipeline(&path, &cluster, &backends, &Clock::system())
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
