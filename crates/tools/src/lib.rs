//! Operators' programs under OpenStack Swift's names: arguments and output are Swift's, so that
//! scripts and habits keep working. Each module is a program; none of them serves anything.
//!
//! Most of them read rings, databases and object files, and ask servers over HTTP. The others
//! (below, from `swift-init` on) work by a server's own parts: its conf files, engines, pipelines.
//! For these the crate depends on `node`, and with it on all of the store. They have one home
//! nevertheless, because that weight costs little: nobody but the binary depends on this crate, the
//! binary links the servers anyway, and a change of a server has only these few thousand lines
//! built again beside `node` itself.
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
//! | `swift-ring-builder`, `cairn ring`; `swift-ring-composer` | rings |
//! | `swift-init`, `cairn init` | starts and stops programs |
//! | `swift-config` | what conf files say once they are read |
//! | `swift-object-relinker` | objects' names in a ring's new partitions |
//! | `swift-manage-shard-ranges` | shows and changes a container's shard ranges |
//! | `swift-container-deleter` | queues what a container holds for the expirer |
//! | `swift-drive-audit` | unmounts drives that the kernel's log has errors of |
//! | `cairn pebbles` | what is in a device's volumes, and what of it is damaged |
//! | `cairn rekey` | keys of encrypted objects under another root secret |

mod account_audit;
mod container_deleter;
mod db_info;
mod dispersion;
mod drive_audit;
mod form_signature;
mod get_nodes;
pub mod init;
mod locations;
mod object_info;
pub mod pebbles;
mod processes;
mod recon;
mod recon_cron;
mod reconciler_enqueue;
pub mod rekey;
mod relinker;
pub mod ring_builder;
mod shard_ranges;
mod show_conf;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use cairn_index::DbKind;
use clap::Parser;
use clap::error::ErrorKind;

/// Names of the programs, without `swift-`.
pub const PROGRAMS: [&str; 22] = [
    "account-audit",
    "account-info",
    "config",
    "container-deleter",
    "container-info",
    "dispersion-populate",
    "dispersion-report",
    "drive-audit",
    "form-signature",
    "get-nodes",
    "init",
    "manage-shard-ranges",
    "object-info",
    "object-relinker",
    "oldies",
    "orphans",
    "recon",
    "recon-cron",
    "reconciler-enqueue",
    "ring-builder",
    "ring-builder-safe",
    "ring-composer",
];

/// Exit code of a program that found a problem.
const FAILURE: u8 = 1;

/// Runs the program of that name; `arguments` begin with its name. `None` if there is no such
/// program.
pub fn run(program: &str, arguments: &[OsString]) -> Option<ExitCode> {
    if let Some(code) = run_beside_servers(program, arguments) {
        return Some(code);
    }
    let mut out = std::io::stdout().lock();
    let code = run_to(program, arguments, &mut out);
    // If the output is closed, the exit code still tells the result.
    let _ = out.flush();
    code.map(ExitCode::from)
}

/// Runs one of the programs that work by a server's own parts.
fn run_beside_servers(program: &str, arguments: &[OsString]) -> Option<ExitCode> {
    Some(match program {
        "config" => {
            let called = show_conf::Arguments::parse_from(arguments).called();
            exit_code(show_conf::run(&called, &mut std::io::stdout()))
        }
        "container-deleter" => {
            let parsed = container_deleter::Arguments::parse_from(arguments);
            exit_code(container_deleter::run(parsed, &mut std::io::stdout()))
        }
        "drive-audit" => {
            let parsed = drive_audit::Arguments::parse_from(arguments);
            exit_code(drive_audit::run(&parsed.conf))
        }
        "init" => init::run_arguments(init::SwiftInit::parse_from(arguments).arguments),
        "manage-shard-ranges" => shard_ranges::run(shard_ranges::Arguments::parse_from(arguments)),
        "object-relinker" => {
            let called = relinker::Arguments::parse_from(arguments).called();
            match relinker::run(&called) {
                Ok(code) => ExitCode::from(code),
                Err(error) => exit_code(Err(error)),
            }
        }
        "ring-builder" | "ring-builder-safe" | "ring-composer" => {
            let words = arguments.iter().skip(1);
            let words: Vec<String> = words.map(|a| a.to_string_lossy().into_owned()).collect();
            ring_builder::run_as(program, &words)
        }
        _ => return None,
    })
}

/// The exit code of a result; an error is printed with all its causes on one line.
pub fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be closed; the exit code remains.
            let _ = writeln!(std::io::stderr(), "cairn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program that needs no server's parts like [`run`], with output to `out`.
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
