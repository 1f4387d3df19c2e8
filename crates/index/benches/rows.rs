//! Rows of objects that are given to container databases by a call, as an object server does it whose
//! volumes owe them (`TakesRows::take_row`): how many a second, from the first one until the last is
//! merged into SQLite and durable there, for databases of different sizes in turn.
//!
//! Arguments: a folder, the seconds and the number of rounds, and for each database its number of rows.
//! It prints a JSON object a line for each database, round and kind of names: `ordered`, in ten folders
//! and in each one behind the other, as uploads of a tool are; `scattered`, all over the database.
//!
//! Rows are owed 64 at a time, as a batch of the volumes has them. A database that has 6,000 which are
//! not durable gives further ones back, for a request: here they wait, and `returned` counts the times.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cairn_device::{Ledger, Owed};
use cairn_index::{ContainerDb, IndexConfig, IndexPool, NewDb, ObjectRow, TakesRows};
use cairn_types::{HashPath, ObjectHash, SplitMix, Timestamp};
use support::block_on;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const DEVICE: &str = "d";
const FOLDERS: u64 = 10;
const FILLED_AT_ONCE: u64 = 10_000;
const OWED_AT_ONCE: u64 = 64;
/// Pause while a database takes no rows.
const PAUSE: Duration = Duration::from_micros(200);
/// New names come behind those that a database was filled with.
const NEW_NAMES: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Names {
    Ordered,
    Scattered,
}

struct Log {
    ledger: Arc<Ledger>,
    next: u64,
}

/// A database, and how many rows it has.
struct Filled {
    db: ContainerDb,
    begun_with: u64,
    rows: u64,
}

fn main() -> Result<()> {
    // Cargo adds an option.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let arguments = arguments.strip_suffix(&["--bench"]).unwrap_or(&arguments);
    let [dir, seconds, rounds, sizes @ ..] = arguments else {
        println!("arguments are missing: `cargo xtask bench rows` gives them");
        return Ok(());
    };
    let dir = Path::new(dir);
    std::fs::create_dir_all(dir.join(DEVICE))?;
    let mut config = IndexConfig::new(dir);
    config.exclusive = true;
    let pool = IndexPool::new(config);
    let sizes = sizes.iter().map(|size| size.parse());
    let sizes: Vec<u64> = sizes.collect::<std::result::Result<_, _>>()?;
    let mut all = Vec::new();
    for size in sizes {
        all.push(fill(&pool, size)?);
    }
    let seconds = Duration::from_secs(seconds.parse()?);
    let mut log = Log {
        ledger: Ledger::new(),
        next: 0,
    };
    for round in 0..rounds.parse::<u64>()? {
        for names in [Names::Ordered, Names::Scattered] {
            for filled in &mut all {
                measure(&pool, filled, &mut log, names, (round, seconds))?;
            }
        }
    }
    for filled in &all {
        let info = block_on(filled.db.read(|broker| broker.info()))?;
        if info.object_count != i64::try_from(filled.rows)? {
            return Err(format!("{} of {} rows", info.object_count, filled.rows).into());
        }
    }
    pool.close_all();
    Ok(())
}

fn row(name: String) -> ObjectRow {
    let time = Timestamp::from_secs(1_700_000_000);
    ObjectRow {
        name,
        data: time,
        ctype: time,
        meta: time,
        size: 1000,
        content_type: "application/octet-stream".into(),
        etag: "d41d8cd98f00b204e9800998ecf8427e".into(),
        deleted: false,
        storage_policy_index: 0,
    }
}

fn ordered(number: u64) -> String {
    format!("dir-{}/o{number:010}", number % FOLDERS)
}

fn fill(pool: &Arc<IndexPool>, rows: u64) -> Result<Filled> {
    let hash_path = HashPath::new("", "bench");
    let name = format!("c{rows}");
    let db = pool.container(&hash_path, DEVICE, "0", "a", &name);
    let new = || NewDb::Container {
        account: "a".into(),
        container: name.clone(),
        put_timestamp: "0000000001.00000".into(),
        storage_policy_index: 0,
    };
    let mut first = 0;
    while first < rows {
        let end = (first + FILLED_AT_ONCE).min(rows);
        let some = (first..end).map(|number| row(ordered(number))).collect();
        block_on(db.merge_items(Some(new()), some))?;
        first = end;
    }
    Ok(Filled {
        db,
        begun_with: rows,
        rows,
    })
}

impl Names {
    fn name(self, number: u64) -> String {
        match self {
            Names::Ordered => ordered(NEW_NAMES + number),
            Names::Scattered => {
                let place = SplitMix::new(number).number() % NEW_NAMES;
                format!("dir-{}/o{place:010}-{number}", number % FOLDERS)
            }
        }
    }
}

/// Gives rows for so long, waits until all are durable, and prints the rate.
fn measure(
    pool: &IndexPool,
    filled: &mut Filled,
    log: &mut Log,
    names: Names,
    (round, most): (u64, Duration),
) -> Result<()> {
    // A database takes rows when it is open.
    block_on(filled.db.read(|broker| broker.info()))?;
    let key = filled.db.key();
    let (begun, before, mut returned) = (Instant::now(), filled.rows, 0u64);
    while begun.elapsed() < most {
        let first = log.next;
        log.next += OWED_AT_ONCE;
        let owed: Vec<Owed> = (first..log.next).map(owed).collect();
        for (number, mut debt) in (first..).zip(log.ledger.owe(first, log.next, &owed)) {
            let mut row = row(names.name(number));
            while let Err((given_back, owed)) = pool.take_row(key, row, debt) {
                (row, debt) = (given_back, owed);
                returned += 1;
                thread::sleep(PAUSE);
            }
        }
        filled.rows += OWED_AT_ONCE;
    }
    while log.ledger.mark().is_some() {
        thread::sleep(PAUSE);
    }
    let (given, seconds) = (filled.rows - before, begun.elapsed().as_secs_f64());
    if !log.ledger.take_failed(1).is_empty() {
        return Err("a row was not merged".into());
    }
    println!(
        "{{\"rows\": {}, \"names\": \"{}\", \"round\": {round}, \"given\": {given}, \
         \"seconds\": {seconds:.3}, \"per_second\": {:.0}, \"returned\": {returned}}}",
        filled.begun_with,
        match names {
            Names::Ordered => "ordered",
            Names::Scattered => "scattered",
        },
        given as f64 / seconds,
    );
    Ok(())
}

fn owed(number: u64) -> Owed {
    Owed {
        number,
        partition: 0,
        hash: ObjectHash([0; 16]),
        timestamp: Timestamp::from_secs(number),
    }
}
