//! Under `mpirun`: rank 0 controls and drives, the others are its drivers. No MPI library is
//! needed: ranks find one another through a folder beside the run's, which all of them must see
//! (as they do the folder they measure).
//!
//! `OUT.ranks-JOB/secret` is what rank 0 made up, readable by its user only; `rank-N` is where rank
//! N listens. Rank 0 removes the folder at the end.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::controller::serve_once;

/// Ranks that are started together are here within this time.
const GATHER: Duration = Duration::from_secs(120);

/// This process's place among those that `mpirun` or `srun` started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranks {
    pub(super) rank: u32,
    pub(super) count: u32,
    job: String,
}

/// Rank and count as Open MPI, MPICH and Slurm tell them.
const NAMES: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];
const JOBS: [&str; 4] = [
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "SLURM_JOB_ID",
];

impl Ranks {
    /// `None` when there is but one.
    pub(super) fn of_environment() -> Option<Self> {
        Self::told(|name| std::env::var(name).ok())
    }

    fn told(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<u32>().ok();
        let (rank, count) = NAMES
            .iter()
            .find_map(|(rank, count)| Some((number(rank)?, number(count)?)))
            .filter(|(rank, count)| *count > 1 && rank < count)?;
        let job = JOBS
            .iter()
            .find_map(|name| variable(name))
            .unwrap_or_default();
        let job = job.chars().filter(char::is_ascii_alphanumeric).collect();
        Some(Self { rank, count, job })
    }

    fn folder(&self, out: &Path) -> PathBuf {
        let mut name = out.as_os_str().to_owned();
        name.push(format!(".ranks-{}", self.job));
        name.into()
    }

    /// Rank 0: makes up the secret, waits for the others; the secret and their addresses.
    pub(super) fn gather(&self, out: &Path) -> Result<(String, Vec<String>)> {
        let folder = self.folder(out);
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("{} is of another run: remove it", folder.display()))?;
        let secret: String = (0..4)
            .map(|_| format!("{:016x}", rand::random::<u64>()))
            .collect();
        put(&folder.join("secret"), &secret)?;
        let deadline = Instant::now() + GATHER;
        let mut addresses = Vec::new();
        for rank in 1..self.count {
            addresses.push(wait_for(&folder.join(format!("rank-{rank}")), deadline)?);
        }
        Ok((secret, addresses))
    }

    /// Rank 0, at the end.
    pub(super) fn dismiss(&self, out: &Path) {
        // Nothing depends on it any more.
        let _ = fs::remove_dir_all(self.folder(out));
    }

    /// The others: drive for rank 0 until it goes.
    pub(super) fn follow(&self, out: &Path, threads: u32) -> Result<()> {
        let folder = self.folder(out);
        let secret = wait_for(&folder.join("secret"), Instant::now() + GATHER)?;
        let host = crate::resources::host().name;
        let at = folder.join(format!("rank-{}", self.rank));
        let tell = |address: std::net::SocketAddr| {
            // Rank 0 waits for it, and tells if it never comes.
            let _ = put(&at, &format!("{host}:{}", address.port()));
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("no thread for the controller")?;
        runtime.block_on(serve_once(([0, 0, 0, 0], 0).into(), secret, threads, tell))?;
        runtime.shutdown_background();
        Ok(())
    }
}

/// Whole or not at all.
fn put(path: &Path, text: &str) -> Result<()> {
    let staged = path.with_extension("part");
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&staged)?;
    file.write_all(text.as_bytes())?;
    drop(file);
    Ok(fs::rename(&staged, path)?)
}

fn wait_for(path: &Path, deadline: Instant) -> Result<String> {
    while Instant::now() < deadline {
        if let Ok(text) = fs::read_to_string(path) {
            return Ok(text);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!(
        "{} never came: do all ranks see this folder?",
        path.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_as_launchers_tell_them() {
        let of = |pairs: &'static [(&str, &str)]| {
            Ranks::told(|name| {
                let pair = pairs.iter().find(|(key, _)| *key == name);
                pair.map(|(_, value)| (*value).to_owned())
            })
        };
        let open_mpi = of(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("PMIX_NAMESPACE", "prterun-a@1"),
        ]);
        assert_eq!(
            open_mpi,
            Some(Ranks {
                rank: 3,
                count: 8,
                job: "prteruna1".into()
            })
        );
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
        assert_eq!(of(&[]), None);
    }
}
