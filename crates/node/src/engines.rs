//! Engines of storage policies, by the names of `diskfile_module` in swift.conf. An engine is
//! registered here only, by a line in [`EngineModules::all`].
//!
//! Names are Swift's: `egg:swift#replication.fs` for replicated policies and
//! `egg:swift#erasure_coding.fs` for erasure-coded ones are the defaults, and both are `diskfile`.
//! As in Swift, `egg:` may be omitted, and so may `egg:swift#`.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Result, bail};
use cairn_disk::{Devices, DiskFileConfig, DiskFileEngine, Engine, Engines};
use cairn_formats::ini::{ConfError, Section};
use cairn_pebbles::{PartPowers, PebblesConfig, PebblesEngine, Stores};
use cairn_types::{HashPath, PolicyKind, PolicySet, StoragePolicy};

use crate::cluster::Cluster;

/// Swift's files, of replicated policies.
pub(crate) const FILES: &str = "egg:swift#replication.fs";
const ERASURE_CODING: &str = "egg:swift#erasure_coding.fs";
/// Volumes, and the name that they had before they were the default of `cairn up`.
pub(crate) const PEBBLES: &str = "egg:cairn#pebbles";
const PEBBLES_ONCE: &str = "egg:cairn#unsafe_pebbles";

/// Arguments for constructing an engine.
pub struct EngineParts<'a> {
    pub cluster: &'a Cluster,
    /// Options of the server or daemon that uses it.
    pub section: &'a Section,
    pub hash_path: &'a HashPath,
    /// All policies of the cluster, including those of other engines.
    pub policies: &'a PolicySet,
    pub devices: &'a Arc<Devices>,
    /// State shared by all engines of this process over the same devices.
    pub shared: &'a mut SharedState,
}

/// Values shared by the engines of a process over one folder of devices, one per type: an engine
/// with an index in memory has one for the server and the daemons.
#[derive(Default)]
pub struct SharedState(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl SharedState {
    /// Returns the value of this type, created on first use.
    pub fn get_or_make<T: Any + Send + Sync>(&mut self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let id = TypeId::of::<T>();
        let known = self.0.get(&id).cloned();
        if let Some(known) = known.and_then(|known| known.downcast().ok()) {
            return known;
        }
        let made = make();
        self.0.insert(id, made.clone());
        made
    }
}

type Make = fn(EngineParts<'_>) -> Result<Arc<dyn Engine>>;

/// Types of policies that an engine module supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    Replication,
    ErasureCoding,
    Both,
}

impl Serves {
    fn includes(self, kind: &PolicyKind) -> bool {
        match kind {
            PolicyKind::Replication => self != Serves::ErasureCoding,
            PolicyKind::ErasureCoding(_) => self != Serves::Replication,
        }
    }
}

/// A possible value of `diskfile_module`.
#[derive(Clone)]
pub struct EngineModule {
    /// `egg:<package>#<name>`.
    pub name: &'static str,
    pub serves: Serves,
    /// Name of the engine; policies whose modules have the same engine share one.
    pub engine: &'static str,
    pub make: Make,
}

/// Engine modules of a program, passed to the constructors of servers and daemons.
#[derive(Clone)]
pub struct EngineModules(Vec<EngineModule>);

impl EngineModules {
    /// All built-in modules.
    pub fn all() -> Self {
        EngineModules(vec![
            module(FILES, Serves::Replication, "diskfile", diskfile),
            module(ERASURE_CODING, Serves::ErasureCoding, "diskfile", diskfile),
            module(PEBBLES, Serves::Both, "pebbles", pebbles),
        ])
    }

    /// Adds a module.
    pub fn with(mut self, module: EngineModule) -> Self {
        self.0.push(module);
        self
    }

    /// The module of a policy, or the default of its type.
    ///
    /// # Errors
    /// There is no such module, or it is for policies of the other type. The message has section,
    /// value and the possible modules.
    fn of(&self, cluster: &Cluster, policy: &StoragePolicy) -> Result<&EngineModule> {
        let given = cluster.diskfile_modules.get(&policy.index);
        let name = match (given, &policy.kind) {
            (Some(given), _) => full_name(given),
            (None, PolicyKind::Replication) => FILES.to_owned(),
            (None, PolicyKind::ErasureCoding(_)) => ERASURE_CODING.to_owned(),
        };
        let module = self.0.iter().find(|module| module.name == name);
        if let Some(module) = module.filter(|module| module.serves.includes(&policy.kind)) {
            return Ok(module);
        }
        let known = self.0.iter().filter(|m| m.serves.includes(&policy.kind));
        let known: Vec<&str> = known.map(|module| module.name).collect();
        let why = match module {
            Some(_) => "is not for policies of this type",
            None => "is no engine that this build has",
        };
        bail!(
            "{}: [storage-policy:{}] diskfile_module = {:?} {why}: expected {}",
            cluster.swift_dir.join("swift.conf").display(),
            policy.index,
            given.map_or(&*name, String::as_str),
            known.join(" or ")
        );
    }

    /// Constructs the engine of each policy of a cluster; also returns them by name. Policies whose
    /// modules have the same engine share one.
    ///
    /// # Errors
    /// A policy's module does not exist or is of the other type, or one of its options is invalid.
    pub fn make(
        &self,
        cluster: &Cluster,
        section: &Section,
        devices: &Arc<Devices>,
        shared: &mut SharedState,
    ) -> Result<Made> {
        let mut by_name: BTreeMap<&'static str, Arc<dyn Engine>> = BTreeMap::new();
        let engines = Engines::try_new(&cluster.policies, |policy| {
            let module = self.of(cluster, policy)?;
            if let Some(engine) = by_name.get(module.engine) {
                return Ok(engine.clone());
            }
            let engine = (module.make)(EngineParts {
                cluster,
                section,
                hash_path: &cluster.hash_path,
                policies: &cluster.policies,
                devices,
                shared,
            })?;
            by_name.insert(module.engine, engine.clone());
            anyhow::Ok(engine)
        })?;
        Ok(Made { engines, by_name })
    }
}

/// Engines constructed together.
pub struct Made {
    pub engines: Engines,
    pub by_name: BTreeMap<&'static str, Arc<dyn Engine>>,
}

fn module(name: &'static str, serves: Serves, engine: &'static str, make: Make) -> EngineModule {
    EngineModule {
        name,
        serves,
        engine,
        make,
    }
}

fn diskfile(parts: EngineParts<'_>) -> Result<Arc<dyn Engine>> {
    let config = diskfile_config(parts.section)?;
    let engine = DiskFileEngine::new(parts.hash_path.clone(), parts.policies, config);
    Ok(Arc::new(engine))
}

/// Options of `diskfile`, of a server or daemon.
fn diskfile_config(section: &Section) -> Result<DiskFileConfig, ConfError> {
    let defaults = DiskFileConfig::default();
    let percent = section.f64_or("etag_validate_pct", defaults.etag_validate_pct)?;
    if !(0.0..=100.0).contains(&percent) {
        return Err(section.bad("etag_validate_pct", "expected 0 to 100"));
    }
    let megabytes = section.u64_or("mb_per_sync", defaults.bytes_per_sync >> 20)?;
    Ok(DiskFileConfig {
        reclaim_age: section.seconds_or("reclaim_age", defaults.reclaim_age.as_secs_f64())?,
        commit_window: section.seconds_or("commit_window", defaults.commit_window.as_secs_f64())?,
        keep_cache_size: section.u64_or("keep_cache_size", defaults.keep_cache_size)?,
        etag_validate_pct: percent,
        etag_recheck_interval: section.seconds_or(
            "etag_recheck_interval",
            defaults.etag_recheck_interval.as_secs_f64(),
        )?,
        bytes_per_sync: megabytes.saturating_mul(1 << 20),
        direct_io_from: section.u64_or("direct_io_from", defaults.direct_io_from)?,
    })
}

fn pebbles(parts: EngineParts<'_>) -> Result<Arc<dyn Engine>> {
    let defaults = PebblesConfig::default();
    let section = parts.section;
    let config = PebblesConfig {
        reclaim_age: section.seconds_or("reclaim_age", defaults.reclaim_age.as_secs_f64())?,
        commit_window: section.seconds_or("commit_window", defaults.commit_window.as_secs_f64())?,
        volume_bytes: section.u64_or("pebbles_volume_bytes", defaults.volume_bytes)?,
        ..defaults
    };
    let stores = parts.shared.get_or_make(|| Arc::new(Stores::default()));
    let hash_path = parts.hash_path.clone();
    let engine = PebblesEngine::new(hash_path, parts.policies, config, stores);
    let engine = engine.with_part_powers(part_powers(parts.cluster));
    Ok(Arc::new(engine))
}

/// The part powers of a cluster's rings, as they are followed: those of this moment, each time.
pub fn part_powers(cluster: &Cluster) -> PartPowers {
    let rings = cluster.rings();
    if let Err(error) = &rings {
        tracing::warn!(
            error = format!("{error:#}"),
            "no rings: no partition of volumes can be compared with another node's"
        );
    }
    let rings = rings.ok();
    Arc::new(move |policy| {
        let ring = rings.as_ref()?.object(policy)?;
        Some(ring.ring().part_power())
    })
}

/// Completes a module's name, which may be abbreviated as in Swift.
pub(crate) fn full_name(given: &str) -> String {
    let given = given.trim();
    let (package, name) = given.split_once('#').unwrap_or(("egg:swift", given));
    let full = match package.split_once(':') {
        Some((scheme, package)) => format!("{}:{package}#{name}", scheme.to_lowercase()),
        None => format!("egg:{package}#{name}"),
    };
    match full == PEBBLES_ONCE {
        true => PEBBLES.to_owned(),
        false => full,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use cairn_disk::DevicesConfig;
    use cairn_memory::MemoryEngine;
    use cairn_types::PolicyIndex;

    use super::*;
    use crate::cluster::Clusters;

    const CODED: &str = "policy_type = erasure_coding\nec_type = isa_l_rs_vand\n\
                         ec_num_data_fragments = 2\nec_num_parity_fragments = 1\n";

    /// A cluster of two policies, the second of them erasure-coded.
    fn cluster_of(folder: &Path, first: &str, second: &str) -> Result<Arc<Cluster>> {
        let text = format!(
            "[swift-hash]\nswift_hash_path_suffix = x\n[storage-policy:0]\nname = gold\n\
             default = yes\n{first}\n[storage-policy:1]\nname = deep\n{CODED}{second}\n"
        );
        std::fs::write(folder.join("swift.conf"), text)?;
        Clusters::default().get(folder)
    }

    fn engines_of(first: &str, second: &str) -> Result<Made> {
        let folder = tempfile::tempdir()?;
        let cluster = cluster_of(folder.path(), first, second)?;
        let devices = Devices::new(DevicesConfig::new(folder.path()));
        let section = Section::from_pairs("app:object-server", &[]);
        let mut shared = SharedState::default();
        EngineModules::all().make(&cluster, &section, &devices, &mut shared)
    }

    #[test]
    fn defaults_and_short_names() {
        for (first, second) in [
            ("", ""),
            (
                "diskfile_module = egg:swift#replication.fs",
                "diskfile_module = egg:swift#erasure_coding.fs",
            ),
            ("diskfile_module = replication.fs", ""),
            ("diskfile_module = EGG:swift#replication.fs", ""),
            (
                "diskfile_module = swift#replication.fs",
                "diskfile_module = erasure_coding.fs",
            ),
        ] {
            let made = engines_of(first, second).unwrap();
            assert_eq!(made.engines.of(PolicyIndex(1)).unwrap().name(), "diskfile");
            assert_eq!(made.engines.distinct().len(), 1);
            assert!(made.engines.of(PolicyIndex(2)).is_none());
        }
    }

    #[test]
    fn unknown_ones_stop_the_start() {
        for (first, second, parts) in [
            (
                "diskfile_module = egg:mine#fast",
                "",
                ["[storage-policy:0]", "egg:mine#fast", FILES],
            ),
            (
                "",
                "diskfile_module = egg:swift#replication.fs",
                [
                    "[storage-policy:1]",
                    "not for policies of this type",
                    ERASURE_CODING,
                ],
            ),
            (
                "diskfile_module = py:swift#replication.fs",
                "",
                [
                    "[storage-policy:0]",
                    "py:swift#replication.fs",
                    "swift.conf",
                ],
            ),
        ] {
            let error = engines_of(first, second).err().unwrap().to_string();
            for part in parts {
                assert!(error.contains(part), "{error}");
            }
        }
    }

    /// A store of before they were the default of `cairn up` keeps its conf.
    #[test]
    fn volumes_by_both_of_their_names() {
        for name in ["cairn#pebbles", PEBBLES, PEBBLES_ONCE] {
            let line = format!("diskfile_module = {name}");
            let made = engines_of(&line, &line).unwrap();
            assert_eq!(made.engines.of(PolicyIndex(0)).unwrap().name(), "pebbles");
            assert_eq!(made.engines.distinct().len(), 1);
        }
    }

    /// A third-party engine is an additional module.
    #[test]
    fn one_more_engine() {
        let memory = |parts: EngineParts<'_>| -> Result<Arc<dyn Engine>> {
            let (hash_path, policies) = (parts.hash_path.clone(), parts.policies);
            let make = || Arc::new(MemoryEngine::new(hash_path, policies));
            let shared = parts.shared.get_or_make(make);
            Ok(Arc::new((*shared).clone()))
        };
        let modules =
            EngineModules::all().with(module("egg:cairn#memory", Serves::Both, "memory", memory));
        let text = "diskfile_module = egg:cairn#memory";
        let folder = tempfile::tempdir().unwrap();
        let cluster = cluster_of(folder.path(), "", text).unwrap();
        let devices = Devices::new(DevicesConfig::new(folder.path()));
        let section = Section::from_pairs("app:object-server", &[]);
        let mut shared = SharedState::default();
        let mut make = || {
            modules
                .make(&cluster, &section, &devices, &mut shared)
                .unwrap()
        };
        for made in [make(), make()] {
            let name = |policy| made.engines.of(PolicyIndex(policy)).unwrap().name();
            assert_eq!((name(0), name(1)), ("diskfile", "memory"));
        }
    }

    #[test]
    fn shared_state_is_made_once() {
        let mut shared = SharedState::default();
        let one = shared.get_or_make(|| Arc::new(7_u32));
        let other = shared.get_or_make(|| Arc::new(8_u32));
        assert!(Arc::ptr_eq(&one, &other));
        let text = shared.get_or_make(|| Arc::new(String::from("x")));
        assert_eq!(*text, "x");
    }
}
