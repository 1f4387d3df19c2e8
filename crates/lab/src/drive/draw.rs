//! The choice of a worker's next request: operation of the mix, container, object and size.
//!
//! Everything is derived from the random stream and from indices counted here, so the same seed
//! gives the same requests. Special works (init, prepare, cleanup, dispose) are enumerated instead
//! of drawn: each worker has its part of the whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pool::{Member, Pool, Pools};
use crate::plan::{Division, Objects, Operation, OperationKind, Work, WorkKind};
use crate::rng::Rng;
use crate::selector::Selector;

/// This process's part of a work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Share {
    pub driver: u32,
    pub drivers: u32,
}

impl Share {
    pub const WHOLE: Self = Self {
        driver: 0,
        drivers: 1,
    };

    /// This driver's part of `total`: its start and length.
    pub fn of(self, total: u64) -> (u64, u64) {
        part(total, u64::from(self.driver), u64::from(self.drivers))
    }
}

/// Part `index` of `count` of `total`: start and length.
pub(crate) fn part(total: u64, index: u64, count: u64) -> (u64, u64) {
    let count = count.max(1);
    let (base, extra) = (total / count, total % count);
    (
        base * index + index.min(extra),
        base + u64::from(index < extra),
    )
}

/// A drawn request; its strings are reused.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    pub(crate) operation: usize,
    pub(crate) container: String,
    pub(crate) object: String,
    pub(crate) number: u64,
    pub(crate) size: u64,
    pub(crate) range: Option<(u64, u64)>,
    /// The member of the operation's pool that it concerns.
    pub(crate) member: Option<Member>,
    /// Container and name that a copy gets.
    pub(crate) to: (String, String),
    /// Containers and names of a bulk deletion, and their members of the pool.
    pub(crate) batch: Vec<(String, String)>,
    pub(crate) members: Vec<Member>,
}

/// Sequences shared by all workers of this process: one counter per operation.
#[derive(Debug)]
pub(crate) struct Sequences {
    containers: Vec<AtomicU64>,
    objects: Vec<AtomicU64>,
    share: Share,
}

impl Sequences {
    pub(crate) fn new(operations: usize, share: Share) -> Self {
        let zeros = || (0..operations).map(|_| AtomicU64::new(0)).collect();
        Self {
            containers: zeros(),
            objects: zeros(),
            share,
        }
    }

    fn next(&self, counts: &[AtomicU64], operation: usize) -> u64 {
        let count = counts[operation].fetch_add(1, Ordering::Relaxed);
        count * u64::from(self.share.drivers) + u64::from(self.share.driver)
    }
}

#[derive(Debug)]
struct Drawable {
    containers: Selector,
    objects: Selector,
    container_count: u64,
    object_count: u64,
    pool: Option<Arc<Pool>>,
    /// Upper end in the mix: cumulative sum of ratios.
    until: f64,
}

/// One worker's drawing state.
#[derive(Debug)]
pub(crate) struct Drawer {
    work: Arc<Work>,
    drawables: Vec<Drawable>,
    whole: f64,
    sequences: Arc<Sequences>,
    share: Share,
}

impl Drawer {
    /// State of worker `worker` of all `workers` of the work.
    pub(crate) fn new(
        work: &Arc<Work>,
        worker: u32,
        workers: u32,
        pools: &Pools,
        sequences: &Arc<Sequences>,
    ) -> Self {
        let (worker, workers) = (u64::from(worker), u64::from(workers.max(1)));
        let own = |selector: &Selector, divide: bool| {
            let divide = divide || matches!(selector, Selector::Range { .. });
            let divided = if divide {
                selector.divided(worker, workers)
            } else {
                None
            };
            // With more workers than numbers, the surplus workers use the whole range.
            divided.unwrap_or_else(|| selector.clone())
        };
        let mut whole = 0.0;
        let drawables = work.operations.iter().map(|operation| {
            whole += operation.ratio.max(0.0);
            let (names, pool) = match &operation.objects {
                Objects::Numbered(names) => (names, None),
                Objects::Pool { pool, names, .. } => (names, Some(pools.get(pool))),
            };
            Drawable {
                containers: own(
                    &operation.containers.numbers,
                    work.division == Division::Container,
                ),
                objects: own(&names.numbers, work.division == Division::Object),
                container_count: 0,
                object_count: 0,
                pool,
                until: whole,
            }
        });
        let drawables = drawables.collect();
        let share = sequences.share;
        Self {
            work: work.clone(),
            drawables,
            whole,
            sequences: sequences.clone(),
            share,
        }
    }

    /// Draws the next request; false if none is possible now (all pools concerned are empty).
    pub(crate) fn draw(&mut self, rng: &mut Rng, out: &mut Drawn) -> bool {
        let first = self.choose(rng);
        let count = self.drawables.len();
        // If one operation's pool is empty, the other operations of the mix are tried.
        (0..count).any(|step| {
            let index = (first + step) % count;
            (step == 0 || self.work.operations[index].ratio > 0.0) && self.fill(index, rng, out)
        })
    }

    fn choose(&self, rng: &mut Rng) -> usize {
        if self.drawables.len() < 2 {
            return 0;
        }
        let at = rng.unit() * self.whole;
        self.drawables
            .iter()
            .position(|drawable| at < drawable.until)
            .unwrap_or(self.drawables.len() - 1)
    }

    fn fill(&mut self, index: usize, rng: &mut Rng, out: &mut Drawn) -> bool {
        let operation = &self.work.operations[index];
        let drawable = &mut self.drawables[index];
        out.operation = index;
        out.member = None;
        if operation.kind == OperationKind::BulkDelete {
            return self.fill_batch(index, rng, out);
        }
        let sequences = &self.sequences;
        let mut container = || {
            let selector = &drawable.containers;
            let at = match selector {
                Selector::Sequential { .. } => sequences.next(&sequences.containers, index),
                _ => drawable.container_count,
            };
            drawable.container_count += 1;
            selector.pick(rng, at)
        };
        let (container, number) = match (&operation.objects, &drawable.pool) {
            (Objects::Pool { draw, names, .. }, Some(pool)) => {
                let member = match operation.kind {
                    OperationKind::Delete | OperationKind::Cleanup => pool.take(*draw, rng),
                    OperationKind::Write | OperationKind::FileWrite | OperationKind::Prepare => {
                        let container = container();
                        let low = names.numbers.bounds().0;
                        let share = self.share;
                        let object = pool.new_number(low, share.driver, share.drivers);
                        Some(Member { container, object })
                    }
                    OperationKind::List | OperationKind::Init | OperationKind::Dispose => {
                        Some(Member {
                            container: container(),
                            object: 0,
                        })
                    }
                    _ => pool.lease(*draw, rng),
                };
                let Some(member) = member else { return false };
                out.member = Some(member);
                names.write(member.object, &mut out.object);
                (member.container, member.object)
            }
            (Objects::Numbered(names) | Objects::Pool { names, .. }, _) => {
                let container = container();
                let at = match &drawable.objects {
                    Selector::Sequential { .. } => sequences.next(&sequences.objects, index),
                    _ => drawable.object_count,
                };
                drawable.object_count += 1;
                let number = drawable.objects.pick(rng, at);
                names.write(number, &mut out.object);
                (container, number)
            }
        };
        out.number = number;
        operation.containers.write(container, &mut out.container);
        if operation.kind == OperationKind::Copy {
            let (to_container, to_object) = &mut out.to;
            to_container.clone_from(&out.container);
            to_container.push_str(&operation.copy_container_suffix);
            to_object.clone_from(&out.object);
            to_object.push_str(&operation.copy_suffix);
        }
        fill_size(operation, rng, out);
        true
    }

    /// Draws the objects of one bulk deletion: those of one container, each once; of a pool as many
    /// as it has, and whatever containers they are in.
    fn fill_batch(&mut self, index: usize, rng: &mut Rng, out: &mut Drawn) -> bool {
        let operation = &self.work.operations[index];
        let drawable = &mut self.drawables[index];
        let sequences = &self.sequences;
        out.batch.clear();
        out.members.clear();
        let (names, pool) = match (&operation.objects, &drawable.pool) {
            (Objects::Pool { draw, names, .. }, Some(pool)) => (names, Some((pool, *draw))),
            (Objects::Numbered(names) | Objects::Pool { names, .. }, _) => (names, None),
        };
        let mut next = |selector: &Selector, counts: &[AtomicU64], count: &mut u64| {
            let at = match selector {
                Selector::Sequential { .. } => sequences.next(counts, index),
                _ => *count,
            };
            *count += 1;
            selector.pick(rng, at)
        };
        if pool.is_none() {
            let (selector, count) = (&drawable.containers, &mut drawable.container_count);
            let container = next(selector, &sequences.containers, count);
            for _ in 0..operation.batch {
                let (selector, count) = (&drawable.objects, &mut drawable.object_count);
                let object = next(selector, &sequences.objects, count);
                out.members.push(Member { container, object });
            }
            // A name that is drawn twice would be absent the second time.
            out.members.sort_unstable_by_key(|member| member.object);
            out.members.dedup();
        }
        if let Some((pool, draw)) = pool {
            let more = (0..operation.batch).map_while(|_| pool.take(draw, rng));
            out.members.extend(more);
        }
        for member in &out.members {
            let (mut container, mut object) = (String::new(), String::new());
            operation.containers.write(member.container, &mut container);
            names.write(member.object, &mut object);
            out.batch.push((container, object));
        }
        // The first stands for all in the list of the slowest.
        let Some(((container, object), member)) = out.batch.first().zip(out.members.first()) else {
            return false;
        };
        out.container.clone_from(container);
        out.object.clone_from(object);
        out.number = member.object;
        fill_size(operation, rng, out);
        true
    }

    /// Number of items of a special work over all drivers, by operation.
    pub(crate) fn special_total(work: &Work) -> Vec<u64> {
        let count = |operation: &Operation| {
            let containers = operation.containers.numbers.span();
            match (work.kind, &operation.objects) {
                (WorkKind::Init | WorkKind::Dispose, _) => containers,
                (WorkKind::Prepare, Objects::Pool { names, .. }) => names.numbers.span(),
                (_, Objects::Numbered(names)) => containers.saturating_mul(names.numbers.span()),
                // Draw until the pool is empty.
                (_, Objects::Pool { .. }) => u64::MAX,
            }
        };
        work.operations.iter().map(count).collect()
    }

    /// Item number `at` of operation `index` of a special work; false if there are no more.
    pub(crate) fn special(
        &mut self,
        index: usize,
        at: u64,
        rng: &mut Rng,
        out: &mut Drawn,
    ) -> bool {
        let operation = &self.work.operations[index];
        let drawable = &self.drawables[index];
        let containers = &operation.containers.numbers;
        let (first_container, _) = containers.bounds();
        out.operation = index;
        out.member = None;
        out.object.clear();
        let container = match (self.work.kind, &operation.objects, &drawable.pool) {
            (WorkKind::Init | WorkKind::Dispose, _, _) => first_container + at,
            (WorkKind::Cleanup, Objects::Pool { draw, names, .. }, Some(pool)) => {
                let Some(member) = pool.take(*draw, rng) else {
                    return false;
                };
                out.member = Some(member);
                out.number = member.object;
                names.write(member.object, &mut out.object);
                member.container
            }
            (_, Objects::Pool { names, .. }, Some(pool)) => {
                let (low, high) = names.numbers.bounds();
                pool.reserve(high);
                let object = low + at;
                // Sequential numbers stay sequential here too, whichever worker takes them.
                let container = containers.pick(rng, at);
                out.member = Some(Member { container, object });
                out.number = object;
                names.write(object, &mut out.object);
                container
            }
            (_, Objects::Numbered(names) | Objects::Pool { names, .. }, _) => {
                let span = names.numbers.span();
                out.number = names.numbers.bounds().0 + at % span;
                names.write(out.number, &mut out.object);
                first_container + at / span
            }
        };
        operation.containers.write(container, &mut out.container);
        fill_size(operation, rng, out);
        true
    }

    /// Updates the pools when the request has ended.
    pub(crate) fn settle(&self, drawn: &Drawn, succeeded: bool) {
        let (Some(pool), Some(member)) = (&self.drawables[drawn.operation].pool, drawn.member)
        else {
            return;
        };
        match self.work.operations[drawn.operation].kind {
            OperationKind::Write | OperationKind::FileWrite | OperationKind::Prepare => {
                if succeeded {
                    pool.add(member);
                }
            }
            OperationKind::Delete | OperationKind::Cleanup | OperationKind::BulkDelete => {}
            OperationKind::List | OperationKind::Init | OperationKind::Dispose => {}
            _ => pool.release(member),
        }
    }
}

fn fill_size(operation: &Operation, rng: &mut Rng, out: &mut Drawn) {
    out.size = operation
        .sizes
        .as_ref()
        .map_or(0, |sizes| sizes.pick(rng, out.number));
    out.range = operation.range.as_ref().map(|range| {
        let length = range.length.pick(rng, 0).max(1);
        let align = range.align.max(1);
        let places = range.object_bytes.saturating_sub(length) / align + 1;
        (rng.below(places) * align, length)
    });
}

#[cfg(test)]
mod tests;
