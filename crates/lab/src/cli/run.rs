//! `cairn lab run`: executes a workload.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result, bail};

use super::arguments::RunArguments;
use super::metrics::Metrics;
use super::push::{Push, PushOptions};
use super::ranks::Ranks;
use super::terminal::{Output, Terminal};
use crate::ceiling;
use crate::controller::{Briefing, Conductor, Link, LocalLink, Progress, Report, reach};
use crate::drive::{Driver, Pools, Share, cores, now};
use crate::fail_if::{Condition, EXIT_CODE};
use crate::footprint::{Footprint, LocalAccess};
use crate::plan::Plan;
use crate::record::{RunFolder, RunMeta, State};
use crate::results::model::Run;
use crate::results::{Recorded, RunWriter, WriteError, read_folder, write_tables};
use crate::resume::Resume;
use crate::target::TargetOptions;
use crate::workload::{self, Format, Workload};

/// Maximum size of a workload file.
const FILE_MAX_BYTES: u64 = 16 << 20;

pub(super) fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let output = match (arguments.json, std::io::stdout().is_terminal()) {
        (true, _) => Output::Json,
        (false, true) => Output::Live,
        (false, false) => Output::Lines,
    };
    let mut terminal = Terminal::new(output);
    if let Some(folder) = &arguments.resume {
        let job = resumed(arguments, folder)?;
        return Ok(exit_code(&conduct(arguments, job, None, &mut terminal)?));
    }
    let (bytes, name, target) = source(arguments)?;
    let options = workload::Options {
        format: match arguments.quick.is_asked() {
            true => Some(Format::Lab),
            false => arguments.format,
        },
        scale: arguments.scale.clone(),
        parameters: arguments.parameters.iter().cloned().collect(),
    };
    let mut workload = workload::read(&name, &bytes, &options)?;
    adjust(arguments, target.clone(), &mut workload.plan)?;
    let footprint = Footprint::of(&workload.plan);
    local_access(arguments).check(&footprint)?;
    let scaled = arguments.by.apply(&mut workload.plan);
    workload.notes.extend(scaled);
    if target.is_none() {
        workload.notes.extend(workload.open_settings());
    }
    if arguments.check {
        workload.notes.extend(footprint.sentences());
        terminal.plan(&workload.plan, &workload.notes);
        return Ok(ExitCode::SUCCESS);
    }
    let ranks = Ranks::of_environment();
    if let Some(ranks) = ranks.as_ref().filter(|ranks| ranks.rank > 0) {
        return follow(arguments, ranks);
    }
    let job = new_job(arguments, &workload, bytes);
    let result = conduct(arguments, job, ranks.as_ref(), &mut terminal);
    if let (Some(ranks), Some(out)) = (&ranks, &arguments.out) {
        ranks.dismiss(out);
    }
    Ok(exit_code(&result?))
}

fn exit_code(meta: &RunMeta) -> ExitCode {
    match (meta.state, meta.broken.is_empty()) {
        (State::Completed, true) => ExitCode::SUCCESS,
        (State::Completed, false) => ExitCode::from(EXIT_CODE),
        _ => ExitCode::FAILURE,
    }
}

/// The workload, its file's name, and the store's URL: from a file, or from the options that
/// replace one.
fn source(arguments: &RunArguments) -> Result<(Vec<u8>, String, Option<String>)> {
    arguments.quick.check()?;
    if !arguments.quick.is_asked() {
        let path = arguments.file.as_deref();
        let (bytes, name) = read_file(path.context("name a workload file")?)?;
        return Ok((bytes, name, arguments.target.clone()));
    }
    let url = match (&arguments.file, &arguments.target) {
        (Some(url), None) => url.display().to_string(),
        (None, Some(url)) => url.clone(),
        (Some(_), Some(_)) => {
            bail!("with --put or --get the argument is the store's URL: leave --target out")
        }
        (None, None) => bail!("name the store: cairn lab run --put 64KB http://HOST:8080"),
    };
    let name = "of the command line.toml".to_owned();
    Ok((arguments.quick.workload().into_bytes(), name, Some(url)))
}

fn read_file(path: &Path) -> Result<(Vec<u8>, String)> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let name = path.display().to_string();
    if name == "-" {
        std::io::stdin()
            .lock()
            .take(FILE_MAX_BYTES + 1)
            .read_to_end(&mut bytes)?;
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read {name}"))?;
        file.take(FILE_MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .context(name.clone())?;
    }
    if bytes.len() as u64 > FILE_MAX_BYTES {
        bail!("{name} is larger than {FILE_MAX_BYTES} bytes: not a workload");
    }
    Ok((bytes, name))
}

fn local_access(arguments: &RunArguments) -> LocalAccess {
    match arguments.confined {
        true => LocalAccess::Below(arguments.allow_local.clone()),
        false => LocalAccess::Any,
    }
}

fn sign_in(arguments: &RunArguments, url: Option<String>) -> workload::Target {
    workload::Target {
        url,
        user: arguments.user.clone(),
        key: arguments.key.clone(),
        token: arguments.token.clone(),
        auth: arguments.auth.clone(),
        storage: arguments.storage.clone(),
    }
}

/// Overrides the plan by command line options.
fn adjust(arguments: &RunArguments, url: Option<String>, plan: &mut Plan) -> Result<()> {
    sign_in(arguments, url).apply(plan)?;
    if let Some(seed) = arguments.seed {
        plan.seed = seed;
    }
    if let Some(name) = &arguments.name {
        plan.name.clone_from(name);
    }
    Ok(())
}

/// A run's id: `20261122T010203-name`.
fn run_id(name: &str, started: f64) -> String {
    let time: String = crate::results::rfc3339(started)
        .chars()
        .take_while(|&c| c != '.')
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') {
                c
            } else {
                '-'
            }
        })
        .take(60)
        .collect();
    format!("{}-{name}", time.trim_end_matches('Z'))
}

/// The command line without secrets.
fn told_command() -> Vec<String> {
    let mut hide = false;
    std::env::args()
        .map(|argument| {
            if std::mem::take(&mut hide) {
                return "***".to_owned();
            }
            for secret in ["--key", "--token", "--secret", "--push-token"] {
                if argument == secret {
                    hide = true;
                } else if argument.starts_with(&format!("{secret}=")) {
                    return format!("{secret}=***");
                }
            }
            for secret in [
                "password=",
                "key=",
                "secretkey=",
                "token=",
                "--auth=",
                "--storage=",
            ] {
                if argument.starts_with(secret) {
                    return format!("{secret}***");
                }
            }
            argument
        })
        .collect()
}

const RANKS_NEED_OUT: &str = "under mpirun all ranks must name the same folder: give --out";

/// Drives load for rank 0, on all other ranks.
fn follow(arguments: &RunArguments, ranks: &Ranks) -> Result<ExitCode> {
    let out = arguments.out.as_ref().context(RANKS_NEED_OUT)?;
    // Ranks share their host's cores.
    ranks.follow(out, arguments.threads.unwrap_or(1))?;
    Ok(ExitCode::SUCCESS)
}

fn file_name(file: Option<&Path>) -> String {
    let name = file.and_then(Path::file_name);
    name.map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// The fields of a run's record that its plan and the command line determine.
fn meta(arguments: &RunArguments, workload: &Workload) -> RunMeta {
    let plan = &workload.plan;
    let mut notes = workload.notes.clone();
    if !arguments.resources.is_zero() {
        notes.extend(crate::resources::distances_note());
    }
    RunMeta {
        version: 1,
        name: plan.name.clone(),
        description: plan.description.clone(),
        file: match arguments.quick.is_asked() {
            true => String::new(),
            false => file_name(arguments.file.as_deref()),
        },
        scale: arguments.scale.clone().unwrap_or_default(),
        tags: arguments.tags.clone(),
        format: plan.format.clone(),
        seed: plan.seed,
        plan_digest: crate::compare::plan_digest(plan),
        command: told_command(),
        lab_version: env!("CARGO_PKG_VERSION").to_owned(),
        notes,
        ..RunMeta::default()
    }
}

type Start = dyn FnOnce(&RunMeta) -> Result<RunWriter, WriteError>;

/// A run that is to be conducted: a new one, or one that goes on.
struct Job {
    plan: Plan,
    meta: RunMeta,
    folder: RunFolder,
    pools: Pools,
    /// Number of the first stages that have finished before.
    finished: usize,
    /// Makes the folder's files, or opens them.
    start: Box<Start>,
}

fn new_job(arguments: &RunArguments, workload: &Workload, bytes: Vec<u8>) -> Job {
    let started = now();
    let id = run_id(&workload.plan.name, started);
    let folder = arguments.out.clone();
    let folder = folder.unwrap_or_else(|| Path::new("lab-runs").join(&id));
    let folder = RunFolder::new(folder);
    let meta = RunMeta {
        id,
        started,
        ..meta(arguments, workload)
    };
    let (plan, of_files) = (workload.plan.clone(), workload.plan.clone());
    let (root, extension) = (folder.clone(), workload.format.extension());
    Job {
        plan,
        meta,
        folder,
        pools: Pools::default(),
        finished: 0,
        start: Box::new(move |meta| {
            RunWriter::create(root, meta, &of_files, Some((extension, &bytes)))
        }),
    }
}

/// The run in `folder`, to go on.
fn resumed(arguments: &RunArguments, folder: &Path) -> Result<Job> {
    arguments.quick.check()?;
    if Ranks::of_environment().is_some() {
        bail!("--resume under mpirun: start it without, or run the workload anew");
    }
    let mut resume = Resume::open(folder, told_command())?;
    resume.sign_in(&sign_in(arguments, None))?;
    local_access(arguments).check(&Footprint::of(&resume.plan))?;
    let pools = resume.pools.as_ref().map(Pools::restored);
    if pools.is_some() && !arguments.drivers.is_empty() {
        bail!(
            "--resume with --driver: the workload's pools are known to this process only; leave \
             --driver out, or run the workload anew"
        );
    }
    Ok(Job {
        plan: resume.plan.clone(),
        meta: resume.meta.clone(),
        folder: resume.folder.clone(),
        pools: pools.unwrap_or_default(),
        finished: resume.finished,
        start: Box::new(|meta| resume.start(meta)),
    })
}

/// Executes the plan here, as a rank or with drivers, and writes the results.
fn conduct(
    arguments: &RunArguments,
    job: Job,
    ranks: Option<&Ranks>,
    terminal: &mut Terminal,
) -> Result<RunMeta> {
    let Job {
        plan,
        mut meta,
        folder,
        pools,
        finished,
        start,
    } = job;
    let plan = &plan;
    if meta.ceiling.is_none() && !arguments.no_ceiling {
        meta.ceiling = Some(ceiling::of_this_machine());
    }
    let (report, reports) = mpsc::channel::<Report>();
    let options = TargetOptions {
        timeout: arguments.timeout,
        insecure: arguments.insecure,
        ca: arguments.ca.clone(),
        hosts: arguments.confined.then(|| Footprint::of(plan).host_names()),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("no thread for signals and drivers")?;
    let metrics = Metrics::default();
    if let Some(bind) = arguments.metrics {
        let bound = runtime.block_on(metrics.serve(bind));
        bound.with_context(|| format!("--metrics: cannot listen on {bind}"))?;
    }
    let push = start_push(arguments, &runtime, &metrics, &options)?;
    let links = links(arguments, plan, options, pools, ranks, &report, &runtime)?;
    // Created only now, so that an unreachable driver leaves no folder.
    let writer = start(&meta)?;
    let cancel = Arc::new(AtomicBool::new(false));
    watch_signals(&runtime, cancel.clone())?;
    let conductor = Conductor {
        plan: plan.clone(),
        meta,
        writer,
        links,
        reports,
        cancel,
        allow_programs: arguments.allow_programs,
        observer: &mut |progress| {
            metrics.show(progress);
            terminal.show(progress);
            if let Some(news) = push.as_ref().and_then(Push::news) {
                terminal.show(&Progress::Note(news));
            }
        },
        finished,
        reached: false,
        unusable: None,
    };
    let mut meta = conductor.run()?;
    let unsent = push.and_then(|push| runtime.block_on(push.finish()));
    if let Some(note) = unsent {
        meta.notes.push(note);
        RunWriter::amend(&folder, &meta)?;
    }
    runtime.shutdown_background();
    let recorded = judge(arguments, &folder, &mut meta)?;
    terminal.summary(&meta, &recorded.stages, folder.root());
    Ok(meta)
}

/// The drivers: this process, other ranks, or those of the command line.
fn links(
    arguments: &RunArguments,
    plan: &Plan,
    options: TargetOptions,
    pools: Pools,
    ranks: Option<&Ranks>,
    report: &mpsc::Sender<Report>,
    runtime: &tokio::runtime::Runtime,
) -> Result<Vec<Box<dyn Link>>> {
    let mut links = Vec::new();
    let mut secret = arguments.secret.clone();
    let mut addresses = arguments.drivers.clone();
    if let Some(ranks) = ranks {
        let out = arguments.out.as_ref().context(RANKS_NEED_OUT)?;
        let (made, found) = ranks.gather(out)?;
        (secret, addresses) = (Some(made), found);
    }
    if ranks.is_some() || addresses.is_empty() {
        let share = Share {
            driver: 0,
            drivers: addresses.len() as u32 + 1,
        };
        links.push(local_link(
            arguments,
            plan,
            options.clone(),
            pools,
            share,
            report,
        ));
    }
    if !addresses.is_empty() {
        let remote = remote_links(
            arguments,
            plan,
            options,
            secret,
            &addresses,
            links.len(),
            report,
        );
        links.extend(runtime.block_on(remote)?);
    }
    Ok(links)
}

fn start_push(
    arguments: &RunArguments,
    runtime: &tokio::runtime::Runtime,
    metrics: &Metrics,
    target: &TargetOptions,
) -> Result<Option<Push>> {
    let Some(url) = &arguments.push else {
        return Ok(None);
    };
    let options = PushOptions {
        url: url.clone(),
        interval: arguments.push_interval,
        format: arguments.push_format,
        token: arguments.push_token.clone(),
    };
    let _guard = runtime.enter();
    Push::start(options, metrics, target).map(Some)
}

/// Records in a run's folder which conditions of `--fail-if` hold, and writes its tables.
fn judge(arguments: &RunArguments, folder: &RunFolder, meta: &mut RunMeta) -> Result<Recorded> {
    let mut recorded = read_folder(folder.root())?;
    meta.broken = broken(&arguments.fail_if, &recorded.view());
    if !meta.broken.is_empty() {
        RunWriter::amend(folder, meta)?;
        recorded.meta.broken.clone_from(&meta.broken);
    }
    write_tables(folder.root(), &recorded)?;
    Ok(recorded)
}

/// Conditions that hold for a finished run: the given ones, and one on failures in any case.
fn broken(given: &[Condition], run: &Run) -> Vec<String> {
    let mut operations = run.stages.iter().flat_map(|stage| &stage.operations);
    let measures = operations.any(|o| !o.is_special() && o.success().is_some());
    let is_default = measures && !given.iter().any(Condition::is_of_failures);
    let default = is_default.then(Condition::few_failures);
    let conditions = given.iter().chain(&default);
    conditions
        .flat_map(|condition| condition.broken(run))
        .collect()
}

fn local_link(
    arguments: &RunArguments,
    plan: &Plan,
    options: TargetOptions,
    pools: Pools,
    share: Share,
    report: &mpsc::Sender<Report>,
) -> Box<dyn Link> {
    let driver = Driver {
        name: "driver1".into(),
        share,
        seed: plan.seed,
        access: plan.access.clone(),
        options,
        threads: arguments.threads.unwrap_or_else(cores),
        pools: Arc::new(pools),
    };
    let sampling = (!arguments.resources.is_zero()).then_some(arguments.resources);
    let watched = arguments.watch.clone();
    Box::new(LocalLink::new(driver, 0, report.clone(), sampling, watched))
}

/// Connects to all drivers; the first has number `first` in the run.
async fn remote_links(
    arguments: &RunArguments,
    plan: &Plan,
    options: TargetOptions,
    secret: Option<String>,
    addresses: &[String],
    first: usize,
    report: &mpsc::Sender<Report>,
) -> Result<Vec<Box<dyn Link>>> {
    let secret = secret.context(
        "drivers need the secret they were started with: give --secret, or CAIRN_LAB_SECRET in \
         the environment",
    )?;
    let briefing = Briefing {
        secret,
        seed: plan.seed,
        access: plan.access.clone(),
        options,
        resources: arguments.resources,
        watched: arguments.watch.clone(),
    };
    let drivers = (first + addresses.len()) as u32;
    let mut links: Vec<Box<dyn Link>> = Vec::new();
    for (index, address) in (first..).zip(addresses) {
        let share = Share {
            driver: index as u32,
            drivers,
        };
        links.push(Box::new(
            reach(address, index, share, &briefing, report.clone()).await?,
        ));
    }
    Ok(links)
}

/// SIGINT and SIGTERM cancel the run and keep its results; a second one ends the process.
fn watch_signals(runtime: &tokio::runtime::Runtime, cancel: Arc<AtomicBool>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let _guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    runtime.spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if cancel.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        }
    });
    Ok(())
}
