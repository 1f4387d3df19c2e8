//! `swift-drive-audit CONF`: counts errors in the kernel's log for the drives mounted below
//! `device_dir`, unmounts those with at least `error_limit` errors and comments them out in
//! `/etc/fstab`, so that servers answer 507 for them and their partitions are replicated elsewhere.
//! Results are in `drive.recon`, for `/recon/driveaudit`. To be run by cron, as root.

mod kernel_log;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cairn_daemons::recon_cache::{DEFAULT_RECON_CACHE_PATH, ReconCache};
use cairn_formats::ini::Section;
use cairn_node::conf::read_conf;
use cairn_node::logging::{self, LogOptions};
use cairn_node::privileges;
use cairn_node::settings;
use cairn_node::syslog::SyslogOptions;
use clap::Parser;
use regex_lite::Regex;
use rustix::fs::{major, minor};
use serde_json::{Map, json};
use tracing::{debug, error, info};

use kernel_log::{KernelLog, LocalTime};

const SECTION: &str = "drive-audit";
const RECON_FILE: &str = "drive.recon";
/// Default patterns of a disk's errors.
const PATTERNS: [&str; 2] = [
    r"\berror\b.*\b(sd[a-z]{1,2}\d?)\b",
    r"\b(sd[a-z]{1,2}\d?)\b.*\berror\b",
];

/// Unmount drives that the kernel's log has errors of
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// The conf file with a section [drive-audit]
    #[arg(value_name = "CONF_FILE")]
    pub(crate) conf: PathBuf,
}

/// Audits once, according to the conf.
pub(crate) fn run(conf: &Path) -> Result<()> {
    let conf = std::path::absolute(conf)?;
    let section = read_conf(&conf)?.section(SECTION)?;
    let log = LogOptions {
        syslog: Some(SyslogOptions::read(&section, SECTION)?),
        ..LogOptions::default()
    };
    logging::start(&log, settings::log_level(&section)?)?;
    let root = Path::new("/");
    let host = Host {
        root,
        now: local_now()?,
        run: &run_program,
        prints: section.bool_or("log_to_console", false),
    };
    audit(&Audit::read(&section)?, &host)
}

/// Access to the host, replaceable by tests.
struct Host<'a> {
    /// `/`, except in tests.
    root: &'a Path,
    now: LocalTime,
    /// Runs a program with arguments.
    run: &'a dyn Fn(&str, &[&str]),
    /// Also prints what is logged.
    prints: bool,
}

impl Host<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> Result<String> {
        let path = self.path(path);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn report(&self, text: &str) {
        info!("{text}");
        if self.prints {
            // Standard output may be closed.
            let _ = writeln!(std::io::stdout(), "{SECTION}: {text}");
        }
    }
}

fn run_program(program: &str, arguments: &[&str]) {
    match Command::new(program).args(arguments).status() {
        Ok(status) if status.success() => {}
        Ok(status) => error!(program, ?arguments, %status, "a program failed"),
        Err(error) => error!(program, ?arguments, %error, "a program could not be run"),
    }
}

/// Local time, as in the log's timestamps.
fn local_now() -> Result<LocalTime> {
    let output = Command::new("date").arg("+%Y-%m-%dT%H:%M:%S").output();
    let output = output.context("cannot run date, which knows the local time")?;
    let text = String::from_utf8_lossy(&output.stdout);
    LocalTime::parse_iso(text.trim()).context("date does not tell the time")
}

/// Options of the conf.
struct Audit {
    device_dir: String,
    error_limit: u64,
    unmounts: bool,
    cache: ReconCache,
    user: String,
    log: KernelLog,
}

impl Audit {
    fn read(section: &Section) -> Result<Audit> {
        let mut patterns = Vec::new();
        for (option, pattern) in section.iter() {
            if option.starts_with("regex_pattern_") {
                let regex = Regex::new(pattern).map_err(|error| {
                    section.bad(option, format!("expected a regular expression: {error}"))
                })?;
                patterns.push(regex);
            }
        }
        if patterns.is_empty() {
            for pattern in PATTERNS {
                patterns.push(Regex::new(pattern).context("a pattern of our own")?);
            }
        }
        let cache = section.str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH);
        let files = section.str_or("log_file_pattern", "/var/log/kern.*[!.][!g][!z]");
        Ok(Audit {
            device_dir: section.str_or("device_dir", "/srv/node").to_owned(),
            error_limit: section.u64_or("error_limit", 1)?,
            unmounts: section.bool_or("unmount_failed_device", true),
            cache: ReconCache::new(cache, RECON_FILE),
            user: section.str_or("user", "swift").to_owned(),
            log: KernelLog {
                files: files.to_owned(),
                minutes: section.u64_or("minutes", 60)?,
                patterns,
            },
        })
    }
}

fn audit(audit: &Audit, host: &Host<'_>) -> Result<()> {
    let devices = devices(&audit.device_dir, host)?;
    debug!(?devices, "devices found");
    if devices.is_empty() {
        error!("Error: No devices found!");
    }
    let errors = audit.log.errors(host.root, host.now)?;
    debug!(?errors, "errors found");
    let mut found: BTreeMap<&str, u64> = devices
        .iter()
        .map(|device| (device.mount_point.as_str(), 0))
        .collect();
    let (mut total, mut unmounted) = (0, false);
    for (name, count) in &errors {
        let device = devices
            .iter()
            .find(|d| d.kernel_name.as_ref() == Some(name));
        let Some(device) = device.filter(|_| *count >= audit.error_limit) else {
            continue;
        };
        let place = &device.mount_point;
        if audit.unmounts {
            host.report(&format!("Unmounting {place} with {count} errors"));
            (host.run)("umount", &["-fl", place]);
            host.report(&format!("Commenting out {place} from /etc/fstab"));
            comment_out(&host.path("/etc/fstab"), place)?;
            unmounted = true;
        } else {
            let text = format!("Detected {place} with {count} errors (Device not unmounted)");
            host.report(&text);
        }
        found.insert(place, *count);
        total += count;
    }
    report_to_recon(audit, &found, total)?;
    if !unmounted {
        host.report("No drives were unmounted");
    } else if host.path("/run/systemd/system").is_dir() {
        debug!("fstab updated, calling systemctl daemon-reload");
        (host.run)("systemctl", &["daemon-reload"]);
    }
    Ok(())
}

fn report_to_recon(audit: &Audit, found: &BTreeMap<&str, u64>, total: u64) -> Result<()> {
    let mut entries = Map::new();
    for (place, count) in found {
        entries.insert((*place).to_owned(), json!(count));
    }
    entries.insert("drive_audit_errors".into(), json!(total));
    audit.cache.merge(&entries)?;
    // The servers that read it do not run as root.
    privileges::give_to(&audit.user, audit.cache.path());
    Ok(())
}

/// A device mounted below `device_dir`.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    mount_point: String,
    /// Name in the kernel's log: `sdb1`.
    kernel_name: Option<String>,
}

fn devices(device_dir: &str, host: &Host<'_>) -> Result<Vec<Mounted>> {
    let numbers = block_numbers(host);
    let mut names: BTreeMap<(u32, u32), String> = BTreeMap::new();
    for line in host.read("/proc/partitions")?.lines().skip(2) {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse().ok();
        if let (Some(major), Some(minor)) = (number(), number())
            && let Some(name) = words.nth(1)
        {
            names.insert((major, minor), name.to_owned());
        }
    }
    let mut found = Vec::new();
    for line in host.read("/proc/mounts")?.lines() {
        let mut words = line.split_whitespace();
        let (Some(device), Some(mount_point)) = (words.next(), words.next()) else {
            continue;
        };
        if !mount_point.starts_with(device_dir) {
            continue;
        }
        let name = device.rsplit('/').next().unwrap_or_default();
        let known = numbers.get(name).copied().or_else(|| {
            let rdev = fs::metadata(host.path(device)).ok()?.rdev();
            Some((major(rdev), minor(rdev)))
        });
        let Some(known) = known else {
            error!(
                "Could not determine major:minor numbers for {device} (mounted at \
                 {mount_point})! Skipping..."
            );
            continue;
        };
        found.push(Mounted {
            mount_point: mount_point.to_owned(),
            kernel_name: names.get(&known).cloned(),
        });
    }
    Ok(found)
}

/// Device numbers by names in `/dev`, from the links `/dev/block/8:16 -> ../sdb`.
fn block_numbers(host: &Host<'_>) -> BTreeMap<String, (u32, u32)> {
    let entries = fs::read_dir(host.path("/dev/block"));
    let entries = entries.into_iter().flatten().flatten();
    let known = entries.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let (major, minor) = entry
            .file_name()
            .to_str()?
            .split_once(':')
            .map(|(major, minor)| (major.parse().ok(), minor.parse().ok()))?;
        let name = target.file_name()?.to_str()?.to_owned();
        Some((name, (major?, minor?)))
    });
    known.collect()
}

/// Comments out a mount point, so that it is not mounted on the next boot.
fn comment_out(fstab: &Path, mount_point: &str) -> Result<()> {
    let text =
        fs::read_to_string(fstab).with_context(|| format!("cannot read {}", fstab.display()))?;
    let mut changed = String::with_capacity(text.len() + 1);
    for line in text.split_inclusive('\n') {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() > 2 && words[1] == mount_point && !line.starts_with('#') {
            changed.push('#');
        }
        changed.push_str(line);
    }
    let staged = fstab.with_extension("new");
    let write = || {
        let mut file = fs::File::create(&staged)?;
        file.write_all(changed.as_bytes())?;
        file.set_permissions(fs::metadata(fstab)?.permissions())?;
        file.sync_all()?;
        fs::rename(&staged, fstab)
    };
    if let Err(error) = write() {
        bail!("cannot change {}: {error}", fstab.display());
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A fake host with two drives, one of which has errors.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/mounts",
            "/dev/sdb1 /srv/node/one xfs rw 0 0\n/dev/sdc1 /srv/node/two xfs rw 0 0\n\
             /dev/sda1 / ext4 rw 0 0\n/dev/gone /srv/node/gone xfs rw 0 0\n",
        );
        write(
            "proc/partitions",
            "major minor  #blocks  name\n\n   8       17    100 sdb1\n   8       33    100 sdc1\n",
        );
        write(
            "etc/fstab",
            "/dev/sda1 / ext4 defaults 0 0\nLABEL=one /srv/node/one xfs noatime 0 0\n\
             LABEL=two /srv/node/two xfs noatime 0 0\n",
        );
        write(
            "var/log/kern.log",
            "Nov 22 13:50:00 host kernel: sdc1: I/O error, too old\n\
             Nov 22 14:50:00 host kernel: I/O error, dev sdb1, sector 5\n\
             Nov 22 14:51:00 host kernel: sdb1: media error\n",
        );
        fs::create_dir_all(root.path().join("dev/block")).unwrap();
        for (numbers, name) in [("8:17", "sdb1"), ("8:33", "sdc1")] {
            let link = root.path().join("dev/block").join(numbers);
            std::os::unix::fs::symlink(format!("../{name}"), link).unwrap();
        }
        fs::create_dir_all(root.path().join("run/systemd/system")).unwrap();
        fs::create_dir(root.path().join("cache")).unwrap();
        root
    }

    fn audited(root: &Path, pairs: &[(&str, &str)]) -> Vec<String> {
        let cache = root.join("cache").display().to_string();
        let mut all = vec![("recon_cache_path", cache.as_str())];
        all.extend(pairs);
        let section = Section::from_pairs(SECTION, &all);
        let ran = RefCell::new(Vec::new());
        let run = |program: &str, arguments: &[&str]| {
            ran.borrow_mut()
                .push(format!("{program} {}", arguments.join(" ")));
        };
        let host = Host {
            root,
            now: LocalTime::parse_iso("2026-11-22T15:00:00").unwrap(),
            run: &run,
            prints: false,
        };
        audit(&Audit::read(&section).unwrap(), &host).unwrap();
        ran.into_inner()
    }

    #[test]
    fn a_drive_with_errors_goes() {
        let root = machine();
        let ran = audited(root.path(), &[]);
        assert_eq!(ran, ["umount -fl /srv/node/one", "systemctl daemon-reload"]);
        let fstab = fs::read_to_string(root.path().join("etc/fstab")).unwrap();
        assert!(fstab.contains("\n#LABEL=one ") && fstab.contains("\nLABEL=two "));
        let told = ReconCache::new(root.path().join("cache"), RECON_FILE).read();
        let expected = json!({
            "/srv/node/one": 2, "/srv/node/two": 0, "drive_audit_errors": 2,
        });
        assert_eq!(serde_json::Value::Object(told), expected);
    }

    #[test]
    fn few_errors_are_forgiven() {
        let root = machine();
        assert!(audited(root.path(), &[("error_limit", "3")]).is_empty());
        let told = ReconCache::new(root.path().join("cache"), RECON_FILE).read();
        assert_eq!(told["drive_audit_errors"], json!(0));
        let keeps = [("unmount_failed_device", "no")];
        assert!(audited(root.path(), &keeps).is_empty());
        let told = ReconCache::new(root.path().join("cache"), RECON_FILE).read();
        assert_eq!(told["drive_audit_errors"], json!(2));
        let other = [("regex_pattern_1", r"(\w+): I/O error"), ("minutes", "90")];
        let ran = audited(root.path(), &other);
        assert_eq!(ran[0], "umount -fl /srv/node/two");
    }

    #[test]
    fn a_pattern_that_is_none() {
        let section = Section::from_pairs(SECTION, &[("regex_pattern_1", "(")]);
        let error = Audit::read(&section).err().unwrap().to_string();
        assert!(error.contains("regex_pattern_1"), "{error}");
    }
}
