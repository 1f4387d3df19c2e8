//! The seam between a store and the web console beside it: [`ConsoleServer`], which a node starts;
//! [`ConsoleOptions`], what it starts with; [`StoreView`], what it may see of the store.
//!
//! A crate of its own, so that neither side is built again when the other changes: `node` fills the
//! view and knows no console, `console` shows it and knows no servers. The binary hands the one to
//! the other. Depends on `http` only.

mod password;
mod view;

use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use cairn_http::audit::AuditLog;
use cairn_http::tls::ServerTls;
use tokio::sync::watch;

pub use password::Password;
pub use view::{
    DeviceShare, DeviceState, PolicyState, ReconSource, RingState, Space, StoreState, StoreView,
};

/// A console that is being served; ends with it.
pub type Serving = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A program of the console, which a node serves beside its store.
pub trait ConsoleServer: Debug + Send + Sync {
    /// Serves the console on `listener` until `stop` turns true.
    ///
    /// # Errors
    /// The console cannot be started: its folder of runs, its listener.
    fn serve(
        &self,
        listener: TcpListener,
        options: ConsoleOptions,
        stop: watch::Receiver<bool>,
    ) -> Serving;
}

/// Configuration of a console.
pub struct ConsoleOptions {
    /// Address to serve on. The cookie is named after the port, because browsers send a host's
    /// cookies to all its ports.
    pub bind: SocketAddr,
    /// Accepted host names, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    pub password: Password,
    /// The folder of run folders.
    pub runs: PathBuf,
    /// The program whose `lab run` executes runs: this one.
    pub program: PathBuf,
    /// Folders that runs may use besides the stores they drive, and RADOS if there is any such
    /// folder. Every user who can sign in can read and delete their content.
    pub allow_local: Vec<PathBuf>,
    pub store: Option<StoreView>,
    /// TLS of the console itself.
    pub tls: Option<Arc<ServerTls>>,
    /// Certificate by which runs trust the store, if the system does not.
    pub store_ca: Option<PathBuf>,
    /// Audit log of sign-ins and changes.
    pub audit: Option<Arc<AuditLog>>,
}
