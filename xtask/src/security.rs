//! Attacks on a running store: tenants who want another's data, clients that hold connection slots
//! and never read, requests that can be parsed in two ways, guessed and revoked logins, local users
//! and the console. Each case says what has to hold, and is tried on OpenStack Swift too if its API
//! has the feature; a difference there is a note and no failure.

mod cache;
mod console;
mod doors;
mod forms;
mod heads;
mod hosts;
mod keystone;
mod logins;
mod proxy_line;
mod roles;
mod secrets;
mod slow;
mod sync;
mod tenants;

use anyhow::{Context, Result, bail};
use clap::Args;

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::conf::with_option;
use cairn_testkit::process::Process;
use cairn_testkit::report::Report;
use cairn_testkit::swift::{Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace;
use doors::Doors;

#[derive(Args)]
pub(crate) struct Options {
    /// Cases whose names hold one of these words; all where none is given
    pub(crate) cases: Vec<String>,
    /// Sockets of each kind of slow client
    #[arg(long, default_value_t = 5000)]
    pub(crate) sockets: usize,
    /// Leave OpenStack Swift out
    #[arg(long)]
    pub(crate) cairn_only: bool,
}

impl Options {
    /// Options of a run of about a minute.
    pub(crate) fn short() -> Self {
        Options {
            cases: Vec::new(),
            sockets: 400,
            cairn_only: true,
        }
    }
}

/// A store under attack, with the users of `testkit/users.txt`.
pub(crate) struct Store {
    pub(crate) port: u16,
    pub(crate) is_cairn: bool,
    /// PIDs of the started processes, each the leader of a process group.
    leaders: Vec<u32>,
    doors: Doors,
}

/// The stores' `client_timeout` in seconds: idle clients are cut off after it.
pub(crate) const CLIENT_TIMEOUT: u64 = 5;

type Attack = fn(&Store, &Options) -> Result<String>;

struct Case {
    name: &'static str,
    attack: Attack,
    /// The reason why the case is not tried on OpenStack Swift.
    not_on_swift: Option<&'static str>,
}

const fn both(name: &'static str, attack: Attack) -> Case {
    Case {
        name,
        attack,
        not_on_swift: None,
    }
}

const fn ours(name: &'static str, why: &'static str, attack: Attack) -> Case {
    Case {
        name,
        attack,
        not_on_swift: Some(why),
    }
}

const CASES: &[Case] = &[
    ours(
        "no stranger reads an object, whatever headers say",
        "not there before its maintainers have been told",
        tenants::strangers,
    ),
    both("links that go round in circles end", tenants::circles),
    ours(
        "so do links in circles with the marks of trusted ones",
        "not there before its maintainers have been told",
        tenants::marked_circles,
    ),
    both("a signature opens one object", tenants::signatures),
    both("a form gets in with what is signed alone", forms::forms),
    both(
        "container sync gets in with what is signed alone",
        sync::synced,
    ),
    both("a host is a path and no right", hosts::remapped),
    both(
        "look-ups of hosts are bounded and give no right",
        hosts::looked_up,
    ),
    both(
        "nothing but a good PROXY line gets in, and nothing by one where it is off",
        proxy_line::lines,
    ),
    both("what a memcached says lets nobody in", cache::answers),
    both(
        "nobody is who he says in headers, Keystone aside",
        keystone::claims,
    ),
    both(
        "strangers do not learn which versions there are",
        tenants::versions,
    ),
    both("heads that can be read in two ways", heads::ambiguous),
    both("heads and names without an end", heads::endless),
    both("slow readers", slow::readers),
    both("slow senders", slow::senders),
    both("idle connections", slow::idle),
    both("half heads", slow::heads),
    both("ended tokens are ended in every spelling", logins::ended),
    ours(
        "a service's role ends nobody's tokens",
        "Keystone's own matter there",
        roles::service,
    ),
    both("a group named as a role is none", roles::groups),
    ours(
        "/metrics is not for what a proxy passes on",
        "it has none",
        roles::metrics,
    ),
    both(
        "guesses hold nobody up, and do not tell who there is",
        logins::guesses,
    ),
];

pub(crate) fn run(options: &Options) -> Result<Report> {
    slow::raise_open_files(options.sockets)?;
    let binary = workspace::build_cairn()?;
    let dir = workspace::scratch("security")?;
    let mut report = Report::default();
    let mut cairn = Cairn::create(&binary, &dir.path().join("cairn"), None)?;
    cairn.set(
        "proxy",
        "app:proxy-server",
        "client_timeout",
        &CLIENT_TIMEOUT.to_string(),
    )?;
    let (option, boss) = roles::BOSS;
    cairn.set("proxy", "filter:tempauth", option, boss)?;
    let (doors, confs) = Doors::create(&cairn.conf("proxy").context("no proxy's conf")?)?;
    confs.into_iter().for_each(|conf| cairn.add_conf(conf));
    cairn.start(Spread::OneProcess)?;
    let ours = Store {
        port: cairn.port(),
        is_cairn: true,
        doors,
        leaders: cairn.processes().iter().map(Process::id).collect(),
    };
    let mut peer = match options.cairn_only {
        true => None,
        false => Some(Peer::start(dir.path())?),
    };
    for case in CASES.iter().filter(|case| wanted(options, case.name)) {
        report.tell(case.name, || {
            let words = (case.attack)(&ours, options)?;
            Ok(match &peer {
                Some(peer) => format!("{words}; {}", peer.compared(case, options)),
                None => words,
            })
        });
    }
    if let Some(peer) = &mut peer {
        peer.swift.stop();
    }
    cairn.stop()?;
    let apart: [(&str, secrets::Apart); 4] = [
        (
            "what holds data or keys is its owner's alone",
            secrets::modes,
        ),
        (
            "no key is in the list of processes or printed",
            secrets::shown,
        ),
        (
            "a key that everybody knows stays on this host",
            secrets::known,
        ),
        (
            "the console: no local files, hostile uploads, guesses",
            console::runs,
        ),
    ];
    for (name, attack) in apart.iter().filter(|(name, _)| wanted(options, name)) {
        report.tell(name, || attack(&binary, dir.path()));
    }
    Ok(report)
}

fn wanted(options: &Options, name: &str) -> bool {
    options.cases.is_empty()
        || options
            .cases
            .iter()
            .any(|word| name.contains(word.as_str()))
}

/// OpenStack Swift with the same users.
struct Peer {
    swift: Swift,
    store: Store,
}

impl Peer {
    fn start(dir: &std::path::Path) -> Result<Peer> {
        let mut swift = Swift::create(&Venv::prepare()?, &dir.join("swift"), Layout::default())?;
        let conf = swift.proxy_conf();
        let text = std::fs::read_to_string(&conf)?;
        let timeout = CLIENT_TIMEOUT.to_string();
        let text = with_option(&text, "app:proxy-server", "client_timeout", &timeout);
        let (option, boss) = roles::BOSS;
        let text = with_option(&text, "filter:tempauth", option, boss);
        std::fs::write(&conf, text)?;
        let (doors, confs) = Doors::create(&conf)?;
        swift.start()?;
        for (index, conf) in confs.iter().enumerate() {
            swift.start_proxy(&format!("proxy-{index}"), conf)?;
        }
        doors.wait()?;
        let store = Store {
            port: swift.port,
            is_cairn: false,
            doors,
            leaders: swift.processes().iter().map(Process::id).collect(),
        };
        Ok(Peer { swift, store })
    }

    fn compared(&self, case: &Case, options: &Options) -> String {
        if let Some(why) = case.not_on_swift {
            return format!("not tried on OpenStack Swift: {why}");
        }
        match (case.attack)(&self.store, options) {
            Ok(words) => format!("OpenStack Swift holds too: {words}"),
            Err(error) => format!("OpenStack Swift differs: {error:#}"),
        }
    }
}

impl Store {
    /// Resident memory of its processes, in bytes.
    fn resident(&self) -> u64 {
        self.processes().into_iter().map(resident).sum()
    }

    /// CPU time of its processes, in seconds.
    fn processor_seconds(&self) -> f64 {
        let of = |pid: u32| -> Option<f64> {
            let words = stat(pid)?;
            let used = words.get(11)?.parse::<f64>().ok()? + words.get(12)?.parse::<f64>().ok()?;
            Some(used / rustix::param::clock_ticks_per_second() as f64)
        };
        self.processes().into_iter().filter_map(of).sum()
    }

    /// PIDs of the group leaders and their workers.
    fn processes(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let group = stat(*pid).and_then(|words| words.get(2)?.parse().ok());
                group.is_some_and(|group: u32| self.leaders.contains(&group))
            })
            .collect()
    }
}

/// Resident memory of a process in bytes; 0 if it has ended.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Fields of `/proc/PID/stat` after the program's name, which may contain any character.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit_once(')')?.1;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Returns `words` if nothing is broken, else an error that lists every violation.
fn all_held(broken: Vec<String>, words: String) -> Result<String> {
    if broken.is_empty() {
        return Ok(words);
    }
    let count = broken.len();
    let mut first = broken;
    first.truncate(6);
    bail!("{count} did not hold: {}", first.join("; "));
}
