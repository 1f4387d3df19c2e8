//! Backup programs against Cairn: restic and duplicity, and rclone with Keystone's login. Each
//! backs up a tree and restores it elsewhere, and the bytes are compared.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use cairn_testkit::report::Report;
use cairn_testkit::trees::same_trees;
use cairn_testkit::workspace::{install, run_quiet, utf8};

/// A program's login; the names are those of OpenStack's environment variables.
#[derive(Clone, Copy)]
enum Login {
    V1,
    V3,
}

pub(crate) fn check(report: &mut Report, url: &str, tree: &Path, dir: &Path) {
    for (name, program, package, check) in [
        (
            "restic: backup and restore, v1",
            "restic",
            "restic",
            restic_v1 as Check,
        ),
        (
            "restic: backup and restore, v3",
            "restic",
            "restic",
            restic_v3,
        ),
        (
            "duplicity: backup and restore, v1",
            "duplicity",
            "duplicity",
            duplicity_v1,
        ),
        (
            "duplicity: backup and restore, v3",
            "duplicity",
            "duplicity",
            duplicity_v3,
        ),
        (
            "rclone: copy there and back, v3",
            "rclone",
            "rclone",
            rclone_v3,
        ),
    ] {
        // Debian's duplicity needs these to access Swift, but only suggests them.
        let has_library = program != "duplicity"
            || (has_module("swiftclient", "python3-swiftclient")
                && has_module("keystoneclient", "python3-keystoneclient"));
        if install(program, package) && has_library {
            report.check(name, || check(url, tree, dir));
        } else {
            report.skip(name, &format!("not installed (apt-get install {package})"));
        }
    }
}

type Check = fn(&str, &Path, &Path) -> Result<()>;

/// Is the module available to the system's Python? Installs the Debian package if we are root.
fn has_module(module: &str, package: &str) -> bool {
    let imports = || {
        let mut python = Command::new("/usr/bin/python3");
        run_quiet(python.args(["-c", &format!("import {module}")])).is_ok()
    };
    if imports() {
        return true;
    }
    // The package contains no program of its own name, so `install` always installs it.
    install(&format!("no program of {package}"), package);
    imports()
}

fn restic_v1(url: &str, tree: &Path, dir: &Path) -> Result<()> {
    restic(url, Login::V1, tree, &dir.join("restic-v1"))
}

fn restic_v3(url: &str, tree: &Path, dir: &Path) -> Result<()> {
    restic(url, Login::V3, tree, &dir.join("restic-v3"))
}

fn restic(url: &str, login: Login, tree: &Path, back: &Path) -> Result<()> {
    let container = match login {
        Login::V1 => "swift:restic-v1:/",
        Login::V3 => "swift:restic-v3:/folder",
    };
    let restic = |args: &[&str]| {
        let mut command = Command::new("restic");
        command
            .env("RESTIC_PASSWORD", "a password")
            .args(["--quiet", "--no-cache", "-r", container])
            .current_dir(tree);
        match login {
            Login::V1 => command
                .env("ST_AUTH", format!("{url}/auth/v1.0"))
                .env("ST_USER", "test:tester")
                .env("ST_KEY", "testing"),
            Login::V3 => command
                .env("OS_AUTH_URL", format!("{url}/v3"))
                .env("OS_USERNAME", "tester")
                .env("OS_PASSWORD", "testing")
                .env("OS_PROJECT_NAME", "test")
                .env("OS_USER_DOMAIN_NAME", "Default")
                .env("OS_PROJECT_DOMAIN_NAME", "Default")
                .env("OS_REGION_NAME", "RegionOne"),
        };
        run_quiet(command.args(args))
    };
    restic(&["init"])?;
    restic(&["backup", "."])?;
    restic(&["check", "--read-data"])?;
    restic(&["restore", "latest", "--target", utf8(back)?])?;
    same_trees(tree, back)
}

fn duplicity_v1(url: &str, tree: &Path, dir: &Path) -> Result<()> {
    duplicity(url, Login::V1, tree, &dir.join("duplicity-v1"))
}

fn duplicity_v3(url: &str, tree: &Path, dir: &Path) -> Result<()> {
    duplicity(url, Login::V3, tree, &dir.join("duplicity-v3"))
}

fn duplicity(url: &str, login: Login, tree: &Path, back: &Path) -> Result<()> {
    let container = match login {
        Login::V1 => "swift://duplicity-v1",
        Login::V3 => "swift://duplicity-v3",
    };
    let cache = back.with_extension("cache");
    let duplicity = |args: &[&str]| {
        let mut command = Command::new("duplicity");
        command
            .env("LC_ALL", "C.UTF-8")
            .env("SWIFT_PASSWORD", "testing")
            .args(["--no-encryption", "--archive-dir", utf8(&cache)?]);
        match login {
            // The part of its library that requests sizes reads a v1 login from these names only;
            // without them each request is retried for two minutes.
            Login::V1 => command
                .env("ST_AUTH", format!("{url}/auth/v1.0"))
                .env("ST_USER", "test:tester")
                .env("ST_KEY", "testing")
                .env("SWIFT_AUTHURL", format!("{url}/auth/v1.0"))
                .env("SWIFT_AUTHVERSION", "1")
                .env("SWIFT_USERNAME", "test:tester"),
            Login::V3 => command
                .env("SWIFT_AUTHURL", format!("{url}/v3"))
                .env("SWIFT_AUTHVERSION", "3")
                .env("SWIFT_USERNAME", "tester")
                .env("SWIFT_TENANTNAME", "test")
                .env("SWIFT_USER_DOMAIN_NAME", "Default")
                .env("SWIFT_PROJECT_DOMAIN_NAME", "Default"),
        };
        run_quiet(command.args(args))
    };
    duplicity(&[utf8(tree)?, container])?;
    duplicity(&["verify", "--compare-data", container, utf8(tree)?])?;
    duplicity(&["restore", container, utf8(back)?])?;
    same_trees(tree, back)
}

fn rclone_v3(url: &str, tree: &Path, dir: &Path) -> Result<()> {
    let back = dir.join("rclone-v3");
    let rclone = |args: &[&str]| {
        let mut command = Command::new("rclone");
        command
            .env("RCLONE_CONFIG", "/dev/null")
            .env("RCLONE_CONFIG_CAIRN_TYPE", "swift")
            .env("RCLONE_CONFIG_CAIRN_AUTH", format!("{url}/v3"))
            .env("RCLONE_CONFIG_CAIRN_AUTH_VERSION", "3")
            .env("RCLONE_CONFIG_CAIRN_USER", "tester")
            .env("RCLONE_CONFIG_CAIRN_KEY", "testing")
            .env("RCLONE_CONFIG_CAIRN_TENANT", "test")
            .env("RCLONE_CONFIG_CAIRN_DOMAIN", "Default")
            .env("RCLONE_CONFIG_CAIRN_TENANT_DOMAIN", "Default")
            .args(["--retries", "1", "--low-level-retries", "1", "--quiet"]);
        run_quiet(command.args(args))
    };
    rclone(&["copy", utf8(tree)?, "cairn:rclone-v3"])?;
    rclone(&["check", "--download", utf8(tree)?, "cairn:rclone-v3"])?;
    rclone(&["copy", "cairn:rclone-v3", utf8(&back)?])?;
    same_trees(tree, &back)?;
    rclone(&["purge", "cairn:rclone-v3"])?;
    Ok(())
}
