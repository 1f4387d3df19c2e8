//! The requests that a store gets match the workload file, for each format: operations, sizes and
//! containers are counted by the store.

// Tests may panic.
#![allow(clippy::unwrap_used)]

mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_lab::workload::{Options, Target, read};
use store::{ReceivedRequest, Store};

/// Runs a workload against a counting store; returns its requests in order.
fn asked(text: &str) -> Vec<ReceivedRequest> {
    let store = Store::start(Box::new(|_, _| Duration::ZERO));
    let mut plan = read("workload", text.as_bytes(), &Options::default())
        .unwrap()
        .plan;
    let target = Target {
        url: Some(store.auth_url()),
        user: Some("test:tester".to_owned()),
        key: Some("testing".to_owned()),
        ..Target::default()
    };
    target.apply(&mut plan).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (meta, stages) = store::run(&plan, &folder.path().join("run"));
    assert_eq!(meta.message, "");
    for operation in stages
        .iter()
        .flat_map(|s| &s.works)
        .flat_map(|w| &w.operations)
    {
        assert_eq!(operation.failed(), 0, "{}", operation.name);
    }
    store.take_seen()
}

/// Account, container and object of a path.
fn parts(seen: &ReceivedRequest) -> (&str, &str) {
    let mut parts = seen
        .path
        .trim_start_matches("/v1/AUTH_test/")
        .splitn(2, '/');
    let container = parts.next().unwrap_or("").split('?').next().unwrap_or("");
    (container, parts.next().unwrap_or(""))
}

/// Asserts a count within five standard deviations: one run in millions is outside.
fn near(count: usize, of: usize, share: f64, what: &str) {
    let (count, of) = (count as f64, of as f64);
    let deviation = (of * share * (1.0 - share)).sqrt();
    let off = (count - of * share).abs();
    assert!(
        off < 5.0 * deviation + 1.0,
        "{what}: {count} of {of}, not {share}"
    );
}

fn count(seen: &[ReceivedRequest], which: impl Fn(&ReceivedRequest) -> bool) -> usize {
    seen.iter().filter(|seen| which(seen)).count()
}

/// Each size class has its share of the initial files, and its own profile of operations.
#[test]
fn an_ssbench_scenario() {
    let seen = asked(
        r##"{ "name": "counted",
          "sizes": [
            { "name": "zero", "size_min": 0, "size_max": 0, "crud_profile": [60, 15, 20, 5] },
            { "name": "tiny", "size_min": 4096, "size_max": 8192 }
          ], # shares 3 to 1
          "initial_files": { "zero": 300, "tiny": 100 },
          "operation_count": 6000, "crud_profile": [10, 60, 20, 10],
          "user_count": 4, "container_base": "cb", "container_count": 20 }"##,
    );
    let (init, rest) = seen.split_at(20);
    let made: BTreeSet<&str> = init.iter().map(|seen| parts(seen).0).collect();
    assert_eq!(made.len(), 20);
    assert!(made.contains("cb_000000_default_policy") && made.contains("cb_000019_default_policy"));
    let (population, rest) = rest.split_at(400);
    assert!(population.iter().all(|seen| seen.method == "PUT"));
    let of = |seen: &ReceivedRequest, class: &str| parts(seen).1.starts_with(class);
    assert_eq!(count(population, |seen| of(seen, "zero_")), 300);
    assert_eq!(count(population, |seen| of(seen, "tiny_")), 100);
    let mut full: BTreeMap<&str, usize> = BTreeMap::new();
    for seen in population {
        *full.entry(parts(seen).0).or_default() += 1;
    }
    assert!(full.values().all(|count| *count == 20), "in turn: {full:?}");

    let (run, cleanup) = rest.split_at(6000);
    let initial: BTreeSet<&str> = population.iter().map(|seen| seen.path.as_str()).collect();
    let mut known = initial;
    let mut kinds: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for seen in run {
        let class = if of(seen, "zero_") { "zero" } else { "tiny" };
        let kind = match seen.method.as_str() {
            "PUT" if known.insert(&seen.path) => "create",
            "PUT" => "update",
            "GET" => "read",
            "DELETE" => "delete",
            other => panic!("{other}"),
        };
        *kinds.entry((class, kind)).or_default() += 1;
        if kind == "create" || kind == "update" {
            let right = match class {
                "zero" => seen.body_bytes == 0,
                _ => (4096..=8192).contains(&seen.body_bytes),
            };
            assert!(right, "{seen:?}");
        }
    }
    let crud = ["create", "read", "update", "delete"];
    for (class, share, profile) in [
        ("zero", 0.75, [0.6, 0.15, 0.2, 0.05]),
        ("tiny", 0.25, [0.1, 0.6, 0.2, 0.1]),
    ] {
        for (kind, part) in crud.iter().zip(profile) {
            let count = kinds.get(&(class, kind)).copied().unwrap_or(0);
            near(count, 6000, share * part, &format!("{class} {kind}"));
        }
    }
    // Sizes are uniform: the mean of n of them is near the middle.
    let sizes: Vec<f64> = run
        .iter()
        .filter(|seen| seen.method == "PUT" && of(seen, "tiny_"))
        .map(|seen| seen.body_bytes as f64)
        .collect();
    let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
    let deviation = 4096.0 / 12f64.sqrt() / (sizes.len() as f64).sqrt();
    assert!((mean - 6144.0).abs() < 5.0 * deviation, "{mean}");
    // New objects go to any container; no object is read twice in a row while others wait.
    let created = |container: &str| {
        count(run, |seen| {
            seen.method == "PUT" && parts(seen).0 == container
        })
    };
    let puts = count(run, |seen| seen.method == "PUT");
    near(
        created("cb_000007_default_policy"),
        puts,
        1.0 / 20.0,
        "a container",
    );
    assert!(cleanup.iter().all(|seen| seen.method == "DELETE"));
    let deleted = count(run, |seen| seen.method == "DELETE") + cleanup.len();
    assert_eq!(deleted, known.len(), "all that was written is deleted");
}

#[test]
fn a_swift_bench_conf() {
    let seen = asked(
        "[bench]\nconcurrency = 4\nlower_object_size = 1k\nupper_object_size = 2k\n\
         num_objects = 500\nnum_gets = 2000\nnum_containers = 5\ncontainer_name = sb\n",
    );
    let (init, rest) = seen.split_at(5);
    let made: BTreeSet<&str> = init.iter().map(|seen| parts(seen).0).collect();
    assert_eq!(
        made.into_iter().collect::<Vec<_>>(),
        ["sb_0", "sb_1", "sb_2", "sb_3", "sb_4"]
    );
    let (puts, rest) = rest.split_at(500);
    assert!(puts.iter().all(|seen| seen.method == "PUT"));
    assert!(
        puts.iter()
            .all(|seen| (1024..=2048).contains(&seen.body_bytes))
    );
    let paths: BTreeSet<&str> = puts.iter().map(|seen| seen.path.as_str()).collect();
    assert_eq!(paths.len(), 500, "each object is another");
    for container in 0..5 {
        let name = format!("sb_{container}");
        near(count(puts, |seen| parts(seen).0 == name), 500, 0.2, &name);
    }
    let (gets, rest) = rest.split_at(2000);
    assert!(
        gets.iter()
            .all(|seen| seen.method == "GET" && paths.contains(seen.path.as_str()))
    );
    let read: BTreeSet<&str> = gets.iter().map(|seen| seen.path.as_str()).collect();
    // 2000 random draws from 500 objects miss 500 × (1 - 1/500)^2000, about 9.
    assert!((470..=500).contains(&read.len()), "{}", read.len());
    let (deletes, dispose) = rest.split_at(500);
    let deleted: BTreeSet<&str> = deletes.iter().map(|seen| seen.path.as_str()).collect();
    assert!(deletes.iter().all(|seen| seen.method == "DELETE"));
    assert_eq!(deleted, paths);
    assert_eq!(dispose.len(), 5);
    assert!(
        dispose
            .iter()
            .all(|seen| seen.method == "DELETE" && parts(seen).1.is_empty())
    );
}

/// Reads from some containers, writes to others; heads and listings; each container's share.
#[test]
fn a_cosbench_mix_over_containers() {
    let seen = asked(
        r#"<workload name="split" config="cprefix=c">
          <storage type="swift"/>
          <workflow>
            <workstage name="init"><work type="init" workers="1" config="containers=r(1,4)"/></workstage>
            <workstage name="prepare"><work type="prepare" workers="2"
              config="containers=r(1,2);objects=r(1,20);sizes=c(1)KB"/></workstage>
            <workstage name="main"><work name="main" workers="4" totalOps="4000">
              <operation type="read" ratio="50" config="containers=u(1,2);objects=u(1,20)"/>
              <operation type="write" ratio="25"
                config="containers=u(3,4);objects=s(1,2000);oprefix=new;sizes=u(1,3)KB"/>
              <operation type="head" ratio="15" config="containers=c(1);objects=u(1,20)"/>
              <operation type="list" ratio="10" config="containers=u(1,4)"/>
            </work></workstage>
          </workflow></workload>"#,
    );
    let main = &seen[4 + 40..];
    assert_eq!(main.len(), 4000);
    let methods = |method: &str, object: bool| {
        count(main, |seen| {
            seen.method == method && parts(seen).1.is_empty() != object
        })
    };
    near(methods("GET", true), 4000, 0.5, "reads");
    near(methods("PUT", true), 4000, 0.25, "writes");
    near(methods("HEAD", true), 4000, 0.15, "heads");
    near(methods("GET", false), 4000, 0.1, "listings");
    for seen in main {
        let (container, object) = parts(seen);
        match (seen.method.as_str(), object.is_empty()) {
            ("GET", false) => assert!(["c1", "c2"].contains(&container)),
            ("PUT", false) => {
                assert!(["c3", "c4"].contains(&container) && object.starts_with("new"));
                assert!([1000, 2000, 3000].contains(&seen.body_bytes));
            }
            ("HEAD", false) => assert_eq!(container, "c1"),
            ("GET", true) => assert!(container.starts_with('c')),
            other => panic!("{other:?}"),
        }
    }
    // One sequence for all workers: every number once.
    let written: Vec<u64> = main
        .iter()
        .filter(|seen| seen.method == "PUT")
        .map(|seen| parts(seen).1.trim_start_matches("new").parse().unwrap())
        .collect();
    let each: BTreeSet<u64> = written.iter().copied().collect();
    assert_eq!(each.len(), written.len());
    assert_eq!(each, (1..=written.len() as u64).collect());
}

/// A workload in our own format: a sweep, zipf popularity, and a histogram of sizes.
#[test]
fn a_toml_sweep() {
    let seen = asked(
        r#"
        name = "swept"
        storage = { type = "swift" }
        [defaults]
        containers = "r(1,2)"
        objects = "r(1,50)"
        sizes = "100"
        [[stage]]
        [[stage.work]]
        type = "init"
        [[stage]]
        [[stage.work]]
        type = "prepare"
        [[stage]]
        name = "main"
        for.reads = [90, 10]
        [[stage.work]]
        workers = 4
        total_ops = 3000
        containers = "u(1,2)"
        [[stage.work.operation]]
        type = "read"
        ratio = "${reads}"
        objects = "zipf(1,50,1.0)"
        [[stage.work.operation]]
        type = "write"
        ratio = 10
        objects = "u(51,60)"
        sizes = "h(1|1|1,5|5|3)KB"
        "#,
    );
    let mains = &seen[2 + 100..];
    assert_eq!(mains.len(), 6000);
    for (main, share) in [(&mains[..3000], 0.9), (&mains[3000..], 0.5)] {
        let reads = count(main, |seen| seen.method == "GET");
        near(reads, 3000, share, "reads");
        let first = count(main, |seen| {
            seen.method == "GET" && parts(seen).1 == "myobjects1"
        });
        let whole: f64 = (1..=50).map(|rank| 1.0 / f64::from(rank)).sum();
        near(first, reads, 1.0 / whole, "the most popular");
        let writes = 3000 - reads;
        near(
            count(main, |seen| seen.body_bytes == 5000),
            writes,
            0.75,
            "large writes",
        );
        let small = count(main, |seen| seen.method == "PUT" && seen.body_bytes == 1000);
        near(small, writes, 0.25, "small writes");
    }
}

const OTHER_OPERATIONS: &str = r#"
[defaults]
containers = "c(1)"
container_prefix = "c"
object_prefix = "o"
[[stage]]
[[stage.work]]
type = "prepare"
objects = "r(1,25)"
pool = "all"
sizes = "1KB"
[[stage]]
[[stage.work]]
total_ops = 40
pool = "all"
[[stage.work.operation]]
type = "copy"
copy_container_suffix = "-copies"
[[stage.work.operation]]
type = "post"
[[stage.work.operation]]
type = "post"
name = "own"
headers = { X-Object-Meta-Own = "set" }
[[stage.work.operation]]
type = "versions"
[[stage]]
[[stage.work]]
total_ops = 3
[[stage.work.operation]]
type = "bulk-delete"
pool = "all"
batch = 10
[[stage]]
[[stage.work]]
total_ops = 1
[[stage.work.operation]]
type = "versions"
[[stage]]
[[stage.work]]
type = "init"
versioned = true
"#;

/// Copies, metadata, bulk deletions and versions ask what Swift's API has for them.
#[test]
fn other_operations_are_what_swift_has_for_them() {
    let seen = asked(OTHER_OPERATIONS);
    let of = |method: &str| {
        let own = seen.iter().filter(|seen| seen.method == method);
        own.collect::<Vec<_>>()
    };
    let copies = of("COPY");
    assert!(copies.len() > 1);
    for copy in &copies {
        let (container, object) = parts(copy);
        assert_eq!(
            copy.header,
            format!("{container}-copies/{object}-copy"),
            "{copy:?}"
        );
    }
    let (bulk, posts): (Vec<_>, Vec<_>) = of("POST")
        .into_iter()
        .partition(|post| post.path == "/v1/AUTH_test?bulk-delete");
    let own = posts.iter().filter(|post| post.header == "set").count();
    assert!((1..posts.len()).contains(&own), "{own} of {}", posts.len());
    for post in posts.iter().filter(|post| post.header != "set") {
        let (_, object) = parts(post);
        assert_eq!(object, format!("o{}", post.header));
    }
    // 25 objects, each deleted once, or the store would have answered that one is not there.
    let sizes: Vec<usize> = bulk.iter().map(|bulk| bulk.lines.len()).collect();
    assert_eq!(sizes, [10, 10, 5]);
    let lists: Vec<&str> = of("GET").iter().map(|get| get.path.as_str()).collect();
    let (whole, single): (Vec<&str>, Vec<_>) =
        lists.iter().partition(|path| !path.contains("&prefix=o"));
    assert_eq!(whole, ["/v1/AUTH_test/c1?versions&format=json"]);
    assert!(!single.is_empty());
    assert_eq!(copies.len() + posts.len() + single.len(), 40);
}

/// A folder has no metadata, and says so before anything is asked of it.
#[test]
fn a_store_without_an_operation_says_so_first() {
    let mut plan = read("workload", OTHER_OPERATIONS.as_bytes(), &Options::default())
        .unwrap()
        .plan;
    plan.stages.remove(0);
    let folder = tempfile::tempdir().unwrap();
    let target = Target {
        url: Some(format!("file:{}", folder.path().join("store").display())),
        ..Target::default()
    };
    target.apply(&mut plan).unwrap();
    let (meta, stages) = store::run(&plan, &folder.path().join("run"));
    let told = "n-n block=1048576 fsync=none has no post; take the operation out of the mix, or \
                name another store with --target";
    assert!(meta.message.contains(told), "{}", meta.message);
    assert!(stages[0].works[0].operations.is_empty());
}
