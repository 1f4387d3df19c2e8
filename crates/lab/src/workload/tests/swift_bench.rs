//! swift-bench's conf.

use std::time::Duration;

use super::{plan, refused};
use crate::plan::{Objects, OperationKind, WorkKind};
use crate::selector::Selector;

const CONF: &str = "[bench]
auth = http://127.0.0.1:8080/auth/v1.0
user = test:tester
key = testing
# a comment
concurrency = 5
Object_Size = 10k
num_objects = 100
num_gets = 300
num_containers = 10
container_name = cont
delay = 4
log-level = INFO
";

#[test]
fn puts_gets_and_deletes() {
    let plan = plan(CONF);
    assert_eq!(plan.format, "swift-bench");
    let stages: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(stages, ["init", "put", "get", "delete", "dispose"]);
    assert_eq!(plan.access.auth.kind, "swauth");
    assert_eq!(plan.access.auth.config["username"], "test:tester");
    let works: Vec<_> = plan.stages.iter().map(|stage| &stage.works[0]).collect();
    assert_eq!(
        (works[0].kind, works[4].kind),
        (WorkKind::Init, WorkKind::Dispose)
    );
    let kinds: Vec<_> = works.iter().map(|work| work.operations[0].kind).collect();
    assert_eq!(kinds[1], OperationKind::Write);
    assert_eq!(kinds[3], OperationKind::Delete);
    let totals: Vec<_> = works.iter().map(|work| work.total_ops).collect();
    assert_eq!(totals, [None, Some(100), Some(300), Some(100), None]);
    assert!(works.iter().all(|work| work.workers == 5));
    assert_eq!(
        works[1].operations[0].sizes,
        Some(Selector::Constant(10_240))
    );
    assert_eq!(plan.stages[2].close_delay, Duration::from_secs(4));
    let containers = &works[1].operations[0].containers;
    assert_eq!(containers.prefix, "cont_");
    assert_eq!(containers.numbers, Selector::Uniform { low: 0, high: 9 });
    assert!(
        matches!(&works[2].operations[0].objects, Objects::Pool { pool, .. } if pool == "objects")
    );
}

#[test]
fn the_rest_of_its_options() {
    let plan = plan(
        "[DEFAULT]\nhost = store\n[bench]\nauth = http://%(host)s:5000/v3\nuser = p:u\nauth_version = 3\n\
         put_concurrency = 3\nget_concurrency = 4\ndel_concurrency = 5\ndelete = no\n\
         lower_object_size = 5\nupper_object_size = 2M\nnum_gets = 0\nnum_containers = 1\n\
         container_name = only7x\nurl = http://other/v1/A\npolicy_name = gold\ntimeout = 3\n",
    );
    let stages: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(stages, ["init", "put"]);
    let auth = &plan.access.auth;
    assert_eq!(
        (auth.kind.as_str(), auth.config["tenant_name"].as_str()),
        ("keystone", "p")
    );
    assert_eq!(auth.config["auth_url"], "http://store:5000/v3");
    let storage = &plan.access.storage.config;
    assert_eq!(storage["storage_url"], "http://other/v1/A");
    assert_eq!(
        (storage["policy"].as_str(), storage["timeout"].as_str()),
        ("gold", "3000")
    );
    let put = &plan.stages[1].works[0];
    assert_eq!((put.workers, put.total_ops), (3, Some(1000)));
    assert_eq!(
        put.operations[0].sizes,
        Some(Selector::Uniform {
            low: 5,
            high: 2 << 20
        })
    );
    let mut name = String::new();
    put.operations[0].containers.write(7, &mut name);
    assert_eq!(name, "only7x", "one container has the name as given");
}

#[test]
fn bodies_from_files_count_by_size() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a");
    std::fs::write(&file, "12345").unwrap();
    let conf = format!("[bench]\nobject_sources = {}\n", file.display());
    let sizes = plan(&conf).stages[1].works[0].operations[0]
        .sizes
        .clone()
        .unwrap();
    assert_eq!(sizes.bounds(), (5, 5));
    let error = refused("[bench]\nobject_sources = /nowhere/at-all\n");
    assert_eq!((error.line, error.column), (2, 1), "{error}");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (text, line, column, expected) in [
        ("[bench]\nauth\n", 2, 1, "option = value"),
        ("[bench]\n  num_gets = x\n", 2, 3, "whole number"),
        ("[bench]\nobject_size = 10q\n", 2, 1, "10k"),
        ("[bench]\nuse_proxy = no\n", 2, 1, "use_proxy"),
        ("[bench]\nauth_version = 4\n", 2, 1, "2.0"),
        (
            "[bench]\nuser = x\ndelete = perhaps\n",
            3,
            1,
            "'yes' or 'no'",
        ),
        ("[DEFAULT]\nuser = x\n", 1, 1, "[bench]"),
    ] {
        let error = refused(text);
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{error}\n{text}"
        );
        assert!(error.expected.contains(expected), "{error}");
    }
}
