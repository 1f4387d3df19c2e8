//! Read and write affinity.

use anyhow::Result;

use super::cluster::Cluster;
use crate::report::Report;

pub(super) fn run(_cluster: &mut Cluster, _report: &mut Report) -> Result<()> {
    Ok(())
}
