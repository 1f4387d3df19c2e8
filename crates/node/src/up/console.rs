//! The console of `cairn up`: on a port of its own, so that its paths cannot shadow Swift's; its
//! password, generated once and kept; its folder of runs.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_console_api::{ConsoleServer, Password};
use cairn_http::Clock;
use cairn_http::audit::AuditLog;
use cairn_http::serve::bind;
use tracing::warn;

use crate::conf::ServerConf;
use crate::console::ConsoleRun;
use crate::up::layout::write_file;
use crate::up::{Store, UpOptions};

/// Address of the console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsoleChoice {
    /// One port above the store's, or any free one.
    #[default]
    Beside,
    At(SocketAddr),
    Off,
}

const BACKLOG: i32 = 128;

/// The console's password for display at the start.
pub(crate) enum Shown {
    /// Generated at this start, and shown only now.
    New(String),
    /// Stored in this file.
    In(PathBuf),
}

/// Binds the port of the console, which `server` will serve.
pub(crate) fn prepare(
    server: Arc<dyn ConsoleServer>,
    options: &UpOptions,
    store: &Store,
    confs: &[ServerConf],
) -> Result<Option<(ConsoleRun, Shown)>> {
    let listener = match options.console {
        ConsoleChoice::Off => return Ok(None),
        ConsoleChoice::At(address) => {
            bind(address, BACKLOG).with_context(|| format!("--console {address}"))?
        }
        ConsoleChoice::Beside => match beside(store.bind) {
            Ok(listener) => listener,
            Err(error) => {
                warn!(
                    error = format!("{error:#}"),
                    "no console: name an address with --console"
                );
                return Ok(None);
            }
        },
    };
    let path = store.layout.etc.join("console-password");
    let (password, shown) = match path.exists() {
        true => (Password::read(&path)?, Shown::In(path.clone())),
        false => {
            let made = Password::generate();
            write_file(&path, format!("{made}\n").as_bytes())?;
            (made.clone(), Shown::New(made))
        }
    };
    let run = ConsoleRun {
        server,
        bind: listener.local_addr().context("the console's address")?,
        listener,
        hosts: options.console_hosts.clone(),
        password: Password::given(&password, &path.display().to_string())?,
        runs: store.layout.data.join("lab"),
        allow_local: options.allow_local.clone(),
        audit: audit(confs)?,
        tls: store.tls.clone(),
    };
    Ok(Some((run, shown)))
}

/// The audit log of the proxy's filter, if there is one, which the console shares.
fn audit(confs: &[ServerConf]) -> Result<Option<AuditLog>> {
    let mut filters = confs.iter().flat_map(|conf| &conf.filters);
    let Some(filter) = filters.find(|f| f.entry_point == "audit") else {
        return Ok(None);
    };
    let path = filter.section.get("audit_file").map(str::trim);
    let path = path.filter(|path| !path.is_empty());
    let log = AuditLog::open(path, Clock::system());
    let log = log.with_context(|| format!("audit_file = {}", path.unwrap_or_default()))?;
    Ok(Some(log))
}

fn beside(store: SocketAddr) -> Result<TcpListener> {
    let mut address = store;
    address.set_port(store.port().checked_add(1).unwrap_or(0));
    match bind(address, BACKLOG) {
        Ok(listener) => Ok(listener),
        Err(_) => {
            address.set_port(0);
            Ok(bind(address, BACKLOG)?)
        }
    }
}
