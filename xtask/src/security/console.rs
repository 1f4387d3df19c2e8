//! The console beside a store: its runs have the rights of its process, so they get no files of it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::all_held;
use crate::process::{Process, free_range, wait_for};
use crate::wire::Connection;
use crate::workspace::run_quiet;

const PASSWORD: &str = "of-the-attack";

pub(super) fn runs(binary: &Path, dir: &Path) -> Result<String> {
    let data = dir.join("console");
    let port = free_range(100)?;
    let bind = format!("127.0.0.1:{port}");
    let data_text = data.to_str().context("a path that is not UTF-8")?;
    let make = ["up", "--write-only", "--data", data_text, "--bind", &bind];
    run_quiet(Command::new(binary).args(make))?;
    std::fs::write(data.join("etc/console-password"), PASSWORD)?;
    let at = format!("127.0.0.1:{}", port + 1);
    let args = ["up", "--data", data_text, "--console", &at];
    let mut store = Process::start("console", binary, &args, &dir.join("log"))?;
    wait_for("the console", 60, || {
        if let Some(words) = store.ended() {
            bail!("{words}");
        }
        let answer = Connection::new(port + 1).call("GET", "/api/session", &[], b"");
        Ok(answer.is_ok_and(|a| a.status == 200))
    })?;
    let words = workloads(port + 1)?;
    let guesses = guesses(port + 1)?;
    store.stop();
    Ok(format!("{words}, {guesses}"))
}

fn call(port: u16, path: &str, cookie: &str, body: &Value) -> Result<(u16, String)> {
    let headers = [
        ("X-Cairn-Console", "1"),
        ("Content-Type", "application/json"),
        ("Cookie", cookie),
    ];
    let body = body.to_string();
    let answer = Connection::new(port).call("POST", path, &headers, body.as_bytes())?;
    let cookie = answer.header("set-cookie").unwrap_or_default();
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    Ok((answer.status, cookie))
}

fn workloads(port: u16) -> Result<String> {
    let password = json!({"password": PASSWORD});
    let (status, cookie) = call(port, "/api/session", "", &password)?;
    ensure!(status == 200 || status == 204, "signing in: {status}");
    let workload = |storage: &str, operation: &str| {
        format!(
            "<workload name=\"w\">{storage}<workflow><workstage name=\"m\">\
             <work name=\"m\" workers=\"1\" totalOps=\"1\">{operation}</work></workstage>\
             </workflow></workload>"
        )
    };
    let read = "<operation type=\"read\" ratio=\"100\" config=\"containers=c(1);objects=s(1,1)\"/>";
    let upload = "<operation type=\"filewrite\" ratio=\"100\" \
                  config=\"containers=c(1);fileselection=s;files=/etc\"/>";
    let swift = "<storage type=\"swift\"/>";
    let folder = "<storage type=\"file\" config=\"path=/tmp\"/>";
    let file = json!({"kind": "file"});
    let tries = [
        (
            "a file for an upload",
            workload(swift, upload),
            file.clone(),
        ),
        ("a folder as a store", workload(folder, read), file),
        (
            "a folder as the target",
            workload("", read),
            json!({"kind": "url", "url": "file:/tmp"}),
        ),
        (
            "a cluster's keys on this host",
            workload("", read),
            json!({"kind": "url", "url": "rados:pool"}),
        ),
    ];
    let mut broken = Vec::new();
    for (words, text, target) in &tries {
        for path in ["/api/check", "/api/runs"] {
            let body = json!({"file_name": "w.xml", "text": text, "target": target});
            let (status, _) = call(port, path, &cookie, &body)?;
            if !matches!(status, 400 | 403) {
                broken.push(format!("{words}: {path} answers {status}"));
            }
        }
    }
    all_held(broken, format!("{} workloads refused", tries.len()))
}

/// After some wrong passwords the next is not looked at.
fn guesses(port: u16) -> Result<String> {
    for tried in 1..=100 {
        let (status, _) = call(port, "/api/session", "", &json!({"password": "wrong"}))?;
        if status == 429 {
            return Ok(format!("{} passwords tried", tried - 1));
        }
        ensure!(status == 403, "a wrong password: {status}");
    }
    bail!("100 wrong passwords were tried in a row");
}
