//! The console beside a store: its runs have the rights of its process, so they must not give
//! access to its files.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{all_held, resident};
use cairn_testkit::process::{Process, free_range};
use cairn_testkit::wire::Connection;
use cairn_testkit::workspace::{run_quiet, utf8};

const PASSWORD: &str = "of-the-attack";

pub(super) fn runs(binary: &Path, dir: &Path) -> Result<String> {
    let data = dir.join("console");
    let port = free_range(100)?;
    let bind = format!("127.0.0.1:{port}");
    let data_text = utf8(&data)?;
    let make = ["up", "--write-only", "--data", data_text, "--bind", &bind];
    run_quiet(Command::new(binary).args(make))?;
    std::fs::write(data.join("etc/console-password"), PASSWORD)?;
    let at = format!("127.0.0.1:{}", port + 1);
    let args = ["up", "--data", data_text, "--console", &at];
    let mut store = Process::start("console", binary, &args, &dir.join("log"))?;
    store.wait_for_answer((Ipv4Addr::LOCALHOST, port + 1), "/api/session", 60)?;
    let password = json!({"password": PASSWORD});
    let (status, cookie) = call(port + 1, "/api/session", "", &password)?;
    ensure!(matches!(status, 200 | 204), "signing in: {status}");
    let words = workloads(port + 1, &cookie)?;
    let uploads = uploads(port + 1, &cookie, store.id())?;
    let guesses = guesses(port + 1)?;
    store.stop();
    Ok(format!("{words}, {uploads}, {guesses}"))
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

fn workloads(port: u16, cookie: &str) -> Result<String> {
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
            let (status, _) = call(port, path, cookie, &body)?;
            if !matches!(status, 400 | 403) {
                broken.push(format!("{words}: {path} answers {status}"));
            }
        }
    }
    all_held(broken, format!("{} workloads refused", tries.len()))
}

/// Workloads that are expensive to parse, or claim absurd sizes: refused quickly, and without
/// allocating the memory that they claim.
fn uploads(port: u16, cookie: &str, pid: u32) -> Result<String> {
    let mut entities = String::from("<!DOCTYPE w [<!ENTITY a0 \"aaaaaaaaaa\">");
    for level in 1..30 {
        let inner = format!("&a{};", level - 1).repeat(10);
        entities.push_str(&format!("<!ENTITY a{level} \"{inner}\">"));
    }
    let work = |workers: &str, config: &str| {
        format!(
            "<workload name=\"w\"><storage type=\"swift\"/><workflow><workstage name=\"m\">\
             <work name=\"m\" workers=\"{workers}\" totalOps=\"1\"><operation type=\"write\" \
             ratio=\"100\" config=\"{config}\"/></work></workstage></workflow></workload>"
        )
    };
    let usual = "containers=c(1);objects=s(1,1);sizes=c(1)B";
    let texts = [
        format!("{entities}]><workload name=\"&a29;\"/>"),
        "<!DOCTYPE w [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><workload name=\"&x;\"/>"
            .to_owned(),
        "<a>".repeat(20_000),
        work("2000000000", usual),
        work(
            "1",
            "containers=r(1,9000000000000000000);objects=s(1,9000000000000000000);sizes=c(1)B",
        ),
        work(
            "1",
            "containers=c(1);objects=s(1,1);sizes=c(9000000000000)GB",
        ),
        "a".repeat(4 << 20),
    ];
    let before = resident(pid);
    let mut broken = Vec::new();
    let mut tried = 0;
    for text in &texts {
        for name in ["w.xml", "w.json", "../../w.xml"] {
            tried += 1;
            let file = json!({"kind": "file"});
            let body = json!({"file_name": name, "text": text, "target": file});
            let (status, _) = call(port, "/api/check", cookie, &body)?;
            if !matches!(status, 200 | 400..=422) {
                let start: String = text.chars().take(60).collect();
                broken.push(format!("{start}…: {status}"));
            }
        }
    }
    for body in [
        "[".repeat(10_000),
        format!("{{\"a\":{}", "[".repeat(10_000)),
    ] {
        tried += 1;
        let headers = [("X-Cairn-Console", "1"), ("Cookie", cookie)];
        let answer = Connection::new(port).call("POST", "/api/check", &headers, body.as_bytes())?;
        if answer.status / 100 != 4 {
            broken.push(format!("brackets: {}", answer.status));
        }
    }
    for path in [
        "/api/runs/../../etc/passwd",
        "/api/runs/%2e%2e/files/%2e%2e%2fetc%2fconsole-password",
    ] {
        tried += 1;
        let headers = [("X-Cairn-Console", "1"), ("Cookie", cookie)];
        let answer = Connection::new(port).call("GET", path, &headers, b"")?;
        if answer.status / 100 != 4 || answer.text().contains(PASSWORD) {
            broken.push(format!("{path}: {}", answer.status));
        }
    }
    let grown = resident(pid).saturating_sub(before) >> 20;
    if grown > 256 {
        broken.push(format!("{grown} MB more memory"));
    }
    all_held(
        broken,
        format!("{tried} hostile uploads answered, {grown} MB more"),
    )
}

/// After several wrong passwords, the next one is refused unchecked.
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
