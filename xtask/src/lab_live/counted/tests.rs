use std::path::Path;

use serde_json::json;

use super::*;
use crate::lab_live::expected;

const FILE: &str = r#"<workload name="w"><workflow>
  <workstage name="prepare"><work type="prepare" workers="2"
    config="containers=r(1,2);objects=r(1,10);sizes=c(64)KB"/></workstage>
  <workstage name="main"><work name="main" workers="8" totalOps="1000">
    <operation type="read" ratio="80" config="containers=u(1,2);objects=u(1,10)"/>
    <operation type="write" ratio="20" config="containers=u(1,2);objects=u(11,20);sizes=u(1,3)KB"/>
  </work></workstage></workflow></workload>"#;

fn seen(at: f64, method: &str, container: u64, object: u64, bytes: u64) -> RecordedRequest {
    let puts = method == "PUT";
    RecordedRequest {
        at,
        method: method.to_owned(),
        target: format!("/v1/AUTH_test/mycontainers{container}/myobjects{object}"),
        sent: if puts { bytes } else { 0 },
        status: if puts { 201 } else { 200 },
        received: if puts { 0 } else { bytes },
    }
}

/// A run of 1000 operations of which every `one_in`th writes `kilobytes` in turn.
fn run(one_in: u64, kilobytes: &[u64]) -> (Run, Vec<RecordedRequest>) {
    let mut all: Vec<RecordedRequest> = (0..20)
        .map(|n| seen(1.0, "PUT", 1 + n / 10, 1 + n % 10, 64_000))
        .collect();
    let (mut writes, mut bytes) = (0, 0);
    for n in 0..1000u64 {
        let container = 1 + n / one_in % 2;
        if n % one_in == 0 {
            let size = kilobytes[(writes as usize) % kilobytes.len()] * 1000;
            all.push(seen(2.5, "PUT", container, 11 + writes % 10, size));
            (writes, bytes) = (writes + 1, bytes + size);
        } else {
            all.push(seen(2.5, "GET", 1 + n % 2, 1 + n / 7 % 10, 64_000));
        }
    }
    let reads = 1000 - writes;
    let operation =
        |kind: &str, ops: u64, bytes: u64| json!({"kind": kind, "ops": ops, "bytes": bytes});
    let stages = json!([
        {"started": 0.5, "works": [{"workers": 2, "operations": [operation("prepare", 20, 20 * 64_000)]}]},
        {"started": 2.0, "works": [{"workers": 8, "operations": [
            operation("read", reads, reads * 64_000), operation("write", writes, bytes)]}]}
    ]);
    let run = Run {
        meta: Value::Null,
        stages: stages.as_array().cloned().unwrap(),
        shown: String::new(),
    };
    (run, all)
}

fn judged(run: &Run, seen: &[RecordedRequest]) -> Result<String> {
    compare(&expected::read(Path::new("w.xml"), FILE)?, run, seen)
}

fn refused(run: &Run, seen: &[RecordedRequest], words: &str) {
    let error = format!("{:#}", judged(run, seen).unwrap_err());
    assert!(error.contains(words), "{error}");
}

#[test]
fn what_the_file_says() {
    let (run, seen) = run(5, &[1, 2, 3]);
    let words = judged(&run, &seen).unwrap();
    assert_eq!(
        words,
        "1020 requests; main: read 80.0/80.0 %, write 20.0/20.0 %"
    );
}

#[test]
fn another_mix() {
    let (run, seen) = run(3, &[1, 2, 3]);
    refused(&run, &seen, "666 of 1000, not 80.00 %");
}

#[test]
fn other_sizes() {
    let (none, seen) = run(5, &[1, 2, 4]);
    refused(&none, &seen, "4000 bytes");
    let (skewed, seen) = run(5, &[1, 1, 1, 2]);
    refused(&skewed, &seen, "their mean is");
}

#[test]
fn other_names() {
    let (run, mut seen) = run(5, &[2]);
    seen[500].target = "/v1/AUTH_test/mycontainers1/myobjects30".to_owned();
    refused(&run, &seen, "is of no operation");
}

#[test]
fn an_object_left_out() {
    let (run, mut seen) = run(5, &[2]);
    seen[3].target = seen[4].target.clone();
    refused(&run, &seen, "20 requests, 19 names");
}

#[test]
fn what_the_lab_has_not_counted() {
    let (run, mut seen) = run(5, &[2]);
    let one = seen[500].clone();
    seen.push(one);
    refused(&run, &seen, "the lab says");
}

#[test]
fn a_failure_the_lab_calls_a_success() {
    let (run, mut seen) = run(5, &[2]);
    seen[501].status = 503;
    refused(&run, &seen, "http 503");
}
