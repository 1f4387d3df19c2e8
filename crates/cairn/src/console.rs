//! `cairn lab serve`.

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
use cairn_node::store_tls::StoreTls;
use cairn_node::up::Layout;

use crate::args::LabServeArguments;

const PASSWORD: &str = "CAIRN_CONSOLE_PASSWORD";

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
