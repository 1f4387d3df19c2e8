//! Crash test: the store is killed (SIGKILL to all processes) at random moments of a mixed load,
//! started again and checked for everything it acknowledged; then once more without one of its
//! devices.
//!
//! Criterion: a GET with `X-Newest: true` returns the last acknowledged state of an object, or a
//! later one that was sent and not acknowledged. A plain GET may return an older version after a
//! crash, as in any Swift cluster whose replicas differ for a moment, but always a complete
//! version. Listings may be out of date and must catch up in time.

mod device;
mod part_power;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::model::keys::Key;
use cairn_testkit::model::{CONTAINERS, check, container, load};
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;

use crate::engine::EngineName;

const WORKERS: usize = 8;
const KEYS_PER_WORKER: usize = 30;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of times that the store is killed
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// The load, its moments and the kills follow from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Instead: one of four devices is removed, then one is read-only
    #[arg(long)]
    pub(crate) device_gone: bool,
    /// Instead: the part power of the ring of objects is increased, and before that prepared and canceled
    #[arg(long, conflicts_with = "device_gone")]
    pub(crate) part_power: bool,
    /// The engine of all policies
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineName>,
    /// Keep the store's folder for a look when something is lost
    #[arg(long)]
    pub(crate) keep: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.device_gone {
        return device::run(options.engine);
    }
    let dir = workspace::scratch("crash")?;
    let result = match options.part_power {
        true => part_power::run(options, dir.path()),
        false => rounds(options, dir.path()),
    };
    if options.keep && result.is_err() {
        println!("the store is kept in {}", dir.keep().display());
    }
    result
}

fn rounds(options: &Options, dir: &std::path::Path) -> Result<()> {
    let mut store = Cairn::create(&workspace::build_cairn()?, dir, None)?;
    EngineName::set(options.engine, &store)?;
    store.start(Spread::OneProcess)?;
    let mut account = Account::login(store.port())?;
    for c in 0..CONTAINERS {
        account.must("PUT", &container(c), "", &[], b"")?;
    }
    let mut random = Random::new(options.seed);
    let mut keys: Vec<Vec<Key>> = (0..WORKERS)
        .map(|w| {
            (0..KEYS_PER_WORKER)
                .map(|k| Key::new(&container(k % CONTAINERS), format!("w{w}/k{k:02}")))
                .collect()
        })
        .collect();
    let (mut acknowledged, mut killed_within) = (0, 0);
    for round in 1..=options.rounds {
        let moment = Duration::from_millis(50 + random.below(1200));
        let counts = load_and_kill(&mut store, &account, &mut keys, random.next_u64(), moment)?;
        acknowledged += counts.acknowledged;
        killed_within += counts.cut_off;
        store.start(Spread::OneProcess)?;
        account = Account::login(store.port())?;
        let lost = check::all(&mut account, &keys)?;
        println!(
            "round {round}: killed after {moment:?}; {} writes acknowledged, {} cut off; {}",
            counts.acknowledged,
            counts.cut_off,
            if lost.is_empty() { "all found" } else { "LOST" }
        );
        if !lost.is_empty() {
            bail!(
                "round {round}, seed {}:\n{}\n{}",
                options.seed,
                lost.join("\n"),
                store.log_tail()
            );
        }
    }
    check::empty(&mut account, &keys)?;
    store.stop()?;
    println!(
        "{} rounds: {acknowledged} writes acknowledged, {killed_within} cut off, nothing lost",
        options.rounds
    );
    Ok(())
}

/// Runs the load on every worker's keys until the kill.
fn load_and_kill(
    store: &mut Cairn,
    account: &Account,
    keys: &mut [Vec<Key>],
    seed: u64,
    moment: Duration,
) -> Result<load::Counts> {
    let stop = AtomicBool::new(false);
    let mut total = load::Counts::default();
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = keys
            .iter_mut()
            .enumerate()
            .map(|(w, keys)| {
                let (account, stop) = (account.another(), &stop);
                let random = Random::new(seed ^ (w as u64) << 32);
                scope.spawn(move || load::worker(account, keys, random, stop))
            })
            .collect();
        std::thread::sleep(moment);
        store.kill();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            match worker.join() {
                Ok(counts) => total.add(counts, &mut wrong),
                Err(_) => wrong.push("a worker panicked".to_owned()),
            }
        }
    });
    ensure!(wrong.is_empty(), "during the load:\n{}", wrong.join("\n"));
    Ok(total)
}
