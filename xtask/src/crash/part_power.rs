//! Part power of the ring of objects, increased under load as an operator does it: prepared, relinked, increased,
//! cleaned up, finished; before that prepared, relinked and canceled. After each step the store has time to follow
//! the ring, is killed under load and started. Nothing that was acknowledged may be lost, and in the end each object
//! has to be on devices of its new partition.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::model::keys::{Key, State};
use cairn_testkit::model::{CONTAINERS, check, container, load};
use cairn_testkit::random::Random;
use cairn_testkit::wire::{Account, Connection};
use cairn_testkit::workspace::{self, run_quiet, utf8};

use super::{KEYS_PER_WORKER, Options, WORKERS};
use crate::engine::EngineName;

/// Servers look for new rings every fifteen seconds.
const FOLLOWED_SECS: u64 = 17;
/// Load after a step that leaves the ring as it is.
const LOAD_SECS: u64 = 3;
const REPLICAS: usize = 3;
const RING_BUILDER: &str = "swift-ring-builder";
const RELINKER: &str = "swift-object-relinker";
const GET_NODES: &str = "swift-get-nodes";

/// A command that an operator calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ring(&'static str),
    Relinker(&'static str),
}

const CANCELED: [Step; 5] = [
    Step::Ring("prepare_increase_partition_power"),
    Step::Relinker("relink"),
    Step::Ring("cancel_increase_partition_power"),
    Step::Relinker("cleanup"),
    Step::Ring("finish_increase_partition_power"),
];
const INCREASED: [Step; 5] = [
    Step::Ring("prepare_increase_partition_power"),
    Step::Relinker("relink"),
    Step::Ring("increase_partition_power"),
    Step::Relinker("cleanup"),
    Step::Ring("finish_increase_partition_power"),
];

struct Operator {
    /// The folder of confs and rings, and of the programs' names.
    etc: PathBuf,
    devices: PathBuf,
}

impl Operator {
    fn new(store: &Cairn) -> Result<Self> {
        let conf = store.conf("object").context("there is no object conf")?;
        let devices = store.devices()?;
        let devices = devices.first().and_then(|device| device.parent());
        let etc = conf.parent().context("a conf is in a folder")?.to_owned();
        let binary = std::fs::canonicalize(workspace::build_cairn()?)?;
        for program in [RING_BUILDER, RELINKER, GET_NODES] {
            symlink(&binary, etc.join(program))?;
        }
        Ok(Operator {
            etc,
            devices: devices.context("there are no devices")?.to_owned(),
        })
    }

    /// Runs a program of Swift's name.
    fn call(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.etc.join(program));
        run_quiet(command.current_dir(&self.etc).args(args))
    }

    fn carry_out(&self, step: Step) -> Result<()> {
        match step {
            Step::Ring(command) => {
                self.call(RING_BUILDER, &["object.builder", command])?;
                self.call(RING_BUILDER, &["object.builder", "write_ring"])?;
            }
            Step::Relinker(action) => {
                let (etc, devices) = (utf8(&self.etc)?, utf8(&self.devices)?);
                let place = ["--swift-dir", etc, "--devices", devices];
                let args = [&[action, "--skip-mount-check"][..], &place[..]];
                self.call(RELINKER, &args.concat())?;
            }
        }
        Ok(())
    }

    /// Asks each device that the ring names for an object, by the number of its partition there; gives how many
    /// have it.
    fn on_primaries(&self, account: &str, key: &Key) -> Result<usize> {
        let path = key.path();
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let (container, object) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let mut args = vec!["--swift-dir", utf8(&self.etc)?, "object.ring.gz"];
        args.extend([account, container, object]);
        let printed = self.call(GET_NODES, &args)?;
        let urls = printed.lines().filter_map(|line| {
            let (_, url) = line.split_once("-XHEAD \"http://")?;
            (!line.contains("[Handoff]")).then_some(url.split('"').next()?)
        });
        let mut found = 0;
        for url in urls {
            let (address, path) = url.split_once('/').context("a URL without a path")?;
            let address = address.parse().with_context(|| address.to_owned())?;
            let answer = Connection::to(address).call("HEAD", &format!("/{path}"), &[], b"")?;
            found += usize::from(answer.status == 200);
        }
        Ok(found)
    }
}

pub(super) fn run(options: &Options, dir: &Path) -> Result<()> {
    let mut store = Cairn::create(&workspace::build_cairn()?, dir, None)?;
    EngineName::set(options.engine, &store)?;
    store.set_or_add("object", "object-replicator", "interval", "5")?;
    let operator = Operator::new(&store)?;
    store.start(Spread::OneProcess)?;
    let mut account = Account::login(store.port())?;
    for c in 0..CONTAINERS {
        account.must("PUT", &container(c), "", &[], b"")?;
    }
    let key = |w, k| Key::new(&container(k % CONTAINERS), format!("w{w}/k{k:02}"));
    let of_worker = |w| (0..KEYS_PER_WORKER).map(|k| key(w, k)).collect();
    let mut keys: Vec<Vec<Key>> = (0..WORKERS).map(of_worker).collect();
    let mut random = Random::new(options.seed);
    let mut acknowledged = 0;
    for step in CANCELED.into_iter().chain(INCREASED) {
        let seconds = match step {
            Step::Ring(_) => FOLLOWED_SECS,
            Step::Relinker(_) => LOAD_SECS,
        };
        let moment = Duration::from_millis(seconds * 1000 + random.below(1000));
        let seed = random.next_u64();
        let counts = under_load(&mut store, &account, &mut keys, seed, || {
            operator.carry_out(step)?;
            std::thread::sleep(moment);
            Ok(())
        })?;
        acknowledged += counts.acknowledged;
        // The store was killed in the midst of it.
        store.start(Spread::OneProcess)?;
        account = Account::login(store.port())?;
        check_all(&mut account, &keys, &store, &format!("{step:?}"))?;
        println!("{step:?}: {acknowledged} writes acknowledged so far, all found");
    }
    std::thread::sleep(Duration::from_secs(FOLLOWED_SECS));
    check_all(
        &mut account,
        &keys,
        &store,
        "after passes of the replicator",
    )?;
    check_places(&operator, &keys)?;
    check::empty(&mut account, &keys)?;
    store.stop()?;
    println!("{acknowledged} writes acknowledged, nothing lost, each object is on its devices");
    Ok(())
}

fn check_all(account: &mut Account, keys: &[Vec<Key>], store: &Cairn, when: &str) -> Result<()> {
    let lost = check::all(account, keys)?;
    let tail = || store.log_tail();
    ensure!(lost.is_empty(), "{when}:\n{}\n{}", lost.join("\n"), tail());
    Ok(())
}

/// Every object is on all devices that the ring has for it; of those that were killed in the midst of a write on
/// most.
fn check_places(operator: &Operator, keys: &[Vec<Key>]) -> Result<()> {
    let (mut all, mut whole) = (0, 0);
    for key in keys.iter().flatten() {
        if !matches!(key.settled(), Some(State::Present { .. })) {
            continue;
        }
        let found = operator.on_primaries("AUTH_test", key)?;
        let path = key.path();
        ensure!(found > REPLICAS / 2, "{path} is on {found} of its devices");
        all += 1;
        whole += usize::from(found == REPLICAS);
    }
    println!("{whole} of {all} objects are on all their devices");
    ensure!(
        whole * 10 >= all * 9,
        "the replicator leaves objects out of place"
    );
    Ok(())
}

/// Runs the load while `work` is carried out, then kills the store.
fn under_load(
    store: &mut Cairn,
    account: &Account,
    keys: &mut [Vec<Key>],
    seed: u64,
    work: impl FnOnce() -> Result<()>,
) -> Result<load::Counts> {
    let stop = AtomicBool::new(false);
    let (mut total, mut wrong) = (load::Counts::default(), Vec::new());
    let mut ended = Ok(());
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (keys, w) in keys.iter_mut().zip(0_u64..) {
            let (account, stop) = (account.another(), &stop);
            let random = Random::new(seed ^ w << 32);
            workers.push(scope.spawn(move || load::worker(account, keys, random, stop)));
        }
        ended = work();
        store.kill();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            match worker.join() {
                Ok(counts) => total.add(counts, &mut wrong),
                Err(_) => wrong.push("a worker panicked".to_owned()),
            }
        }
    });
    ended?;
    ensure!(wrong.is_empty(), "during the load:\n{}", wrong.join("\n"));
    Ok(total)
}
