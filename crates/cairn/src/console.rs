//! `cairn lab serve`, and the console's options of `cairn up`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cairn_console::WebConsole;
use cairn_console_api::Password;
use cairn_http::Clock;
use cairn_http::audit::AuditLog;
use cairn_http::serve::bind;
use cairn_node::console::{self, ConsoleRun};
use cairn_node::logging;
use cairn_node::settings::LogLevel;
use cairn_node::up::{ConsoleChoice, Layout, StoreTls};
use clap::Args;

use crate::args::{LogArguments, parse_bind};

const PASSWORD: &str = "CAIRN_CONSOLE_PASSWORD";

#[derive(Debug, Args)]
pub(crate) struct LabServeArguments {
    /// Where browsers connect; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", value_parser = parse_bind, default_value = "127.0.0.1:8081")]
    bind: SocketAddr,

    /// Browsers connect by TLS with this certificate (PEM, those of its authorities behind it)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// The folder of runs [default: $XDG_DATA_HOME/cairn/lab or ~/.local/share/cairn/lab]
    #[arg(long, value_name = "RUNS")]
    dir: Option<PathBuf>,

    /// Read the password from this file's first line; CAIRN_CONSOLE_PASSWORD holds one too
    /// [default: a new one at each start, printed]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,

    /// A host name under which browsers reach it, beside addresses and localhost; give it again
    /// for more
    #[arg(long = "console-host", value_name = "NAME")]
    hosts: Vec<String>,

    /// Let runs that are started from the console use local files below DIR (and RADOS); may be
    /// repeated [default: none; runs then only drive stores over the network]
    #[arg(long, value_name = "DIR")]
    allow_local: Vec<PathBuf>,

    /// Append who signs in and what is changed to this file, a JSON object a line, mode 0600
    #[arg(long, value_name = "FILE")]
    audit_file: Option<String>,

    #[command(flatten)]
    log: LogArguments,
}

pub(crate) fn serve(arguments: LabServeArguments) -> Result<()> {
    logging::start(&arguments.log.into(), LogLevel::Info)?;
    let runs = match arguments.dir {
        Some(dir) => dir,
        None => Layout::default_data()
            .context("--dir is missing")?
            .join("lab"),
    };
    let runs = std::path::absolute(&runs)
        .with_context(|| format!("--dir {}: no usable path", runs.display()))?;
    let tls = arguments.tls_cert.zip(arguments.tls_key);
    let tls = tls.map(|(cert, key)| StoreTls::given(cert, key));
    let tls = tls.transpose().context("--tls-cert, --tls-key")?;
    let (password, shown) = password(arguments.password_file)?;
    let listener =
        bind(arguments.bind, 128).with_context(|| format!("--bind {}", arguments.bind))?;
    let address = listener.local_addr().context("the console's address")?;
    let (scheme, certificate) = match &tls {
        None => ("http", String::new()),
        Some(tls) => ("https", shown_certificate(tls)),
    };
    let greeting = format!(
        "console ready on {scheme}://{address}\n  runs      {}\n{certificate}  password  {shown}\n",
        runs.display()
    );
    let run = ConsoleRun {
        server: Arc::new(WebConsole),
        tls,
        listener,
        bind: address,
        hosts: arguments.hosts,
        password,
        runs,
        allow_local: arguments.allow_local,
        audit: arguments.audit_file.map(audit).transpose()?,
    };
    console::run(run, &greeting)
}

fn shown_certificate(tls: &StoreTls) -> String {
    let (file, fingerprint) = (tls.cert.display(), &tls.fingerprint);
    format!("  tls       {file}\n            SHA-256 {fingerprint}\n")
}

fn audit(path: String) -> Result<AuditLog> {
    AuditLog::open(Some(&path), Clock::system())
        .with_context(|| format!("--audit-file {path}: cannot be written"))
}

/// The password, and the text printed about it: a given one is not shown.
fn password(file: Option<PathBuf>) -> Result<(Password, String)> {
    if let Some(file) = file {
        let source = format!("--password-file {}", file.display());
        let text = Password::read(&file)?;
        return Ok((
            Password::given(&text, &source)?,
            format!("that of {}", file.display()),
        ));
    }
    match std::env::var(PASSWORD) {
        Ok(text) => Ok((
            Password::given(&text, PASSWORD)?,
            format!("that of {PASSWORD}"),
        )),
        Err(std::env::VarError::NotUnicode(_)) => bail!("{PASSWORD}: expected UTF-8"),
        Err(std::env::VarError::NotPresent) => {
            let made = Password::generate();
            Ok((Password::given(&made, "the password made")?, made))
        }
    }
}

pub(crate) fn parse_choice(text: &str) -> Result<ConsoleChoice, String> {
    match text {
        "off" => Ok(ConsoleChoice::Off),
        address => parse_bind(address)
            .map(ConsoleChoice::At)
            .map_err(|error| format!("{error}; or off")),
    }
}
