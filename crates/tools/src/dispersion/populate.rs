//! Creation of samples: names with consecutive numbers are tried until enough partitions have one.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Result, bail};
use cairn_ring::Ring;
use tokio::task::JoinSet;

use super::cluster::Cluster;
use super::{Plan, PopulateOptions, Progress};

pub(crate) fn run(options: PopulateOptions, out: &mut dyn Write) -> Result<u8> {
    let plan = Plan::read(
        &options.conf,
        options.policy_name.as_deref(),
        options.insecure,
    )?;
    writeln!(out, "Using storage policy: {} ", plan.policy.name)?;
    let wants = |option: &str| plan.section.bool_or(option, true);
    let containers = wants("container_populate") && !options.object_only;
    let objects = wants("object_populate") && !options.container_only;
    if !containers && !objects {
        bail!("Neither container or object populate is set to run");
    }
    crate::block_on(async {
        let cluster = Cluster::open(&plan).await?;
        if containers {
            populate_containers(&plan, &options, &cluster, out).await?;
        }
        if objects {
            populate_objects(&plan, &options, &cluster, out).await?;
        }
        Ok(0)
    })
}

async fn populate_containers(
    plan: &Plan,
    options: &PopulateOptions,
    cluster: &Arc<Cluster>,
    out: &mut dyn Write,
) -> Result<()> {
    let prefix = format!("dispersion_{}", plan.policy.index);
    let there = match options.no_overlap {
        true => cluster.names(None, &prefix).await?.unwrap_or_default(),
        false => Vec::new(),
    };
    let samples = Samples {
        what: "containers",
        ring: plan.swift.ring("container")?,
        container: None,
        prefix: format!("{prefix}_"),
        start: options.container_suffix_start,
        header: ("x-storage-policy", plan.policy.name.clone()),
    };
    samples.make(plan, options, cluster, &there, out).await
}

async fn populate_objects(
    plan: &Plan,
    options: &PopulateOptions,
    cluster: &Arc<Cluster>,
    out: &mut dyn Write,
) -> Result<()> {
    let container = format!("dispersion_objects_{}", plan.policy.index);
    let header = ("x-storage-policy", plan.policy.name.as_str());
    cluster.put(&container, header, "").await?;
    let there = match options.no_overlap {
        true => cluster.names(Some(&container), "dispersion_").await?,
        false => None,
    };
    let samples = Samples {
        what: "objects",
        ring: plan.swift.ring(&plan.policy.index.ring_name())?,
        container: Some(container),
        prefix: "dispersion_".to_owned(),
        start: options.object_suffix_start,
        header: ("x-object-meta-dispersion", String::new()),
    };
    let there = there.unwrap_or_default();
    samples.make(plan, options, cluster, &there, out).await
}

struct Samples {
    what: &'static str,
    ring: Ring,
    /// Container of the objects.
    container: Option<String>,
    /// Text before the number.
    prefix: String,
    /// First number; smaller ones count as created.
    start: u64,
    header: (&'static str, String),
}

impl Samples {
    fn partition(&self, plan: &Plan, cluster: &Cluster, name: &str) -> usize {
        let hash_path = &plan.swift.conf.hash_path;
        let hash = match &self.container {
            None => hash_path.hash(&cluster.account, Some(name), None),
            Some(container) => hash_path.hash(&cluster.account, Some(container), Some(name)),
        };
        self.ring.partition(hash) as usize
    }

    async fn make(
        &self,
        plan: &Plan,
        options: &PopulateOptions,
        cluster: &Arc<Cluster>,
        there: &[String],
        out: &mut dyn Write,
    ) -> Result<()> {
        let count = self.ring.partition_count() as usize;
        let mut is_left = vec![true; count];
        let mut left = count;
        for name in there {
            let partition = self.partition(plan, cluster, name);
            left -= usize::from(std::mem::take(&mut is_left[partition]));
        }
        let coverage = plan.section.f64_or("dispersion_coverage", 1.0)?;
        let wanted = coverage / 100.0 * count as f64;
        let (mut to_queue, mut created, mut number) = (wanted, 0, 0);
        let mut progress = Progress::new();
        let mut under_way = JoinSet::new();
        cluster.count_anew();
        while to_queue >= 1.0 && left > 0 {
            let name = format!("{}{number}", self.prefix);
            let partition = self.partition(plan, cluster, &name);
            if is_left[partition] {
                is_left[partition] = false;
                left -= 1;
                to_queue -= 1.0;
                if number >= self.start {
                    self.begin(cluster, name, &mut under_way);
                } else {
                    created += 1;
                }
            }
            number += 1;
            while under_way.len() >= plan.concurrency {
                done(&mut under_way).await?;
                created += 1;
                self.tell(cluster, &mut progress, created, wanted, out)?;
            }
        }
        while !under_way.is_empty() {
            done(&mut under_way).await?;
            created += 1;
            self.tell(cluster, &mut progress, created, wanted, out)?;
        }
        let (elapsed, retries) = (progress.elapsed(), cluster.retried());
        let (made, what) = ((wanted - to_queue).round(), self.what);
        writeln!(
            out,
            "\r\x1B[KCreated {made} {what} for dispersion reporting, {elapsed}, {retries} retries"
        )?;
        if options.no_overlap {
            let (what, covered) = (what.trim_end_matches('s'), count - left);
            let share = covered as f64 / count as f64 * 100.0;
            writeln!(out, "\r\x1B[KTotal {what} coverage is now {share:.2}%.")?;
        }
        Ok(())
    }

    fn begin(&self, cluster: &Arc<Cluster>, name: String, under_way: &mut JoinSet<Result<()>>) {
        let cluster = cluster.clone();
        let (header, mut value) = self.header.clone();
        let (path, body) = match &self.container {
            None => (name, String::new()),
            Some(container) => {
                value.clone_from(&name);
                (format!("{container}/{name}"), name)
            }
        };
        under_way.spawn(async move { cluster.put(&path, (header, &value), &body).await });
    }

    fn tell(
        &self,
        cluster: &Cluster,
        progress: &mut Progress,
        created: usize,
        wanted: f64,
        out: &mut dyn Write,
    ) -> Result<()> {
        if let Some(left) = progress.due(created, wanted as usize) {
            let (what, wanted) = (self.what, wanted as u64);
            let retries = cluster.retried();
            write!(
                out,
                "\r\x1B[KCreating {what}: {created} of {wanted}, {left} left, {retries} retries"
            )?;
            out.flush()?;
        }
        Ok(())
    }
}

async fn done(under_way: &mut JoinSet<Result<()>>) -> Result<()> {
    match under_way.join_next().await {
        Some(outcome) => outcome?,
        None => Ok(()),
    }
}
