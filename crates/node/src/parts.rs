//! Parts of servers and daemons by conf files: [`Parts`] over the clusters and the storage of this
//! process.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_assembly::{Common, Parts};
use cairn_daemons::Written;
use cairn_disk::{Devices, Engines};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_index::{IndexPool, TakesRows};
use cairn_peer::{Backends, Rings, TakesCalls};
use cairn_servers::container::SyncRealms;
use cairn_servers::rows::LocalRows;

use crate::cluster::{Cluster, Clusters};
use crate::conf::read_conf;
use crate::pipeline::read_pipeline;
use crate::settings::Folders;
use crate::storage::Storage;

/// State of this process from which parts are taken.
pub(crate) struct PartsContext<'a> {
    pub(crate) clusters: &'a mut Clusters,
    pub(crate) storage: &'a mut Storage,
    pub(crate) backends: &'a Arc<Backends>,
    pub(crate) clock: &'a Clock,
    /// Writes of this process's own container servers; none if it has no such servers.
    pub(crate) written: Option<Arc<Written>>,
    pub(crate) local_rows: &'a Arc<LocalRows>,
    /// Path of the conf with the section.
    pub(crate) conf: &'a Path,
}

/// Parts for one section of a conf.
pub(crate) struct ConfParts<'a> {
    common: Common,
    cluster: Arc<Cluster>,
    storage: &'a mut Storage,
    written: Option<Arc<Written>>,
    /// The databases of the container server that was made.
    pub(crate) rows: Option<Arc<dyn TakesRows>>,
    /// The object server that was made, if any.
    pub(crate) object_calls: Option<Arc<dyn TakesCalls>>,
    section: &'a Section,
    folders: Folders,
    conf: &'a Path,
    internal_client_conf: PathBuf,
}

impl<'a> ConfParts<'a> {
    /// `has_own_conf`: the conf is the daemon's alone, and also has its pipeline.
    ///
    /// # Errors
    /// There is no valid swift.conf.
    pub(crate) fn new(
        context: PartsContext<'a>,
        section: &'a Section,
        has_own_conf: bool,
    ) -> Result<Self> {
        let folders = Folders::read(section);
        let cluster = context.clusters.get(&folders.swift_dir)?;
        let internal_client_conf = match section.get("internal_client_conf_path") {
            Some(path) => path.into(),
            None if has_own_conf => context.conf.to_owned(),
            None => folders.swift_dir.join("internal-client.conf"),
        };
        Ok(ConfParts {
            common: Common {
                local_rows: context.local_rows.clone(),
                ..cluster.common(context.backends, context.clock)
            },
            cluster,
            storage: context.storage,
            written: context.written,
            rows: None,
            object_calls: None,
            section,
            folders,
            conf: context.conf,
            internal_client_conf,
        })
    }
}

impl Parts for ConfParts<'_> {
    fn common(&self) -> &Common {
        &self.common
    }

    fn rings(&mut self) -> Result<Arc<Rings>> {
        self.cluster.rings()
    }

    fn devices(&mut self) -> Result<Arc<Devices>> {
        self.storage.devices(&self.folders, self.section)
    }

    fn engines(&mut self) -> Result<Engines> {
        self.storage
            .engines(&self.folders, self.section, &self.cluster)
    }

    fn databases(&mut self) -> Result<Arc<IndexPool>> {
        self.storage.pool(&self.folders, self.section)
    }

    fn internal_pipeline(&mut self) -> Result<Handler> {
        let path = &self.internal_client_conf;
        let Common {
            backends, clock, ..
        } = &self.common;
        read_pipeline(path, &self.cluster, backends, clock)
            .with_context(|| format!("internal_client_conf_path = {}", path.display()))
    }

    fn other_section(&self, name: &str) -> Result<Section> {
        Ok(read_conf(self.conf)?.section_or_defaults(name))
    }

    fn sync_realms(&self) -> Result<SyncRealms> {
        sync_realms(&self.folders.swift_dir)
    }

    fn offer_rows(&mut self, rows: Arc<dyn TakesRows>) {
        self.rows = Some(rows);
    }

    fn offer_calls(&mut self, server: Arc<dyn TakesCalls>) {
        self.object_calls = Some(server);
    }

    fn written(&self) -> Option<Arc<Written>> {
        self.written.clone()
    }
}

/// Reads `container-sync-realms.conf`, which most clusters lack.
fn sync_realms(swift_dir: &Path) -> Result<SyncRealms> {
    let path = swift_dir.join("container-sync-realms.conf");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SyncRealms::default()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    Ok(SyncRealms::parse(&path.display().to_string(), &text)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn realms() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(sync_realms(folder.path()).unwrap(), SyncRealms::default());
        let text = "[us]\nkey = k\ncluster_one = http://one/v1/\n[no]\ncluster_two = http://x\n";
        std::fs::write(folder.path().join("container-sync-realms.conf"), text).unwrap();
        let realms = sync_realms(folder.path()).unwrap();
        let one = realms.get("US").unwrap();
        assert_eq!(one.clusters["ONE"], "http://one/v1/");
    }
}
