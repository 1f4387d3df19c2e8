//! `cairn study check`: accuracy of the emulation on this host. Measures a disk with a fixed
//! service time and one with seeks, alone and saturated, and two hosts with a round-trip time
//! between them. Each result is shown with the specification, its error and the limit.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_emulate::check::{saturated, single_reads};
use cairn_emulate::disk::{DiskSpec, FileSystem};
use cairn_emulate::host;
use cairn_emulate::model::Medium;
use cairn_emulate::network::{HostSpec, NetworkSpec};
use cairn_emulate::world::{World, WorldSpec};
use clap::Args;

use crate::process::{self, ProcessEnvironment};

const SIZE: u64 = 1 << 30;
const MEAN_ERROR_MAX: f64 = 0.03;
const SATURATED_ERROR_MAX: f64 = 0.01;
const LATENESS_MAX: f64 = 0.03;
const RTT_ERROR_MAX: f64 = 0.05;

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,

    /// A second of emulated time lasts so many seconds
    #[arg(long, default_value_t = 1.0)]
    dilation: f64,

    /// A host's own answers to the network's check
    #[arg(long, hide = true, value_name = "IP:PORT")]
    echo: Option<String>,
}

pub(crate) fn run(arguments: &CheckArguments) -> Result<ExitCode> {
    // This process reads the clock, so it must wait for a CPU no longer than the emulator does.
    host::hurry();
    if let Some(at) = &arguments.echo {
        return echo(at);
    }
    let program = std::env::current_exe().context("finding this program")?;
    let mut all_hold = true;
    match host::no_disks() {
        Some(words) => {
            println!("{words}");
            all_hold = false;
        }
        None => all_hold &= disks(&program, arguments)?,
    }
    match host::no_network() {
        Some(words) => {
            println!("{words}");
            all_hold = false;
        }
        None => all_hold &= network(&program, arguments)?,
    }
    Ok(match all_hold {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Prints a line of the report; returns whether the limit holds.
fn tell(what: &str, asked: f64, measured: f64, unit: &str, bar: f64) -> bool {
    let error = measured / asked - 1.0;
    let holds = error.abs() <= bar;
    println!(
        "{} {what}: {measured:.3} {unit} for {asked:.3} ({:+.2} %, bar ±{:.0} %)",
        if holds { "ok    " } else { "MISSED" },
        error * 100.0,
        bar * 100.0
    );
    holds
}

struct Kind {
    name: &'static str,
    medium: Medium,
    /// Mean time of a single random read, in microseconds.
    mean_us: f64,
    /// Random reads per second when saturated.
    rate: Option<f64>,
}

/// Kinds of disks whose figures can be computed.
fn kinds() -> Vec<Kind> {
    let fixed = |us: f64| Medium {
        fixed_us: us,
        ..Medium::default()
    };
    // Over random offsets the mean of √(distance / size) is 8/15.
    let seek = Medium {
        settle_us: 1000.0,
        full_seek_us: 8000.0,
        rpm: 7200.0,
        ..Medium::default()
    };
    let seek_us = 1000.0 + 8000.0 * 8.0 / 15.0 + 60e6 / 7200.0 / 2.0;
    vec![
        Kind {
            name: "disk of 10 ms",
            medium: fixed(10_000.0),
            mean_us: 10_000.0,
            rate: Some(100.0),
        },
        Kind {
            name: "disk of 2 ms",
            medium: fixed(2_000.0),
            mean_us: 2_000.0,
            rate: Some(500.0),
        },
        Kind {
            name: "disk of 1 ms",
            medium: fixed(1_000.0),
            mean_us: 1_000.0,
            rate: Some(1000.0),
        },
        Kind {
            name: "4 channels of 2 ms",
            medium: Medium {
                channels: 4,
                ..fixed(2_000.0)
            },
            mean_us: 2_000.0,
            rate: Some(2000.0),
        },
        Kind {
            name: "disk that seeks",
            medium: seek,
            mean_us: seek_us,
            rate: None,
        },
    ]
}

fn disks(program: &Path, arguments: &CheckArguments) -> Result<bool> {
    let factor = arguments.dilation;
    let time = Duration::from_secs_f64(arguments.seconds);
    let mut all_hold = true;
    for kind in kinds() {
        let folder = std::env::temp_dir().join(format!("cairn-check-{}", std::process::id()));
        let spec = DiskSpec {
            name: "check".to_owned(),
            folder: folder.clone(),
            mount_point: None,
            file_system: FileSystem::Ext4,
            size: SIZE,
            medium: kind.medium.dilated(factor),
            seed: 1,
        };
        let spec = WorldSpec {
            disks: vec![spec],
            ..WorldSpec::default()
        };
        let mut world = World::start(program, &["study", "emulate"], spec)?;
        let made = world.made().clone();
        let device = made
            .loop_devices
            .get("check")
            .context("no loop device")?
            .clone();
        let reads = (arguments.seconds * 1e6 / (kind.mean_us * factor)).clamp(50.0, 5000.0);
        let times = single_reads(Path::new(&device), SIZE, reads as usize, 7)?;
        let mean = times.iter().sum::<Duration>().as_secs_f64() * 1e3 / times.len() as f64;
        let name = kind.name;
        let mean = mean / factor;
        all_hold &= tell(
            &format!("{name}, mean"),
            kind.mean_us / 1e3,
            mean,
            "ms",
            MEAN_ERROR_MAX,
        );
        let before = world.counts()?.disks["check"].lateness;
        if let Some(rate) = kind.rate {
            let measured = saturated(Path::new(&device), SIZE, 8, time)? * factor;
            all_hold &= tell(
                &format!("{name}, saturated"),
                rate,
                measured,
                "/s",
                SATURATED_ERROR_MAX,
            );
        }
        let lateness = world.counts()?.disks["check"].lateness;
        all_hold &= lateness_line(name, "alone", before.share());
        if kind.rate.is_some() {
            all_hold &= lateness_line(name, "saturated", lateness.since(&before).share());
        }
        let overhead = made.overhead_us.get("check").copied().unwrap_or_default();
        println!(
            "       this host's own way {overhead:.0} µs, {}",
            if made.real_time {
                "at real-time priority"
            } else {
                "not at real-time priority"
            }
        );
        drop(world);
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(all_hold)
}

fn lateness_line(name: &str, how: &str, share: f64) -> bool {
    let holds = share <= LATENESS_MAX;
    println!(
        "{} {name}, {how}: answers {:.2} % late (bar {:.0} %)",
        if holds { "ok    " } else { "MISSED" },
        share * 100.0,
        LATENESS_MAX * 100.0
    );
    holds
}

fn network(program: &Path, arguments: &CheckArguments) -> Result<bool> {
    let factor = arguments.dilation;
    let (near_ms, far_ms, rate) = (2.0, 80.0, 10.0);
    let host = |name: &str, site, mb_per_s| HostSpec {
        name: name.to_owned(),
        site,
        mb_per_s,
    };
    let rtt = |ms: f64| ms * 1e3 * factor;
    let spec = NetworkSpec {
        hosts: vec![
            host("near", 1, None),
            host("far", 2, None),
            host("thin", 1, Some(rate / factor)),
        ],
        outside_site: 0,
        rtt_us: vec![
            vec![0.0, rtt(near_ms), rtt(far_ms)],
            vec![rtt(near_ms), 0.0, rtt(far_ms)],
            vec![rtt(far_ms), rtt(far_ms), 0.0],
        ],
    };
    let spec = WorldSpec {
        network: Some(spec),
        ..WorldSpec::default()
    };
    let mut world = World::start(program, &["study", "emulate"], spec)?;
    let made = world.made().clone();
    let mut all_hold = true;
    for (name, asked) in [("near", near_ms), ("far", far_ms)] {
        let mut echo = Echo::start(program, &made.hosts[name])?;
        let rounds = (arguments.seconds * 1e3 / (asked * factor)).clamp(20.0, 1000.0) as u32;
        let began = Instant::now();
        for _ in 0..rounds {
            echo.round_trip(1)?;
        }
        let mean = began.elapsed().as_secs_f64() * 1e3 / f64::from(rounds) / factor;
        all_hold &= tell(
            &format!("round trip to {name}"),
            asked,
            mean,
            "ms",
            RTT_ERROR_MAX,
        );
    }
    let mut echo = Echo::start(program, &made.hosts["thin"])?;
    let bytes = (arguments.seconds * rate * 1e6 / factor / 2.0) as usize;
    let began = Instant::now();
    echo.round_trip(bytes)?;
    // There and back, one after the other as far as buffers allow.
    let measured = echo.received_rate(bytes, began) * factor;
    // Packet headers use bandwidth, too.
    all_hold &= tell("rate of a line", rate, measured, "MB/s", RTT_ERROR_MAX);
    let counts = world.counts()?.network;
    all_hold &= lateness_line("the network", "all of it", counts.lateness.share());
    println!(
        "       {} packets, {} dropped",
        counts.packets, counts.dropped
    );
    Ok(all_hold)
}

/// A process on an emulated host that responds to each request with the requested number of bytes.
struct Echo {
    stream: TcpStream,
    child: std::process::Child,
    last_received: Option<(Instant, Instant)>,
}

impl Echo {
    fn start(program: &Path, (namespace, ip): &(String, String)) -> Result<Echo> {
        let place = ProcessEnvironment {
            namespace: Some(namespace.clone()),
            entrances: Vec::new(),
        };
        let at = format!("{ip}:7007");
        let mut command = process::command(&place, program);
        let mut child = command.args(["study", "check", "--echo", &at]).spawn()?;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match TcpStream::connect(&at) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Echo {
                        stream,
                        child,
                        last_received: None,
                    });
                }
                Err(error) if Instant::now() > deadline => {
                    let _ = child.kill();
                    bail!("{at} is not reached: {error}");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Requests `bytes` bytes and reads them.
    fn round_trip(&mut self, bytes: usize) -> Result<()> {
        self.stream.write_all(&(bytes as u64).to_le_bytes())?;
        let mut buffer = vec![0; 1 << 16];
        let (mut left, mut first) = (bytes, None);
        while left > 0 {
            let room = buffer.len().min(left);
            let read = self.stream.read(&mut buffer[..room])?;
            if read == 0 {
                bail!("the emulated host closed the connection");
            }
            left -= read;
            first.get_or_insert_with(Instant::now);
        }
        self.last_received = first.map(|first| (first, Instant::now()));
        Ok(())
    }

    /// Rate of the last response in MB per second.
    fn received_rate(&self, bytes: usize, began: Instant) -> f64 {
        let (from, to) = self.last_received.unwrap_or((began, Instant::now()));
        bytes as f64 / 1e6 / (to - from).as_secs_f64().max(1e-9)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The host's side: reads a number and writes that many bytes.
fn echo(at: &str) -> Result<ExitCode> {
    let listener = TcpListener::bind(at)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let block = vec![0; 1 << 16];
    let mut asked = [0; 8];
    while stream.read_exact(&mut asked).is_ok() {
        let mut left = u64::from_le_bytes(asked) as usize;
        while left > 0 {
            let some = left.min(block.len());
            stream.write_all(&block[..some])?;
            left -= some;
        }
    }
    Ok(ExitCode::SUCCESS)
}
