//! Footprint of a plan: the hosts, folders and RADOS clusters that a run of it accesses; and the
//! confinement of a run to some local folders.
//!
//! A run started at a terminal may access everything that its user may. A run started by a console
//! acts for the submitter of the workload, with the rights of the console's process. It is
//! therefore confined to the folders given to the console (`--allow-local`), because a workload can
//! upload any file it can read (`filewrite`) and delete what it can write (`file:` with a cleanup).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

use crate::plan::{Access, Plan, Settings};

/// Settings whose value is an address even without a leading `http://`.
const ADDRESSES: [&str; 4] = ["proxies", "endpoint", "proxyhost", "host"];

/// All resources outside of its own run folder that a plan names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Hosts as `host:port` or `host`, as written in the plan. A confined run ends if a Swift
    /// sign-in names another one ([`Footprint::host_names`]).
    pub hosts: BTreeSet<String>,
    /// Folders and files of this host.
    pub paths: BTreeSet<PathBuf>,
    /// RADOS clusters by their monitors; `ceph.conf` if the plan names none.
    pub rados: BTreeSet<String>,
}

/// A plan that would leave the folders its run is confined to.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfinedError {
    #[error(
        "the workload uses {path}, which this run may not: {allowed}; start the console with \
         --allow-local DIR to allow what lies below DIR"
    )]
    Path { path: String, allowed: String },
    #[error(
        "the workload uses RADOS ({cluster}) with this host's keys, which this run may not; start \
         the console with --allow-local DIR to allow RADOS and what lies below DIR"
    )]
    Rados { cluster: String },
}

/// Local folders that a run may access.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LocalAccess {
    /// Everything that its user may.
    #[default]
    Any,
    /// Everything below one of these; RADOS if there is at least one.
    Below(Vec<PathBuf>),
}

impl Footprint {
    pub fn of(plan: &Plan) -> Footprint {
        let mut footprint = Footprint::default();
        footprint.add(&plan.access);
        for work in plan.stages.iter().flat_map(|stage| &stage.works) {
            if let Some(access) = &work.access {
                footprint.add(access);
            }
            let folders = work.operations.iter().filter_map(|o| o.files.as_ref());
            footprint.paths.extend(folders.map(PathBuf::from));
        }
        footprint
    }

    fn add(&mut self, access: &Access) {
        let Access { auth, storage } = access;
        self.add_hosts(auth);
        match storage.kind.to_ascii_lowercase().as_str() {
            "file" | "dir" => self.add_path(storage, "path"),
            "librados" | "rados" => {
                let monitors = value(storage, "endpoint").unwrap_or("ceph.conf");
                self.rados.insert(monitors.to_owned());
                self.add_path(storage, "conf");
            }
            "none" | "mock" | "noop" => {}
            _ => self.add_hosts(storage),
        }
    }

    fn add_path(&mut self, settings: &Settings, key: &str) {
        self.paths.extend(value(settings, key).map(PathBuf::from));
    }

    fn add_hosts(&mut self, settings: &Settings) {
        for (key, value) in &settings.config {
            let is_address = ADDRESSES.contains(&key.as_str());
            let parts = value.split(',').map(str::trim).filter(|p| !p.is_empty());
            for part in parts.filter(|part| is_address || part.contains("://")) {
                self.hosts.insert(authority(part).to_owned());
            }
        }
    }

    /// The hosts without ports.
    pub fn host_names(&self) -> BTreeSet<String> {
        let names = self.hosts.iter().map(|host| match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => name.to_owned(),
            _ => host.clone(),
        });
        names.collect()
    }

    /// One sentence per host, folder and cluster, for display.
    pub fn sentences(&self) -> Vec<String> {
        let hosts = self.hosts.iter().map(|host| format!("sends to {host}"));
        let paths = self.paths.iter().map(|p| format!("uses {}", p.display()));
        let rados = self.rados.iter().map(|at| format!("uses RADOS ({at})"));
        hosts.chain(paths).chain(rados).collect()
    }
}

impl LocalAccess {
    /// Refuses a plan that names a path outside. Reads the file system: a symbolic link counts as
    /// its target.
    ///
    /// # Errors
    /// `Path` for the first path outside; `Rados` for a cluster, if no folder is allowed.
    pub fn check(&self, footprint: &Footprint) -> Result<(), ConfinedError> {
        let LocalAccess::Below(allowed) = self else {
            return Ok(());
        };
        if let Some(cluster) = footprint.rados.first().filter(|_| allowed.is_empty()) {
            return Err(ConfinedError::Rados {
                cluster: cluster.clone(),
            });
        }
        let roots: Vec<PathBuf> = allowed.iter().filter_map(|root| resolve(root)).collect();
        let is_inside = |path: &Path| {
            resolve(path).is_some_and(|path| roots.iter().any(|root| path.starts_with(root)))
        };
        match footprint.paths.iter().find(|path| !is_inside(path)) {
            None => Ok(()),
            Some(path) => Err(ConfinedError::Path {
                path: path.display().to_string(),
                allowed: describe(allowed),
            }),
        }
    }
}

fn describe(allowed: &[PathBuf]) -> String {
    if allowed.is_empty() {
        return "it may use no local files".to_owned();
    }
    let roots: Vec<String> = allowed.iter().map(|r| r.display().to_string()).collect();
    format!("it may use what lies below {}", roots.join(", "))
}

/// The absolute path without symbolic links. Trailing components need not exist; those must be
/// plain names, since `..` after a name that is created later could lead anywhere.
fn resolve(path: &Path) -> Option<PathBuf> {
    let mut existing = std::path::absolute(path).ok()?;
    let mut missing: Vec<OsString> = Vec::new();
    let found = loop {
        match existing.canonicalize() {
            Ok(found) => break found,
            // A dangling symbolic link exists all the same.
            Err(_) if existing.symlink_metadata().is_ok() => return None,
            Err(_) => {
                let Some(Component::Normal(name)) = existing.components().next_back() else {
                    return None;
                };
                missing.push(name.to_owned());
                if !existing.pop() {
                    return None;
                }
            }
        }
    };
    Some(
        missing
            .iter()
            .rev()
            .fold(found, |path, name| path.join(name)),
    )
}

fn value<'a>(settings: &'a Settings, key: &str) -> Option<&'a str> {
    let value = settings.config.get(key).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

/// Host and port of a URL, without credentials.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    fn plan(text: &str) -> Plan {
        let options = workload::Options::default();
        workload::read("w.xml", text.as_bytes(), &options)
            .unwrap()
            .plan
    }

    fn upload(folder: &str) -> Plan {
        plan(&format!(
            r#"<workload name="w"><storage type="swift" config="proxies=10.0.0.7:8080"/>
               <auth type="swauth" config="username=a:b;password=c;auth_url=http://auth.example:8080/auth/v1.0"/>
               <workflow><workstage name="m"><work name="m" workers="1" totalOps="1">
               <operation type="filewrite" ratio="100" config="containers=c(1);fileselection=s;files={folder}"/>
               </work></workstage></workflow></workload>"#
        ))
    }

    fn on_files(folder: &str) -> Plan {
        plan(&format!(
            r#"<workload name="w"><workflow><workstage name="m">
               <work name="m" workers="1" totalOps="1">
               <storage type="FILE" config="path={folder}"/>
               <operation type="read" ratio="100" config="containers=c(1);objects=s(1,1)"/>
               </work></workstage></workflow></workload>"#
        ))
    }

    #[test]
    fn hosts_and_folders_of_a_plan() {
        let footprint = Footprint::of(&upload("/etc"));
        let hosts: Vec<&str> = footprint.hosts.iter().map(String::as_str).collect();
        assert_eq!(hosts, ["10.0.0.7:8080", "auth.example:8080"]);
        assert_eq!(
            footprint.paths.iter().collect::<Vec<_>>(),
            [Path::new("/etc")]
        );
        let footprint = Footprint::of(&on_files("/srv/data"));
        assert!(footprint.paths.contains(Path::new("/srv/data")));
        assert!(footprint.hosts.is_empty());
    }

    #[test]
    fn a_confined_run_uses_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let allowed = dir.path().join("allowed");
        std::fs::create_dir_all(allowed.join("files")).unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), allowed.join("link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("not-yet"), allowed.join("gone")).unwrap();
        let inside = LocalAccess::Below(vec![allowed.clone()]);
        let check = |access: &LocalAccess, path: &str| {
            let path = path.replace('@', allowed.to_str().unwrap());
            let of_files = access.check(&Footprint::of(&on_files(&path)));
            assert_eq!(of_files, access.check(&Footprint::of(&upload(&path))));
            of_files.is_ok()
        };
        for (path, may) in [
            ("@", true),
            ("@/files", true),
            ("@/made/later", true),
            ("@/../other", false),
            ("@/later/../../other", false),
            ("@/link", false),
            ("@/link/deeper", false),
            ("@/gone", false),
            ("/etc", false),
            ("@-beside", false),
        ] {
            assert_eq!(check(&inside, path), may, "{path}");
            assert!(!check(&LocalAccess::Below(Vec::new()), path), "{path}");
            assert!(check(&LocalAccess::Any, path), "{path}");
        }
    }

    #[test]
    fn rados_is_for_runs_that_may_use_local_files() {
        let plan = plan(
            r#"<workload name="w"><storage type="librados" config="conf=/etc/ceph/own.conf"/>
               <workflow><workstage name="m"><work name="m" workers="1" totalOps="1">
               <operation type="read" ratio="100" config="containers=c(1);objects=s(1,1)"/>
               </work></workstage></workflow></workload>"#,
        );
        let footprint = Footprint::of(&plan);
        let refused = LocalAccess::Below(Vec::new()).check(&footprint);
        assert!(matches!(refused, Err(ConfinedError::Rados { .. })));
        let elsewhere = LocalAccess::Below(vec!["/srv".into()]).check(&footprint);
        assert!(matches!(elsewhere, Err(ConfinedError::Path { .. })));
    }
}
