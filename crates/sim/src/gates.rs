//! Test of `cairn_device::Gate`: readers and commits of a file shared with other processes, on a
//! node's workers.
//!
//! The simulated databases are exclusive, which need no gate, and a commit of SQLite's is one step.
//! So a file of two halves stands for a shared database: a commit writes one half in a step and the
//! other in a later one; a reader reads them in two steps and must find both equal. Nodes die in
//! between.

use std::sync::Arc;
use std::time::Duration;

use cairn_device::{
    Class, Committing, Gate, JobLane, Kind, LaneConfig, Machine, Progress, Reading, Work,
};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::life::{Life, LifeMachine};
use crate::shared::{Dice, NODES};

/// Number of readers and commits per seed.
const TURNS: u64 = 60;
const READERS: usize = 4;

/// The file, for one life of a node.
struct TwoHalves {
    gate: Arc<Gate>,
    halves: Mutex<[u64; 2]>,
    torn: Arc<Mutex<Vec<String>>>,
}

struct Reader {
    file: Arc<TwoHalves>,
    turn: Option<Reading>,
    first: Option<u64>,
}

impl Work for Reader {
    fn step(&mut self, _waits: bool) -> Progress {
        let turn = self
            .turn
            .get_or_insert_with(|| self.file.gate.ask_to_read());
        if !turn.is_in() {
            return Progress::Goes;
        }
        let [one, other] = *self.file.halves.lock();
        match self.first.replace(one) {
            None => Progress::Goes,
            Some(first) => {
                if first != other {
                    let text = format!("a reader found a commit half made: {first}, {other}");
                    self.file.torn.lock().push(text);
                }
                Progress::Done
            }
        }
    }
}

struct Writer {
    file: Arc<TwoHalves>,
    turn: Option<Committing>,
    is_half_made: bool,
}

impl Work for Writer {
    fn step(&mut self, _waits: bool) -> Progress {
        let turn = self
            .turn
            .get_or_insert_with(|| self.file.gate.ask_to_commit());
        if !turn.is_in() {
            return Progress::Goes;
        }
        let mut halves = self.file.halves.lock();
        if !std::mem::replace(&mut self.is_half_made, true) {
            halves[0] += 1;
            return Progress::Goes;
        }
        halves[1] = halves[0];
        drop(halves);
        if let Some(turn) = self.turn.take() {
            turn.end();
        }
        Progress::Done
    }
}

/// The lanes, for one life of a node.
struct Lanes {
    life: Arc<Life>,
    file: Arc<TwoHalves>,
    reads: Arc<JobLane>,
    commits: Arc<JobLane>,
}

impl Lanes {
    fn on(life: Arc<Life>, torn: &Arc<Mutex<Vec<String>>>) -> Self {
        let machine: Arc<dyn Machine> = Arc::new(LifeMachine(life.clone()));
        let lane = |threads| LaneConfig {
            name: "gate".into(),
            threads,
            depth: 64,
            idle_close: Duration::from_secs(1),
            batch_max: 1,
            machine: Some(machine.clone()),
            share: None,
        };
        Lanes {
            life,
            file: Arc::new(TwoHalves {
                gate: Arc::default(),
                halves: Mutex::default(),
                torn: torn.clone(),
            }),
            reads: JobLane::new(Kind::Read, lane(READERS)),
            commits: JobLane::new(Kind::Write, lane(1)),
        }
    }

    fn turn(&self, is_commit: bool) {
        let file = self.file.clone();
        // Refused by a full queue, on a slow disk.
        let _ = match is_commit {
            true => self.commits.push_work(
                Class::Client,
                Box::new(Writer {
                    file,
                    turn: None,
                    is_half_made: false,
                }),
            ),
            false => self.reads.push_work(
                Class::Client,
                Box::new(Reader {
                    file,
                    turn: None,
                    first: None,
                }),
            ),
        };
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.reads.close();
        self.commits.close();
    }
}

/// Runs readers and commits while the clients work; returns readers' violations.
pub(crate) async fn drive(cluster: &Cluster, seed: u64) -> Vec<String> {
    let dice = Dice::new(seed ^ 0x6761_7465);
    let node = dice.index(NODES);
    let torn = Arc::new(Mutex::new(Vec::new()));
    let mut lanes: Option<Lanes> = None;
    for _ in 0..TURNS {
        sleep(dice.micros(2_000)).await;
        let Some(running) = cluster.node(node) else {
            lanes = None;
            continue;
        };
        let is_same = |lanes: &Lanes| Arc::ptr_eq(&lanes.life, &running.life);
        if !lanes.as_ref().is_some_and(is_same) {
            lanes = Some(Lanes::on(running.life.clone(), &torn));
        }
        if let Some(lanes) = &lanes {
            lanes.turn(dice.below(3) == 0);
        }
    }
    sleep(Duration::from_secs(1)).await;
    drop(lanes);
    std::mem::take(&mut *torn.lock())
}
