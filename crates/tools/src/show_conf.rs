//! `swift-config SERVER|FILE…`: prints conf files as they are read: sections with defaults from
//! `[DEFAULT]`, folders of files merged, `%(name)s` substituted; or, with `--wsgi`, the parts of a
//! server's pipeline. Options are sorted by name.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cairn_formats::ini::Section;
use cairn_node::conf::{ServerConf, read_conf};
use clap::Parser;

use crate::init::{self, Folders};

/// Arguments of the program.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    /// Paths, or programs as in `swift-init`.
    pub(crate) words: Vec<String>,
    /// Only the nth conf of each program, from 1.
    pub(crate) number: Option<usize>,
    /// Only this section.
    pub(crate) section: Option<String>,
    /// The pipeline's parts instead of all sections.
    pub(crate) wsgi: bool,
    pub(crate) folders: Folders,
}

/// Show what conf files say once they are read
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// Conf files, or programs as swift-init takes them
    #[arg(value_name = "SERVER|FILE")]
    words: Vec<String>,

    /// Only the Nth conf of a program
    #[arg(short = 'c', long, value_name = "N", default_value_t = 0)]
    config_num: usize,

    /// Only this section
    #[arg(short, long)]
    section: Option<String>,

    /// The pipeline's parts instead of all sections
    #[arg(short, long)]
    wsgi: bool,

    /// The folder of the programs' conf files [default: /etc/swift]
    #[arg(long, value_name = "DIR")]
    swift_dir: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn called(self) -> Called {
        Called {
            words: self.words,
            number: Some(self.config_num).filter(|number| *number > 0),
            section: self.section,
            wsgi: self.wsgi,
            folders: Folders::new(self.swift_dir, None),
        }
    }
}

/// Prints all.
pub(crate) fn run(called: &Called, out: &mut dyn Write) -> Result<()> {
    if called.words.is_empty() {
        bail!("specify type of server or conf_path");
    }
    for word in &called.words {
        let path = PathBuf::from(word);
        let confs = match path.exists() {
            true => vec![path],
            false => init::confs_of(word, called.number, &called.folders)?,
        };
        for conf in confs {
            writeln!(out, "# {}", conf.display())?;
            match called.wsgi {
                true => show_pipeline(called, &conf, out)?,
                false => show_all(called, &conf, out)?,
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

impl Called {
    fn show(&self, name: &str, section: &Section, out: &mut dyn Write) -> Result<()> {
        let options = section.iter();
        self.show_options(name, options, out)
    }

    fn show_options<'a>(
        &self,
        name: &str,
        options: impl Iterator<Item = (&'a str, &'a str)>,
        out: &mut dyn Write,
    ) -> Result<()> {
        if self.section.as_ref().is_some_and(|only| only != name) {
            return Ok(());
        }
        writeln!(out, "[{name}]")?;
        for (option, value) in options {
            writeln!(out, "{option} = {value}")?;
        }
        writeln!(out)?;
        Ok(())
    }
}

fn show_all(called: &Called, path: &Path, out: &mut dyn Write) -> Result<()> {
    let conf = read_conf(path)?;
    for name in conf.section_names() {
        called.show(name, &conf.section(name)?, out)?;
    }
    if called.section.is_none() {
        writeln!(out, "# log_name = None\n# __file__ = {}", path.display())?;
    }
    Ok(())
}

fn show_pipeline(called: &Called, path: &Path, out: &mut dyn Write) -> Result<()> {
    let conf = ServerConf::load(&std::path::absolute(path)?)?;
    let entry_points = conf
        .filters
        .iter()
        .map(|filter| filter.entry_point.as_str());
    let parts: Vec<&str> = entry_points.chain([conf.role.as_str()]).collect();
    let pipeline = parts.join(" ");
    let options = [("pipeline", pipeline.as_str())];
    called.show_options("pipeline:main", options.into_iter(), out)?;
    for filter in &conf.filters {
        let options = filter.section.iter().filter(|(option, _)| *option != "use");
        called.show_options(&format!("filter:{}", filter.name), options, out)?;
    }
    let options = conf.app.iter().filter(|(option, _)| *option != "use");
    called.show_options(conf.app.name(), options, out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CONF: &str = "[DEFAULT]\nbind_port = 6200\nuser = me\n[pipeline:main]\n\
                        pipeline = check app\n[app:app]\nuse = egg:swift#object\nuser = you\n\
                        [filter:check]\nuse = egg:swift#healthcheck\ndisable_path = /%(user)s\n";

    fn called(words: &[&str], folder: &Path) -> Called {
        Called {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            number: None,
            section: None,
            wsgi: false,
            folders: Folders::new(Some(folder.to_owned()), None),
        }
    }

    fn shown(called: &Called) -> String {
        let mut out = Vec::new();
        run(called, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn sorted(text: &str) -> Vec<&str> {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn conf_files_as_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object-server.conf");
        std::fs::write(&path, CONF).unwrap();
        let file = path.to_str().unwrap();
        let all = shown(&called(&[file], folder.path()));
        assert!(all.starts_with(&format!("# {file}\n[")), "{all}");
        assert!(
            all.contains("\n[app:app]\nbind_port = 6200\nuse = egg:swift#object\nuser = you\n")
        );
        assert!(all.contains("disable_path = /me\n"));
        assert_eq!(all, shown(&called(&["object"], folder.path())));
        let only = Called {
            section: Some("pipeline:main".into()),
            ..called(&[file], folder.path())
        };
        assert!(!shown(&only).contains("[app:app]"));
        if let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") {
            let code = "import sys; from swift.cli.config import main; sys.exit(main())";
            let output = std::process::Command::new(python)
                .args(["-c", code, file])
                .output()
                .unwrap();
            let theirs = String::from_utf8(output.stdout).unwrap();
            assert_eq!(sorted(&all), sorted(&theirs));
        }
    }

    #[test]
    fn the_parts_of_a_pipeline() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object-server.conf");
        std::fs::write(&path, CONF).unwrap();
        let parts = Called {
            wsgi: true,
            ..called(&[path.to_str().unwrap()], folder.path())
        };
        let text = shown(&parts);
        assert!(
            text.contains("[pipeline:main]\npipeline = healthcheck object\n"),
            "{text}"
        );
        assert!(text.contains("[filter:check]\n") && !text.contains("use = "));
        let error = run(&called(&[], folder.path()), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("conf_path"));
    }
}
