//! A real Keystone on loopback, from PyPI: SQLite, Fernet tokens, under uwsgi. With projects, users
//! and roles for a store whose address is in its catalog.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use cairn_testkit::process::{Process, free_ports};
use cairn_testkit::wire::{Connection, Response};
use cairn_testkit::workspace::{cache, install, run_quiet, utf8};

/// Packages in tested versions.
const PACKAGES: [&str; 4] = [
    "keystone==30.0.0",
    "uwsgi==2.0.31",
    "python-openstackclient==10.5.0",
    "setuptools<81",
];

/// The environment with Keystone and the `openstack` client; installed once into the cache.
pub(crate) struct KeystoneVenv {
    bin: PathBuf,
}

impl KeystoneVenv {
    pub(crate) fn prepare() -> Result<KeystoneVenv> {
        let home = cache()?;
        let venv = KeystoneVenv {
            bin: home.join("keystone-venv/bin"),
        };
        let ready = home.join("ready-keystone-30.0.0");
        if !ready.exists() {
            eprintln!(
                "fetching Keystone and its client into {} (once)",
                home.display()
            );
            std::fs::create_dir_all(&home)?;
            let create = || {
                let mut python = Command::new("python3");
                run_quiet(python.args(["-m", "venv"]).arg(home.join("keystone-venv")))
            };
            if create().is_err() {
                install("ensurepip", "python3-venv");
                create()?;
            }
            let mut pip = venv.program("pip");
            pip.args(["install", "--quiet", "--disable-pip-version-check"]);
            run_quiet(pip.args(PACKAGES)).context("fetching Keystone from PyPI")?;
            std::fs::write(&ready, "")?;
        }
        Ok(venv)
    }

    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.bin.join(name))
    }
}

pub(crate) struct Keystone {
    venv: KeystoneVenv,
    dir: PathBuf,
    pub(crate) port: u16,
    process: Option<Process>,
}

/// A user created by [`Keystone::populate`].
#[derive(Clone, Copy)]
pub(crate) struct Somebody {
    pub(crate) name: &'static str,
    pub(crate) password: &'static str,
    pub(crate) project: &'static str,
    pub(crate) domain: &'static str,
    pub(crate) roles: &'static [&'static str],
}

const fn somebody(
    name: &'static str,
    password: &'static str,
    project: &'static str,
    roles: &'static [&'static str],
) -> Somebody {
    Somebody {
        name,
        password,
        project,
        domain: "Default",
        roles,
    }
}

/// The store's service user.
pub(crate) const SWIFT: Somebody = somebody("swift", "swiftpw", "service", &["admin", "service"]);
/// An owner of its project's account.
pub(crate) const OWNER: Somebody =
    somebody("tester", "testing", "test", &["member", "swiftoperator"]);
pub(crate) const OTHER: Somebody = somebody("tester2", "testing2", "test2", &["swiftoperator"]);
/// A member of the owner's project without ownership.
pub(crate) const MEMBER: Somebody = somebody("tester3", "testing3", "test", &["member"]);
pub(crate) const RESELLER: Somebody =
    somebody("reseller", "resellerpw", "service", &["ResellerAdmin"]);
/// A user of another domain, with names that also exist in the default one.
pub(crate) const FOREIGNER: Somebody = Somebody {
    domain: "elsewhere",
    ..somebody("tester2", "testing5", "test2", &["swiftoperator"])
};
const PEOPLE: [Somebody; 6] = [SWIFT, OWNER, OTHER, MEMBER, RESELLER, FOREIGNER];

/// A token and its content.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) user_id: String,
    pub(crate) project_id: String,
}

/// Logs in by v3, to a Keystone or to a store's built-in identity.
pub(crate) fn log_in(port: u16, who: &Somebody) -> Result<Token> {
    let domain = json!({ "name": who.domain });
    let body = json!({ "auth": {
        "identity": { "methods": ["password"], "password": { "user": {
            "name": who.name, "password": who.password, "domain": domain,
        }}},
        "scope": { "project": { "name": who.project, "domain": domain } },
    }});
    let answer = call(port, "POST", "/v3/auth/tokens", None, Some(&body))?;
    ensure!(
        answer.status == 201,
        "login: {} {}",
        answer.status,
        answer.text()
    );
    let described: Value = serde_json::from_slice(&answer.body)?;
    let id = |what: &str| {
        let id = described["token"][what]["id"].as_str();
        Ok::<_, anyhow::Error>(id.with_context(|| format!("no {what}"))?.to_owned())
    };
    Ok(Token {
        text: answer
            .header("x-subject-token")
            .context("no token")?
            .to_owned(),
        user_id: id("user")?,
        project_id: id("project")?,
    })
}

/// Revokes a token.
pub(crate) fn revoke(port: u16, token: &str) -> Result<()> {
    let headers = [("X-Auth-Token", token), ("X-Subject-Token", token)];
    let answer = Connection::new(port).call("DELETE", "/v3/auth/tokens", &headers, b"")?;
    ensure!(
        answer.status == 204,
        "revoking: {} {}",
        answer.status,
        answer.text()
    );
    Ok(())
}

pub(crate) fn call(
    port: u16,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> Result<Response> {
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(token.map(|token| ("X-Auth-Token", token)));
    let body = body.map(Value::to_string).unwrap_or_default();
    Connection::new(port).call(method, path, &headers, body.as_bytes())
}

impl Keystone {
    /// Creates its database below `dir`; starts nothing.
    pub(crate) fn create(dir: &Path) -> Result<Keystone> {
        let keystone = Keystone {
            venv: KeystoneVenv::prepare()?,
            dir: dir.to_owned(),
            port: free_ports(1)?[0],
            process: None,
        };
        for folder in ["log", "fernet-keys", "credential-keys"] {
            std::fs::create_dir_all(dir.join(folder))?;
        }
        keystone.write_conf(3600)?;
        let id = |flag: &str| run_quiet(Command::new("id").arg(flag));
        let (user, group) = (id("-un")?, id("-gn")?);
        let owner = [
            "--keystone-user",
            user.trim(),
            "--keystone-group",
            group.trim(),
        ];
        let url = format!("http://127.0.0.1:{}/v3/", keystone.port);
        keystone.manage(&["db_sync"])?;
        keystone.manage(&[&["fernet_setup"], &owner[..]].concat())?;
        keystone.manage(&[&["credential_setup"], &owner[..]].concat())?;
        keystone.manage(&[
            "bootstrap",
            "--bootstrap-password",
            "secret",
            "--bootstrap-region-id",
            "RegionOne",
            "--bootstrap-admin-url",
            &url,
            "--bootstrap-internal-url",
            &url,
            "--bootstrap-public-url",
            &url,
        ])?;
        Ok(keystone)
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("keystone.conf")
    }

    /// Writes the conf; `expiration` is the lifetime in seconds of tokens issued after the next
    /// start.
    pub(crate) fn write_conf(&self, expiration: u32) -> Result<()> {
        let dir = self.dir.display();
        let text = format!(
            "[DEFAULT]\nlog_dir = {dir}/log\n[database]\nconnection = sqlite:///{dir}/keystone.db\n\
             [token]\nprovider = fernet\nexpiration = {expiration}\n\
             [fernet_tokens]\nkey_repository = {dir}/fernet-keys\n\
             [credential]\nkey_repository = {dir}/credential-keys\n[cache]\nenabled = false\n"
        );
        Ok(std::fs::write(self.conf(), text)?)
    }

    fn manage(&self, args: &[&str]) -> Result<()> {
        let mut command = self.venv.program("keystone-manage");
        command.arg("--config-file").arg(self.conf()).args(args);
        run_quiet(&mut command).map(|_| ())
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let socket = format!("127.0.0.1:{}", self.port);
        let conf = self.conf();
        let venv = self.venv.bin.parent().context("an environment's folder")?;
        let (conf, venv) = (utf8(&conf)?, utf8(venv)?);
        let environment = format!("OS_KEYSTONE_CONFIG_FILES={conf}");
        let folder = format!("OS_KEYSTONE_CONFIG_DIR={}", utf8(&self.dir)?);
        let args = [
            "--http-socket",
            &socket,
            "--module",
            "keystone.wsgi.api:application",
            "--venv",
            venv,
            "--env",
            &environment,
            "--env",
            &folder,
            "--add-header",
            "Connection: close",
            "--buffer-size",
            "65535",
            "--master",
            "--die-on-term",
            "--processes",
            "2",
            "--threads",
            "2",
            "--enable-threads",
            "--lazy-apps",
        ];
        let uwsgi = self.venv.bin.join("uwsgi");
        let mut process = Process::start("keystone", &uwsgi, &args, &self.dir.join("log"))?;
        process.wait_for_answer((Ipv4Addr::LOCALHOST, self.port), "/v3", 120)?;
        self.process = Some(process);
        Ok(())
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::TERM);
            process.stop();
        }
    }

    /// Creates users, projects, roles, and a catalog with the store on `swift_port`.
    pub(crate) fn populate(&self, swift_port: u16) -> Result<()> {
        let admin = Somebody {
            ..somebody("admin", "secret", "admin", &[])
        };
        let token = log_in(self.port, &admin)?.text;
        let post = |what: &str, many: &str, body: Value| -> Result<String> {
            let body = json!({ what: body });
            let answer = call(
                self.port,
                "POST",
                &format!("/v3/{many}"),
                Some(&token),
                Some(&body),
            )?;
            ensure!(
                answer.status == 201,
                "{body}: {} {}",
                answer.status,
                answer.text()
            );
            let made: Value = serde_json::from_slice(&answer.body)?;
            Ok(made[what]["id"].as_str().context("no id")?.to_owned())
        };
        let elsewhere = post("domain", "domains", json!({ "name": "elsewhere" }))?;
        let domain_id = |name: &str| {
            if name == "Default" {
                "default"
            } else {
                &elsewhere
            }
        };
        for role in ["swiftoperator", "ResellerAdmin"] {
            post("role", "roles", json!({ "name": role }))?;
        }
        let listed = call(self.port, "GET", "/v3/roles", Some(&token), None)?;
        let listed: Value = serde_json::from_slice(&listed.body)?;
        let role_id = |name: &str| {
            let roles = listed["roles"].as_array().into_iter().flatten();
            let role = roles.into_iter().find(|role| role["name"] == name);
            let id = role.and_then(|role| role["id"].as_str());
            id.with_context(|| format!("no role {name}"))
        };
        let mut projects: Vec<((&str, &str), String)> = Vec::new();
        for who in &PEOPLE {
            let key = (who.domain, who.project);
            let known = projects.iter().find(|(of, _)| *of == key);
            let project = match known {
                Some((_, id)) => id.clone(),
                None => {
                    let body = json!({ "name": who.project, "domain_id": domain_id(who.domain) });
                    let id = post("project", "projects", body)?;
                    projects.push((key, id.clone()));
                    id
                }
            };
            let body = json!({
                "name": who.name,
                "password": who.password,
                "domain_id": domain_id(who.domain),
            });
            let user = post("user", "users", body)?;
            for role in who.roles {
                let path = format!(
                    "/v3/projects/{project}/users/{user}/roles/{}",
                    role_id(role)?
                );
                let answer = call(self.port, "PUT", &path, Some(&token), None)?;
                ensure!(answer.status == 204, "{path}: {}", answer.status);
            }
        }
        let service = json!({ "name": "swift", "type": "object-store" });
        let service = post("service", "services", service)?;
        for interface in ["public", "internal"] {
            let endpoint = json!({
                "service_id": service,
                "interface": interface,
                "region_id": "RegionOne",
                "url": format!("http://127.0.0.1:{swift_port}/v1/AUTH_%(tenant_id)s"),
            });
            post("endpoint", "endpoints", endpoint)?;
        }
        Ok(())
    }
}

impl Drop for Keystone {
    fn drop(&mut self) {
        self.stop();
    }
}
