//! Checks of the hosts: their files, disks, clocks and versions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use cairn_types::ObjectHash;
use md5::{Digest, Md5};
use serde_json::Value;

use super::super::scout::Host;
use super::super::stats::{self, LINE, clock, number};
use super::Checks;

/// Length of the longest bar of the distribution.
const BAR: f64 = 69.0;

impl Checks<'_> {
    fn matched(&mut self, matches: usize, errors: usize) -> Result<()> {
        let hosts = self.scout.hosts.len();
        Ok(writeln!(
            self.out,
            "{matches}/{hosts} hosts matched, {errors} error[s] while checking hosts.\n{LINE}"
        )?)
    }

    pub(super) async fn ring_md5(&mut self) -> Result<()> {
        let mut own = BTreeMap::new();
        for entry in std::fs::read_dir(self.swift.path())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let of_kind = match self.scout.kind {
                "object" => name.starts_with("object") && name.ends_with(".ring.gz"),
                kind => name == format!("{kind}.ring.gz"),
            };
            if of_kind {
                own.insert(name.clone(), md5_of(&self.swift.path().join(name))?);
            }
        }
        self.begin("Checking ring md5sums")?;
        if self.scout.verbose {
            for (name, sum) in &own {
                writeln!(self.out, "-> On disk {name} md5sum: {sum}")?;
            }
        }
        let (mut matches, mut errors) = (0, 0);
        for answer in self.scout.recon("ringmd5", self.out).await? {
            let Some(Value::Object(rings)) = &answer.value else {
                errors += 1;
                continue;
            };
            let mut is_same = true;
            for (path, sum) in rings {
                let name = path.rsplit('/').next().unwrap_or(path);
                let other = own.get(name).map(String::as_str);
                if name.starts_with(self.scout.kind) && sum.as_str() != other {
                    is_same = false;
                    let (url, sum) = (&answer.url, sum.as_str().unwrap_or("None"));
                    writeln!(
                        self.out,
                        "!! {url} ({name} => {sum}) doesn't match on disk md5sum"
                    )?;
                }
            }
            match is_same {
                true => matches += 1,
                false => errors += 1,
            }
            if is_same && self.scout.verbose {
                writeln!(self.out, "-> {} matches.", answer.url)?;
            }
        }
        self.matched(matches, errors)
    }

    pub(super) async fn conf_md5(&mut self) -> Result<()> {
        let own = md5_of(&self.swift.path().join("swift.conf"))?;
        self.begin("Checking swift.conf md5sum")?;
        if self.scout.verbose {
            writeln!(self.out, "-> On disk swift.conf md5sum: {own}")?;
        }
        let (mut matches, mut errors) = (0, 0);
        for answer in self.scout.recon("swiftconfmd5", self.out).await? {
            let Some(Value::Object(files)) = &answer.value else {
                errors += 1;
                continue;
            };
            let sum = files.values().next().and_then(Value::as_str);
            let (url, sum) = (&answer.url, sum.unwrap_or("None"));
            if sum != own {
                writeln!(self.out, "!! {url} ({sum}) doesn't match on disk md5sum")?;
                continue;
            }
            matches += 1;
            if self.scout.verbose {
                writeln!(self.out, "-> {url} matches.")?;
            }
        }
        self.matched(matches, errors)
    }

    pub(super) async fn unmounted(&mut self) -> Result<()> {
        let hosts = self.scout.hosts.len();
        self.begin(&format!("Getting unmounted drives from {hosts} hosts..."))?;
        let answers = self.ask("unmounted").await?;
        for (wanted, title) in [(true, "Not mounted"), (false, "Device errors")] {
            for (answer, value) in &answers {
                for device in value.as_array().into_iter().flatten() {
                    let is_known = device.get("mounted").is_some_and(Value::is_boolean);
                    let name = device.get("device").and_then(Value::as_str);
                    if is_known == wanted {
                        let (name, host) = (name.unwrap_or_default(), answer.host.netloc());
                        writeln!(self.out, "{title}: {name} on {host}")?;
                    }
                }
            }
        }
        self.end()
    }

    pub(super) async fn load(&mut self) -> Result<()> {
        self.begin("Checking load averages")?;
        let answers = self.ask("load").await?;
        for name in ["1m", "5m", "15m"] {
            let values: Vec<_> = answers.iter().map(|(_, v)| number(v, name)).collect();
            let shown = format!("{name}_load_avg");
            stats::print(self.out, &shown, &shown, &values)?;
        }
        self.end()
    }

    /// Summarises numbers under several names; prints one line if there are none.
    fn numbers(&mut self, name: &str, values: &[Option<f64>]) -> Result<()> {
        match values.is_empty() {
            true => writeln!(self.out, "No hosts returned valid data.")?,
            false => stats::print(self.out, name, name, values)?,
        }
        Ok(())
    }

    pub(super) async fn quarantined(&mut self) -> Result<()> {
        self.begin("Checking quarantine")?;
        let answers = self.ask("quarantined").await?;
        let mut policies = BTreeSet::new();
        for (_, value) in &answers {
            let of = value.get("policies").and_then(Value::as_object);
            policies.extend(of.into_iter().flat_map(|of| of.keys().cloned()));
        }
        for policy in policies {
            let of = |v: &Value| number(v.get("policies")?.get(&policy)?, "objects");
            let values: Vec<_> = answers.iter().map(|(_, v)| of(v)).collect();
            self.numbers(&format!("quarantined_objects_{policy}"), &values)?;
        }
        for name in ["objects", "containers", "accounts"] {
            let values: Vec<_> = answers.iter().map(|(_, v)| number(v, name)).collect();
            self.numbers(&format!("quarantined_{name}"), &values)?;
        }
        self.end()
    }

    pub(super) async fn sockets(&mut self) -> Result<()> {
        self.begin("Checking socket usage")?;
        let answers = self.ask("sockstat").await?;
        for name in [
            "tcp_in_use",
            "tcp_mem_allocated_bytes",
            "tcp6_in_use",
            "time_wait",
            "orphan",
        ] {
            let of = |v: &Value| match name {
                "tcp6_in_use" => Some(number(v, name).unwrap_or(0.0)),
                _ => number(v, name),
            };
            let values: Vec<_> = answers.iter().map(|(_, v)| of(v)).collect();
            self.numbers(name, &values)?;
        }
        self.end()
    }

    pub(super) async fn server_types(&mut self) -> Result<()> {
        let (kind, hosts) = (self.scout.kind.to_owned(), self.scout.hosts.len());
        self.begin(&format!(
            "Validating server type '{kind}' on {hosts} hosts..."
        ))?;
        let wanted = format!("{kind}-server");
        let answers = self.scout.server_types(self.out).await?;
        let others: Vec<(String, String)> = answers
            .into_iter()
            .filter_map(|answer| Some((answer.url, answer.value?.as_str()?.to_owned())))
            .filter(|(_, server)| *server != wanted)
            .collect();
        writeln!(
            self.out,
            "{}/{hosts} hosts ok, {} error[s] while checking hosts.",
            hosts - others.len(),
            others.len()
        )?;
        for (url, server) in others {
            writeln!(self.out, "Invalid: {url} is {server}")?;
        }
        self.end()
    }

    pub(super) async fn time(&mut self, jitter: f64) -> Result<()> {
        self.begin("Checking time-sync")?;
        let (jitter, mut matches, mut errors) = (jitter.abs(), 0, 0);
        for answer in self.scout.recon("time", self.out).await? {
            let Some(remote) = answer.value.as_ref().and_then(Value::as_f64) else {
                errors += 1;
                continue;
            };
            let url = &answer.url;
            if remote + jitter < answer.asked || remote - jitter > answer.answered {
                let (here, there) = (clock(answer.answered), clock(remote));
                let difference = (answer.answered - remote).abs();
                writeln!(
                    self.out,
                    "!! {url} current time is {here}, but remote is {there}, differs by \
                     {difference:.4} sec"
                )?;
                continue;
            }
            matches += 1;
            if self.scout.verbose {
                writeln!(self.out, "-> {url} matches.")?;
            }
        }
        self.matched(matches, errors)
    }

    pub(super) async fn versions(&mut self) -> Result<()> {
        self.begin("Checking versions")?;
        let (mut versions, mut errors) = (BTreeSet::new(), 0);
        for answer in self.scout.recon("version", self.out).await? {
            let version = answer.value.as_ref().and_then(|v| v.get("version"));
            let Some(version) = version.and_then(Value::as_str) else {
                errors += 1;
                continue;
            };
            versions.insert(version.to_owned());
            if self.scout.verbose {
                writeln!(self.out, "-> {} installed version {version}", answer.url)?;
            }
        }
        let all: Vec<String> = versions.into_iter().collect();
        let verdict = match all.len() {
            0 => return Ok(writeln!(self.out, "No hosts returned valid data.\n{LINE}")?),
            1 => "matched",
            _ => "not matched",
        };
        let all = all.join(", ");
        writeln!(
            self.out,
            "Versions {verdict} ({all}), {errors} error[s] while checking hosts.\n{LINE}"
        )?;
        Ok(())
    }

    pub(super) async fn disk_usage(
        &mut self,
        top: usize,
        lowest: usize,
        human: bool,
    ) -> Result<()> {
        self.begin("Checking disk usage now")?;
        // All servers of a host report the same disks: one of its ports is enough.
        let by_ip: BTreeMap<String, Host> = self
            .scout
            .hosts
            .iter()
            .map(|host| (host.ip.clone(), host.clone()))
            .collect();
        let hosts = by_ip.into_values().collect();
        let mut disks = Disks::default();
        for answer in self.scout.recon_of(hosts, "diskusage", self.out).await? {
            let Some(Value::Array(devices)) = &answer.value else {
                continue;
            };
            let before = disks.percents.len();
            for device in devices {
                let name = device.get("device").and_then(Value::as_str);
                let name = name.unwrap_or_default();
                match device.get("mounted") {
                    Some(Value::Bool(true)) => disks.add(&answer.host, name, device),
                    Some(Value::Bool(false)) => {}
                    error => {
                        let (url, error) = (&answer.url, error.and_then(Value::as_str));
                        let error = error.unwrap_or_default();
                        writeln!(self.out, "-> {url}/{name}: Error: {error}")?;
                    }
                }
            }
            if disks.percents.len() == before {
                let url = &answer.url;
                writeln!(self.out, "-> {url}: Error. No drive info available.")?;
            }
        }
        disks.print(human, self.out)?;
        self.end()?;
        disks.print_extremes(top, lowest, self.out)
    }
}

fn md5_of(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(ObjectHash(Md5::digest(&bytes).into()).hex())
}

/// Usage of all disks.
#[derive(Default)]
struct Disks {
    /// Used percentages, with the device's name.
    percents: Vec<(f64, String)>,
    used: f64,
    available: f64,
}

impl Disks {
    fn add(&mut self, host: &Host, name: &str, device: &Value) {
        let of = |field: &str| number(device, field).unwrap_or(0.0);
        let (used, size) = (of("used"), of("size"));
        if size <= 0.0 {
            return;
        }
        self.percents
            .push((used / size * 100.0, format!("{:<15} {name}", host.ip)));
        self.used += used;
        self.available += of("avail");
    }

    fn print(&self, human: bool, out: &mut dyn Write) -> Result<()> {
        let rounded = |percent: f64| (percent * 100.0).round() / 100.0;
        let shown: Vec<f64> = self.percents.iter().map(|(p, _)| rounded(*p)).collect();
        let Some(first) = shown.first() else {
            return Ok(writeln!(out, "No hosts returned valid data.")?);
        };
        let low = shown.iter().copied().fold(*first, f64::min);
        let high = shown.iter().copied().fold(*first, f64::max);
        let mut graph: BTreeMap<i64, usize> = BTreeMap::new();
        for percent in &shown {
            *graph.entry(*percent as i64).or_default() += 1;
        }
        writeln!(out, "Distribution Graph:")?;
        let unit = BAR / graph.values().copied().max().unwrap_or(1) as f64;
        for (percent, count) in graph {
            let bar = "*".repeat((count as f64 * unit) as usize);
            writeln!(out, "{percent:>3}%{count:>5} {bar}")?;
        }
        let total = self.used + self.available;
        let average = match total > 0.0 {
            true => 100.0 * self.used / total,
            false => 0.0,
        };
        let size = |bytes: f64| match human {
            true => stats::size(bytes),
            false => format!("{bytes}"),
        };
        let (used, free, all) = (size(self.used), size(self.available), size(total));
        writeln!(out, "Disk usage: space used: {used} of {all}")?;
        writeln!(out, "Disk usage: space free: {free} of {all}")?;
        writeln!(
            out,
            "Disk usage: lowest: {low}%, highest: {high}%, avg: {average}%"
        )?;
        Ok(())
    }

    fn print_extremes(&mut self, top: usize, lowest: usize, out: &mut dyn Write) -> Result<()> {
        self.percents.sort_by(|a, b| b.0.total_cmp(&a.0));
        if top > 0 {
            writeln!(out, "TOP {top}")?;
            for (percent, device) in self.percents.iter().take(top) {
                writeln!(out, "{percent:.02}%  {device}")?;
            }
        }
        if lowest > 0 {
            writeln!(out, "LOWEST {lowest}")?;
            for (percent, device) in self.percents.iter().rev().take(lowest) {
                writeln!(out, "{percent:.02}%  {device}")?;
            }
        }
        Ok(())
    }
}
