//! The command line of a run: `cairn lab run`. Secrets are passed in the environment, where other
//! users of the machine cannot read them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::submission::Submission;

/// The program that executes runs, and the local folders it may use for them.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) allow_local: Vec<PathBuf>,
    /// The certificate of this process's store for runs to trust, and the store's URL.
    pub(crate) store_ca: Option<(PathBuf, String)>,
}

/// The store of a run, as command line arguments.
#[derive(Clone, Default)]
pub(crate) struct Target {
    pub(crate) url: Option<String>,
    pub(crate) user: String,
    pub(crate) key: String,
    pub(crate) token: String,
    /// Description for display, without secrets.
    pub(crate) shown: String,
}

fn is_below(url: &str, store: &str) -> bool {
    let rest = url.strip_prefix(store);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The command that writes the page and the plots of a finished run into its folder.
pub(crate) fn lab_report(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["lab", "report"]).arg(folder);
    command
}

pub(crate) fn lab_run(
    program: &Program,
    workload: &Path,
    folder: &Path,
    submission: &Submission,
    target: &Target,
) -> Command {
    let mut command = Command::new(&program.path);
    command.args(["lab", "run"]).arg(workload);
    command.arg("--out").arg(folder);
    // The console has checked the plan, but the run's process opens the files.
    command.arg("--confined");
    for allowed in &program.allow_local {
        command.arg("--allow-local").arg(allowed);
    }
    if let Some(url) = &target.url {
        command.args(["--target", url]);
        let own = program.store_ca.as_ref();
        if let Some((ca, _)) = own.filter(|(_, store)| is_below(url, store)) {
            command.arg("--ca").arg(ca);
        }
    }
    for (name, value) in [
        ("CAIRN_LAB_USER", &target.user),
        ("CAIRN_LAB_KEY", &target.key),
        ("CAIRN_LAB_TOKEN", &target.token),
    ] {
        if !value.is_empty() {
            command.env(name, value);
        }
    }
    if let Some(seed) = submission.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(scale) = submission.time_scale {
        command.args(["--time-scale", &scale.to_string()]);
    }
    command
}
