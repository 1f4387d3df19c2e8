//! Cells as files, one each: read from a folder, or measured into one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    /// No further repetition begins then.
    pub(super) until: Option<Instant>,
}

/// Cells, and what is missing of them.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) cells: Vec<Cell>,
    /// Cells with fewer repetitions than were asked for, each with the reason.
    pub(super) missing: Vec<(String, String)>,
}

impl Outcome {
    /// Sentences about what is missing.
    pub(super) fn lines(&self) -> Vec<String> {
        let whole = self.cells.len() - self.missing.len();
        let mut lines = vec![format!(
            "{whole} of {} cells are measured",
            self.cells.len()
        )];
        if !self.missing.is_empty() {
            lines.push("the same command measures what is missing:".to_owned());
        }
        let missing = self.missing.iter();
        lines.extend(missing.map(|(name, why)| format!("  {name}: {why}")));
        lines
    }
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
    ) -> Result<Outcome> {
        let cells = planned.iter().map(|planned| begun(planned, folder));
        let mut cells = cells.collect::<Result<Vec<Cell>>>()?;
        let mut reasons = vec!["the time ran out before its turn".to_owned(); cells.len()];
        for round in 1..=repetitions {
            for ((cell, planned), reason) in cells.iter_mut().zip(planned).zip(&mut reasons) {
                let mut tries = 0;
                while quiet(cell) < round && tries < TRIES_MAX && !self.has_ended() {
                    tries += 1;
                    if let Err(why) = self.once_more(cell, planned, round, folder)? {
                        print_line(&format!("{} {round}: {why}", cell.name));
                        *reason = why;
                    }
                }
            }
        }
        let missing = cells.iter().zip(reasons);
        let missing = missing.filter(|(cell, _)| quiet(cell) < repetitions);
        let missing = missing.map(|(cell, reason)| (cell.name.clone(), reason));
        Ok(Outcome {
            missing: missing.collect(),
            cells,
        })
    }

    fn has_ended(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Runs one more repetition of a cell, prints it, and writes the file; or tells why it does not count.
    fn once_more(
        &self,
        cell: &mut Cell,
        planned: &Planned,
        round: usize,
        folder: &Path,
    ) -> Result<std::result::Result<(), String>> {
        let it = match &planned.emulation {
            None => self.once(planned)?,
            Some(emulation) => {
                let number = cell.repetitions.len() as u32 + 1;
                let it = emulated::measure(&self.program, planned, emulation, self.times, number);
                // The other cells are measured all the same.
                match it {
                    Ok(it) if it.is_accepted => it.measured,
                    Ok(it) => return Ok(Err(format!("rejected: {}", it.why))),
                    Err(error) => return Ok(Err(format!("failed: {error:#}"))),
                }
            }
        };
        print_line(&format!("{} {round}: {}", cell.name, described(&it)));
        let others = it.others.unwrap_or(0.0);
        let is_quiet = it.is_quiet();
        cell.repetitions.push(it);
        write(&folder.join(format!("{}.json", cell.name)), &cell.to_text())?;
        Ok(match is_quiet {
            true => Ok(()),
            false => Err(format!(
                "disturbed: other programs used {:.0} % of the processors",
                others * 100.0
            )),
        })
    }
}

/// The cell of a plan: what a folder has of it, or one without repetitions.
fn begun(planned: &Planned, folder: &Path) -> Result<Cell> {
    let path = folder.join(format!("{}.json", planned.name));
    if !path.exists() {
        return Ok(Cell {
            schema: SCHEMA.into(),
            name: planned.name.clone(),
            emulated: planned.emulation.is_some(),
            accepted: true,
            emulation: planned.emulation.clone(),
            lost_zone: planned.lost_zone,
            cluster: planned.cluster.clone(),
            workload: planned.workload.clone(),
            repetitions: Vec::new(),
        });
    }
    let cell = read(&path, Cell::parse)?;
    let is_same = cell.cluster == planned.cluster
        && cell.workload == planned.workload
        && cell.emulation == planned.emulation
        && cell.lost_zone == planned.lost_zone;
    if !is_same {
        bail!(
            "{}: it is of another cluster or workload than the cell that is to be measured; name \
             another folder by --cells",
            path.display()
        );
    }
    Ok(cell)
}

fn described(it: &Measured) -> String {
    let percent = |name: &str, part: Option<f64>| {
        part.map_or(String::new(), |part| {
            format!(", {name} {:.1} %", part * 100.0)
        })
    };
    let sync = it.lone_sync_ms;
    format!(
        "{:.0}/s, p50 {:.2} ms, p95 {:.2} ms{}{}{}{}{}",
        it.throughput,
        it.p50_ms,
        it.p95_ms,
        sync.map_or(String::new(), |ms| format!(", lone sync {ms:.2} ms")),
        percent("late", it.late),
        percent("waited for processors", it.cpu_wait),
        percent("others", it.others),
        match it.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        }
    )
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_advise::plan::emulated::calibration_cells;

    use super::*;

    fn bench(folder: &Path, until: Option<Instant>) -> Bench {
        Bench {
            program: "/nowhere/cairn".into(),
            data: folder.to_owned(),
            times: Times {
                ramp: 0.1,
                counted: 1.0,
            },
            until,
        }
    }

    fn measured(planned: &Planned) -> Cell {
        let mut cell = begun(planned, Path::new("/nowhere")).unwrap();
        cell.repetitions.push(Measured {
            throughput: 1.0,
            p50_ms: 1.0,
            p95_ms: 1.0,
            p99_ms: 1.0,
            ..Measured::default()
        });
        cell
    }

    /// A repetition that is there is not measured again, and what is missing is told with its reason.
    #[test]
    fn a_run_goes_on_with_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let planned = &calibration_cells()[..2];
        let path = folder.path().join(format!("{}.json", planned[0].name));
        fs::write(&path, measured(&planned[0]).to_text()).unwrap();
        let over = bench(folder.path(), Some(Instant::now()));
        let it = over.measure(planned, 1, folder.path()).unwrap();
        assert_eq!(it.cells[0], measured(&planned[0]));
        let why = "the time ran out before its turn".to_owned();
        assert_eq!(it.missing, [(planned[1].name.clone(), why)]);
        let told = it.lines().join("\n");
        assert!(told.starts_with("1 of 2 cells are measured\n"), "{told}");
        // One that cannot be measured here does not keep the others from their turn.
        let it = bench(folder.path(), None).measure(planned, 1, folder.path());
        let missing = it.unwrap().missing;
        assert!(missing[0].1.starts_with("failed: "), "{missing:?}");
    }

    #[test]
    fn a_file_of_another_cell_is_not_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let planned = &calibration_cells()[..1];
        let mut other = measured(&planned[0]);
        other.cluster.part_power += 1;
        let path = folder.path().join(format!("{}.json", planned[0].name));
        fs::write(&path, other.to_text()).unwrap();
        let it = bench(folder.path(), None).measure(planned, 1, folder.path());
        let told = it.unwrap_err().to_string();
        assert!(told.contains("another cluster or workload"), "{told}");
        assert!(told.contains(&planned[0].name), "{told}");
    }
}
