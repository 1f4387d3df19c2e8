//! Logins by Keystone: a real one (`keystone.rs`) and a store's built-in identity.
//! python-swiftclient, the `openstack` client and a Java client (joss, from Maven Central) store,
//! list and read through both; then details of the protocol: lists across projects, service tokens,
//! expiry, revocation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::keystone::{
    self, FOREIGNER, Keystone, KeystoneVenv, MEMBER, OTHER, OWNER, RESELLER, SWIFT, Somebody, Token,
};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::random::Random;
use cairn_testkit::report::Report;
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::{Account, Connection};
use cairn_testkit::workspace::{self, install, root, run_quiet};

/// Seconds for which the store under test caches a token.
const CACHE_TIME: u64 = 5;

pub(crate) fn run() -> Result<Report> {
    let clients = Clients {
        swift: Venv::prepare()?,
        openstack: KeystoneVenv::prepare()?,
        java: Java::prepare()?,
    };
    let dir = workspace::scratch("identity")?;
    let mut report = Report::default();
    real(&mut report, &clients, dir.path())?;
    built_in(&mut report, &clients, dir.path())?;
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

/// Tests a store with an external Keystone.
fn real(report: &mut Report, clients: &Clients, dir: &Path) -> Result<()> {
    let mut keystone = Keystone::create(&dir.join("keystone"))?;
    keystone.start()?;
    let mut store = Cairn::create(&workspace::build_cairn()?, &dir.join("asking"), None)?;
    ask_keystone(&store, keystone.port)?;
    keystone.populate(store.port())?;
    store.start(Spread::OneProcess)?;
    let (keystone_port, port) = (keystone.port, store.port());
    let login = Login {
        auth_url: format!("http://127.0.0.1:{keystone_port}/v3"),
        who: &OWNER,
    };
    report.check("Keystone: tokens are validated, roles decide", || {
        roles(keystone_port, port)
    });
    report.check("Keystone: lists across projects and domains", || {
        lists(keystone_port, port)
    });
    report.check("Keystone: service tokens", || {
        service_tokens(keystone_port, port)
    });
    report.check("Keystone: python-swiftclient, v3", || {
        clients.swiftclient_v3(dir, &login)
    });
    report.check("Keystone: openstack, v3", || {
        clients.openstackclient(dir, &login)
    });
    let auth_url = format!("{}/auth/tokens", login.auth_url);
    let java = [
        "KEYSTONE_V3",
        &auth_url,
        "tester",
        "testing",
        "test",
        "Default",
    ];
    clients.java(report, "Keystone: joss (Java), v3", &java);
    report.check(
        "Keystone: a revoked token ends within the cache's time",
        || revoked(keystone_port, port),
    );
    report.check(
        "Keystone: an expired token ends; with no Keystone none is taken",
        || expired(&mut keystone, port),
    );
    report.check("SIGTERM ends the store that asks Keystone", || store.stop());
    Ok(())
}

/// Configures the proxy like an operator with a Keystone.
fn ask_keystone(store: &Cairn, port: u16) -> Result<()> {
    let conf = store.conf("proxy").context("no proxy conf")?;
    let text = std::fs::read_to_string(&conf)?;
    let own = "identity keystoneauth tempauth";
    ensure!(text.contains(own), "{} has no {own}", conf.display());
    let text = text.replace(own, "authtoken keystoneauth");
    let filter = format!(
        "\n[filter:authtoken]\n\
         paste.filter_factory = keystonemiddleware.auth_token:filter_factory\n\
         www_authenticate_uri = http://127.0.0.1:{port}\n\
         auth_url = http://127.0.0.1:{port}\n\
         auth_type = password\n\
         username = {}\npassword = {}\nproject_name = {}\n\
         user_domain_id = default\nproject_domain_id = default\n\
         delay_auth_decision = true\n\
         token_cache_time = {CACHE_TIME}\n",
        SWIFT.name, SWIFT.password, SWIFT.project
    );
    Ok(std::fs::write(&conf, text + &filter)?)
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

fn roles(keystone_port: u16, port: u16) -> Result<()> {
    let owner = keystone::log_in(keystone_port, &OWNER)?;
    let own = account(&owner);
    let refused = Connection::new(port).call("GET", &own, &[], b"")?;
    expect("nobody", refused.status, 401)?;
    let wanted = refused
        .headers
        .iter()
        .filter(|(name, _)| name == "www-authenticate");
    let said: Vec<&str> = wanted.map(|(_, value)| value.as_str()).collect();
    ensure!(
        said.iter().any(|v| v.starts_with("Keystone uri=")),
        "{said:?}"
    );
    expect(
        "no token",
        ask(port, "gAAAAAnonsense", "GET", &own, &[])?,
        401,
    )?;
    expect(
        "owner",
        ask(port, &owner.text, "PUT", &format!("{own}/c"), &[])?,
        201,
    )?;
    let forged = [
        ("X-Roles", "admin"),
        ("X-Identity-Status", "Confirmed"),
        ("X-Project-Id", "x"),
    ];
    expect("forged", ask(port, "", "GET", &own, &forged)?, 401)?;
    for (who, method, wanted) in [
        (&MEMBER, "GET", 403),
        (&OTHER, "GET", 403),
        (&FOREIGNER, "PUT", 403),
        (&RESELLER, "GET", 204),
        (&RESELLER, "PUT", 202),
    ] {
        let token = keystone::log_in(keystone_port, who)?;
        let got = ask(port, &token.text, method, &format!("{own}/c"), &[])?;
        expect(&format!("{} of {}", who.name, who.domain), got, wanted)?;
    }
    expect(
        "own account",
        ask(port, &owner.text, "DELETE", &own, &[])?,
        403,
    )?;
    let headers = [("X-Auth-Token", owner.text.as_str())];
    let shown = Connection::new(port).call("HEAD", &own, &headers, b"")?;
    let domain = shown.header("x-account-project-domain-id");
    ensure!(
        domain == Some("default"),
        "the account's domain: {domain:?}"
    );
    Ok(())
}

fn lists(keystone_port: u16, port: u16) -> Result<()> {
    let owner = keystone::log_in(keystone_port, &OWNER)?;
    let other = keystone::log_in(keystone_port, &OTHER)?;
    let member = keystone::log_in(keystone_port, &MEMBER)?;
    let foreigner = keystone::log_in(keystone_port, &FOREIGNER)?;
    let container = format!("{}/shared", account(&owner));
    expect(
        "container",
        ask(port, &owner.text, "PUT", &container, &[])?,
        201,
    )?;
    let object = format!("{container}/o");
    expect("object", ask(port, &owner.text, "PUT", &object, &[])?, 201)?;
    let by_id = |token: &Token| format!("{}:{}", token.project_id, token.user_id);
    for (acl, other_gets, member_gets, foreigner_gets, nobody_gets) in [
        ("", 403, 403, 403, 401),
        (by_id(&other).as_str(), 200, 403, 403, 401),
        (&format!("*:{}", other.user_id), 200, 403, 403, 401),
        (&format!("{}:*", other.project_id), 200, 403, 403, 401),
        ("test2:tester2", 200, 403, 403, 401),
        (&by_id(&foreigner), 403, 403, 200, 401),
        ("*:*", 200, 200, 200, 401),
        ("member", 403, 200, 403, 401),
        (".r:*", 200, 200, 200, 200),
        (".r:*,.rlistings", 200, 200, 200, 200),
    ] {
        let set = [("X-Container-Read", acl)];
        expect(acl, ask(port, &owner.text, "POST", &container, &set)?, 204)?;
        for (who, token, wanted) in [
            ("other", other.text.as_str(), other_gets),
            ("member", &member.text, member_gets),
            ("foreigner", &foreigner.text, foreigner_gets),
            ("nobody", "", nobody_gets),
        ] {
            let got = ask(port, token, "GET", &object, &[])?;
            expect(&format!("{acl:?} for {who}"), got, wanted)?;
        }
    }
    let set = [("X-Container-Write", by_id(&other))];
    let set = set.each_ref().map(|(name, value)| (*name, value.as_str()));
    expect(
        "a list of writers",
        ask(port, &owner.text, "POST", &container, &set)?,
        204,
    )?;
    expect(
        "a writer",
        ask(port, &other.text, "PUT", &object, &[])?,
        201,
    )
}

fn service_tokens(keystone_port: u16, port: u16) -> Result<()> {
    let owner = keystone::log_in(keystone_port, &OWNER)?;
    let service = keystone::log_in(keystone_port, &SWIFT)?;
    let other = keystone::log_in(keystone_port, &OTHER)?;
    let path = format!("/v1/SERVICE_{}/c", owner.project_id);
    expect("without", ask(port, &owner.text, "PUT", &path, &[])?, 403)?;
    let with = |token: &Token| {
        let headers = [("X-Service-Token", token.text.as_str())];
        ask(port, &owner.text, "PUT", &path, &headers)
    };
    expect("with a user's", with(&other)?, 401)?;
    expect("with a service's", with(&service)?, 201)
}

fn revoked(keystone_port: u16, port: u16) -> Result<()> {
    let token = keystone::log_in(keystone_port, &OWNER)?;
    let own = account(&token);
    expect("before", ask(port, &token.text, "HEAD", &own, &[])?, 204)?;
    keystone::revoke(keystone_port, &token.text)?;
    sleep(Duration::from_secs(CACHE_TIME + 1));
    expect("after", ask(port, &token.text, "HEAD", &own, &[])?, 401)
}

fn expired(keystone: &mut Keystone, port: u16) -> Result<()> {
    const LIFE: u32 = 5;
    keystone.stop();
    keystone.write_conf(LIFE)?;
    keystone.start()?;
    let token = keystone::log_in(keystone.port, &OWNER)?;
    let own = account(&token);
    expect("before", ask(port, &token.text, "HEAD", &own, &[])?, 204)?;
    sleep(Duration::from_secs(u64::from(LIFE) + 1));
    expect("after", ask(port, &token.text, "HEAD", &own, &[])?, 401)?;
    let token = keystone::log_in(keystone.port, &OWNER)?;
    keystone.stop();
    // Anonymous requests are left to keystoneauth here, for public containers.
    expect(
        "no Keystone",
        ask(port, &token.text, "HEAD", &own, &[])?,
        401,
    )
}

/// Two users of the identity file that [`built_in`] writes.
const ALICE: Somebody = Somebody {
    name: "alice",
    password: "wonderland",
    project: "photos",
    ..OWNER
};
const IDENTITY_CONF: &str = "\
[project:photos]
id = 3f2a
[user:alice]
password = wonderland
roles = photos: swiftoperator, films: member
default_project = photos
[user:root]
password = toor
roles = films: admin
";

/// Tests a store with the built-in identity.
fn built_in(report: &mut Report, clients: &Clients, dir: &Path) -> Result<()> {
    let mut store = Cairn::create(&workspace::build_cairn()?, &dir.join("own"), None)?;
    let conf = store.conf("proxy").context("no proxy conf")?;
    std::fs::write(conf.with_file_name("identity.conf"), IDENTITY_CONF)?;
    store.start(Spread::OneProcess)?;
    let (port, url) = (store.port(), store.url());
    let login = |who| Login {
        auth_url: format!("{url}/v3"),
        who,
    };
    report.check("own identity: python-swiftclient, v3", || {
        clients.swiftclient_v3(dir, &login(&OWNER))?;
        clients.swiftclient_v3(dir, &login(&ALICE))
    });
    report.check("own identity: python-swiftclient, v2.0 and v1", || {
        for (version, path) in [("2.0", "v2.0"), ("1.0", "auth/v1.0")] {
            clients.swiftclient(dir, &|command| {
                let auth_url = format!("{url}/{path}");
                command.args(["--auth-version", version, "-A", &auth_url]);
                command.args(["-U", "test:tester", "-K", "testing"]);
            })?;
        }
        Ok(())
    });
    report.check("own identity: openstack, v3: objects", || {
        clients.openstackclient(dir, &login(&OWNER))
    });
    report.check(
        "own identity: openstack, v3: token, catalog, projects, users, roles",
        || openstack_lists(clients, &url),
    );
    for (name, method, path, rest) in [
        (
            "own identity: joss (Java), v3",
            "KEYSTONE_V3",
            "v3/auth/tokens",
            Some("Default"),
        ),
        (
            "own identity: joss (Java), v2.0",
            "KEYSTONE",
            "v2.0/tokens",
            None,
        ),
    ] {
        let auth_url = format!("{url}/{path}");
        let mut args = vec![method, &auth_url, "tester", "testing", "test"];
        args.extend(rest);
        clients.java(report, name, &args);
    }
    report.check("own identity: v2.0 with username:tenant", || {
        names_with_tenants(port)
    });
    report.check("own identity: one account by v1, v2.0 and v3", || {
        one_account(port)
    });
    report.check("own identity: a user of several projects", || {
        several_projects(port)
    });
    report.check(
        "own identity: tokens outlive a restart, revoked ones do not",
        || {
            let kept = keystone::log_in(port, &OWNER)?;
            let ended = keystone::log_in(port, &OWNER)?;
            keystone::revoke(port, &ended.text)?;
            expect(
                "ended",
                ask(port, &ended.text, "HEAD", &account(&ended), &[])?,
                401,
            )?;
            store.stop()?;
            store.start(Spread::OneProcess)?;
            expect(
                "kept",
                ask(port, &kept.text, "HEAD", &account(&kept), &[])?,
                204,
            )?;
            expect(
                "ended",
                ask(port, &ended.text, "HEAD", &account(&ended), &[])?,
                401,
            )
        },
    );
    report.check("SIGTERM ends the store with its own identity", || {
        store.stop()
    });
    Ok(())
}

fn openstack_lists(clients: &Clients, url: &str) -> Result<()> {
    let auth_url = format!("{url}/v3");
    let root = Somebody {
        name: "root",
        password: "toor",
        project: "films",
        ..OWNER
    };
    for (who, args, wanted) in [
        (
            &ALICE,
            &["token", "issue", "-f", "value", "-c", "project_id"][..],
            "3f2a",
        ),
        (&ALICE, &["catalog", "list"], "/v1/AUTH_3f2a"),
        (&ALICE, &["project", "list", "-f", "value"], "films"),
        (&ALICE, &["object", "store", "account", "show"], "3f2a"),
        (&root, &["project", "list", "-f", "value"], "photos"),
        (&root, &["project", "show", "photos"], "3f2a"),
        (&root, &["user", "list", "-f", "value"], "alice"),
        (&root, &["user", "show", "alice"], "alice"),
        (&root, &["role", "list", "-f", "value"], "swiftoperator"),
        (
            &root,
            &["role", "assignment", "list", "--names"],
            "alice@Default",
        ),
    ] {
        let login = Login {
            auth_url: auth_url.clone(),
            who,
        };
        let said = clients.openstack(&login, args)?;
        ensure!(
            said.contains(wanted),
            "openstack {args:?} said no {wanted}:\n{said}"
        );
    }
    Ok(())
}

/// A v2.0 login like that of clients without a field for the tenant; returns the storage path.
fn v2(port: u16, user: &str, password: &str, tenant: Option<&str>) -> Result<(String, String)> {
    let mut body = json!({ "auth": { "passwordCredentials": {
        "username": user, "password": password,
    }}});
    if let Some(tenant) = tenant {
        body["auth"]["tenantName"] = tenant.into();
    }
    let answer = keystone::call(port, "POST", "/v2.0/tokens", None, Some(&body))?;
    ensure!(
        answer.status == 200,
        "{user}: {} {}",
        answer.status,
        answer.text()
    );
    let access: Value = serde_json::from_slice(&answer.body)?;
    let access = &access["access"];
    let services = access["serviceCatalog"].as_array().context("no catalog")?;
    let swift = services
        .iter()
        .find(|service| service["type"] == "object-store");
    let url = swift.and_then(|service| service["endpoints"][0]["publicURL"].as_str());
    let path = url
        .and_then(|url| url.splitn(4, '/').nth(3))
        .context("no URL")?;
    let token = access["token"]["id"].as_str().context("no token")?;
    Ok((token.to_owned(), format!("/{path}")))
}

fn names_with_tenants(port: u16) -> Result<()> {
    for (user, tenant) in [
        ("tester:test", None),
        ("test:tester", None),
        ("tester", Some("test")),
        // Split by the client, in the wrong order.
        ("test", Some("tester")),
    ] {
        let (token, path) = v2(port, user, "testing", tenant)?;
        ensure!(path == "/v1/AUTH_test", "{user}: {path}");
        expect(user, ask(port, &token, "HEAD", &path, &[])?, 204)?;
    }
    let (token, path) = v2(port, "alice:photos", "wonderland", None)?;
    expect("alice:photos", ask(port, &token, "HEAD", &path, &[])?, 204)?;
    ensure!(
        v2(port, "tester:test", "wrong", None).is_err(),
        "a wrong password is taken"
    );
    Ok(())
}

fn one_account(port: u16) -> Result<()> {
    let mut v1 = Account::login(port)?;
    v1.must("PUT", "/shared", "", &[], b"")?;
    v1.must("PUT", "/shared/o", "", &[], b"by v1")?;
    let v3 = keystone::log_in(port, &OWNER)?;
    let (v2, _) = v2(port, "tester:test", "testing", None)?;
    for (name, token) in [("v2.0", &v2), ("v3", &v3.text)] {
        let headers = [("X-Auth-Token", token.as_str())];
        let got = Connection::new(port).call("GET", "/v1/AUTH_test/shared/o", &headers, b"")?;
        ensure!(
            got.text() == "by v1",
            "{name}: {} {}",
            got.status,
            got.text()
        );
    }
    // Another user, authorized by an ACL that v1 sets and v3 applies, and vice versa.
    let other = keystone::log_in(port, &OTHER)?;
    let mut other_v1 = Account::login_as(port, "test2:tester2", "testing2")?;
    let object = "/v1/AUTH_test/shared/o";
    expect("before", ask(port, &other.text, "GET", object, &[])?, 403)?;
    v1.must(
        "POST",
        "/shared",
        "",
        &[("X-Container-Read", "test2:tester2")],
        b"",
    )?;
    expect("v3", ask(port, &other.text, "GET", object, &[])?, 200)?;
    let list = [("X-Container-Read", "")];
    expect(
        "none",
        ask(port, &v3.text, "POST", "/v1/AUTH_test/shared", &list)?,
        204,
    )?;
    other_v1.path = "/v1/AUTH_test".into();
    expect(
        "v1",
        other_v1.call("GET", "/shared/o", "", &[], b"")?.status,
        403,
    )?;
    let list = [("X-Container-Read", "test2:tester2")];
    expect(
        "set",
        ask(port, &v3.text, "POST", "/v1/AUTH_test/shared", &list)?,
        204,
    )?;
    expect(
        "v1",
        other_v1.call("GET", "/shared/o", "", &[], b"")?.status,
        200,
    )
}

fn several_projects(port: u16) -> Result<()> {
    let photos = keystone::log_in(port, &ALICE)?;
    let films = Somebody {
        project: "films",
        ..ALICE
    };
    let films = keystone::log_in(port, &films)?;
    ensure!(photos.user_id == films.user_id, "one user has two ids");
    expect(
        "operator",
        ask(port, &photos.text, "PUT", "/v1/AUTH_3f2a/c", &[])?,
        201,
    )?;
    expect(
        "member",
        ask(port, &films.text, "PUT", "/v1/AUTH_films/c", &[])?,
        403,
    )?;
    expect(
        "other project",
        ask(port, &films.text, "GET", "/v1/AUTH_3f2a/c", &[])?,
        403,
    )?;
    let elsewhere = Somebody {
        project: "test",
        ..ALICE
    };
    ensure!(
        keystone::log_in(port, &elsewhere).is_err(),
        "alice has no role on test"
    );
    Ok(())
}
