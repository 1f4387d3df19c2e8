//! A store that is unreachable is tried once and reported in one line, whatever the workload.

// Tests may panic.
#![allow(clippy::unwrap_used)]

mod store;

use std::net::TcpListener;
use std::time::Duration;

use cairn_lab::plan::Plan;
use cairn_lab::record::State;
use cairn_lab::workload::{Options, Target, read};
use store::Store;

const WORKLOAD: &str = r#"<workload name="five" config="cprefix=c">
  <workflow>
    <workstage name="init"><work type="init" workers="1" config="containers=r(1,2)"/></workstage>
    <workstage name="prepare"><work type="prepare" workers="2"
      config="containers=r(1,2);objects=r(1,5);sizes=c(1)KB"/></workstage>
    <workstage name="main"><work name="main" workers="4" totalOps="40">
      <operation type="read" ratio="100" config="containers=u(1,2);objects=u(1,5)"/>
    </work></workstage>
    <workstage name="cleanup"><work type="cleanup" workers="1"
      config="containers=r(1,2);objects=r(1,5)"/></workstage>
    <workstage name="dispose"><work type="dispose" workers="1" config="containers=r(1,2)"/></workstage>
  </workflow></workload>"#;

fn plan(url: &str, key: &str, token: Option<&str>) -> Plan {
    let mut plan = read("workload", WORKLOAD.as_bytes(), &Options::default())
        .unwrap()
        .plan;
    let target = Target {
        url: Some(url.to_owned()),
        user: Some("test:tester".to_owned()),
        key: Some(key.to_owned()),
        token: token.map(str::to_owned),
        ..Target::default()
    };
    target.apply(&mut plan).unwrap();
    plan
}

/// Runs the plan, checks that only one stage was tried, and returns the run's failure message.
fn failure(plan: &Plan) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (meta, stages) = store::run(plan, &folder.path().join("run"));
    assert_eq!(meta.state, State::Failed);
    assert_eq!(stages.len(), 1, "{}", meta.message);
    assert!(meta.notes.is_empty(), "{:?}", meta.notes);
    assert_eq!(meta.message, stages[0].message);
    assert!(!meta.message.contains('\n'), "{}", meta.message);
    meta.message
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn nobody_listens() {
    let port = free_port();
    for url in [
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{port}/v3"),
        format!("s3+http://127.0.0.1:{port}"),
    ] {
        let message = failure(&plan(&url, "testing", None));
        let (address, what) = (format!("127.0.0.1:{port}"), "refused");
        assert!(
            message.starts_with("cannot reach http://")
                && message.matches(&address).count() == 1
                && message.contains(what)
                && message.contains("--target"),
            "{message}"
        );
    }
}

#[test]
fn a_token_and_an_address_where_nobody_listens() {
    let url = format!("http://127.0.0.1:{}/v1/AUTH_test", free_port());
    let message = failure(&plan(&url, "", Some("token")));
    assert!(
        message.contains(&url) && message.contains("refused"),
        "{message}"
    );
}

#[test]
fn a_name_without_an_address() {
    // This host name is reserved never to exist.
    let message = failure(&plan("http://store.invalid:8080", "testing", None));
    assert!(
        message.starts_with("cannot reach http://store.invalid:8080/auth/v1.0"),
        "{message}"
    );
}

#[test]
fn a_wrong_key() {
    let store = Store::start(Box::new(|_, _| Duration::ZERO));
    let message = failure(&plan(&store.auth_url(), "wrong", None));
    let said = format!("{} refused to sign \"test:tester\" in", store.auth_url());
    assert!(
        message.starts_with(&said) && message.contains("--key"),
        "{message}"
    );
}

#[test]
fn an_address_that_is_no_store() {
    let store = Store::start(Box::new(|_, _| Duration::ZERO));
    let url = format!("http://{}/elsewhere", store.address);
    let message = failure(&plan(&url, "testing", None));
    assert!(
        message.contains("no place to sign in") && message.contains("--target"),
        "{message}"
    );
}

/// With librados installed there is still no Ceph at this address.
#[test]
fn no_ceph() {
    let key = "AQBkYWFhYWFhEAAAYWFhYWFhYWFhYWFhYWFhYQ==";
    let message = failure(&plan("rados://127.0.0.1:1/pool", key, None));
    let remedies = ["--target rados://", "install librados2"];
    assert!(
        message.starts_with("storage type rados: ")
            && remedies.iter().any(|remedy| message.contains(remedy)),
        "{message}"
    );
    let message = failure(&plan("rados://127.0.0.1:1/pool", "no key", None));
    assert!(
        message.contains("--key") && !message.contains("no key"),
        "{message}"
    );
}

#[test]
fn a_kind_of_store_that_nobody_drives() {
    let workload = WORKLOAD.replace(
        "<workflow>",
        r#"<storage type="ampli" config="host=h;port=1"/><workflow>"#,
    );
    let plan = read("workload", workload.as_bytes(), &Options::default())
        .unwrap()
        .plan;
    let message = failure(&plan);
    assert!(
        message.contains("ampli") && message.contains("--target"),
        "{message}"
    );
}

/// A store that becomes unreachable during the run is tried once more, for cleanup, and then no
/// longer.
#[test]
fn it_goes_away_in_the_middle() {
    let store = Store::start(Box::new(|_, _| Duration::ZERO));
    store.vanish_after(20);
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&store.auth_url(), "testing", None);
    let (meta, stages) = store::run(&plan, &folder.path().join("run"));
    assert_eq!(meta.state, State::Failed);
    let names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names.len(), 5, "{names:?}");
    let gone = meta.message.matches("no place to sign in").count();
    assert_eq!(gone, 1, "{}", meta.message);
}
