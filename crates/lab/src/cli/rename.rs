//! `cairn lab rename`: another name or other tags for a run that is over.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::rename::{rename, run_name, tag};

#[derive(Debug, Args)]
pub struct RenameArguments {
    /// The run's folder, whose own name stays
    run: PathBuf,

    /// The new name
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    name: Option<String>,

    /// A tag to add; may be repeated
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    tags: Vec<String>,

    /// A tag to take away; may be repeated
    #[arg(long = "untag", value_name = "TAG")]
    untags: Vec<String>,
}

pub(super) fn run(arguments: &RenameArguments) -> Result<ExitCode> {
    if arguments.name.is_none() && arguments.tags.is_empty() && arguments.untags.is_empty() {
        bail!("nothing to change: give --name NAME, --tag TAG or --untag TAG");
    }
    let meta = rename(&arguments.run, arguments.name.as_deref(), |tags| {
        tags.retain(|tag| !arguments.untags.contains(tag));
        tags.extend(arguments.tags.iter().cloned());
    })?;
    println!("{}: {} {:?}", arguments.run.display(), meta.name, meta.tags);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::record::{RunFolder, RunMeta};
    use crate::results::{RunWriter, read_folder};

    #[test]
    fn name_and_tags_change_when_the_run_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("run");
        let meta = RunMeta {
            version: 1,
            name: "old".into(),
            tags: vec!["hdd".into()],
            ..RunMeta::default()
        };
        let plan = Plan::default();
        let writer = RunWriter::create(RunFolder::new(&root), &meta, &plan, None).unwrap();
        let arguments = |name: Option<&str>, tags: &[&str], untags: &[&str]| RenameArguments {
            run: root.clone(),
            name: name.map(str::to_owned),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            untags: untags.iter().map(|tag| (*tag).to_owned()).collect(),
        };
        let told = run(&arguments(Some("new"), &[], &[])).unwrap_err();
        assert!(told.to_string().contains("still under way"), "{told}");
        drop(writer);
        run(&arguments(Some("new"), &["ssd", "ssd"], &["hdd"])).unwrap();
        let meta = read_folder(&root).unwrap().meta;
        assert_eq!(
            (meta.name.as_str(), meta.tags),
            ("new", vec!["ssd".to_owned()])
        );
        let told = run(&arguments(None, &[], &[])).unwrap_err().to_string();
        assert!(told.contains("nothing to change"), "{told}");
        assert!(tag("a,b").is_err() && tag(" ").is_err() && run_name("a\nb").is_err());
    }
}
