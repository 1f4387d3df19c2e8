//! Common clients against Cairn: python-swiftclient, rclone's swift backend, curl, and backup
//! programs (`backup.rs`). Each transfers a generated tree with unusual file names in both
//! directions, and the bytes are compared.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::backup;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::random::Random;
use cairn_testkit::report::Report;
use cairn_testkit::trees::{files, same_trees, write_tree};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{self, install, run_quiet};

const FILES: usize = 2000;

pub(crate) fn run() -> Result<Report> {
    let venv = Venv::prepare()?;
    let dir = workspace::scratch("clients")?;
    let mut store = Cairn::create(&workspace::build_cairn()?, &dir.path().join("data"), None)?;
    store.start(Spread::OneProcess)?;
    let tree = dir.path().join("tree");
    write_tree(&tree, FILES)?;
    let mut report = Report::default();
    let url = store.url();
    report.check(
        "swiftclient: upload, list, stat, post, download, delete",
        || swiftclient(&venv, &url, &tree, &dir.path().join("swift-back")),
    );
    report.check(
        "swiftclient: 200 MB in segments, static and dynamic",
        || segmented(&venv, &url, dir.path()),
    );
    if install("rclone", "rclone") {
        report.check("rclone: copy, check, sync, copy back, purge", || {
            rclone(&url, &tree, &dir.path().join("rclone-back"))
        });
    } else {
        report.skip("rclone", "not installed (apt-get install rclone)");
    }
    if install("curl", "curl") {
        report.check("curl: upload, chunked upload, ranges, conditions", || {
            curl(store.port(), dir.path())
        });
    } else {
        report.skip("curl", "not installed (apt-get install curl)");
    }
    backup::check(&mut report, &url, &tree, dir.path());
    report.check("SIGTERM ends the store", || store.stop());
    Ok(report)
}

fn swiftclient(venv: &Venv, url: &str, tree: &Path, back: &Path) -> Result<()> {
    let swift = |args: &[&str]| {
        let mut command = venv.program("swift");
        command.current_dir(tree).env("LC_ALL", "C.UTF-8");
        command.args([
            "-A",
            &format!("{url}/auth/v1.0"),
            "-U",
            "test:tester",
            "-K",
            "testing",
        ]);
        run_quiet(command.args(args))
    };
    swift(&["upload", "--quiet", "swift-tree", "."])?;
    let listed = swift(&["list", "swift-tree"])?.lines().count();
    ensure!(listed == FILES, "{listed} of {FILES} listed");
    swift(&["post", "swift-tree", "-m", "Color:blue"])?;
    let stat = swift(&["stat", "swift-tree"])?;
    ensure!(
        stat.contains("Objects: 2000") && stat.contains("Meta Color: blue"),
        "stat:\n{stat}"
    );
    std::fs::create_dir_all(back)?;
    swift(&[
        "download",
        "--quiet",
        "swift-tree",
        "-D",
        back.to_str().context("path")?,
    ])?;
    same_trees(tree, back)?;
    swift(&["delete", "--quiet", "swift-tree"])?;
    Ok(())
}

const SEGMENTED_BYTES: usize = 200 << 20;
const SEGMENT_BYTES: usize = 24 << 20;

/// Transfers one large file in both directions in segments, as both kinds of large objects.
fn segmented(venv: &Venv, url: &str, dir: &Path) -> Result<()> {
    let folder = dir.join("segmented");
    std::fs::create_dir_all(&folder)?;
    let content = Random::new(200).bytes(SEGMENTED_BYTES);
    std::fs::write(folder.join("film"), &content)?;
    let swift = |args: &[&str]| {
        let mut command = venv.program("swift");
        command.current_dir(&folder).env("LC_ALL", "C.UTF-8");
        command.args(["-A", &format!("{url}/auth/v1.0")]);
        command.args(["-U", "test:tester", "-K", "testing"]);
        run_quiet(command.args(args))
    };
    let segment_size = SEGMENT_BYTES.to_string();
    for (kind, mark) in [
        ("--use-slo", "X-Static-Large-Object"),
        ("--use-dlo", "Manifest: films_segments/"),
    ] {
        swift(&[
            "upload",
            kind,
            "--segment-size",
            &segment_size,
            "films",
            "film",
        ])?;
        let listed = swift(&["list", "films_segments"])?.lines().count();
        let segments = SEGMENTED_BYTES.div_ceil(SEGMENT_BYTES);
        ensure!(listed == segments, "{listed} of {segments} segments listed");
        let stat = swift(&["stat", "films", "film"])?;
        ensure!(
            stat.to_lowercase().contains(&mark.to_lowercase())
                && stat.contains(&format!("Content Length: {SEGMENTED_BYTES}")),
            "{kind}: stat:\n{stat}"
        );
        swift(&["download", "films", "film", "-o", "back"])?;
        ensure!(
            std::fs::read(folder.join("back"))? == content,
            "{kind}: came back different"
        );
        swift(&["delete", "films", "film"])?;
        let left = swift(&["list", "films_segments"])?;
        ensure!(left.is_empty(), "{kind}: segments are left:\n{left}");
    }
    swift(&["delete", "films"])?;
    swift(&["delete", "films_segments"])?;
    Ok(())
}

fn rclone(url: &str, tree: &Path, back: &Path) -> Result<()> {
    let source = tree.to_str().context("path")?;
    let back_text = back.to_str().context("path")?;
    let rclone = |args: &[&str]| {
        let mut command = Command::new("rclone");
        command
            .env("RCLONE_CONFIG", "/dev/null")
            .env("RCLONE_CONFIG_CAIRN_TYPE", "swift")
            .env("RCLONE_CONFIG_CAIRN_AUTH", format!("{url}/auth/v1.0"))
            .env("RCLONE_CONFIG_CAIRN_USER", "test:tester")
            .env("RCLONE_CONFIG_CAIRN_KEY", "testing")
            .args(["--retries", "1", "--low-level-retries", "1", "--quiet"]);
        run_quiet(command.args(args))
    };
    rclone(&["copy", source, "cairn:rclone-tree"])?;
    rclone(&["check", "--download", source, "cairn:rclone-tree"])?;
    // One file added, one removed, one changed: sync must transfer exactly that to the container.
    let all = files(tree)?;
    let paths: Vec<&PathBuf> = all.values().collect();
    std::fs::write(tree.join("new file"), "new")?;
    std::fs::write(paths[10], "changed")?;
    std::fs::remove_file(paths[11])?;
    rclone(&["sync", source, "cairn:rclone-tree"])?;
    rclone(&["check", source, "cairn:rclone-tree"])?;
    rclone(&["copy", "cairn:rclone-tree", back_text])?;
    same_trees(tree, back)?;
    rclone(&["purge", "cairn:rclone-tree"])?;
    let left = rclone(&["lsd", "cairn:"])?;
    ensure!(
        !left.contains("rclone-tree"),
        "purged, and still listed:\n{left}"
    );
    Ok(())
}

fn curl(port: u16, dir: &Path) -> Result<()> {
    let account = Account::login(port)?;
    let url = format!("http://127.0.0.1:{port}{}/curl", account.path);
    let token = format!("X-Auth-Token: {}", account.token);
    let body = Random::new(3).bytes(3_000_000);
    let file = dir.join("curl-body");
    std::fs::write(&file, &body)?;
    let file = file.to_str().context("path")?;
    let out = dir.join("curl-out");
    // Returns the status; the body is in the file.
    let curl = |args: &[&str], path: &str| -> Result<String> {
        let _ = std::fs::remove_file(&out);
        let mut command = Command::new("curl");
        command
            .args(["-sS", "-H", &token, "-w", "%{http_code}", "-o"])
            .arg(&out)
            .args(args);
        run_quiet(command.arg(format!("{url}{path}")))
    };
    let expect = |got: String, wanted: &str| {
        ensure!(got == wanted, "curl got {got}, not {wanted}");
        Ok(())
    };
    expect(curl(&["-X", "PUT"], "")?, "201")?;
    expect(
        curl(&["-T", file, "-H", "Expect: 100-continue"], "/whole")?,
        "201",
    )?;
    expect(
        curl(
            &["-T", file, "-H", "Transfer-Encoding: chunked"],
            "/chunked",
        )?,
        "201",
    )?;
    for name in ["/whole", "/chunked"] {
        expect(curl(&[], name)?, "200")?;
        ensure!(std::fs::read(&out)? == body, "{name} came back different");
        expect(curl(&["-r", "1000000-1999999"], name)?, "206")?;
        ensure!(
            std::fs::read(&out)? == body[1_000_000..2_000_000],
            "a range of {name} is different"
        );
        expect(curl(&["-r", "-5"], name)?, "206")?;
        ensure!(
            std::fs::read(&out)? == body[2_999_995..],
            "the end of {name} is different"
        );
    }
    expect(curl(&["-H", "If-None-Match: *"], "/whole")?, "304")?;
    expect(curl(&["-H", "If-Match: \"no\""], "/whole")?, "412")?;
    expect(
        curl(
            &["-T", file, "-H", "ETag: 00000000000000000000000000000000"],
            "/bad",
        )?,
        "422",
    )?;
    expect(curl(&[], "/bad")?, "404")?;
    for name in ["/whole", "/chunked", ""] {
        expect(curl(&["-X", "DELETE"], name)?, "204")?;
    }
    Ok(())
}
