//! `cairn rekey ACCOUNT[/CONTAINER]…`: wraps the keys of stored objects under the active root
//! secret, using the secrets and the proxy of a proxy's conf.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_daemons::InternalClient;
use cairn_daemons::internal_client::InternalClientError;
use cairn_daemons::rekey::{Position, Rekeying, Tally, Target, Watch};
use cairn_formats::acl::repr;
use cairn_http::rekey::{Reason, SecretId};
use cairn_node::conf::{Filter, ServerConf};
use cairn_node::embedded::{Embedded, Filtered};
use cairn_node::logging::{self, LogOptions};
use cairn_node::role::Role;
use cairn_node::settings;
use clap::Args;
use serde_json::{Value, json};

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
const AGENT: &str = "Cairn Rekey";

/// Arguments of the program.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Accounts, or single containers of them with their older versions
    #[arg(value_name = "ACCOUNT[/CONTAINER]", required = true)]
    targets: Vec<String>,

    /// The conf of a proxy that has the filters keymaster and encryption
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/swift/proxy-server.conf"
    )]
    config: PathBuf,

    /// Only count what there is to do
    #[arg(long)]
    dry_run: bool,

    /// Re-key so many objects at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    workers: usize,

    /// Ask so often
    #[arg(long, value_name = "N", default_value_t = 3)]
    request_tries: u32,

    /// Note there how far this is; a run that finds the note of another over the same accounts goes
    /// on where that was
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
}

/// Re-keys all, and reports what remains; true if nothing does.
///
/// # Errors
/// The conf is invalid, is not of a proxy or lacks the filter encryption; a target is malformed;
/// the progress file is of another run or cannot be written; or the walk ends early.
pub fn run(called: &Arguments, out: &mut dyn Write) -> Result<bool> {
    let path = std::path::absolute(&called.config)?;
    let conf = ServerConf::load(&path)?;
    if conf.role != Role::Proxy {
        let path = path.display();
        bail!("{path}: this is the conf of {}, not of a proxy", conf.role);
    }
    logging::start(&LogOptions::default(), settings::log_level(&conf.app)?)?;
    let targets: Vec<Target> = called
        .targets
        .iter()
        .map(|text| {
            let target = Target::parse(text);
            target.with_context(|| format!("{text:?}: expected ACCOUNT or ACCOUNT/CONTAINER"))
        })
        .collect::<Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let rekeying = rekeying(&conf, called)?;
        let mut progress = Progress {
            path: called.progress.clone(),
            called: json!({"targets": called.targets, "dry_run": called.dry_run}),
            reported_at: Instant::now(),
            out: &mut *out,
        };
        let (place, mut tally) = progress.read()?;
        if place != Position::default() {
            writeln!(progress.out, "goes on after {}", shown(&place))?;
        }
        let walk = rekeying.run(&targets, place, &mut tally, &mut progress);
        walk.await?;
        progress.end()?;
        print_tally(&tally, out)?;
        Ok(tally.is_complete())
    })
}

fn rekeying(conf: &ServerConf, called: &Arguments) -> Result<Rekeying> {
    let path = conf.path.display();
    let is_ours = |filter: &&Filter| ["keymaster", "encryption"].contains(&&*filter.entry_point);
    let filters: Vec<Filter> = conf.filters.iter().filter(is_ours).cloned().collect();
    if !filters
        .iter()
        .any(|filter| filter.entry_point == "encryption")
    {
        bail!("{path}: the pipeline has no filter encryption: name the conf of a proxy that has");
    }
    let Filtered { proxy, filtered } = Embedded::open(&conf.app)?.proxy(conf, &filters)?;
    Ok(Rekeying {
        stored: InternalClient::new(proxy, AGENT, called.request_tries),
        filters: InternalClient::new(filtered, AGENT, called.request_tries),
        workers: called.workers,
        is_dry_run: called.dry_run,
    })
}

/// Progress of the walk: reported periodically, and saved for resumption.
struct Progress<'a> {
    path: Option<PathBuf>,
    /// Scope of the walk: progress of another scope is not resumed.
    called: Value,
    reported_at: Instant,
    out: &'a mut dyn Write,
}

impl Progress<'_> {
    fn read(&self) -> Result<(Position, Tally)> {
        let Some(path) = &self.path else {
            return Ok(Default::default());
        };
        let text = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Default::default()),
            text => text.with_context(|| path.display().to_string())?,
        };
        let noted = serde_json::from_slice(&text).ok().and_then(|noted: Value| {
            let at = noted.get("at")?;
            let text = |name: &str| Some(at.get(name)?.as_str()?.to_owned());
            let place = Position {
                target: usize::try_from(at.get("target")?.as_u64()?).ok()?,
                container: text("container")?,
                object: text("object")?,
            };
            let is_same = noted.get("of")? == &self.called;
            is_same.then_some((place, Tally::from_json(noted.get("tally")?)?))
        });
        noted.with_context(|| {
            format!(
                "{} is no note of a run over the same accounts: remove it, or name another file",
                path.display()
            )
        })
    }

    fn note(&self, path: &Path, place: &Position, tally: &Tally) -> std::io::Result<()> {
        let note = json!({
            "of": self.called,
            "at": {
                "target": place.target,
                "container": place.container,
                "object": place.object,
            },
            "tally": tally.to_json(),
        });
        let mut staged = path.as_os_str().to_owned();
        staged.push(".tmp");
        let staged = PathBuf::from(staged);
        let mut file = fs::File::create(&staged)?;
        file.write_all(note.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&staged, path)
    }

    /// Removes the file, as nothing is left to resume.
    fn end(&self) -> Result<()> {
        match self.path.as_ref().map(fs::remove_file) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Watch for Progress<'_> {
    fn page(&mut self, place: &Position, tally: &Tally) -> std::io::Result<()> {
        if let Some(path) = &self.path {
            self.note(path, place, tally)?;
        }
        if self.reported_at.elapsed() > PROGRESS_INTERVAL {
            self.reported_at = Instant::now();
            let (objects, place) = (tally.objects(), shown(place));
            // Standard output may be closed.
            let _ = writeln!(self.out, "{objects} objects, through {place}");
        }
        Ok(())
    }

    fn failed(&mut self, error: &InternalClientError) {
        let _ = writeln!(self.out, "failed: {error}");
    }
}

fn shown(place: &Position) -> String {
    repr(&format!("{}/{}", place.container, place.object))
}

fn secret(id: &SecretId) -> String {
    match id {
        None => "encryption_root_secret".to_owned(),
        Some(id) => format!("encryption_root_secret_{id}"),
    }
}

fn print_tally(tally: &Tally, out: &mut dyn Write) -> std::io::Result<()> {
    let Tally {
        not_encrypted,
        active,
        rekeyed,
        gone,
        failed,
        ..
    } = tally;
    let objects = tally.objects();
    writeln!(
        out,
        "{objects} objects: {rekeyed} re-keyed, {active} were under the active root secret, \
         {not_encrypted} are not encrypted, {gone} gone, {failed} failed"
    )?;
    for ((id, reason), count) in &tally.remaining {
        let why = match reason {
            Reason::NotYet => "to be re-keyed",
            Reason::SwiftsFormat => "encrypted as OpenStack Swift does: copy each onto itself",
            Reason::NotConfigured => "the keymaster's conf has no such secret",
        };
        writeln!(out, "remain under {}: {count} objects, {why}", secret(id))?;
    }
    for (id, count) in &tally.rows {
        writeln!(
            out,
            "remain under {}: {count} ETags in listings",
            secret(id)
        )?;
    }
    match tally.is_complete() {
        true => writeln!(out, "nothing remains under another root secret"),
        false => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn progress<'a>(path: &Path, of: &str, out: &'a mut Vec<u8>) -> Progress<'a> {
        Progress {
            path: Some(path.to_owned()),
            called: json!([of]),
            reported_at: Instant::now(),
            out,
        }
    }

    #[test]
    fn a_later_run_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        let mut out = Vec::new();
        let mut first = progress(&path, "a", &mut out);
        assert_eq!(first.read().unwrap(), Default::default());
        let place = Position {
            target: 1,
            container: "c".into(),
            object: "ö".into(),
        };
        let mut tally = Tally {
            rekeyed: 7,
            ..Tally::default()
        };
        tally.remaining.insert((None, Reason::NotConfigured), 2);
        first.page(&place, &tally).unwrap();
        assert_eq!(
            progress(&path, "a", &mut Vec::new()).read().unwrap(),
            (place, tally)
        );
        let other = progress(&path, "b", &mut Vec::new()).read().unwrap_err();
        assert!(other.to_string().contains("remove it"), "{other}");
        first.end().unwrap();
        first.end().unwrap();
        assert!(!path.exists());
    }
}
