//! OpenStack Swift's own test suites against Cairn. A committed list names the tests that pass on
//! OpenStack Swift itself, a second one those of them that need middleware not built yet; all tests
//! on the first and not on the second must pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::engine::EngineName;
use crate::probe::{self, Probe};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::conf::users;
use cairn_testkit::swift::{ENCRYPTED_FULL_PIPELINE, FULL_PIPELINE, Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;

const FUNCTIONAL: &str = include_str!("../conformance/functional-upstream.txt");
const FUNCTIONAL_LATER: &str = include_str!("../conformance/functional-later.txt");

/// With the tags of each segment, an object of the maximum size exceeds the limit.
const AUTHENTICATED_LATER: &str = "test.functional.tests.TestFile::testFileSizeLimit\n\
     test.functional.tests.TestFileUTF8::testFileSizeLimit\n";

/// The whole suite, as a path in it.
pub(crate) const ALL: &str = ".";

#[derive(Subcommand)]
pub(crate) enum Suite {
    /// The functional tests (test/functional)
    Functional(Functional),
    /// The probe tests (test/probe), which start and stop the programs and break things; as root
    Probe(Probe),
    /// Start a store configured for the suites and stay
    Serve {
        #[arg(long, default_value = "127.0.0.1:8080")]
        bind: SocketAddr,
    },
}

#[derive(Args, Default)]
pub(crate) struct Functional {
    /// Files of test/functional (all of them by default); with ::Class::test as pytest takes it
    pub(crate) files: Vec<String>,
    /// Proxy, account, container and object servers in processes of their own
    #[arg(long)]
    pub(crate) split: bool,
    /// With an erasure-coded default policy
    #[arg(long, conflicts_with_all = ["url", "upstream"])]
    pub(crate) coded: bool,
    /// With objects encrypted: `keymaster` and `encryption` in the pipeline
    #[arg(long, conflicts_with = "url")]
    pub(crate) encryption: bool,
    /// With objects encrypted so that changes are noticed, which Swift cannot do
    #[arg(long, conflicts_with_all = ["url", "upstream"])]
    pub(crate) authenticated: bool,
    /// The engine of all policies
    #[arg(long, value_enum, conflicts_with_all = ["url", "upstream"])]
    pub(crate) engine: Option<EngineName>,
    /// A running endpoint instead of a store of our own; its accounts must be empty
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// OpenStack Swift itself instead of Cairn: are the lists right? (Its servers read storage
    /// policies from /etc/swift only, so tests that need two are skipped.)
    #[arg(long, conflicts_with = "url")]
    pub(crate) upstream: bool,
    /// Also show tests of the list of later ones that pass already
    #[arg(long)]
    pub(crate) show_early: bool,
}

impl Functional {
    pub(crate) fn of_files(files: &[&str]) -> Self {
        Functional {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            ..Default::default()
        }
    }
}

pub(crate) fn run(suite: &Suite) -> Result<()> {
    match suite {
        Suite::Functional(options) => functional(options)?.verdict(),
        Suite::Probe(options) => probe::run(options)?.verdict(),
        Suite::Serve { bind } => serve(*bind),
    }
}

pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Tests that must pass and did not, with their outcome.
    pub(crate) short: Vec<String>,
    /// Tests on the second list that already pass.
    early: Vec<String>,
}

impl Counts {
    /// Prints the outcome; fails if a test falls short.
    pub(crate) fn verdict(&self) -> Result<()> {
        self.print();
        ensure!(
            self.short.is_empty(),
            "{} tests fall short of upstream",
            self.short.len()
        );
        Ok(())
    }

    pub(crate) fn print(&self) {
        for name in &self.early {
            println!("passes early: {name}");
        }
        for name in &self.short {
            println!("falls short of upstream: {name}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        );
    }
}

/// A store configured for the suites, not started.
fn store(dir: &Path, bind: Option<SocketAddr>, coded: bool) -> Result<Cairn> {
    let store = Cairn::create(&workspace::build_cairn()?, dir, bind)?;
    for (section, option, value) in [
        ("filter:tempauth", "reseller_prefix", "AUTH, SERVICE"),
        ("filter:tempauth", "SERVICE_require_group", "service"),
        ("app:proxy-server", "allow_account_management", "true"),
        ("app:proxy-server", "account_autocreate", "true"),
        ("app:proxy-server", "allow_open_expired", "true"),
        ("filter:domain_remap", "storage_domain", "example.com"),
        ("filter:slo", "allow_async_delete", "true"),
        ("filter:versioned_writes", "allow_versioned_writes", "true"),
        ("filter:versioned_writes", "allow_object_versioning", "true"),
        ("filter:s3api", "s3_acl", "yes"),
        ("filter:s3api", "check_bucket_owner", "yes"),
        ("filter:s3api", "cors_preflight_allow_origin", "*"),
    ] {
        store.set("proxy", section, option, value)?;
    }
    // One test announces uploads of 60 GB in all and sends none of them.
    store.set("object", "DEFAULT", "disable_fallocate", "true")?;
    store.add_policy(coded)?;
    Ok(store)
}

fn serve(bind: SocketAddr) -> Result<()> {
    let dir = workspace::scratch("conformance")?;
    let mut store = store(dir.path(), Some(bind), false)?;
    store.start(Spread::OneProcess)?;
    println!(
        "a store for the suites is on {}; Ctrl-C ends it",
        store.url()
    );
    workspace::wait_for_end()?;
    store.stop()
}

/// The suite assumes that accounts exist: responses for nonexistent ones differ slightly.
fn create_accounts(port: u16) -> Result<()> {
    for user in users()
        .iter()
        .filter(|u| u.groups.iter().any(|g| g == ".admin"))
    {
        let name = format!("{}:{}", user.account, user.name);
        Account::login_as(port, &name, &user.key)?.must("POST", "", "", &[], b"")?;
    }
    Ok(())
}

pub(crate) fn functional(options: &Functional) -> Result<Counts> {
    let venv = Venv::prepare()?;
    let dir = workspace::scratch("conformance")?;
    let (mut own, mut peer) = (None, None);
    let url = match &options.url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None if options.upstream => {
            let layout = Layout {
                pipeline: match options.encryption {
                    true => ENCRYPTED_FULL_PIPELINE,
                    false => FULL_PIPELINE,
                },
                ..Layout::default()
            };
            let swift = Swift::create(&venv, dir.path(), layout)?;
            let swift: &mut Swift = peer.insert(swift);
            swift.start()?;
            create_accounts(swift.port)?;
            format!("http://127.0.0.1:{}", swift.port)
        }
        None => {
            let mut store = store(&dir.path().join("data"), None, options.coded)?;
            EngineName::set(options.engine, &store)?;
            if options.authenticated {
                store.encrypt(&[("authenticated", "true")])?;
            } else if options.encryption {
                store.encrypt(&[])?;
            }
            store.start(if options.split {
                Spread::ProcessPerRole
            } else {
                Spread::OneProcess
            })?;
            create_accounts(store.port())?;
            own.insert(store).url()
        }
    };
    let files: Vec<String> = if options.files.is_empty() {
        vec![ALL.to_owned()]
    } else {
        options.files.clone()
    };
    let mut outcomes = pytest(&venv, "functional", &url, &files)?;
    let package = "test.functional";
    let later = match options.authenticated {
        true => format!("{FUNCTIONAL_LATER}\n{AUTHENTICATED_LATER}"),
        false => FUNCTIONAL_LATER.to_owned(),
    };
    let verdict = |outcomes: &_| {
        judge(
            outcomes,
            FUNCTIONAL,
            &later,
            &files,
            package,
            options.show_early,
        )
    };
    let mut counts = verdict(&outcomes);
    if (1..=RUN_AGAIN_MAX).contains(&counts.short.len()) {
        run_again(&venv, &url, package, &counts.short, &mut outcomes)?;
        counts = verdict(&outcomes);
    }
    if let Some(mut store) = own {
        store.stop()?;
    }
    drop(peer);
    Ok(counts)
}

/// Maximum number of failures that may be due to a busy machine: some tests give the store only a
/// second of real time.
const RUN_AGAIN_MAX: usize = 5;

/// Repeats the tests that fell short, alone, and reports it.
fn run_again(
    venv: &Venv,
    url: &str,
    package: &str,
    short: &[String],
    outcomes: &mut BTreeMap<String, String>,
) -> Result<()> {
    let names: Vec<&str> = short
        .iter()
        .filter_map(|s| Some(s.split_once(": ")?.1))
        .collect();
    let files: Vec<String> = names
        .iter()
        .filter_map(|name| file_of(name, package))
        .collect();
    let again = pytest(venv, "functional", url, &files)?;
    for name in names {
        if let Some(outcome) = again.get(name) {
            println!("run again alone, {outcome}: {name}");
            outcomes.insert(name.to_owned(), outcome.clone());
        }
    }
    Ok(())
}

/// Converts `package.module.Class::name` to pytest's form `module.py::Class::name`.
pub(crate) fn file_of(test: &str, package: &str) -> Option<String> {
    let (path, name) = test
        .strip_prefix(package)?
        .strip_prefix('.')?
        .split_once("::")?;
    let (module, class) = path.rsplit_once('.')?;
    Some(format!("{}.py::{class}::{name}", module.replace('.', "/")))
}

/// Runs files of `test/SUITE`; returns outcomes by test name.
fn pytest(
    venv: &Venv,
    suite: &str,
    url: &str,
    files: &[String],
) -> Result<BTreeMap<String, String>> {
    let results = workspace::results(&format!("conformance-{suite}"))?;
    let conf = results.join("test.conf");
    std::fs::write(
        &conf,
        include_str!("../conformance/test.conf").replace("@URL@", url),
    )?;
    let junit = results.join("junit.xml");
    let status = Command::new(venv.python())
        .current_dir(&venv.source)
        .env("SWIFT_TEST_CONFIG_FILE", &conf)
        .args(PYTEST)
        .arg(format!("--junitxml={}", junit.display()))
        .args(files.iter().map(|file| format!("test/{suite}/{file}")))
        .status()
        .context("running pytest")?;
    outcomes(venv, status, &junit)
}

/// Command line of pytest.
pub(crate) const PYTEST: [&str; 16] = [
    "-m",
    "pytest",
    "-o",
    "addopts=",
    "-o",
    "python_files=test_*.py tests.py",
    "-p",
    "no:requests_mock",
    "-p",
    "no:cacheprovider",
    "--timeout",
    "300",
    "-q",
    "-r",
    "f",
    "--tb=short",
];

/// The outcome of each test in a run of pytest.
pub(crate) fn outcomes(
    venv: &Venv,
    status: ExitStatus,
    junit: &Path,
) -> Result<BTreeMap<String, String>> {
    // 1: some tests failed, which is evaluated elsewhere; 5: there was none to run.
    if !matches!(status.code(), Some(0 | 1 | 5)) {
        bail!("pytest ended with {status}");
    }
    let script = workspace::root().join("tests/junit_outcomes.py");
    let lines = workspace::run_quiet(Command::new(venv.python()).arg(script).arg(junit))?;
    Ok(lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(outcome, name)| (name.to_owned(), outcome.to_owned()))
        .collect())
}

/// The names of a list, without its comments.
pub(crate) fn names(list: &str) -> BTreeSet<&str> {
    list.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect()
}

pub(crate) fn judge(
    outcomes: &BTreeMap<String, String>,
    upstream: &str,
    later: &str,
    files: &[String],
    package: &str,
    show_early: bool,
) -> Counts {
    let count = |word: &str| outcomes.values().filter(|o| *o == word).count();
    let later = names(later);
    let mut short = Vec::new();
    for name in names(upstream) {
        let outcome = outcomes.get(name).map_or("not run", String::as_str);
        if outcome != "passed"
            && !later.contains(name)
            && files.iter().any(|file| is_of(name, file, package))
        {
            short.push(format!("{outcome}: {name}"));
        }
    }
    let passed = |name: &&&str| outcomes.get(**name).is_some_and(|o| o == "passed");
    let early = match show_early {
        true => later
            .iter()
            .filter(passed)
            .map(|name| (*name).to_owned())
            .collect(),
        false => Vec::new(),
    };
    Counts {
        passed: count("passed"),
        failed: count("failed"),
        skipped: count("skipped"),
        short,
        early,
    }
}

/// Does `file.py[::Class[::name]]` select the test `package.module.Class::name`?
pub(crate) fn is_of(test: &str, file: &str, package: &str) -> bool {
    if file == ALL {
        return true;
    }
    let (path, rest) = file.split_once("::").unwrap_or((file, ""));
    let module = path
        .trim_end_matches('/')
        .trim_end_matches(".py")
        .replace('/', ".");
    let Some(test) = test.strip_prefix(&format!("{package}.{module}.")) else {
        return false;
    };
    rest.is_empty() || test == rest || test.starts_with(&format!("{rest}::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_as_pytest() {
        let test = "test.functional.test_slo.TestSlo::test_get";
        let is = |file| is_of(test, file, "test.functional");
        assert!(is(ALL));
        assert!(is("test_slo.py"));
        assert!(is("test_slo.py::TestSlo"));
        assert!(is("test_slo.py::TestSlo::test_get"));
        assert!(!is("test_slo.py::TestSloUTF8"));
        assert!(!is("test_dlo.py"));
        let file = file_of(test, "test.functional");
        assert_eq!(file.as_deref(), Some("test_slo.py::TestSlo::test_get"));
        assert!(is_of(
            "test.functional.s3api.test_acl.T::t",
            "s3api",
            "test.functional"
        ));
    }

    #[test]
    fn judges() {
        let outcomes = [
            ("p.m.C::a", "passed"),
            ("p.m.C::b", "failed"),
            ("p.m.C::l", "failed"),
        ]
        .map(|(n, o)| (n.to_owned(), o.to_owned()))
        .into();
        let upstream = "# all\np.m.C::a\np.m.C::b\np.m.C::c\np.m.C::l\np.n.C::z\n";
        let counts = judge(
            &outcomes,
            upstream,
            "# later\np.m.C::l",
            &["m.py".to_owned()],
            "p",
            false,
        );
        assert_eq!(counts.short, ["failed: p.m.C::b", "not run: p.m.C::c"]);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 2, 0));
    }

    #[test]
    fn later_tests_pass_upstream() {
        let upstream = names(FUNCTIONAL);
        for name in names(FUNCTIONAL_LATER) {
            assert!(upstream.contains(name), "{name} is not on upstream's list");
        }
    }
}
