//! Logins by Keystone: a real one (`keystone.rs`) and a store's built-in identity.
//! python-swiftclient, the `openstack` client and a Java client (joss, from Maven Central) store,
//! list and read through both; then details of the protocol: lists across projects, service tokens,
//! expiry, revocation.

mod built_in;
mod external;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cairn_testkit::random::Random;
use cairn_testkit::report::Report;
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Connection;
use cairn_testkit::workspace::{self, install, root, run_quiet};

use crate::keystone::{KeystoneVenv, Somebody, Token};

pub(crate) fn run() -> Result<Report> {
    let clients = Clients {
        swift: Venv::prepare()?,
        openstack: KeystoneVenv::prepare()?,
        java: Java::prepare()?,
    };
    let dir = workspace::scratch("identity")?;
    let mut report = Report::default();
    external::check(&mut report, &clients, dir.path())?;
    built_in::check(&mut report, &clients, dir.path())?;
    Ok(report)
}

struct Clients {
    swift: Venv,
    openstack: KeystoneVenv,
    /// `None` without Java.
    java: Option<Java>,
}

/// Endpoint and user of a login.
struct Login<'a> {
    /// URL with the version.
    auth_url: String,
    who: &'a Somebody,
}

impl Login<'_> {
    fn environment(&self, command: &mut Command) {
        command
            .env("OS_AUTH_URL", &self.auth_url)
            .env("OS_IDENTITY_API_VERSION", "3")
            .env("OS_AUTH_TYPE", "password")
            .env("OS_USERNAME", self.who.name)
            .env("OS_PASSWORD", self.who.password)
            .env("OS_PROJECT_NAME", self.who.project)
            .env("OS_USER_DOMAIN_NAME", self.who.domain)
            .env("OS_PROJECT_DOMAIN_NAME", self.who.domain)
            .env("LC_ALL", "C.UTF-8");
    }
}

fn bytes(dir: &Path, name: &str) -> Result<PathBuf> {
    let file = dir.join(name);
    std::fs::write(&file, Random::new(7).bytes(300_000))?;
    Ok(file)
}

fn same(sent: &Path, got: &Path) -> Result<()> {
    ensure!(
        std::fs::read(sent)? == std::fs::read(got)?,
        "came back different"
    );
    Ok(())
}

impl Clients {
    /// Runs python-swiftclient; `auth` adds the login's arguments.
    fn swiftclient(&self, dir: &Path, auth: &dyn Fn(&mut Command)) -> Result<()> {
        let swift = |args: &[&str]| {
            let mut command = self.swift.program("swift");
            auth(&mut command);
            run_quiet(command.current_dir(dir).args(args))
        };
        let sent = bytes(dir, "swift-sent")?;
        swift(&[
            "upload",
            "--quiet",
            "by-swift",
            "swift-sent",
            "--object-name",
            "a b/é",
        ])?;
        let listed = swift(&["list", "by-swift"])?;
        ensure!(listed.trim() == "a b/é", "listed: {listed}");
        swift(&["download", "by-swift", "a b/é", "--output", "swift-got"])?;
        same(&sent, &dir.join("swift-got"))?;
        swift(&["delete", "--quiet", "by-swift"])?;
        Ok(())
    }

    fn swiftclient_v3(&self, dir: &Path, login: &Login<'_>) -> Result<()> {
        self.swiftclient(dir, &|command| {
            login.environment(command);
            command.args(["--auth-version", "3"]);
        })
    }

    fn openstack(&self, login: &Login<'_>, args: &[&str]) -> Result<String> {
        let mut command = self.openstack.program("openstack");
        login.environment(&mut command);
        run_quiet(command.args(args))
    }

    fn openstackclient(&self, dir: &Path, login: &Login<'_>) -> Result<()> {
        let openstack = |args: &[&str]| self.openstack(login, args);
        let sent = bytes(dir, "openstack-sent")?;
        let sent_text = sent.to_str().context("path")?;
        let got = dir.join("openstack-got");
        openstack(&["container", "create", "by-openstack"])?;
        openstack(&["object", "create", "by-openstack", sent_text, "--name", "o"])?;
        let listed = openstack(&["object", "list", "by-openstack", "-f", "value"])?;
        ensure!(listed.trim() == "o", "listed: {listed}");
        let got_text = got.to_str().context("path")?;
        openstack(&["object", "save", "by-openstack", "o", "--file", got_text])?;
        same(&sent, &got)?;
        openstack(&["container", "delete", "--recursive", "by-openstack"])?;
        Ok(())
    }

    fn java(&self, report: &mut Report, name: &str, args: &[&str]) {
        match &self.java {
            Some(java) => report.check(name, || java.store_and_fetch(args)),
            None => report.skip(
                name,
                "no JDK and Maven (apt-get install default-jdk-headless maven)",
            ),
        }
    }
}

/// A Java client, compiled from `xtask/java`.
struct Java {
    classpath: String,
}

impl Java {
    fn prepare() -> Result<Option<Java>> {
        if !(install("javac", "default-jdk-headless") && install("mvn", "maven")) {
            return Ok(None);
        }
        let source = root().join("xtask/java");
        let built = workspace::results("java")?;
        let listed = built.join("classpath");
        let mut maven = Command::new("mvn");
        maven.args(["--quiet", "--batch-mode", "dependency:build-classpath"]);
        maven.arg(format!("-Dmdep.outputFile={}", listed.display()));
        run_quiet(maven.arg("--file").arg(source.join("pom.xml")))
            .context("fetching joss from Maven Central")?;
        let jars = std::fs::read_to_string(&listed)?;
        let mut javac = Command::new("javac");
        javac
            .args(["-encoding", "UTF-8", "-cp", jars.trim(), "-d"])
            .arg(&built);
        run_quiet(javac.arg(source.join("src/main/java/StoreAndFetch.java")))?;
        let classpath = format!("{}:{}", jars.trim(), built.display());
        Ok(Some(Java { classpath }))
    }

    fn store_and_fetch(&self, args: &[&str]) -> Result<()> {
        let mut java = Command::new("java");
        java.args(["-cp", &self.classpath, "StoreAndFetch"]);
        let said = run_quiet(java.args(args))?;
        ensure!(
            said.contains("stored, listed and fetched 300000 bytes"),
            "{said}"
        );
        Ok(())
    }
}

/// Sends a request with a token; returns the status.
fn ask(port: u16, token: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<u16> {
    let mut all = vec![("X-Auth-Token", token)];
    all.extend_from_slice(headers);
    Ok(Connection::new(port).call(method, path, &all, b"")?.status)
}

fn expect(what: &str, got: u16, wanted: u16) -> Result<()> {
    ensure!(got == wanted, "{what}: {got}, not {wanted}");
    Ok(())
}

fn account(token: &Token) -> String {
    format!("/v1/AUTH_{}", token.project_id)
}
