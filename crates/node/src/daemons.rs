//! Daemons by their sections.
//!
//! A daemon runs in one of two ways. `cairn up` and `cairn serve` run those whose sections are in
//! the servers' confs, inside their process. Under Swift's names (`swift-object-updater CONF`) each
//! is a program of its own, and `swift-object-server` runs the server alone. A lock on the folder
//! of devices keeps one daemon from running both ways at once.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_assembly::DaemonOptions;
use cairn_daemons::Daemon;
use cairn_formats::ini::Section;

use crate::parts::{ConfParts, PartsContext};
pub(crate) use crate::pipeline::read_pipeline;
use crate::role::DaemonKind;

/// Makes a daemon from its section.
pub(crate) fn make(
    kind: DaemonKind,
    section: &Section,
    options: &DaemonOptions,
    context: PartsContext<'_>,
) -> Result<Arc<dyn Daemon>> {
    let options = DaemonOptions {
        has_own_conf: has_own_conf(kind, context.conf),
        ..options.clone()
    };
    ConfParts::new(context, section, options.has_own_conf)
        .and_then(|mut parts| cairn_assembly::daemon(kind, section, &options, &mut parts))
        .with_context(|| format!("[{kind}]"))
}

/// Whether a conf is for this daemon alone, by its name, as in Swift; it then also has the daemon's
/// pipeline.
fn has_own_conf(kind: DaemonKind, conf: &Path) -> bool {
    let name = conf.to_string_lossy();
    match kind {
        DaemonKind::ObjectExpirer => name.contains("expirer"),
        DaemonKind::ContainerReconciler => name.contains("reconciler"),
        _ => false,
    }
}
