//! Metrics of background work in this process.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_daemons::Progress;
use cairn_disk::{Devices, Engine};
use cairn_http::metrics::{Background, DeviceWork, PassWork, StoreFigure};

/// Snapshot function of background work. `passes` are the daemons that count their work; those of
/// one name (of several nodes in a process) are summed.
pub(crate) fn shown(
    devices: Vec<Arc<Devices>>,
    passes: Vec<(&'static str, Arc<Progress>)>,
    engines: Vec<Arc<dyn Engine>>,
) -> Arc<dyn Fn() -> Background + Send + Sync> {
    Arc::new(move || Background {
        devices: devices
            .iter()
            .flat_map(|devices| of_devices(devices))
            .collect(),
        passes: of_passes(&passes),
        figures: engines
            .iter()
            .flat_map(|engine| of_engine(&**engine))
            .collect(),
    })
}

fn of_devices(devices: &Devices) -> Vec<DeviceWork> {
    let known = devices.known();
    let work = known.iter().map(|device| {
        let share = device.background_share();
        DeviceWork {
            device: device.path().display().to_string(),
            share: share.share,
            done: share.done,
            seconds: share.seconds,
        }
    });
    work.collect()
}

fn of_engine(engine: &dyn Engine) -> Vec<StoreFigure> {
    let figures = engine.figures().into_iter();
    let shown = figures.map(|figure| StoreFigure {
        store: figure.store,
        name: figure.name,
        help: figure.help,
        value: figure.value,
    });
    shown.collect()
}

fn of_passes(passes: &[(&'static str, Arc<Progress>)]) -> Vec<PassWork> {
    let mut together: BTreeMap<&'static str, PassWork> = BTreeMap::new();
    for (daemon, progress) in passes {
        let (done, of) = progress.get();
        let left = progress.remaining().map(|left| left.as_secs_f64());
        let pass = together.entry(daemon).or_insert(PassWork {
            daemon,
            done: 0,
            of: 0,
            seconds_left: None,
        });
        pass.done += done;
        pass.of += of;
        // They run concurrently: the last one counts.
        pass.seconds_left = match (pass.seconds_left, left) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
    }
    together.into_values().collect()
}
