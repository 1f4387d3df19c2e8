//! A server's conf file, or folder of them: the server it describes, the pipeline in front of it,
//! and the sections of daemons beside it.
//!
//! Features of Paste Deploy beyond `egg:swift#…` (other eggs, `config:` references, composite apps)
//! would load Python code; they are refused with the section's name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cairn_formats::ini::{Conf, Section};

use crate::role::{DaemonKind, Role};
use crate::similar::did_you_mean;

/// One middleware of a pipeline.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Name in the pipeline.
    pub name: String,
    /// Entry point in `use = egg:swift#…`.
    pub entry_point: String,
    /// Options, with defaults from `[DEFAULT]`.
    pub section: Section,
}

/// A parsed conf file: the structure is checked, the values are not.
#[derive(Clone, Debug)]
pub struct ServerConf {
    pub path: PathBuf,
    pub role: Role,
    /// The application's options, with defaults from `[DEFAULT]`.
    pub app: Section,
    /// Outermost first.
    pub filters: Vec<Filter>,
    pub conf: Conf,
}

/// Sections of Swift's other programs, which share conf files with servers and daemons.
const PROGRAMS: [&str; 3] = ["object-relinker", "drive-audit", "dispersion"];

/// Reads a conf file, or a folder whose `*.conf` files are concatenated in the order of names.
///
/// # Errors
/// A file cannot be read, is not UTF-8 or cannot be parsed; or the folder has no `*.conf` file.
pub fn read_conf(path: &Path) -> Result<Conf> {
    let name = path.display().to_string();
    if !path.is_dir() {
        return Ok(Conf::parse(&name, &read_text(path)?)?);
    }
    let mut files = BTreeSet::new();
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot list {name}"))?;
    for entry in entries {
        let file = entry
            .with_context(|| format!("cannot list {name}"))?
            .file_name();
        if let Some(file) = file.to_str()
            && file.ends_with(".conf")
            && !file.starts_with('.')
        {
            files.insert(file.to_owned());
        }
    }
    if files.is_empty() {
        bail!("{name} holds no *.conf file");
    }
    let mut conf = Conf::parse(&name, "")?;
    for file in files {
        let file = path.join(file);
        conf.merge(&file.display().to_string(), &read_text(&file)?)?;
    }
    Ok(conf)
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.display()))
}

impl ServerConf {
    /// Reads a conf file or folder, and checks its pipeline.
    ///
    /// # Errors
    /// The conf cannot be read, has no pipeline or no application, or names a section that it
    /// lacks, a server that does not exist, or Python code.
    pub fn load(path: &Path) -> Result<ServerConf> {
        let path = std::path::absolute(path)
            .with_context(|| format!("{} is no usable path", path.display()))?;
        let conf = read_conf(&path)?;
        check_section_names(&conf)?;
        let names = pipeline_names(&conf)?;
        let Some((app_name, filter_names)) = names.split_last() else {
            bail!(
                "{}: [pipeline:main] pipeline names no application",
                conf.file()
            );
        };
        let app_section = if app_name == "main" {
            "app:main"
        } else {
            &format!("app:{app_name}")
        };
        let Ok(app) = conf.section(app_section) else {
            let what = if conf.has_section(&format!("filter:{app_name}")) {
                "is a filter; the last name of a pipeline is its application"
            } else {
                "has no section"
            };
            bail!(
                "{}: [pipeline:main] ends in {app_name}, which {what}",
                conf.file()
            );
        };
        let entry_point = entry_point(&conf, app_section, &app)?;
        let Some(role) = Role::from_entry_point(&entry_point) else {
            bail!(
                "{}: [{app_section}] use = egg:swift#{entry_point}: no such server; it can be \
                 proxy, account, container or object",
                conf.file()
            );
        };
        let filters = filter_names
            .iter()
            .map(|name| filter(&conf, name))
            .collect::<Result<Vec<_>>>()?;
        Ok(ServerConf {
            path,
            role,
            app,
            filters,
            conf,
        })
    }

    /// The section of a daemon, if this conf has one.
    pub fn daemon(&self, name: &str) -> Option<Section> {
        self.conf
            .has_section(name)
            .then(|| self.conf.section_or_defaults(name))
    }

    /// Daemons configured by this conf that this build lacks.
    pub fn daemons_not_served(&self) -> Vec<&str> {
        self.conf
            .section_names()
            .filter(|name| PROGRAMS.contains(name))
            .collect()
    }
}

fn pipeline_names(conf: &Conf) -> Result<Vec<String>> {
    if conf.has_section("pipeline:main") {
        let section = conf.section("pipeline:main")?;
        let remedy = "name the filters, outermost first, and last the application";
        let text = section.required("pipeline", remedy)?;
        return Ok(text.split_whitespace().map(str::to_owned).collect());
    }
    if conf.has_section("app:main") {
        return Ok(vec!["main".into()]);
    }
    bail!(
        "{}: neither [pipeline:main] nor [app:main] is there: this is no server's conf file",
        conf.file()
    );
}

fn filter(conf: &Conf, name: &str) -> Result<Filter> {
    let section_name = format!("filter:{name}");
    let Ok(section) = conf.section(&section_name) else {
        let known: Vec<&str> = conf
            .section_names()
            .filter_map(|s| s.strip_prefix("filter:"))
            .collect();
        bail!(
            "{}: [pipeline:main] names {name}, but there is no [{section_name}]{}",
            conf.file(),
            did_you_mean(name, known)
        );
    };
    let entry_point = entry_point(conf, &section_name, &section)?;
    Ok(Filter {
        name: name.to_owned(),
        entry_point,
        section,
    })
}

/// Keystone's filter, as named in Swift's sample conf.
const AUTH_TOKEN: &str = "keystonemiddleware.auth_token:filter_factory";

fn entry_point(conf: &Conf, name: &str, section: &Section) -> Result<String> {
    if let Some((_, factory)) = section
        .iter()
        .find(|(option, _)| option.starts_with("paste."))
    {
        if factory.trim() == AUTH_TOKEN {
            return Ok("authtoken".to_owned());
        }
        bail!(
            "{}: [{name}] loads Python code; use = egg:swift#… is what works here",
            conf.file()
        );
    }
    let used = section.required("use", "say which: egg:swift#…")?.trim();
    if used == "egg:keystonemiddleware#auth_token" {
        return Ok("authtoken".to_owned());
    }
    // Entry points outside Swift are named as ours.
    let own = used.strip_prefix("egg:cairn#");
    match own.or_else(|| used.strip_prefix("egg:swift#")) {
        Some(entry_point) if !entry_point.is_empty() => Ok(entry_point.to_owned()),
        _ => Err(section
            .bad("use", "only egg:swift#… can be used here")
            .into()),
    }
}

/// Refuses sections that nothing reads: most are typing errors.
fn check_section_names(conf: &Conf) -> Result<()> {
    for name in conf.section_names() {
        let paste = ["pipeline:", "app:", "filter:"]
            .iter()
            .any(|kind| name.starts_with(kind));
        // Per-policy options of the proxy, `[proxy-server:policy:1]`.
        let per_policy = name.contains(":policy:");
        let is_program = DaemonKind::from_name(name).is_some() || PROGRAMS.contains(&name);
        if paste || per_policy || is_program {
            continue;
        }
        if name.starts_with("composite:") {
            bail!(
                "{}: [{name}]: composite applications cannot be used here",
                conf.file()
            );
        }
        let mut known = [&DaemonKind::NAMES[..], &PROGRAMS].concat();
        known.extend(["pipeline:main", "app:proxy-server", "app:account-server"]);
        known.extend(["app:container-server", "app:object-server"]);
        bail!(
            "{}: nothing reads a section [{name}]{}",
            conf.file(),
            did_you_mean(name, known)
        );
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ServerConf> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.conf");
        std::fs::write(&path, text).unwrap();
        ServerConf::load(&path)
    }

    const OBJECT: &str = "\
[DEFAULT]
bind_port = 6200
[pipeline:main]
pipeline = healthcheck recon object-server
[app:object-server]
use = egg:swift#object
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:recon]
use = egg:swift#recon
recon_cache_path = /var/cache/swift
[object-updater]
interval = 5
[drive-audit]
";

    #[test]
    fn the_role_follows_from_the_application() {
        let conf = load(OBJECT).unwrap();
        assert_eq!(conf.role, Role::Object);
        assert_eq!(conf.app.get("bind_port"), Some("6200"));
        let names: Vec<_> = conf
            .filters
            .iter()
            .map(|f| f.entry_point.as_str())
            .collect();
        assert_eq!(names, ["healthcheck", "recon"]);
        assert_eq!(conf.filters[1].section.get("bind_port"), Some("6200"));
        assert_eq!(
            conf.daemon("object-updater").unwrap().get("interval"),
            Some("5")
        );
        assert!(conf.daemon("object-auditor").is_none());
        assert_eq!(conf.daemons_not_served(), ["drive-audit"]);
    }

    #[test]
    fn keystones_filter_and_ours() {
        let conf = load(
            "[pipeline:main]\npipeline = authtoken other own app\n\
             [app:app]\nuse = egg:swift#proxy\n\
             [filter:authtoken]\npaste.filter_factory = keystonemiddleware.auth_token:filter_factory\n\
             [filter:other]\nuse = egg:keystonemiddleware#auth_token\n\
             [filter:own]\nuse = egg:cairn#identity\n",
        )
        .unwrap();
        let names: Vec<_> = conf
            .filters
            .iter()
            .map(|f| f.entry_point.as_str())
            .collect();
        assert_eq!(names, ["authtoken", "authtoken", "identity"]);
    }

    #[test]
    fn a_folder_is_read_in_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("10-base.conf"), OBJECT).unwrap();
        std::fs::write(
            folder.path().join("20-own.conf"),
            "[DEFAULT]\nbind_port = 7\n",
        )
        .unwrap();
        std::fs::write(folder.path().join(".hidden.conf"), "nonsense").unwrap();
        std::fs::write(folder.path().join("notes.txt"), "nonsense").unwrap();
        let conf = ServerConf::load(folder.path()).unwrap();
        assert_eq!(conf.app.get("bind_port"), Some("7"));
    }

    #[test]
    fn refusals_name_the_place_and_the_remedy() {
        for (text, part) in [
            (
                "[DEFAULT]\nbind_port = 1",
                "neither [pipeline:main] nor [app:main]",
            ),
            (
                "[pipeline:main]\npipeline = a\n",
                "ends in a, which has no section",
            ),
            (
                "[pipeline:main]\npipeline = catcherrors app\n[app:app]\nuse = egg:swift#proxy\n\
                 [filter:catch_errors]\nuse = egg:swift#catch_errors\n",
                "did you mean catch_errors?",
            ),
            ("[app:main]\nuse = egg:swift#objects\n", "no such server"),
            ("[app:main]\nuse = egg:Paste#static\n", "only egg:swift#"),
            ("[app:main]\npaste.app_factory = a:b\n", "loads Python code"),
            (
                "[app:main]\nuse = egg:swift#object\n[object-udpater]\n",
                "mean object-updater?",
            ),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
