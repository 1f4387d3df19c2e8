//! Cache model: the fraction of reads served from the storage nodes' memory.

use crate::cluster::{Cluster, Role};
use crate::workload::Workload;

/// Fraction of the memory that caches object content.
const CACHE_PART: f64 = 0.7;

/// Hit ratio of an LRU cache by Che's approximation; for equally popular objects it is the cache's
/// size over the content's.
pub fn hit_part(cluster: &Cluster, workload: &Workload) -> f64 {
    let storage = cluster
        .node
        .iter()
        .filter(|n| n.roles.contains(&Role::Storage));
    let memory: f64 = storage.map(|n| f64::from(n.count) * n.memory.0).sum();
    let cached = memory * CACHE_PART / (workload.mean_size().max(1.0) * cluster.overhead());
    let objects = workload.objects;
    if cached >= objects {
        return 1.0;
    }
    if workload.zipf == 0.0 {
        return cached / objects;
    }
    // Ranks in geometrically growing bands: all objects of a band are treated as equally popular.
    let mut bands: Vec<(f64, f64)> = Vec::new();
    let (mut low, mut weights) = (1.0f64, 0.0);
    while low <= objects {
        let high = (low * 1.1).max(low + 1.0).min(objects + 1.0);
        let (count, weight) = (high - low, ((low + high - 1.0) / 2.0).powf(-workload.zipf));
        weights += count * weight;
        bands.push((count, weight));
        low = high;
    }
    let held = |time: f64| -> f64 {
        let of = |(count, weight): &(f64, f64)| count * (1.0 - (-weight / weights * time).exp());
        bands.iter().map(of).sum()
    };
    let (mut low, mut high) = (0.0, 1.0);
    while held(high) < cached && high < 1e30 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        match held(middle) < cached {
            true => low = middle,
            false => high = middle,
        }
    }
    let hits = |(count, weight): &(f64, f64)| {
        count * weight / weights * (1.0 - (-weight / weights * low).exp())
    };
    bands.iter().map(hits).sum::<f64>().min(1.0)
}
