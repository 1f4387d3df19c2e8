//! The program under the names of OpenStack Swift's own: which one, and its arguments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairn_node::conf::Role;
use cairn_node::logging::LogOptions;
use cairn_node::serve::{self, RunOptions};
use cairn_ring::cli;
use clap::Parser;

/// Run one server of OpenStack Swift
#[derive(Debug, Parser)]
#[command(version)]
struct SwiftServerArguments {
    /// The server's conf file, or a folder of them
    #[arg(value_name = "CONFIG")]
    config: PathBuf,

    /// Log to the console; this program always does
    #[arg(short, long)]
    verbose: bool,

    /// Exit after loading and checking the configuration
    #[arg(short, long)]
    test_config: bool,

    /// For daemons; servers ignore it
    #[arg(short, long, hide = true)]
    once: bool,

    /// Swift's programs take the names of options as plain words too
    #[arg(hide = true)]
    words: Vec<String>,
}

/// Runs the program that `arguments[0]` names, if it is one of Swift's.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(arguments.first()?)
        .file_name()
        .and_then(OsStr::to_str)?;
    let program = name.strip_prefix("swift-")?;
    if program == "ring-builder" || program == "ring-builder-safe" {
        let texts: Vec<String> = arguments[1..]
            .iter()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        return Some(ring_builder(&texts, program.ends_with("-safe")));
    }
    let Some(role) = Role::ALL
        .into_iter()
        .find(|role| role.server_name() == program)
    else {
        let known = "swift-proxy-server, swift-account-server, swift-container-server, \
                     swift-object-server, swift-ring-builder";
        return Some(crate::exit_code(Err(anyhow::anyhow!(
            "{name} is no program of this one; it can be called {known}"
        ))));
    };
    let parsed = SwiftServerArguments::parse_from(arguments);
    Some(crate::exit_code(run_server(role, &parsed)))
}

fn run_server(role: Role, arguments: &SwiftServerArguments) -> anyhow::Result<()> {
    let confs = serve::load(std::slice::from_ref(&arguments.config), Some(role))?;
    let options = RunOptions {
        log: LogOptions::default(),
        ..RunOptions::default()
    };
    let test = arguments.test_config || arguments.words.iter().any(|w| w == "test_config");
    if test {
        serve::check(confs, &options)
    } else {
        serve::run(confs, options)
    }
}

/// `cairn ring` and swift-ring-builder, whose exit codes say more than yes or no: 0 done, 1 done
/// with a warning, 2 not done. `locked`: as swift-ring-builder-safe.
pub(crate) fn ring_builder(arguments: &[String], locked: bool) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let run = if locked { cli::run_locked } else { cli::run };
    let code = run(arguments, &mut out, &mut err);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn swifts_arguments() {
        SwiftServerArguments::command().debug_assert();
        let text = "swift-object-server /etc/swift/object-server.conf -v test_config";
        let parsed = SwiftServerArguments::try_parse_from(text.split_whitespace()).unwrap();
        assert!(parsed.verbose && !parsed.test_config);
        assert_eq!(parsed.words, ["test_config"]);
    }

    #[test]
    fn other_names_are_not_swifts() {
        assert!(run(&["/usr/bin/cairn".into()]).is_none());
        assert!(run(&["swift-object-replicator".into()]).is_some());
    }
}
