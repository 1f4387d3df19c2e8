//! Operators' tools under OpenStack Swift's names: arguments and output are Swift's, so that
//! scripts and habits keep working. Each module is a program; none of them serves anything. They
//! read rings, databases and object files directly, and ask servers over HTTP.
//!
//! | program | purpose |
//! | --- | --- |
//! | `swift-get-nodes` | which servers hold a name or a partition |
//! | `swift-object-info`, `-container-info`, `-account-info` | what is in a file of a device |
//! | `swift-recon-cron` | counts updates that wait, for recon |
//! | `swift-oldies`, `-orphans` | processes that run for long, or without anybody's knowing |
//! | `swift-form-signature` | signs a form for formpost |
//! | `swift-recon` | facts of all servers of the rings, gathered |
//! | `swift-account-audit` | whether all replicas of accounts, containers and objects agree |
//! | `swift-reconciler-enqueue` | queues an object that lies in the wrong policy |
//! | `swift-dispersion-populate`, `-report` | whether samples are on all the devices they belong on |

mod account_audit;
mod db_info;
mod dispersion;
mod form_signature;
mod get_nodes;
mod locations;
mod object_info;
mod processes;
mod recon;
mod recon_cron;
mod reconciler_enqueue;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use cairn_index::DbKind;
use clap::Parser;
use clap::error::ErrorKind;

/// Names of the programs, without `swift-`.
pub const PROGRAMS: [&str; 13] = [
    "account-audit",
    "account-info",
    "container-info",
    "dispersion-populate",
    "dispersion-report",
    "form-signature",
    "get-nodes",
    "object-info",
    "oldies",
    "orphans",
    "recon",
    "recon-cron",
    "reconciler-enqueue",
];

/// Exit code of a program that found a problem.
const FAILURE: u8 = 1;

/// Runs the program of that name; `arguments` begin with its name. `None` if there is no such
/// program.
pub fn run(program: &str, arguments: &[OsString]) -> Option<ExitCode> {
    let mut out = std::io::stdout().lock();
    let code = run_to(program, arguments, &mut out);
    // If the output is closed, the exit code still tells the result.
    let _ = out.flush();
    code.map(ExitCode::from)
}

/// Runs a program like [`run`], with output to `out`.
pub fn run_to(program: &str, arguments: &[OsString], out: &mut dyn Write) -> Option<u8> {
    Some(match program {
        "account-audit" => with(arguments, out, account_audit::run),
        "account-info" => with(arguments, out, |options, out| {
            db_info::run(DbKind::Account, &options, out)
        }),
        "container-info" => with(arguments, out, |options, out| {
            db_info::run(DbKind::Container, &options, out)
        }),
        "dispersion-populate" => with(arguments, out, dispersion::populate),
        "dispersion-report" => with(arguments, out, dispersion::report),
        "form-signature" => with(arguments, out, form_signature::run),
        "get-nodes" => with(arguments, out, get_nodes::run),
        "object-info" => with(arguments, out, object_info::run),
        "oldies" => with(arguments, out, processes::oldies),
        "orphans" => with(arguments, out, processes::orphans),
        "recon" => with(arguments, out, recon::run),
        "recon-cron" => with(arguments, out, recon_cron::run),
        "reconciler-enqueue" => with(arguments, out, reconciler_enqueue::run),
        _ => return None,
    })
}

/// Parses the arguments and runs the program.
fn with<P: Parser>(
    arguments: &[OsString],
    out: &mut dyn Write,
    run: impl FnOnce(P, &mut dyn Write) -> Result<u8>,
) -> u8 {
    let options = match P::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => {
            // As above.
            let _ = error.print();
            let help = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            return if help { 0 } else { 2 };
        }
    };
    match run(options, out) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "ERROR: {error:#}");
            FAILURE
        }
    }
}

/// Runs a future, for programs that call servers.
fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}
