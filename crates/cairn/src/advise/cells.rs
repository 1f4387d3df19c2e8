//! Cells as files, one each: read from a folder, measured into one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_advise::cell::{Cell, Measured, SCHEMA};
use cairn_advise::plan::Planned;

use super::device;
use super::load::{self, Times};
use super::store::Store;
use super::{read, say, write};

/// Between two looks at a disk that has to come to rest, and how many there are.
const SETTLE: Duration = Duration::from_millis(700);
const SETTLE_TRIES: usize = 10;
/// A repetition beside other programs is made again this often.
const TRIES: usize = 2;
/// More files than this in a folder are no cells.
const FILES_MAX: usize = 10_000;

/// Programs and folders that cells are measured with.
#[derive(Debug)]
pub(super) struct Bench {
    /// The `cairn` whose store and lab are run.
    pub(super) program: PathBuf,
    /// The folder of stores, each removed when its cell has ended.
    pub(super) data: PathBuf,
    pub(super) times: Times,
}

/// All cells of a folder: its `*.json`, in the order of their names.
pub(super) fn read_all(folder: &Path) -> Result<Vec<Cell>> {
    let mut paths = Vec::new();
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
    /// One repetition of a cell, on a store of its own.
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

    /// Measures cells round after round into files of their names. What a file has already is kept, so
    /// a run that was ended goes on. Repetitions beside other programs are kept and do not count: they
    /// are made again, each [`TRIES`] times at most.
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
                    emulated: false,
                    accepted: true,
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
                while quiet(cell) < round && tries < TRIES {
                    tries += 1;
                    self.once_more(cell, planned, round, folder)?;
                }
            }
        }
        Ok(cells)
    }

    /// One more repetition of a cell, told and written to its file.
    fn once_more(
        &self,
        cell: &mut Cell,
        planned: &Planned,
        round: usize,
        folder: &Path,
    ) -> Result<()> {
        let it = self.once(planned)?;
        say(&format!(
            "{} {round}: {:.0}/s, p50 {:.2} ms, p95 {:.2} ms, lone sync {:.2} ms{}{}",
            cell.name,
            it.throughput,
            it.p50_ms,
            it.p95_ms,
            it.lone_sync_ms.unwrap_or(0.0),
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

/// Waits until the disk has come to rest: files that the cell before removed are still journaled and
/// discarded, and syncs wait for that. Seconds of a lone sync then.
fn settled(folder: &Path) -> Result<f64> {
    let mut last = device::lone_sync(folder)?;
    for _ in 0..SETTLE_TRIES {
        std::thread::sleep(SETTLE);
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

/// Repetitions that count.
fn quiet(cell: &Cell) -> usize {
    cell.repetitions.iter().filter(|it| it.is_quiet()).count()
}
