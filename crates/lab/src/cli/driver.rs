//! `cairn lab driver`: generates load for a controller on another host.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::controller::serve;
use crate::drive::cores;

/// Minimum length of a secret; a shorter one could be guessed.
const SECRET_MIN_BYTES: usize = 8;

#[derive(Debug, Args)]
pub struct DriverArguments {
    /// Address for controllers' connections; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:18088")]
    bind: SocketAddr,

    /// The secret that controller and drivers share; better given in the environment, where other
    /// users cannot read it
    #[arg(long, env = "CAIRN_LAB_SECRET", hide_env_values = true)]
    secret: Option<String>,

    /// Threads that drive load [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

pub(super) fn run(arguments: &DriverArguments) -> Result<ExitCode> {
    let Some(secret) = arguments.secret.clone() else {
        bail!("a driver needs a secret: give --secret, or CAIRN_LAB_SECRET in the environment");
    };
    if secret.len() < SECRET_MIN_BYTES {
        bail!("the secret is too short: {SECRET_MIN_BYTES} characters at least");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("no thread for the controller")?;
    let threads = arguments.threads.unwrap_or_else(cores);
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let ready = |address: SocketAddr| {
            // The caller may read this line to learn the port.
            let _ = writeln!(std::io::stdout(), "driver on {address}");
        };
        tokio::select! {
            result = serve(arguments.bind, secret, threads, ready) => result,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    })?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}
