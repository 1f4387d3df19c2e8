//! State shared by the servers of one cluster: swift.conf and the rings, both from `swift_dir`. One
//! process may serve several clusters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use cairn_assembly::Common;
use cairn_formats::swift_conf::SwiftConf;
use cairn_http::{Clock, SwiftInfo};
use cairn_peer::{Backends, Rings};
use cairn_types::{Constraints, HashPath, PolicyIndex, PolicySet};

/// Content of one `swift_dir`.
pub struct Cluster {
    pub swift_dir: PathBuf,
    pub(crate) hash_path: HashPath,
    pub policies: Arc<PolicySet>,
    /// `diskfile_module` of the policies that set it.
    pub(crate) diskfile_modules: BTreeMap<PolicyIndex, String>,
    pub(crate) constraints: Arc<Constraints>,
    pub(crate) swift_info: Arc<SwiftInfo>,
    rings: OnceLock<Arc<Rings>>,
}

impl Cluster {
    /// The same cluster for a pipeline that does not contribute to a client's `/info`.
    pub(crate) fn apart(&self) -> Cluster {
        Cluster {
            swift_dir: self.swift_dir.clone(),
            hash_path: self.hash_path.clone(),
            policies: self.policies.clone(),
            diskfile_modules: self.diskfile_modules.clone(),
            constraints: self.constraints.clone(),
            swift_info: Arc::default(),
            rings: self.rings.clone(),
        }
    }

    /// Parts of all servers and daemons of this cluster.
    pub(crate) fn common(&self, backends: &Arc<Backends>, clock: &Clock) -> Common {
        Common {
            hash_path: self.hash_path.clone(),
            policies: self.policies.clone(),
            constraints: self.constraints.clone(),
            backends: backends.clone(),
            clock: clock.clone(),
            local_rows: Arc::default(),
        }
    }

    fn load(swift_dir: &Path) -> Result<Cluster> {
        let path = swift_dir.join("swift.conf");
        let name = path.display().to_string();
        let bytes = std::fs::read(&path).with_context(|| {
            format!("cannot read {name}; the option swift_dir says which folder it is in")
        })?;
        let conf = SwiftConf::parse(&name, &bytes)?;
        Ok(Cluster {
            swift_dir: swift_dir.to_owned(),
            hash_path: conf.hash_path,
            policies: Arc::new(conf.policies),
            diskfile_modules: conf.diskfile_modules,
            constraints: Arc::new(conf.constraints),
            swift_info: Arc::default(),
            rings: OnceLock::new(),
        })
    }

    /// The rings, loaded on first use: account and container servers need none.
    ///
    /// # Errors
    /// A ring file of `swift_dir` is missing, cannot be read or is no valid ring.
    pub fn rings(&self) -> Result<Arc<Rings>> {
        if let Some(rings) = self.rings.get() {
            return Ok(rings.clone());
        }
        let rings = Rings::open(&self.swift_dir, &self.policies)
            .with_context(|| format!("swift_dir = {}", self.swift_dir.display()))?;
        Ok(self.rings.get_or_init(|| rings).clone())
    }

    pub(crate) fn loaded_rings(&self) -> Option<Arc<Rings>> {
        self.rings.get().cloned()
    }
}

/// All clusters of a process, by `swift_dir`.
#[derive(Default)]
pub struct Clusters(BTreeMap<PathBuf, Arc<Cluster>>);

impl Clusters {
    /// The cluster of `swift_dir`, loaded on first use.
    ///
    /// # Errors
    /// Its swift.conf cannot be read or is invalid.
    pub fn get(&mut self, swift_dir: &Path) -> Result<Arc<Cluster>> {
        if let Some(known) = self.0.get(swift_dir) {
            return Ok(known.clone());
        }
        let cluster = Arc::new(Cluster::load(swift_dir)?);
        self.0.insert(swift_dir.to_owned(), cluster.clone());
        Ok(cluster)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Cluster>> {
        self.0.values()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_swift_conf_names_the_option() {
        let folder = tempfile::tempdir().unwrap();
        let mut clusters = Clusters::default();
        let error = format!("{:#}", clusters.get(folder.path()).err().unwrap());
        assert!(
            error.contains("swift.conf") && error.contains("swift_dir"),
            "{error}"
        );
        let text = "[swift-hash]\nswift_hash_path_suffix = x\n";
        std::fs::write(folder.path().join("swift.conf"), text).unwrap();
        let cluster = clusters.get(folder.path()).unwrap();
        assert!(cluster.rings().is_err());
        assert!(cluster.loaded_rings().is_none());
        assert_eq!(clusters.iter().count(), 1);
    }
}
