//! Loss of one device of four. First its folder is moved away under a running store, and the store
//! is then restarted without it; second the device refuses writes: it is bind-mounted onto itself
//! read-only if we may mount, otherwise replaced by a plain file. All requests must continue to
//! succeed, and nothing may be missing when the device is back.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::model::keys::{Key, State, Write, next_version};
use cairn_testkit::model::{CONTAINERS, check, container, load};
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;

use crate::engine::EngineName;

const KEYS: usize = 120;

pub(crate) fn run(engine: Option<EngineName>) -> Result<()> {
    for fault in [Fault::Removed, Fault::ReadOnly] {
        let dir = workspace::scratch("device")?;
        let mut store = Cairn::create(&workspace::build_cairn()?, dir.path(), None)?;
        EngineName::set(engine, &store)?;
        store.start(Spread::OneProcess)?;
        with_fault(&mut store, fault)
            .map_err(|e| e.context(format!("{fault:?}\n{}", store.log_tail())))?;
        store.stop()?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Removed,
    ReadOnly,
}

fn with_fault(store: &mut Cairn, fault: Fault) -> Result<()> {
    let mut account = Account::login(store.port())?;
    let mut random = Random::new(1);
    for c in 0..CONTAINERS {
        account.must("PUT", &container(c), "", &[], b"")?;
    }
    let mut keys = vec![
        (0..KEYS)
            .map(|k| Key::new(&container(k % CONTAINERS), format!("o{k:03}")))
            .collect::<Vec<_>>(),
    ];
    write_all(&mut account, &mut keys[0], &mut random)?;

    let devices = store.devices()?;
    let device = devices
        .get(1)
        .context("the store has fewer than two devices")?;
    let broken = Broken::new(device, fault)?;
    println!("{}", broken.words);
    write_all(&mut account, &mut keys[0], &mut random)?;
    check_all(&mut account, &keys)?;
    // Containers created while the device is missing.
    account.must("PUT", "/crash-new", "", &[], b"")?;
    account.must("PUT", "/crash-new/o", "", &[], b"x")?;
    account.must("GET", "", "?format=json", &[], b"")?;

    store.stop()?;
    store
        .start(Spread::OneProcess)
        .context("starting without the device")?;
    let mut account = Account::login(store.port())?;
    write_all(&mut account, &mut keys[0], &mut random)?;
    check_all(&mut account, &keys)?;
    account.must("DELETE", "/crash-new/o", "", &[], b"")?;

    store.stop()?;
    drop(broken);
    store.start(Spread::OneProcess)?;
    let mut account = Account::login(store.port())?;
    for key in keys.iter().flatten() {
        let response = account.call("GET", &key.path(), "", &[("X-Newest", "true")], b"")?;
        let present = key.settled() != Some(State::Absent);
        let expected = if present { 200 } else { 404 };
        ensure!(
            response.status == expected,
            "{}: {} with the device back",
            key.path(),
            response.status
        );
    }
    println!("all requests succeeded; nothing is missing with the device back");
    Ok(())
}

/// Sends every kind of request for every key; all must succeed.
fn write_all(account: &mut Account, keys: &mut [Key], random: &mut Random) -> Result<()> {
    let mut counts = load::Counts::default();
    for (number, key) in keys.iter_mut().enumerate() {
        let put = Write::Put {
            version: next_version(),
        };
        let connected = load::write(account, key, put, load::size(random), &mut counts)
            && match number % 4 {
                0 => load::write(account, key, Write::Delete, 0, &mut counts),
                1 => load::write(
                    account,
                    key,
                    Write::Post {
                        number: next_version(),
                    },
                    0,
                    &mut counts,
                ),
                _ => true,
            };
        ensure!(connected, "the connection broke at {}", key.path());
    }
    ensure!(counts.wrong.is_empty(), "{}", counts.wrong.join("\n"));
    Ok(())
}

fn check_all(account: &mut Account, keys: &[Vec<Key>]) -> Result<()> {
    let lost = check::all(account, keys)?;
    ensure!(lost.is_empty(), "{}", lost.join("\n"));
    for key in keys.iter().flatten() {
        let status = account.call("HEAD", &key.path(), "", &[], b"")?.status;
        ensure!(matches!(status, 200 | 404), "HEAD {}: {status}", key.path());
    }
    Ok(())
}

/// A device that is out of order until dropped.
struct Broken {
    device: PathBuf,
    aside: Option<PathBuf>,
    words: String,
}

impl Broken {
    fn new(device: &Path, fault: Fault) -> Result<Broken> {
        let mut broken = Broken {
            device: device.to_owned(),
            aside: None,
            words: String::new(),
        };
        let name = device.display();
        match fault {
            Fault::ReadOnly if mount_read_only(device) => {
                broken.words = format!("{name} is mounted read-only");
            }
            Fault::ReadOnly => {
                broken.move_aside()?;
                std::fs::write(device, "no device\n")?;
                broken.words = format!("no right to mount here: {name} is a plain file");
            }
            Fault::Removed => {
                broken.move_aside()?;
                broken.words = format!("{name} is gone");
            }
        }
        Ok(broken)
    }

    fn move_aside(&mut self) -> Result<()> {
        // Beside the folder of devices, in which the other ones stay visible.
        let parent = self.device.parent().context("a device has a parent")?;
        let aside = parent.with_extension("aside");
        std::fs::rename(&self.device, &aside)?;
        self.aside = Some(aside);
        Ok(())
    }
}

fn mount(args: &[&str], device: &Path) -> bool {
    let mut command = Command::new("mount");
    command
        .args(args)
        .arg(device)
        .output()
        .is_ok_and(|o| o.status.success())
}

fn mount_read_only(device: &Path) -> bool {
    let Some(path) = device.to_str() else {
        return false;
    };
    if !mount(&["--bind", path], device) {
        return false;
    }
    let done = mount(&["-o", "remount,bind,ro"], device);
    if !done {
        unmount(device);
    }
    done
}

fn unmount(device: &Path) {
    // Lazily: the store may have open files on it.
    let _ = Command::new("umount").arg("--lazy").arg(device).output();
}

impl Drop for Broken {
    fn drop(&mut self) {
        match &self.aside {
            Some(aside) => {
                if self.device.is_file() {
                    let _ = std::fs::remove_file(&self.device);
                }
                let _ = std::fs::rename(aside, &self.device);
            }
            None => unmount(&self.device),
        }
    }
}
