//! Metrics of background work, collected at each scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Device usage of background work, and progress of its passes.
#[derive(Clone, Debug, Default)]
pub struct Background {
    pub devices: Vec<DeviceWork>,
    pub passes: Vec<PassWork>,
    pub figures: Vec<StoreFigure>,
}

/// A number of one store of an engine.
#[derive(Clone, Debug)]
pub struct StoreFigure {
    pub store: String,
    pub name: &'static str,
    pub help: &'static str,
    pub value: f64,
}

/// Background work on one device.
#[derive(Clone, Debug)]
pub struct DeviceWork {
    /// The device's folder.
    pub device: String,
    /// Background operations that may run at once; a value below one is the share of time during
    /// which one may run.
    pub share: f64,
    /// Background operations done, and their total seconds from being queued to being done.
    pub done: u64,
    pub seconds: f64,
}

/// The current pass of one kind of daemon.
#[derive(Clone, Debug)]
pub struct PassWork {
    pub daemon: &'static str,
    /// Partitions done.
    pub done: u64,
    pub of: u64,
    /// Estimated seconds left; `None` if unknown yet.
    pub seconds_left: Option<f64>,
}

pub(super) struct Source(pub(super) Arc<dyn Fn() -> Background + Send + Sync>);

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Background {
            devices,
            passes,
            mut figures,
        } = (self.0)();
        figures.sort_by_key(|figure| figure.name);
        for of_name in figures.chunk_by(|one, other| one.name == other.name) {
            let rows = of_name.iter().map(|figure| (&*figure.store, figure.value));
            let (name, help) = (of_name[0].name, of_name[0].help);
            gauges(&mut encoder, name, help, None, "store", rows)?;
        }
        let of_devices = |value: fn(&DeviceWork) -> f64| {
            let rows = devices.iter();
            rows.map(move |row| (row.device.as_str(), value(row)))
        };
        let of_passes = |value: fn(&PassWork) -> Option<f64>| {
            let rows = passes.iter();
            rows.filter_map(move |row| Some((row.daemon, value(row)?)))
        };
        gauges(
            &mut encoder,
            "background_share",
            "Background operations that may run at once on a device; below one, this part of the time",
            None,
            "device",
            of_devices(|row| row.share),
        )?;
        counters(
            &mut encoder,
            "background_operations",
            "Background operations done on a device",
            None,
            of_devices(|row| row.done as f64),
        )?;
        counters(
            &mut encoder,
            "background_wait",
            "What these took from queued to done",
            Some(&Unit::Seconds),
            of_devices(|row| row.seconds),
        )?;
        gauges(
            &mut encoder,
            "pass_partitions_done",
            "Partitions that the pass under way has done",
            None,
            "daemon",
            of_passes(|row| Some(row.done as f64)),
        )?;
        gauges(
            &mut encoder,
            "pass_partitions",
            "Partitions of the pass under way",
            None,
            "daemon",
            of_passes(|row| Some(row.of as f64)),
        )?;
        gauges(
            &mut encoder,
            "pass_remaining",
            "How long the pass under way will still take",
            Some(&Unit::Seconds),
            "daemon",
            of_passes(|row| row.seconds_left),
        )
    }
}

fn gauges<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    label: &'static str,
    rows: impl Iterator<Item = (&'a str, f64)>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (value, number) in rows {
        let labels = [(label, value)];
        let row = family.encode_family(&labels)?;
        ConstGauge::new(number).encode(row)?;
    }
    Ok(())
}

fn counters<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    rows: impl Iterator<Item = (&'a str, f64)>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
    for (value, number) in rows {
        let labels = [("device", value)];
        let row = family.encode_family(&labels)?;
        ConstCounter::new(number).encode(row)?;
    }
    Ok(())
}
