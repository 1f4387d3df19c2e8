//! `cairn serve --pid-file` of a server that root starts and that becomes another user.

#![allow(clippy::expect_used)]

#[allow(dead_code)]
mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Running, cairn};

fn give_to_nobody(path: &Path) {
    let mut chown = Command::new("chown");
    let given = chown.args(["-R", "nobody"]).arg(path).status();
    assert!(given.expect("chown runs").success());
}

#[test]
fn what_the_servers_user_may_not_remove_is_emptied() {
    let passwd = std::fs::read_to_string("/etc/passwd").expect("it is there");
    let has_nobody = passwd.lines().any(|line| line.starts_with("nobody:"));
    if !rustix::process::geteuid().is_root() || !has_nobody {
        println!("skipped: only root can become the user nobody");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let made = cairn()
        .args(["up", "--write-only", "--bind", "127.0.0.1:0"])
        .args(["--part-power", "4", "--data"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .status();
    assert!(made.expect("cairn runs").success());
    let conf = folder.path().join("etc/proxy-server.conf");
    let text = std::fs::read_to_string(&conf).expect("a conf");
    let text = text.replacen("[DEFAULT]", "[DEFAULT]\nuser = nobody", 1);
    std::fs::write(&conf, text).expect("a conf");
    give_to_nobody(folder.path());
    for is_nobodys in [false, true] {
        let run = folder.path().join("run");
        std::fs::create_dir(&run).expect("a folder");
        if is_nobodys {
            give_to_nobody(&run);
        }
        let pid_file = run.join("cairn.pid");
        let mut serve = cairn();
        serve.arg("serve").arg(&conf).args(["--log-level", "warn"]);
        serve.arg("--pid-file").arg(&pid_file);
        let server = Running::start(&mut serve, "proxy-server");
        let written = std::fs::read_to_string(&pid_file).expect("a file");
        assert_eq!(written, format!("{}\n", server.id()));
        assert_eq!(server.stop(), Some(0));
        let left = std::fs::read_to_string(&pid_file).ok();
        assert_eq!(left, (!is_nobodys).then(String::new));
        std::fs::remove_dir_all(&run).expect("it goes");
    }
}
