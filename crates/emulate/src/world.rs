//! The emulator: a child process that owns all emulated hardware of one cluster, and its parent's
//! handle to it. They communicate by lines of JSON over the child's standard input and output; when
//! its input ends, the child removes everything and exits, so nothing outlives a parent that is
//! killed.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cgroup::{Group, GroupSpec};
use crate::disk::{Disk, DiskCounts, DiskSpec};
use crate::network::{Network, NetworkCounts, NetworkSpec};
use crate::{host, sweep};

/// Specification of emulated hardware; all times are of this host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorldSpec {
    pub disks: Vec<DiskSpec>,
    pub groups: Vec<GroupSpec>,
    pub network: Option<NetworkSpec>,
}

/// The hardware that was created.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Made {
    pub real_time: bool,
    /// Overhead of each disk on this host in microseconds, which is part of its service times.
    pub overhead_us: BTreeMap<String, f64>,
    pub loop_devices: BTreeMap<String, String>,
    /// Files by which a process enters each group.
    pub entrances: BTreeMap<String, Vec<PathBuf>>,
    /// Network namespace and address of each host.
    pub hosts: BTreeMap<String, (String, String)>,
    /// Address of the parent's namespace for hosts.
    pub outside: Option<String>,
}

/// Counters since the hardware was created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub disks: BTreeMap<String, DiskCounts>,
    pub network: NetworkCounts,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmulatorRequest {
    Make(Box<WorldSpec>),
    Counts,
    /// Disables or enables the disks' service times.
    Free(bool),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EmulatorReply {
    Made(Box<Made>),
    Counts(Box<Counts>),
    Free,
    Error(String),
}

/// Maximum bytes of a line.
const LINE_BYTES_MAX: u64 = 16 << 20;
const END_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
pub enum WorldError {
    #[error("starting the emulator: {0}")]
    Start(io::Error),
    #[error("talking to the emulator: {0}")]
    Talk(io::Error),
    #[error("the emulator ended")]
    Ended,
    #[error("the emulator said {0}")]
    Json(serde_json::Error),
    #[error("{0}")]
    Refused(String),
    #[error("the emulator gave another answer than was asked for")]
    Other,
}

/// The parent's handle; the hardware is removed when it is dropped.
pub struct World {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    made: Made,
}

impl World {
    /// Starts `program arguments…`, which must call [`serve`].
    ///
    /// # Errors
    /// `Start` if the program cannot be started, `Refused` with the reason if the hardware cannot
    /// be created; else see [`World::counts`].
    pub fn start(program: &Path, arguments: &[&str], spec: WorldSpec) -> Result<World, WorldError> {
        let mut child = Command::new(program)
            .args(arguments)
            // Ctrl-C is handled by the parent: the child ends when its input does, after removing
            // everything.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(WorldError::Start)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(WorldError::Ended)?;
        let mut world = World {
            child,
            input,
            output: BufReader::new(output),
            made: Made::default(),
        };
        match world.ask(&EmulatorRequest::Make(Box::new(spec)))? {
            EmulatorReply::Made(made) => world.made = *made,
            _ => return Err(WorldError::Other),
        }
        Ok(world)
    }

    pub fn made(&self) -> &Made {
        &self.made
    }

    /// Counters since the hardware was created.
    ///
    /// # Errors
    /// `Ended` or `Talk` if the emulator is gone, `Json` or `Other` if its answer is not one to
    /// this.
    pub fn counts(&mut self) -> Result<Counts, WorldError> {
        match self.ask(&EmulatorRequest::Counts)? {
            EmulatorReply::Counts(counts) => Ok(*counts),
            _ => Err(WorldError::Other),
        }
    }

    /// Disables the disks' service times, for unmeasured preparation and for the end, or enables
    /// them again.
    ///
    /// # Errors
    /// `Ended` or `Talk` if the emulator is gone, `Json` if its answer is none.
    pub fn set_free(&mut self, is_free: bool) -> Result<(), WorldError> {
        self.ask(&EmulatorRequest::Free(is_free)).map(|_| ())
    }

    fn ask(&mut self, asked: &EmulatorRequest) -> Result<EmulatorReply, WorldError> {
        let input = self.input.as_mut().ok_or(WorldError::Ended)?;
        let mut line = serde_json::to_string(asked).map_err(WorldError::Json)?;
        line.push('\n');
        input.write_all(line.as_bytes()).map_err(WorldError::Talk)?;
        input.flush().map_err(WorldError::Talk)?;
        let mut answer = String::new();
        if self
            .output
            .read_line(&mut answer)
            .map_err(WorldError::Talk)?
            == 0
        {
            return Err(WorldError::Ended);
        }
        match serde_json::from_str(&answer).map_err(WorldError::Json)? {
            EmulatorReply::Error(words) => Err(WorldError::Refused(words)),
            said => Ok(said),
        }
    }
}

/// Waits for a child that was told to end; kills it after `timeout`.
pub fn end_within(child: &mut Child, timeout: Duration) {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for World {
    fn drop(&mut self) {
        self.input.take();
        end_within(&mut self.child, END_TIMEOUT);
    }
}

/// The child's side: serves its parent until the input ends.
///
/// # Errors
/// The input cannot be read, or the output cannot be written. Hardware that cannot be created is an
/// answer to the parent.
pub fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let real_time = host::hurry();
    sweep::sweep();
    let mut hardware = Hardware::default();
    loop {
        let mut line = String::new();
        if io::Read::take(&mut *input, LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let said = match serde_json::from_str(&line) {
            Ok(EmulatorRequest::Make(spec)) => match Hardware::make(&spec) {
                Ok((made, mut there)) => {
                    there.real_time = real_time;
                    hardware = made;
                    EmulatorReply::Made(Box::new(there))
                }
                Err(words) => EmulatorReply::Error(words),
            },
            Ok(EmulatorRequest::Counts) => EmulatorReply::Counts(Box::new(hardware.counts())),
            Ok(EmulatorRequest::Free(is_free)) => {
                hardware
                    .disks
                    .iter()
                    .for_each(|disk| disk.set_free(is_free));
                EmulatorReply::Free
            }
            Err(error) => EmulatorReply::Error(format!("not a request to the emulator: {error}")),
        };
        let mut answer = serde_json::to_string(&said)?;
        answer.push('\n');
        output.write_all(answer.as_bytes())?;
        output.flush()?;
    }
}

#[derive(Default)]
struct Hardware {
    disks: Vec<Disk>,
    network: Option<Network>,
    groups: Vec<Group>,
}

impl Hardware {
    fn make(spec: &WorldSpec) -> Result<(Hardware, Made), String> {
        let mut hardware = Hardware::default();
        let mut made = Made::default();
        for group in &spec.groups {
            let created = Group::create(group).map_err(|e| e.to_string())?;
            made.entrances
                .insert(group.name.clone(), created.entrances());
            hardware.groups.push(created);
        }
        for disk in &spec.disks {
            let disk = Disk::create(disk.clone()).map_err(|e| e.to_string())?;
            hardware.disks.push(disk);
        }
        for disk in &mut hardware.disks {
            let overhead = disk.calibrate().map_err(|e| e.to_string())?;
            let name = disk.name().to_owned();
            made.loop_devices
                .insert(name.clone(), disk.loop_device().to_owned());
            made.overhead_us.insert(name, overhead.as_secs_f64() * 1e6);
        }
        if let Some(network) = &spec.network {
            let network = Network::create(network).map_err(|e| e.to_string())?;
            made.hosts = network.hosts();
            made.outside = Some(network.outside());
            hardware.network = Some(network);
        }
        Ok((hardware, made))
    }

    fn counts(&self) -> Counts {
        let disks = self.disks.iter().map(|d| (d.name().to_owned(), d.counts()));
        Counts {
            disks: disks.collect(),
            network: self
                .network
                .as_ref()
                .map(Network::counts)
                .unwrap_or_default(),
        }
    }
}
