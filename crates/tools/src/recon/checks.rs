//! The checks: each sends a request to all servers and summarises the responses.

mod machine;

use std::io::Write;

use anyhow::Result;
use serde_json::Value;

use super::Options;
use super::scout::{Answer, Host, Scout};
use super::stats::{self, LINE, clock, number};
use crate::locations::SwiftDir;

pub(super) struct Checks<'a> {
    pub(super) scout: Scout<'a>,
    pub(super) swift: &'a SwiftDir,
    pub(super) out: &'a mut dyn Write,
}

impl Checks<'_> {
    /// Runs the checks that the options select.
    pub(super) async fn run(mut self, options: &Options) -> Result<()> {
        let (all, kind) = (options.all, self.scout.kind.to_owned());
        let is = |name: &str| kind == name;
        if all || options.async_check {
            self.only("object", all, "asyncs on non object").await?;
            if is("object") {
                self.async_pending().await?;
            }
        }
        if all || options.auditor {
            match is("object") {
                true => self.object_auditor().await?,
                false => self.db_auditor().await?,
            }
        }
        if (all || options.updater) && is("account") {
            self.refuse(all, "updaters on account")?;
        } else if all || options.updater {
            self.updater().await?;
        }
        if all || options.expirer {
            self.only("object", all, "expirer on non object").await?;
            if is("object") {
                self.expirer().await?;
            }
        }
        if all || options.sharding {
            self.only("container", all, "sharding on non container")
                .await?;
            if is("container") {
                self.sharding().await?;
            }
        }
        if all || options.reconstruction {
            self.only("object", all, "reconstruction stats on non object")
                .await?;
            if is("object") {
                self.reconstruction().await?;
            }
        }
        if all || options.replication {
            self.replication().await?;
        }
        if all || options.unmounted {
            self.unmounted().await?;
        }
        if all || options.loadstats {
            self.load().await?;
        }
        if all || options.diskusage {
            self.disk_usage(options.top, options.lowest, options.human_readable)
                .await?;
        }
        if all || options.md5 {
            self.ring_md5().await?;
            self.conf_md5().await?;
        }
        if all || options.quarantined {
            self.quarantined().await?;
        }
        if all || options.sockstat {
            self.sockets().await?;
        }
        if all || options.validate_servers {
            self.server_types().await?;
        }
        if all || options.driveaudit {
            self.drive_audit().await?;
        }
        if all || options.time {
            self.time(options.jitter).await?;
        }
        if all || options.swift_versions {
            self.versions().await?;
        }
        Ok(())
    }

    /// Prints that this kind of server does not support the check, if it was requested alone.
    async fn only(&mut self, kind: &str, all: bool, what: &str) -> Result<()> {
        if self.scout.kind != kind {
            self.refuse(all, what)?;
        }
        Ok(())
    }

    fn refuse(&mut self, all: bool, what: &str) -> Result<()> {
        if !all {
            writeln!(self.out, "Error: Can't check {what} servers.\n{LINE}")?;
        }
        Ok(())
    }

    fn begin(&mut self, what: &str) -> Result<()> {
        let now = clock(super::scout::now());
        Ok(writeln!(self.out, "[{now}] {what}")?)
    }

    fn end(&mut self) -> Result<()> {
        Ok(writeln!(self.out, "{LINE}")?)
    }

    /// Requests a check from all servers; returns the valid responses.
    async fn ask(&mut self, check: &str) -> Result<Vec<(Answer, Value)>> {
        let answers = self.scout.recon(check, self.out).await?;
        Ok(with_values(answers))
    }

    /// Summarises one number.
    async fn one_number(&mut self, check: &str, name: &str) -> Result<()> {
        let answers = self.ask(check).await?;
        let values: Vec<_> = answers.iter().map(|(_, v)| number(v, name)).collect();
        stats::print(self.out, name, name, &values)?;
        self.end()
    }

    async fn async_pending(&mut self) -> Result<()> {
        self.begin("Checking async pendings")?;
        self.one_number("async", "async_pending").await
    }

    async fn drive_audit(&mut self) -> Result<()> {
        self.begin("Checking drive-audit errors")?;
        self.one_number("driveaudit", "drive_audit_errors").await
    }

    async fn expirer(&mut self) -> Result<()> {
        self.begin("Checking on expirers")?;
        let answers = self.ask(&format!("expirer/{}", self.scout.kind)).await?;
        for name in ["object_expiration_pass", "expired_last_pass"] {
            let values: Vec<_> = answers.iter().map(|(_, v)| number(v, name)).collect();
            stats::print(self.out, name, name, &values)?;
        }
        self.end()
    }

    async fn reconstruction(&mut self) -> Result<()> {
        self.begin("Checking on reconstructors")?;
        let check = format!("reconstruction/{}", self.scout.kind);
        let answers = self.ask(&check).await?;
        let name = "object_reconstruction_time";
        let values: Vec<_> = answers.iter().map(|(_, v)| number(v, name)).collect();
        stats::print(self.out, name, name, &values)?;
        let last = last_of(&answers, &["object_reconstruction_last"]);
        stats::print_completions(self.out, &last)?;
        self.end()
    }

    async fn replication(&mut self) -> Result<()> {
        self.begin("Checking on replication")?;
        let answers = self
            .ask(&format!("replication/{}", self.scout.kind))
            .await?;
        let names = ["replication_time", "object_replication_time"];
        let times: Vec<_> = answers.iter().map(|(_, v)| first_of(v, &names)).collect();
        stats::print(self.out, names[0], names[0], &times)?;
        self.pass_stats(&answers, "replication_stats", "replication_")?;
        let last = last_of(&answers, &["replication_last", "object_replication_last"]);
        stats::print_completions(self.out, &last)?;
        self.end()
    }

    async fn sharding(&mut self) -> Result<()> {
        self.begin("Checking on sharders")?;
        let answers = self.ask("sharding").await?;
        let name = "sharding_time";
        let times: Vec<_> = answers.iter().map(|(_, v)| first_of(v, &[name])).collect();
        stats::print(self.out, name, name, &times)?;
        self.pass_stats(&answers, "sharding_stats", "")?;
        let last = last_of(&answers, &["sharding_last"]);
        stats::print_completions(self.out, &last)?;
        self.end()
    }

    /// Numbers of attempts, successes and failures of a daemon's last pass.
    fn pass_stats(&mut self, answers: &[(Answer, Value)], of: &str, prefix: &str) -> Result<()> {
        let order = match prefix {
            "" => ["attempted", "failure", "success"],
            _ => ["failure", "success", "attempted"],
        };
        for name in order {
            let of_pass = |v: &Value| v.get(of).filter(|s| s.is_object()).cloned();
            let values: Vec<_> = answers
                .iter()
                .filter_map(|(_, v)| Some(number(&of_pass(v)?, name)))
                .collect();
            stats::print(self.out, &format!("{prefix}{name}"), name, &values)?;
        }
        Ok(())
    }

    async fn updater(&mut self) -> Result<()> {
        self.begin("Checking updater times")?;
        let answers = self.ask(&format!("updater/{}", self.scout.kind)).await?;
        let key = format!("{}_updater_sweep", self.scout.kind);
        let values: Vec<_> = answers
            .iter()
            .map(|(_, v)| number(v, &key).filter(|sweep| *sweep != 0.0))
            .filter(Option::is_some)
            .collect();
        let name = "updater_last_sweep";
        stats::print(self.out, name, name, &values)?;
        self.end()
    }

    async fn db_auditor(&mut self) -> Result<()> {
        self.begin("Checking auditor stats")?;
        let kind = self.scout.kind.to_owned();
        let answers = self.ask(&format!("auditor/{kind}")).await?;
        if answers.is_empty() {
            return Ok(writeln!(self.out, "Error: No hosts available")?);
        }
        let told = |name: &str| -> Vec<Option<f64>> {
            let key = format!("{kind}_{name}");
            let numbers = answers.iter().map(|(_, v)| number(v, &key));
            numbers.filter(Option::is_some).collect()
        };
        for name in [
            "auditor_pass_completed",
            "audits_failed",
            "audits_passed",
            "audits_since",
        ] {
            let (values, key) = (told(name), format!("{kind}_{name}"));
            if values.is_empty() || name != "audits_since" {
                stats::print(self.out, &key, &key, &values)?;
            }
        }
        let since: Vec<f64> = told("audits_since").into_iter().flatten().collect();
        if let Some(first) = since.first() {
            let low = since.iter().copied().fold(*first, f64::min);
            let high = since.iter().copied().fold(*first, f64::max);
            let average = since.iter().sum::<f64>() / since.len() as f64;
            writeln!(
                self.out,
                "[last_pass] oldest: {}, newest: {}, avg: {}",
                clock(low),
                clock(high),
                clock(average)
            )?;
        }
        self.end()
    }

    async fn object_auditor(&mut self) -> Result<()> {
        self.begin("Checking auditor stats ")?;
        let answers = self.ask("auditor/object").await?;
        let all = [
            "audit_time",
            "bytes_processed",
            "passes",
            "errors",
            "quarantined",
        ];
        let zero_byte = ["audit_time", "bytes_processed", "errors", "quarantined"];
        for (which, names) in [("ALL", &all[..]), ("ZBF", &zero_byte[..])] {
            let key = format!("object_auditor_stats_{which}");
            let is_told = |stats: &&Value| stats.as_object().is_some_and(|s| !s.is_empty());
            let told: Vec<&Value> = answers
                .iter()
                .filter_map(|(_, v)| v.get(&key))
                .filter(is_told)
                .collect();
            if told.is_empty() {
                let none = "No hosts returned valid data.";
                writeln!(self.out, "[{which}_auditor] - {none}")?;
                continue;
            }
            for name in names {
                let sums: Vec<_> = told.iter().map(|v| Some(nested_sum(v, name))).collect();
                let shown = format!("{which}_{name}_last_path");
                stats::print(self.out, &shown, &shown, &sums)?;
            }
        }
        self.end()
    }
}

fn with_values(answers: Vec<Answer>) -> Vec<(Answer, Value)> {
    let answers = answers.into_iter();
    answers
        .filter_map(|mut answer| Some((answer.value.take()?, answer)))
        .map(|(value, answer)| (answer, value))
        .collect()
}

/// The first of these keys that is present, even if null; 0 if none is.
fn first_of(value: &Value, names: &[&str]) -> Option<f64> {
    let found = names.iter().find_map(|name| value.get(name));
    found.map_or(Some(0.0), Value::as_f64)
}

fn last_of(answers: &[(Answer, Value)], names: &[&str]) -> Vec<(Host, Option<f64>)> {
    let of = |(answer, v): &(Answer, Value)| (answer.host.clone(), first_of(v, names));
    answers.iter().map(of).collect()
}

/// Sum over devices, for auditors that run in parallel.
fn nested_sum(value: &Value, name: &str) -> f64 {
    let Some(entries) = value.as_object() else {
        return 0.0;
    };
    entries
        .iter()
        .map(|(key, value)| match value.is_object() {
            true => nested_sum(value, name),
            false if key == name => value.as_f64().unwrap_or(0.0),
            false => 0.0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_of_devices_are_added() {
        let value = json!({"sda": {"errors": 2, "passes": 5}, "sdb": {"errors": 1}, "errors": 4});
        assert_eq!(nested_sum(&value, "errors"), 7.0);
        assert_eq!(first_of(&json!({"a": null}), &["a", "b"]), None);
        assert_eq!(first_of(&json!({"b": 3}), &["a", "b"]), Some(3.0));
        assert_eq!(first_of(&json!({}), &["a"]), Some(0.0));
    }
}
