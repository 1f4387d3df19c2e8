//! Arguments of `cairn lab run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::metrics::TextFormat;
use super::quick::Quick;
use super::scale::Scale;
use crate::fail_if::Condition;
use crate::rename::{run_name, tag};
use crate::workload::Format;

#[derive(Debug, Args)]
pub struct RunArguments {
    /// The workload; - reads standard input. With --put or --get: the store's URL
    #[arg(required_unless_present_any = ["put", "get", "resume"])]
    pub(super) file: Option<PathBuf>,

    /// Go on with a run that was killed or cancelled, with the stages that it lacks
    ///
    /// RUN is its folder; its plan, seed and store are used again. Stages that had finished stay as
    /// they are. Passwords and keys are not kept there: give them again, if the workload's file does
    /// not have them.
    #[arg(
        long,
        value_name = "RUN",
        conflicts_with_all = [
            "file", "put", "get", "target", "out", "format", "scale", "parameters", "seed", "check",
            "name", "tags",
            "time_scale", "ops_scale", "size_scale",
        ]
    )]
    pub(super) resume: Option<PathBuf>,

    #[command(flatten)]
    pub(super) quick: Quick,

    /// The store, instead of the one the workload names
    ///
    /// http://HOST:8080 (Swift with TempAuth, or S3 when the workload is for S3),
    /// http://HOST:8080/auth/v1.0, http://HOST:5000/v3 or /v2.0 (Keystone),
    /// http://HOST:8080/v1/AUTH_a (with --token), s3+http://HOST:9000, rados:POOL,
    /// file:/a/folder, noop:
    #[arg(long, value_name = "URL")]
    pub(super) target: Option<String>,

    /// account:user; Keystone: project:user; S3: the access key
    #[arg(long, env = "CAIRN_LAB_USER", hide_env_values = true)]
    pub(super) user: Option<String>,

    /// The user's key or password; better given in the environment, where others cannot read it
    #[arg(long, env = "CAIRN_LAB_KEY", hide_env_values = true)]
    pub(super) key: Option<String>,

    /// A token, instead of signing in
    #[arg(long, env = "CAIRN_LAB_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,

    /// A setting of the sign-in (type, auth_url, domain, region, …); may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    pub(super) auth: Vec<(String, String)>,

    /// A setting of the store (type, proxies, policy, layout, block, fsync, …); may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_value)]
    pub(super) storage: Vec<(String, String)>,

    /// The run's folder; made, and must hold no run yet [default: lab-runs/TIME-NAME]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,

    /// The run's name [default: the workload's]
    #[arg(long, value_name = "NAME", value_parser = run_name)]
    pub(super) name: Option<String>,

    /// A word by which the run is told apart from others of the workload; may be repeated
    #[arg(long = "tag", value_name = "TAG", value_parser = tag)]
    pub(super) tags: Vec<String>,

    /// Read the file as this format instead of telling it from the content
    #[arg(long, value_name = "cosbench|ssbench|swift-bench|lab", value_parser = format_name)]
    pub(super) format: Option<Format>,

    /// Run at this scale of the workload ([scales.NAME] of its TOML)
    #[arg(long, value_name = "NAME")]
    pub(super) scale: Option<String>,

    /// A parameter of the workload; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = name_value)]
    pub(super) parameters: Vec<(String, String)>,

    /// The same seed gives the same requests [default: the workload's]
    #[arg(long, value_name = "NUMBER")]
    pub(super) seed: Option<u64>,

    #[command(flatten)]
    pub(super) by: Scale,

    /// Threads that drive load [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) threads: Option<u32>,

    /// A request is given up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    pub(super) timeout: Duration,

    /// Do not check certificates
    #[arg(long)]
    pub(super) insecure: bool,

    /// A PEM file of certificates to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,

    /// Sample CPU, memory, network and disks every so many seconds; 0: not at all
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub(super) resources: Duration,

    /// Also sample processes of this command name; may be repeated
    #[arg(long, value_name = "COMMAND")]
    pub(super) watch: Vec<String>,

    /// Drive from this host (`cairn lab driver` runs there) instead of from here; may be repeated
    #[arg(long = "driver", value_name = "HOST:PORT")]
    pub(super) drivers: Vec<String>,

    /// The secret that controller and drivers share
    #[arg(
        long,
        env = "CAIRN_LAB_SECRET",
        hide_env_values = true,
        requires = "drivers"
    )]
    pub(super) secret: Option<String>,

    /// Run the programs that the workload's triggers name
    #[arg(long)]
    pub(super) allow_programs: bool,

    /// Use no local files, `file:` or RADOS target but what --allow-local names, whatever the
    /// workload says: for workloads of others
    #[arg(long)]
    pub(super) confined: bool,

    /// With --confined: local files below DIR may be used, and RADOS; may be repeated
    #[arg(long, value_name = "DIR", requires = "confined")]
    pub(super) allow_local: Vec<PathBuf>,

    /// Exit with 3 when this holds of any measured operation; may be repeated
    ///
    /// p99>50ms, 'read mean>2ms', 'main/write throughput<1000/s', bandwidth<100MB/s, failed>1%.
    /// An operation that was not measured holds, too. Without a condition on failures: failed>1%.
    #[arg(long, value_name = "CONDITION")]
    pub(super) fail_if: Vec<Condition>,

    /// Answer Prometheus at http://HOST:PORT/metrics while the run lasts
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) metrics: Option<SocketAddr>,

    /// Send the same figures to this URL every few seconds while the run lasts, and at its end
    ///
    /// PUT to a pushgateway (http://HOST:9091/metrics/job/NAME), POST to anything else. One that
    /// takes nothing is told of once, and does not hold the run up.
    #[arg(long, value_name = "URL")]
    pub(super) push: Option<String>,

    /// Seconds between two pushes
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = push_seconds, requires = "push")]
    pub(super) push_interval: Duration,

    /// Format of what is pushed: Prometheus text 0.0.4, which pushgateways take, or OpenMetrics
    #[arg(long, value_name = "prometheus|openmetrics", default_value = "prometheus", value_parser = text_format, requires = "push")]
    pub(super) push_format: TextFormat,

    /// A bearer token for --push; better given in the environment
    #[arg(long, env = "CAIRN_LAB_PUSH_TOKEN", hide_env_values = true)]
    pub(super) push_token: Option<String>,

    /// Do not measure the generator's ceiling first
    #[arg(long)]
    pub(super) no_ceiling: bool,

    /// Read the workload, say what would be run, and stop
    #[arg(long)]
    pub(super) check: bool,

    /// A JSON object a line for everything that happens
    #[arg(long)]
    pub(super) json: bool,
}

fn name_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE was expected")?;
    if name.is_empty() {
        return Err("the name is missing".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn format_name(text: &str) -> Result<Format, String> {
    Format::from_name(text).ok_or_else(|| "it is cosbench, ssbench, swift-bench or lab".into())
}

fn text_format(text: &str) -> Result<TextFormat, String> {
    match text {
        "prometheus" => Ok(TextFormat::Prometheus),
        "openmetrics" => Ok(TextFormat::OpenMetrics),
        _ => Err("it is prometheus or openmetrics".into()),
    }
}

fn push_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        time if time < Duration::from_secs(1) => Err("1 second or more is needed".into()),
        time => Ok(time),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "seconds were expected")?;
    Duration::try_from_secs_f64(value).map_err(|error| error.to_string())
}

fn positive_seconds(text: &str) -> Result<Duration, String> {
    let time = seconds(text)?;
    if time.is_zero() {
        Err("more than 0 is needed".into())
    } else {
        Ok(time)
    }
}
