//! A store's built-in identity.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::report::Report;
use cairn_testkit::wire::{Account, Connection};
use cairn_testkit::workspace;
use serde_json::{Value, json};

use super::{Clients, Login, account, ask, expect};
use crate::keystone::{self, OTHER, OWNER, Somebody};

/// Two users of the identity file that [`check`] writes.
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
pub(super) fn check(report: &mut Report, clients: &Clients, dir: &Path) -> Result<()> {
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
