//! The simulator of volumes: seeds of writes, background work, power cuts and faults.
//!
//! ```text
//! cargo test -p cairn-pebbles --test simulator                     200 seeds, and all planted bugs
//! PEBBLES_SEEDS=10000 cargo test -p cairn-pebbles --test simulator
//! PEBBLES_SEED=7 PEBBLES_PLANT=epoch-reused …                      one seed, step by step
//! ```

mod disk;
mod model;
mod owed;
mod partitions;
mod world;

use cairn_types::plant::Plant;
use world::World;

/// Seeds within which every planted bug has to be found.
const PLANTED_SEEDS: u64 = 3000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A panic is a finding too.
fn run(seed: u64, is_verbose: bool) -> Result<(), String> {
    let ran = std::panic::catch_unwind(|| World::new(seed, is_verbose).run());
    ran.unwrap_or_else(|_| Err("panicked".to_owned()))
}

fn main() {
    let planted = std::env::var("PEBBLES_PLANT").ok();
    let planted = planted.and_then(|name| Plant::VOLUMES.into_iter().find(|p| p.name() == name));
    if let Some(seed) = number("PEBBLES_SEED") {
        if let Some(plant) = planted {
            plant.turn_on();
        }
        println!("seed {seed}: {:?}", run(seed, true));
        return;
    }
    let seeds = number("PEBBLES_SEEDS").unwrap_or(200);
    let began = std::time::Instant::now();
    let mut failed = 0;
    for seed in 1..=seeds {
        if let Err(error) = run(seed, false) {
            println!("seed {seed}: {error}");
            failed += 1;
            if failed >= 10 {
                break;
            }
        }
    }
    println!(
        "{seeds} seeds in {:.1} s, {failed} failed",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(failed, 0, "seeds failed");
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for plant in Plant::VOLUMES {
        plant.turn_on();
        let found = (1..=PLANTED_SEEDS).find_map(|seed| Some((seed, run(seed, false).err()?)));
        match found {
            Some((seed, error)) => println!("{}: seed {seed}: {error}", plant.name()),
            None => missed.push(plant.name()),
        }
    }
    assert!(
        missed.is_empty(),
        "planted bugs that no seed found: {missed:?}"
    );
}
