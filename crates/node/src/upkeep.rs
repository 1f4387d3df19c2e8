//! Upkeep of devices by engines that require it: opening and recovery when a device appears, then
//! repeated maintenance steps as background work. One task per device and engine. While the process ends,
//! engines let go of what its last requests do not use, for the process that takes over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::engine::NextUpkeep;
use cairn_disk::{Device, Devices, DiskError, Engine};
use cairn_http::own_thread;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, warn};

/// Interval of checks for new devices, and for one that is not mounted.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after a failed step.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which engines let go of what is not used, while the process ends.
const LET_GO_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum delay of a device without work, even if an engine asks for less.
const REST_MIN: Duration = Duration::from_millis(10);

/// Engines with the devices that they maintain.
pub(crate) type Maintained = Vec<(Arc<Devices>, Arc<dyn Engine>)>;

/// Starts the upkeep of all current and future devices, until `stop` turns true.
pub(crate) fn start(maintained: Maintained, tasks: &mut JoinSet<()>, stop: &watch::Receiver<bool>) {
    for (devices, engine) in maintained {
        let mut stop = stop.clone();
        tasks.spawn(async move {
            let ending = engine.clone();
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = watch_folder(devices, engine) => {}
            }
            // Until the runtime ends, when all requests have.
            tokio::spawn(let_go(ending));
        });
    }
}

async fn let_go(engine: Arc<dyn Engine>) {
    loop {
        let engine = engine.clone();
        let _ = own_thread::blocking(move || engine.let_go()).await;
        sleep(LET_GO_INTERVAL).await;
    }
}

/// Watches for devices for ever. When dropped, all upkeep of the folder ends after its current
/// step.
async fn watch_folder(devices: Arc<Devices>, engine: Arc<dyn Engine>) {
    let mut known = BTreeSet::new();
    let mut tasks = JoinSet::new();
    loop {
        let listed = devices.clone();
        let names = own_thread::blocking(move || listed.names()).await;
        for name in names.unwrap_or_default() {
            if known.insert(name.clone()) {
                tasks.spawn(maintain(devices.clone(), engine.clone(), name));
            }
        }
        sleep(LOOK_INTERVAL).await;
    }
}

async fn maintain(devices: Arc<Devices>, engine: Arc<dyn Engine>, name: String) {
    loop {
        let opened = match devices.get(&name) {
            Ok(device) => open(device.background(), &engine).await,
            Err(error) => Err(error.into()),
        };
        match opened {
            Ok(device) => {
                let error = keep(&device, &engine).await;
                debug!(device = name, engine = engine.name(), %error, "upkeep interrupted");
            }
            Err(DiskError::Device(error)) => {
                debug!(device = name, engine = engine.name(), %error, "not opened");
            }
            Err(error) => warn!(device = name, engine = engine.name(), %error, "not opened"),
        }
        sleep(LOOK_INTERVAL).await;
    }
}

async fn open(device: Arc<Device>, engine: &Arc<dyn Engine>) -> Result<Arc<Device>, DiskError> {
    let opening = engine.clone();
    device.write(move |disk| opening.open_device(disk)).await?;
    Ok(device)
}

/// Maintains a device until it fails, upon which it is opened anew.
async fn keep(device: &Device, engine: &Arc<dyn Engine>) -> DiskError {
    loop {
        let step = engine.clone();
        match device.write(move |disk| step.maintain(disk)).await {
            Ok(NextUpkeep::Now) => tokio::task::yield_now().await,
            Ok(NextUpkeep::After(rest)) => sleep(rest.max(REST_MIN)).await,
            Err(error @ DiskError::Device(_)) => return error,
            Err(error) => {
                warn!(device = device.name(), engine = engine.name(), %error, "upkeep failed");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_disk::engine::{Inventory, Upkeep};
    use cairn_disk::{DevicesConfig, ObjectEngine, ObjectKey, PartitionKey};
    use cairn_memory::MemoryEngine;
    use cairn_pebbles::{PebblesConfig, PebblesEngine};
    use cairn_types::{HashPath, PolicyIndex, PolicySet, Timestamp};

    use super::*;

    #[tokio::test]
    async fn devices_are_opened_and_maintained_until_the_end() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        let devices = Devices::new(config);
        let hash_path = HashPath::new("", "x");
        let engine = MemoryEngine::new(hash_path.clone(), &PolicySet::single());
        let (end, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let maintained: Maintained = vec![(devices.clone(), Arc::new(engine.clone()))];
        start(maintained, &mut tasks, &stop);
        let is_opened = || engine.devices() == ["d"];
        wait_until(is_opened).await;
        // Old metadata without content, which only maintenance removes.
        let key = ObjectKey {
            policy: PolicyIndex(0),
            partition: 7,
            hash: hash_path.hash("a", Some("c"), Some("o")),
            name: "/a/c/o".into(),
        };
        let device = devices.get("d").unwrap();
        let disk = device.disk().unwrap();
        let metadata = [("X-Timestamp", Timestamp::from_secs(5).internal())];
        let metadata = metadata.into_iter().collect();
        let posted = engine.write_metadata(&disk, &key, metadata).unwrap();
        posted.finish(&disk).unwrap();
        let at = PartitionKey::new(PolicyIndex(0), 7);
        let is_gone = || engine.objects(&disk, at).unwrap().is_empty();
        wait_until(is_gone).await;
        end.send_replace(true);
        while tasks.join_next().await.is_some() {}
    }

    /// The process that takes over can open the volumes of one that ends, and does not exit yet.
    #[tokio::test]
    async fn volumes_are_let_go_of_at_the_end() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("d/pebbles")).unwrap();
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        // Longer than anybody waits for volumes.
        config.idle_close = Duration::from_secs(100);
        let devices = Devices::new(config);
        let disk = devices.get("d").unwrap().disk().unwrap();
        let engine = || {
            let config = PebblesConfig {
                volume_bytes: 16 << 20,
                takes_turns: false,
                ..PebblesConfig::default()
            };
            let hash_path = HashPath::new("", "x");
            PebblesEngine::new(hash_path, &PolicySet::single(), config, Arc::default())
        };
        let (old, new) = (engine(), engine());
        let (end, stop) = watch::channel(false);
        let mut tasks = JoinSet::new();
        start(
            vec![(devices.clone(), Arc::new(old.clone()))],
            &mut tasks,
            &stop,
        );
        wait_until(|| !old.figures().is_empty()).await;
        let mut opened = new.open_device(&disk);
        assert!(opened.is_err());
        end.send_replace(true);
        while tasks.join_next().await.is_some() {}
        while opened.is_err() {
            sleep(Duration::from_millis(10)).await;
            opened = new.open_device(&disk);
        }
    }

    async fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    }
}
