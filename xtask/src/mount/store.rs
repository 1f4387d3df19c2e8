//! The stores whose containers are mounted: Cairn, and the real OpenStack Swift, which decides no
//! conditions of writes and is slower. Checks start, stop and kill them through this alone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::conf::with_option;
use cairn_testkit::swift::{Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    #[default]
    Cairn,
    /// The real one, from PyPI
    OpenstackSwift,
}

/// Section and option of the proxy by which reading small segments is slowed down; most of the time
/// of reading them would be its pauses.
const SMALL_SEGMENTS: (&str, &str) = ("filter:slo", "rate_limit_segments_per_sec");

/// The store's limits in swift.conf: names longer than by default, and request lines and headers in
/// which they have room.
fn limits(name_bytes: usize) -> Vec<(&'static str, usize)> {
    vec![
        ("max_object_name_length", name_bytes),
        ("max_request_line", 32768),
        ("max_header_size", 16384),
    ]
}

/// A store; its processes are killed when dropped.
pub(super) enum Store {
    Cairn(Cairn),
    OpenstackSwift(Swift),
}

impl Store {
    /// Creates a store below `dir`, with names of up to `name_bytes`; starts no process. `engine` is
    /// Cairn's.
    pub(super) fn create(
        kind: Kind,
        engine: Option<EngineName>,
        binary: &Path,
        dir: &Path,
        name_bytes: usize,
    ) -> Result<Store> {
        match kind {
            Kind::Cairn => {
                let store = cairn(binary, dir, name_bytes)?;
                EngineName::set(engine, &store)?;
                Ok(Store::Cairn(store))
            }
            Kind::OpenstackSwift => swift(dir, name_bytes).map(Store::OpenstackSwift),
        }
    }

    /// Starts all processes and waits until they listen.
    pub(super) fn start(&mut self) -> Result<()> {
        match self {
            Store::Cairn(cairn) => cairn.start(Spread::OneProcess),
            Store::OpenstackSwift(swift) => {
                swift.start()?;
                swift.start_updaters()
            }
        }
    }

    /// Sends SIGKILL to every process.
    pub(super) fn kill(&mut self) {
        match self {
            Store::Cairn(cairn) => cairn.kill(),
            Store::OpenstackSwift(swift) => swift.kill(),
        }
    }

    /// Ends all processes; an error if one of Cairn's does not end by itself.
    pub(super) fn stop(&mut self) -> Result<()> {
        match self {
            Store::Cairn(cairn) => cairn.stop(),
            Store::OpenstackSwift(swift) => {
                swift.stop();
                Ok(())
            }
        }
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Store::Cairn(cairn) => cairn.port(),
            Store::OpenstackSwift(swift) => swift.port,
        }
    }

    /// URL of the proxy, without a path.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Logs in as test:tester.
    pub(super) fn account(&self) -> Result<Account> {
        Account::login(self.port())
    }

    /// The folder of one of its disks, and a place for it where no server looks.
    pub(super) fn a_disk(&self) -> Result<(PathBuf, PathBuf)> {
        let disk = match self {
            Store::Cairn(cairn) => cairn.devices()?.into_iter().next(),
            Store::OpenstackSwift(swift) => Some(swift.node(1).join("d1")),
        };
        let disk = disk.context("no disk")?;
        let above = disk.ancestors().nth(2).context("a disk at the root")?;
        let elsewhere = above.join("elsewhere");
        Ok((disk, elsewhere))
    }

    /// How it differs from Cairn, as far as checks of a mount have to know.
    pub(super) fn traits(&self) -> Traits {
        match self {
            Store::Cairn(_) => Traits::CAIRN,
            Store::OpenstackSwift(_) => Traits::OPENSTACK_SWIFT,
        }
    }
}

/// Differences between stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// Conditions of writes are decided, so that several mounts may write one file.
    pub(super) decides: bool,
    /// Multiple of the time that Cairn is given.
    pub(super) patience: u32,
    /// Seconds within which the store has to begin an answer, as an option of the mount.
    pub(super) answer_seconds: &'static str,
}

impl Traits {
    pub(super) const CAIRN: Traits = Traits {
        decides: true,
        patience: 1,
        answer_seconds: "5",
    };
    const OPENSTACK_SWIFT: Traits = Traits {
        decides: false,
        patience: 6,
        answer_seconds: "30",
    };
}

fn cairn(binary: &Path, dir: &Path, name_bytes: usize) -> Result<Cairn> {
    let store = Cairn::create(binary, dir, None)?;
    let (section, option) = SMALL_SEGMENTS;
    store.set("proxy", section, option, "0")?;
    let conf = store.conf("proxy").context("a store without a proxy")?;
    let conf = conf.with_file_name("swift.conf");
    let mut text = fs::read_to_string(&conf)?;
    text.push_str("\n[swift-constraints]\n");
    for (limit, value) in limits(name_bytes) {
        text.push_str(&format!("{limit} = {value}\n"));
    }
    fs::write(conf, text)?;
    Ok(store)
}

fn swift(dir: &Path, name_bytes: usize) -> Result<Swift> {
    let layout = Layout {
        constraints: limits(name_bytes),
        ..Layout::default()
    };
    let store = Swift::create(&Venv::prepare()?, dir, layout)?;
    let (section, option) = SMALL_SEGMENTS;
    let conf = store.proxy_conf();
    let text = fs::read_to_string(&conf)?;
    fs::write(conf, with_option(&text, section, option, "0"))?;
    Ok(store)
}
