//! Cells as files, one each: read from a folder, or measured into one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_advise::cell::{Cell, Measured, SCHEMA};
use cairn_advise::plan::Planned;

use super::device;
use super::emulated;
use super::load::{self, Times};
use super::store::Store;
use super::{print_line, read, write};

/// Interval and number of checks for a disk to become idle.
const SETTLE_INTERVAL: Duration = Duration::from_millis(700);
const SETTLE_TRIES_MAX: usize = 10;
/// Maximum attempts at a repetition that other programs disturb.
const TRIES_MAX: usize = 2;
/// Maximum files in a folder of cells.
const FILES_MAX: usize = 10_000;

/// Programs and folders with which cells are measured.
#[derive(Debug)]
pub(super) struct Bench {
    /// The `cairn` whose store and lab are run.
    pub(super) program: PathBuf,
    /// Folder of the stores, each removed when its cell has ended.
    pub(super) data: PathBuf,
    pub(super) times: Times,
}

/// All cells of a folder: its `*.json` in the order of their names.
pub(super) fn read_all(folder: &Path) -> Result<Vec<Cell>> {
    let mut paths = Vec::new();
    if !folder.is_dir() {
        bail!(
            "{}: there is no such folder of cells; cairn advise measure and validate run make them",
            folder.display()
        );
    }
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            paths.push(path);
        }
        if paths.len() > FILES_MAX {
            bail!(
                "{}: more than {FILES_MAX} files; name a folder of cells",
                folder.display()
            );
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path, Cell::parse)).collect()
}

impl Bench {
    /// Runs one repetition of a cell, on a store of its own.
    fn once(&self, planned: &Planned) -> Result<Measured> {
        let folder = self.data.join(format!("advise-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let lone_sync = settled(&folder)?;
        let store = Store::start(&self.program, &folder.join("store"), &planned.cluster);
        let measured = store.and_then(|store| {
            if let Some(zone) = planned.lost_zone {
                store.lose(zone)?;
            }
            load::run(
                &self.program,
                &folder.join("load"),
                &store,
                planned,
                self.times,
            )
        });
        let _ = fs::remove_dir_all(&folder);
        Ok(Measured {
            lone_sync_ms: Some(lone_sync * 1e3),
            ..measured?
        })
    }

    /// Measures cells in rounds, each into a file of its name. Existing results are kept, so that
    /// an interrupted run resumes. Disturbed repetitions are kept but not counted: they are
    /// repeated, each up to [`TRIES_MAX`] times.
    pub(super) fn measure(
        &self,
        planned: &[Planned],
        repetitions: usize,
        folder: &Path,
    ) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for planned in planned {
            let path = folder.join(format!("{}.json", planned.name));
            cells.push(match path.exists() {
                true => read(&path, Cell::parse)?,
                false => Cell {
                    schema: SCHEMA.into(),
                    name: planned.name.clone(),
                    emulated: planned.emulation.is_some(),
                    accepted: true,
                    emulation: planned.emulation.clone(),
                    lost_zone: planned.lost_zone,
                    cluster: planned.cluster.clone(),
                    workload: planned.workload.clone(),
                    repetitions: Vec::new(),
                },
            });
        }
        for round in 1..=repetitions {
            for (cell, planned) in cells.iter_mut().zip(planned) {
                let mut tries = 0;
                while quiet(cell) < round && tries < TRIES_MAX {
                    tries += 1;
                    self.once_more(cell, planned, round, folder)?;
                }
            }
        }
        Ok(cells)
    }

    /// Runs one more repetition of a cell, prints it, and writes the file.
    fn once_more(
        &self,
        cell: &mut Cell,
        planned: &Planned,
        round: usize,
        folder: &Path,
    ) -> Result<()> {
        let it = match &planned.emulation {
            None => self.once(planned)?,
            Some(emulation) => {
                let number = cell.repetitions.len() as u32 + 1;
                let it = emulated::measure(&self.program, planned, emulation, self.times, number);
                // The other cells are measured all the same.
                let why = match it {
                    Ok(it) if it.is_accepted => Ok(it.measured),
                    Ok(it) => Err(format!("rejected: {}", it.why)),
                    Err(error) => Err(format!("failed: {error:#}")),
                };
                match why {
                    Ok(measured) => measured,
                    Err(why) => {
                        print_line(&format!("{} {round}: {why}", cell.name));
                        return Ok(());
                    }
                }
            }
        };
        print_line(&format!(
            "{} {round}: {:.0}/s, p50 {:.2} ms, p95 {:.2} ms{}{}{}{}",
            cell.name,
            it.throughput,
            it.p50_ms,
            it.p95_ms,
            it.lone_sync_ms
                .map_or(String::new(), |ms| format!(", lone sync {ms:.2} ms")),
            it.late.map_or(String::new(), |late| format!(
                ", late {:.1} %",
                late * 100.0
            )),
            it.others
                .map_or(String::new(), |o| format!(", others {:.0} %", o * 100.0)),
            match it.failed {
                0 => String::new(),
                failed => format!(", {failed} failed"),
            }
        ));
        cell.repetitions.push(it);
        write(&folder.join(format!("{}.json", cell.name)), &cell.to_text())?;
        Ok(())
    }
}

/// Waits until the disk is idle: files removed after the previous cell are still being journaled
/// and discarded, which delays syncs. Returns the seconds of a single sync then.
fn settled(folder: &Path) -> Result<f64> {
    let mut last = device::lone_sync(folder)?;
    for _ in 0..SETTLE_TRIES_MAX {
        std::thread::sleep(SETTLE_INTERVAL);
        let now = device::lone_sync(folder)?;
        // Neither much quicker than before nor much slower.
        let is_steady = now <= last * 1.25 && last <= now * 1.25;
        last = now;
        if is_steady {
            break;
        }
    }
    Ok(last)
}

/// Number of undisturbed repetitions.
fn quiet(cell: &Cell) -> usize {
    cell.repetitions.iter().filter(|it| it.is_quiet()).count()
}
