//! A store that asks a real Keystone.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::report::Report;
use cairn_testkit::wire::Connection;
use cairn_testkit::workspace;

use super::{Clients, Login, account, ask, expect};
use crate::keystone::{self, FOREIGNER, Keystone, MEMBER, OTHER, OWNER, RESELLER, SWIFT, Token};

/// Seconds for which the store under test caches a token.
const CACHE_TIME: u64 = 5;

/// Tests a store with an external Keystone.
pub(super) fn check(report: &mut Report, clients: &Clients, dir: &Path) -> Result<()> {
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
