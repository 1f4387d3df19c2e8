//! Replacement of a workload's store by the command line.

use super::super::{Target, TargetError};
use super::plan;
use crate::plan::Plan;

const COSBENCH: &str = r#"<workload name="p">
  <auth type="keystone" config="username=u;password=p;tenant_name=t;auth_url=http://old/v2.0"/>
  <storage type="swift" config="policy=gold;timeout=9;token=t;storage_url=http://old/"/>
  <workflow><workstage name="x">
    <work name="x" workers="1" totalOps="5">
      <storage type="swift" config="policy=silver;storage_url=http://older/"/>
      <operation type="read" config="containers=c(1);objects=c(1)"/></work>
    <work name="y" workers="1" totalOps="5">
      <storage type="ampli" config="host=older"/>
      <operation type="read" config="containers=c(1);objects=c(1)"/></work>
  </workstage></workflow></workload>"#;

fn at(url: &str) -> Plan {
    let mut plan = plan(COSBENCH);
    let target = Target {
        url: Some(url.to_owned()),
        ..Target::default()
    };
    target.apply(&mut plan).unwrap();
    plan
}

#[test]
fn the_kind_is_told_from_the_url() {
    for (url, auth, storage, key, value) in [
        (
            "http://h:1",
            "swauth",
            "swift",
            "auth_url",
            "http://h:1/auth/v1.0",
        ),
        (
            "http://h:1/",
            "swauth",
            "swift",
            "auth_url",
            "http://h:1/auth/v1.0",
        ),
        (
            "swift+https://h/auth/v1.0",
            "swauth",
            "swift",
            "auth_url",
            "https://h/auth/v1.0",
        ),
        (
            "http://h:5000/v3",
            "keystone",
            "swift",
            "auth_url",
            "http://h:5000/v3",
        ),
        (
            "http://h/v1/AUTH_a",
            "swauth",
            "swift",
            "storage_url",
            "http://h/v1/AUTH_a",
        ),
        ("s3+http://h:9", "none", "s3", "endpoint", "http://h:9"),
        ("rados:bench", "none", "librados", "pool", "bench"),
        ("rados://mon1/bench", "none", "librados", "endpoint", "mon1"),
        ("/a/folder", "none", "file", "path", "/a/folder"),
        ("file:/a/folder", "none", "file", "path", "/a/folder"),
    ] {
        let access = at(url).access;
        assert_eq!(
            (access.auth.kind.as_str(), access.storage.kind.as_str()),
            (auth, storage)
        );
        let found = access
            .auth
            .config
            .get(key)
            .or_else(|| access.storage.config.get(key));
        assert_eq!(found.map(String::as_str), Some(value), "{url}");
    }
    assert_eq!(at("noop:").access.storage.kind, "noop");
}

#[test]
fn names_and_policies_stay_and_addresses_go() {
    let plan = at("http://h:1");
    let Plan { access, stages, .. } = plan;
    assert_eq!(access.auth.config["username"], "u");
    assert_eq!(access.storage.config["policy"], "gold");
    assert_eq!(access.storage.config["timeout"], "9");
    assert!(!access.storage.config.contains_key("token"));
    assert!(!access.storage.config.contains_key("storage_url"));
    let own = stages[0].works[0].access.as_ref().unwrap();
    assert_eq!(own.storage.config["policy"], "silver");
    assert!(!own.storage.config.contains_key("storage_url"));
    assert_eq!(stages[0].works[1].access, None);
}

/// A study's works keep their layouts; the command line determines the location.
#[test]
fn a_work_keeps_what_is_no_address() {
    let text = "storage = { type = \"file\" }\n[[stage]]\n[[stage.work]]\nruntime = 1\n\
        storage = { type = \"file\", layout = \"n-1\", path = \"/old\" }\n\
        containers = 1\nobjects = 1\noperation = [{ type = \"read\" }]";
    let mut told = plan(text);
    let target = Target {
        url: Some("file:/new".into()),
        ..Target::default()
    };
    target.apply(&mut told).unwrap();
    let own = &told.stages[0].works[0]
        .access
        .as_ref()
        .unwrap()
        .storage
        .config;
    assert_eq!(
        (own["layout"].as_str(), own["path"].as_str()),
        ("n-1", "/new")
    );
}

#[test]
fn who_signs_in() {
    let mut told = plan(COSBENCH);
    let target = Target {
        user: Some("project:me".into()),
        key: Some("secret".into()),
        storage: vec![("policy".into(), "tin".into())],
        ..Target::default()
    };
    target.apply(&mut told).unwrap();
    assert_eq!(told.access.auth.config["tenant_name"], "project");
    assert_eq!(told.access.auth.config["username"], "me");
    assert_eq!(told.access.auth.config["password"], "secret");
    assert_eq!(told.access.storage.config["policy"], "tin");
    let mut told = plan(COSBENCH);
    let target = Target {
        token: Some("tk".into()),
        url: Some("http://h/v1/A".into()),
        ..Target::default()
    };
    target.apply(&mut told).unwrap();
    assert_eq!(told.access.auth.kind, "none");
    assert_eq!(told.access.storage.config["token"], "tk");
    let mut told = plan(COSBENCH);
    let target = Target {
        url: Some("s3+http://h".into()),
        user: Some("ak".into()),
        key: Some("sk".into()),
        ..Target::default()
    };
    target.apply(&mut told).unwrap();
    let config = &told.access.storage.config;
    assert_eq!(
        (config["accesskey"].as_str(), config["secretkey"].as_str()),
        ("ak", "sk")
    );
    assert!(!config.contains_key("policy"), "of another kind of store");
}

#[test]
fn what_is_no_target() {
    for url in ["ftp://h", "h:8080", "file:"] {
        let target = Target {
            url: Some(url.to_owned()),
            ..Target::default()
        };
        let error = target.apply(&mut plan(COSBENCH)).unwrap_err();
        match &error {
            TargetError::Unknown { url: named } | TargetError::Incomplete { url: named, .. } => {
                assert_eq!(named, url);
            }
        }
        assert!(error.to_string().contains(url));
    }
}
