//! A run without a file: `cairn lab run --put 64KB --workers 16 --for 30s URL`. The options are
//! converted to a workload in the lab's own format, which is stored in the run's folder, so that it
//! can be repeated, changed and compared like any other.

use std::fmt::Write;

use anyhow::{Result, bail};
use clap::Args;

/// Number of containers that objects are spread over.
const CONTAINERS: u32 = 4;

#[derive(Debug, Clone, Args)]
pub(super) struct Quick {
    /// Without a file: write objects of this size (64KB, 1MiB, u(1,16)KB); the argument is the
    /// store's URL
    #[arg(long, value_name = "SIZE")]
    put: Option<String>,

    /// Without a file: read objects of this size, written before; with --put, see --reads
    #[arg(long, value_name = "SIZE")]
    get: Option<String>,

    /// Operations under way of --put and --get [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    workers: Option<u32>,

    /// Time that --put and --get measure [default: 30s]
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,

    /// Objects written before --get [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    objects: Option<u64>,

    /// Percent of reads of --put with --get [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99))]
    reads: Option<u32>,

    /// Operations a second of an open loop, for --put and --get
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,

    /// Leave objects and containers of --put and --get in the store
    #[arg(long)]
    keep: bool,
}

impl Quick {
    /// Was a run without a file requested?
    pub(super) fn is_asked(&self) -> bool {
        self.put.is_some() || self.get.is_some()
    }

    /// Refuses options that would have no effect.
    pub(super) fn check(&self) -> Result<()> {
        let needs = [
            ("--workers", self.workers.is_some()),
            ("--for", self.time.is_some()),
            ("--objects", self.objects.is_some()),
            ("--reads", self.reads.is_some()),
            ("--rate", self.rate.is_some()),
            ("--keep", self.keep),
        ];
        if let Some((option, _)) = needs.into_iter().find(|(_, given)| *given)
            && !self.is_asked()
        {
            bail!("{option} is for runs without a file: give --put SIZE or --get SIZE as well");
        }
        if self.reads.is_some() && (self.put.is_none() || self.get.is_none()) {
            bail!("--reads is the part of reads beside writes: give --put SIZE and --get SIZE");
        }
        Ok(())
    }

    /// The workload as TOML.
    pub(super) fn workload(&self) -> String {
        let workers = self.workers.unwrap_or(16);
        let objects = self.objects.unwrap_or(1000);
        let reads = self.reads.unwrap_or(50);
        let text = |value: &str| toml::Value::from(value).to_string();
        let time = text(self.time.as_deref().unwrap_or("30s"));
        let all = format!("containers = \"r(1,{CONTAINERS})\"\n");
        let mut out = String::new();
        let mut add = |stage: &str, work: &str| {
            // Writing to a String cannot fail.
            let _ = write!(
                out,
                "\n[[stage]]\nname = \"{stage}\"\n[[stage.work]]\n{work}"
            );
        };
        add("init", &format!("type = \"init\"\n{all}"));
        if let Some(size) = &self.get {
            let size = text(size);
            add(
                "prepare",
                &format!(
                    "type = \"prepare\"\nworkers = {workers}\n{all}objects = \"r(1,{objects})\"\n\
                     pool = \"read\"\nobject_prefix = \"read-\"\nsizes = {size}\n"
                ),
            );
        }
        let rate = self.rate.map(|rate| format!("rate = {rate}\n"));
        let mut main = format!(
            "workers = {workers}\nruntime = {time}\ninterval = \"1s\"\n{}",
            rate.unwrap_or_default()
        );
        let spread = format!("containers = \"u(1,{CONTAINERS})\"\n");
        if self.get.is_some() {
            main.push_str(&format!(
                "[[stage.work.operation]]\ntype = \"read\"\nratio = {reads}\n{spread}pool = \
                 \"read\"\nobject_prefix = \"read-\"\n"
            ));
        }
        if let Some(size) = &self.put {
            main.push_str(&format!(
                "[[stage.work.operation]]\ntype = \"write\"\nratio = {}\n{spread}pool = \
                 \"written\"\nobject_prefix = \"written-\"\nsizes = {}\n",
                100 - reads,
                text(size)
            ));
        }
        add("main", &main);
        if !self.keep {
            for (pool, is_there) in [
                ("read", self.get.is_some()),
                ("written", self.put.is_some()),
            ] {
                if is_there {
                    add(
                        &format!("cleanup-{pool}"),
                        &format!(
                            "type = \"cleanup\"\nworkers = {workers}\n{all}pool = \"{pool}\"\n\
                             object_prefix = \"{pool}-\"\n"
                        ),
                    );
                }
            }
            add("dispose", &format!("type = \"dispose\"\n{all}"));
        }
        format!(
            "# Made by cairn lab run --put/--get.\nname = {}\n\n[defaults]\ncontainer_prefix = \
             \"cairn-lab-\"\n{out}",
            text(&self.name())
        )
    }

    fn name(&self) -> String {
        let part = |what: &str, size: &Option<String>| {
            let size = size.as_ref()?;
            Some(format!("{what} {size}"))
        };
        let parts = [part("put", &self.put), part("get", &self.get)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::plan::{OperationKind, Pacing, WorkKind};
    use crate::workload::{Options, read};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        quick: Quick,
    }

    fn quick(line: &str) -> Quick {
        let words = line.split_whitespace();
        Line::parse_from(std::iter::once("run").chain(words)).quick
    }

    #[test]
    fn options_are_a_workload() {
        let quick = quick("--put 64KB --get u(1,16)KB --reads 80 --workers 8 --for 2s --rate 50");
        assert!(quick.is_asked() && quick.check().is_ok());
        let text = quick.workload();
        let plan = read("quick.toml", text.as_bytes(), &Options::default());
        let plan = plan.unwrap_or_else(|error| panic!("{error}\n{text}")).plan;
        assert_eq!(plan.name, "put 64KB, get u(1,16)KB");
        let kinds: Vec<_> = plan.stages.iter().map(|s| s.works[0].kind).collect();
        use WorkKind::{Cleanup, Dispose, Init, Main, Prepare};
        assert_eq!(kinds, [Init, Prepare, Main, Cleanup, Cleanup, Dispose]);
        let main = &plan.stages[2].works[0];
        let seconds = main.runtime.map(|time| time.as_secs());
        assert_eq!((main.workers, seconds), (8, Some(2)));
        assert!(matches!(main.pacing, Pacing::Open { rate, .. } if rate == 50.0));
        let mix: Vec<_> = main.operations.iter().map(|o| (o.kind, o.ratio)).collect();
        assert_eq!(
            mix,
            [(OperationKind::Read, 80.0), (OperationKind::Write, 20.0)]
        );
        let sizes = main.operations[1].sizes.as_ref();
        assert_eq!(
            sizes.map(crate::selector::Selector::bounds),
            Some((64_000, 64_000))
        );
    }

    #[test]
    fn only_writes_need_no_preparing() {
        let text = quick("--put 4KB --keep").workload();
        let plan = read("quick.toml", text.as_bytes(), &Options::default())
            .unwrap()
            .plan;
        let names: Vec<_> = plan.stages.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["init", "main"]);
    }

    #[test]
    fn what_nothing_would_heed_is_refused() {
        for (line, part) in [
            ("--workers 8", "--workers is for"),
            ("--put 4KB --reads 80", "--reads is"),
        ] {
            let error = quick(line).check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
