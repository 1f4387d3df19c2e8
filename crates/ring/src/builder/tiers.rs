//! The tree of failure domains: cluster, regions, zones, servers, devices.
//!
//! Tiers are numbered in sorted order (root 0), so plans and counts are plain vectors.

use std::collections::BTreeMap;

use crate::builder::BuilderDevice;

pub(super) const LEVELS: [&str; 5] = ["cluster", "regions", "zones", "servers", "devices"];
pub(super) const ROOT: usize = 0;

/// Key of a tier: region, zone, ip, device id; `None` from the tier's own depth on. Parents sort
/// before their children.
pub(super) type TierKey = (Option<u32>, Option<u32>, Option<String>, Option<u32>);

#[derive(Clone, Debug)]
pub(super) struct Tier {
    pub(super) key: TierKey,
    /// 0 for the root, 4 for a device.
    pub(super) depth: usize,
    /// Sorted children; only those that have a device with weight.
    pub(super) children: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct TierTree {
    pub(super) tiers: Vec<Tier>,
    /// Region, zone, server and device tier of each device id; the root for holes.
    pub(super) of_device: Vec<[usize; 4]>,
}

impl TierTree {
    pub(super) fn new(devs: &[Option<BuilderDevice>]) -> TierTree {
        let mut weighted: BTreeMap<TierKey, bool> = BTreeMap::new();
        weighted.insert((None, None, None, None), true);
        for dev in devs.iter().flatten() {
            for key in keys_of(dev) {
                *weighted.entry(key).or_insert(false) |= dev.device.weight > 0.0;
            }
        }
        let number: BTreeMap<&TierKey, usize> = weighted
            .keys()
            .enumerate()
            .map(|(i, key)| (key, i))
            .collect();
        let mut tiers: Vec<Tier> = weighted
            .keys()
            .map(|key| Tier {
                key: key.clone(),
                depth: depth_of(key),
                children: Vec::new(),
            })
            .collect();
        for (key, has_weight) in &weighted {
            if *has_weight && let Some(parent) = parent_of(key) {
                tiers[number[&parent]].children.push(number[key]);
            }
        }
        let of_device = devs
            .iter()
            .map(|dev| {
                dev.as_ref()
                    .map_or([ROOT; 4], |dev| keys_of(dev).map(|key| number[&key]))
            })
            .collect();
        TierTree { tiers, of_device }
    }

    pub(super) fn len(&self) -> usize {
        self.tiers.len()
    }

    /// Name of a tier: `r1`, `r1z2`, `r1z2-10.0.0.1`, `r1z2-10.0.0.1/sdb1`.
    pub(super) fn name(&self, tier: usize, devs: &[Option<BuilderDevice>]) -> String {
        let mut name = String::new();
        let (region, zone, ip, id) = &self.tiers[tier].key;
        if let Some(region) = region {
            name.push_str(&format!("r{region}"));
        }
        if let Some(zone) = zone {
            name.push_str(&format!("z{zone}"));
        }
        if let Some(ip) = ip {
            name.push_str(&format!("-{ip}"));
        }
        if let Some(id) = id {
            match devs.get(*id as usize) {
                Some(Some(dev)) => name.push_str(&format!("/{}", dev.device.device)),
                _ => name.push_str(&format!("/IDd{id}")),
            }
        }
        name
    }
}

fn keys_of(dev: &BuilderDevice) -> [TierKey; 4] {
    let device = &dev.device;
    let (region, zone) = (Some(device.region), Some(device.zone));
    let ip = Some(device.ip.clone());
    [
        (region, None, None, None),
        (region, zone, None, None),
        (region, zone, ip.clone(), None),
        (region, zone, ip, Some(device.id)),
    ]
}

fn depth_of(key: &TierKey) -> usize {
    [
        key.0.is_some(),
        key.1.is_some(),
        key.2.is_some(),
        key.3.is_some(),
    ]
    .iter()
    .filter(|given| **given)
    .count()
}

fn parent_of(key: &TierKey) -> Option<TierKey> {
    let (region, zone, ip, _) = key.clone();
    match depth_of(key) {
        0 => None,
        1 => Some((None, None, None, None)),
        2 => Some((region, None, None, None)),
        3 => Some((region, zone, None, None)),
        _ => Some((region, zone, ip, None)),
    }
}
