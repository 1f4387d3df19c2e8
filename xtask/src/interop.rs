//! Interoperability of files. OpenStack Swift writes objects onto its devices and is stopped; Cairn
//! serves the same confs, rings and devices, and everything it shows over HTTP is compared with
//! what Swift showed; Cairn writes more and is stopped; Swift serves again.

mod content;
mod snapshot;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::report::Report;
use cairn_testkit::swift::{CORE_PIPELINE, Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;
use content::Model;
use snapshot::Snapshot;

pub(crate) fn run() -> Result<Report> {
    let venv = Venv::prepare()?;
    let binary = workspace::build_cairn()?;
    let dir = workspace::scratch("interop")?;
    let layout = Layout {
        pipeline: CORE_PIPELINE,
        proxy_workers: 1,
        ..Layout::default()
    };
    let mut swift = Swift::create(&venv, dir.path(), layout)?;
    let mut model = Model::default();
    let mut report = Report::default();

    swift.start()?;
    content::write_first(&mut Account::login(swift.port)?, &mut model)?;
    settle(&swift)?;
    let by_swift = Snapshot::take(&mut Account::login(swift.port)?)?;
    swift.stop();
    report.check(
        "OpenStack Swift's files: what Swift shows is what was written",
        || by_swift.matches(&model),
    );

    let by_cairn = with_cairn(&mut swift, &binary, dir.path(), |account| {
        let before = Snapshot::take(account)?;
        content::write_second(account, &mut model)?;
        let after = snapshot_in_step(account, &model)?;
        Ok((before, after))
    })?;
    let (before, after) = by_cairn;
    report.check("OpenStack Swift's files: Cairn shows the same", || {
        before.same_as(&by_swift, true)
    });
    report.check(
        "both sides' files: what Cairn shows is what was written",
        || after.matches(&model),
    );

    swift.start()?;
    let stale = Snapshot::take(&mut Account::login(swift.port)?)?;
    report.check("both sides' files: OpenStack Swift shows the same", || {
        stale.same_as(&after, false)
    });
    content::write_third(&mut Account::login(swift.port)?, &mut model)?;
    settle(&swift)?;
    let by_swift = Snapshot::take(&mut Account::login(swift.port)?)?;
    swift.stop();
    report.check("and goes on writing on them", || by_swift.matches(&model));

    let last = with_cairn(&mut swift, &binary, dir.path(), Snapshot::take)?;
    report.check("Cairn again, account totals too", || {
        last.same_as(&by_swift, true)
    });
    Ok(report)
}

/// Runs the background daemons: for rows of containers and totals of accounts.
fn settle(swift: &Swift) -> Result<()> {
    swift.once("object-updater")?;
    swift.once("container-updater")
}

/// Runs Cairn on Swift's confs; the configured cache runs too.
fn with_cairn<T>(
    swift: &mut Swift,
    binary: &Path,
    dir: &Path,
    work: impl FnOnce(&mut Account) -> Result<T>,
) -> Result<T> {
    swift.start_memcached()?;
    let mut cairn = Cairn::of_confs(binary, dir, swift.port, swift.confs());
    cairn.start(Spread::OneProcess)?;
    let done = work(&mut Account::login(swift.port)?).map_err(|e| e.context(cairn.log_tail()))?;
    cairn.stop()?;
    swift.stop();
    Ok(done)
}

/// A snapshot once listings have caught up with the objects.
fn snapshot_in_step(account: &mut Account, model: &Model) -> Result<Snapshot> {
    for _ in 0..100 {
        let snapshot = Snapshot::take(account)?;
        if snapshot.matches(model).is_ok() {
            return Ok(snapshot);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let snapshot = Snapshot::take(account)?;
    ensure!(
        !snapshot.containers.is_empty(),
        "Cairn shows no container at all"
    );
    Ok(snapshot)
}
