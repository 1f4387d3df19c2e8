#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use cairn_device::{GroupSync, OpenDevice};
use futures_util::FutureExt;

use super::*;

mod at_hand;
mod open;

fn devices(change: impl FnOnce(&mut DevicesConfig)) -> (tempfile::TempDir, Arc<Devices>) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    let mut config = DevicesConfig::new(root.path());
    config.mount_check = false;
    change(&mut config);
    let devices = Devices::new(config);
    (root, devices)
}

fn block<T>(run: Run<T>) -> Result<T, DiskError> {
    crate::reader::block_on(run)
}

#[test]
fn runs_and_joins() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let name = device.read(|disk| Ok(disk.name().to_owned()));
    assert_eq!(block(name).unwrap(), "sda1");
    let panicked: Run<()> = device.write(|_| panic!("a job that panics"));
    assert!(block(panicked).is_err());
    assert_eq!(
        block(device.write(|_| Ok(1))).unwrap(),
        1,
        "the lane lives on"
    );
    devices.shutdown();
    assert!(matches!(
        block(device.read(|_| Ok(()))),
        Err(DiskError::Device(DeviceError::Stopped(_)))
    ));
}

#[test]
fn a_full_queue_refuses_at_once() {
    let (_root, devices) = devices(|config| {
        config.write_threads = 1;
        config.queue_depth = 2;
    });
    let device = devices.get("sda1").unwrap();
    let (started, wait_started) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let first = device.write(move |_| {
        started.send(()).unwrap();
        wait_go.recv().unwrap();
        Ok(())
    });
    wait_started.recv().unwrap();
    let queued: Vec<_> = (0..2).map(|_| device.write(|_| Ok(()))).collect();
    let refused = device.write(|_| Ok(())).now_or_never();
    assert!(matches!(
        refused,
        Some(Err(DiskError::Device(DeviceError::Busy(_))))
    ));
    go.send(()).unwrap();
    block(first).unwrap();
    for run in queued {
        block(run).unwrap();
    }
}

#[test]
fn missing_and_unmounted() {
    let (root, devices) = devices(|_| {});
    for name in ["sdb1", "", ".", "..", "a/b", "sda1%2f"] {
        assert!(
            matches!(devices.get(name), Err(DeviceError::Unmounted(_))),
            "{name:?}"
        );
    }
    let device = devices.get("sda1").unwrap();
    std::fs::remove_dir(root.path().join("sda1")).unwrap();
    assert!(matches!(
        block(device.read(|_| Ok(()))),
        Err(DiskError::Device(DeviceError::Unmounted(_)))
    ));
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    block(device.read(|_| Ok(()))).unwrap();
}

#[test]
fn mount_check() {
    let (root, devices) = devices(|config| config.mount_check = true);
    let device = devices.get("sda1").unwrap();
    assert!(block(device.read(|_| Ok(()))).is_err());
    std::fs::write(root.path().join("sda1/.ismount"), "").unwrap();
    block(device.read(|_| Ok(()))).unwrap();
}

#[test]
fn a_poisoned_device_reads_but_does_not_write() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    device
        .disk()
        .unwrap()
        .poison("x", &std::io::Error::other("test"));
    block(device.read(|_| Ok(()))).unwrap();
    assert!(matches!(
        block(device.write(|_| Ok(()))),
        Err(DiskError::Device(DeviceError::Poisoned(_)))
    ));
}

fn group_sync(disk: &Disk) -> &Arc<GroupSync> {
    disk.file_system().group().unwrap()
}

/// Syncs by the group, or by `own`.
fn sync(
    disk: &Disk,
    own: impl Fn() -> std::io::Result<()> + Send + Sync + 'static,
) -> Result<(), DiskError> {
    let mut set = disk.sync_set();
    set.add_call(own);
    disk.sync(&set)
}

/// A bad write of one device's file, on a file system that three devices share.
#[test]
fn a_failed_sync_of_a_shared_file_system_breaks_only_the_device_whose_file_failed() {
    let (root, devices) = devices(|_| {});
    let names = ["sda1", "sdb1", "sdc1"];
    let disks = names.map(|name| {
        let _ = std::fs::create_dir(root.path().join(name));
        devices.get(name).unwrap().disk().unwrap()
    });
    let [first, second, third] = &disks;
    let group = group_sync(first);
    assert!(Arc::ptr_eq(group, group_sync(second)));
    group.set_failing(true);
    // Its pages were written, and the error is another's.
    sync(first, || Ok(())).unwrap();
    group.set_failing(false);
    // Its pages were lost in that sync, and only its own descriptor tells.
    let lost = || Err(rustix::io::Errno::IO.into());
    assert!(sync(second, lost).is_err());
    sync(third, || Ok(())).unwrap();
    let is_broken = names.map(|name| devices.get(name).unwrap().is_poisoned());
    assert_eq!(is_broken, [false, true, false]);
    for (name, is_broken) in names.into_iter().zip(is_broken) {
        let written = block(devices.get(name).unwrap().write(|_| Ok(())));
        assert_eq!(written.is_err(), is_broken, "{name}");
    }
}

/// Another's sync fails while one is under way whose descriptors were opened too late to hear of it.
#[test]
fn a_sync_that_succeeds_on_a_broken_device_does_not_count() {
    let (_root, devices) = devices(|_| {});
    let device = devices.get("sda1").unwrap();
    let breaks = device.disk().unwrap();
    let written = device.commit(move |disk| {
        let mut set = disk.sync_set();
        set.add_directory_at(disk.root(), "");
        breaks.poison("x", &std::io::Error::other("test"));
        Ok(Step::sync(set, |_| Ok(Step::Done(()))))
    });
    assert!(matches!(block(written), Err(DiskError::Io { .. })));
    let disk = device.disk().unwrap();
    assert!(sync(&disk, || Ok(())).is_err(), "by itself");
}

#[test]
fn a_damaged_file_system_takes_its_device_out_of_service_and_a_bad_file_or_want_does_not() {
    use rustix::io::Errno;

    let fail = |action: &'static str, errno: Errno, is_commit: bool| {
        let (_root, devices) = devices(|_| {});
        let device = devices.get("sda1").unwrap();
        let error = move || DiskError::from_errno(action, "x", errno);
        let failed: Result<(), _> = match is_commit {
            true => block(device.commit(move |_| Err::<Step<()>, _>(error()))),
            false => block(device.read(move |_| Err(error()))),
        };
        let error = failed.unwrap_err();
        assert_eq!(error.is_damage(), device.is_poisoned(), "{error}");
        block(device.read(|_| Ok(()))).unwrap();
        device.is_poisoned()
    };
    let (_root, known) = devices(|_| {});
    let state = &known.get("sda1").unwrap().state;
    let now = Instant::now();
    assert!(state.is_log_due(now) && !state.is_log_due(now + LOG_INTERVAL / 2));
    assert!(state.is_log_due(now + LOG_INTERVAL));
    for is_commit in [false, true] {
        assert!(fail("open", Errno::UCLEAN, is_commit));
        assert!(fail("getxattr", Errno::BADMSG, is_commit));
        assert!(
            !fail("list", Errno::IO, is_commit),
            "one directory may be bad"
        );
        assert!(!fail("read", Errno::IO, is_commit));
        for want in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::DQUOT,
        ] {
            assert!(!fail("list", want, is_commit), "{want}");
        }
        assert!(
            !fail("open", Errno::ROFS, is_commit),
            "each write is refused by itself"
        );
    }
}

#[test]
fn reserves() {
    use FallocateReserve::{Bytes, Percent};
    assert_eq!(FallocateReserve::parse("1%"), Some(Percent(1.0)));
    assert_eq!(FallocateReserve::parse(" 2.5 % "), Some(Percent(2.5)));
    assert_eq!(FallocateReserve::parse("1000"), Some(Bytes(1000)));
    assert_eq!(FallocateReserve::parse("101%"), None);
    assert_eq!(FallocateReserve::parse("x"), None);
}

/// Notes what is done, in order.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<&'static str>>>);

impl Order {
    fn note(&self, what: &'static str) {
        self.0.lock().push(what);
    }

    fn seen(&self) -> Vec<&'static str> {
        self.0.lock().clone()
    }
}

/// Keeps one thread, on which `begin` has the wait done, until told.
fn hold_by(begin: impl FnOnce(Box<dyn FnOnce() + Send>) -> Run<()>) -> (mpsc::Sender<()>, Run<()>) {
    let (started, wait_started) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let held = begin(Box::new(move || {
        started.send(()).unwrap();
        let _ = wait_go.recv();
    }));
    wait_started.recv().unwrap();
    (go, held)
}

fn hold(device: &Device) -> (mpsc::Sender<()>, Run<()>) {
    hold_by(|wait| {
        device.read(move |_| {
            wait();
            Ok(())
        })
    })
}

fn hold_commit(device: &Device) -> (mpsc::Sender<()>, Run<()>) {
    hold_by(|wait| {
        device.commit(move |_| {
            wait();
            Ok(Step::Done(()))
        })
    })
}

#[test]
fn background_work_waits_behind_clients() {
    let (_root, devices) = devices(|config| config.read_threads = 1);
    let device = devices.get("sda1").unwrap();
    let order = Order::default();
    let (go, held) = hold(&device);
    let noting = |device: &Device, what: &'static str| {
        let order = order.clone();
        device.read(move |_| {
            order.note(what);
            Ok(())
        })
    };
    let repair = noting(&device.background(), "repair");
    let client = noting(&device, "client");
    go.send(()).unwrap();
    block(held).unwrap();
    block(repair).unwrap();
    block(client).unwrap();
    assert_eq!(order.seen(), ["client", "repair"]);
}

#[test]
fn background_work_that_has_waited_long_is_done_all_the_same() {
    let (_root, devices) = devices(|config| config.read_threads = 1);
    let device = devices.get("sda1").unwrap();
    let (order, of_client) = (Order::default(), Order::default());
    let (go, held) = hold(&device);
    let repair = {
        let (order, of_client) = (order.clone(), of_client.clone());
        device.background().read(move |_| {
            let done = of_client.seen().len();
            order.note(if done < 100 { "between" } else { "last" });
            Ok(())
        })
    };
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let order = of_client.clone();
            device.read(move |_| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                order.note("client");
                Ok(())
            })
        })
        .collect();
    go.send(()).unwrap();
    block(held).unwrap();
    block(repair).unwrap();
    for client in clients {
        block(client).unwrap();
    }
    assert_eq!(order.seen(), ["between"]);
}

#[test]
fn clients_find_a_thread_and_nobody_leaves_all_to_background_work() {
    let (_root, devices) = devices(|config| config.read_threads = 2);
    let device = devices.get("sda1").unwrap();
    // Nobody is there: two at once, who wait for each other.
    let both = Arc::new(std::sync::Barrier::new(2));
    let repair: Vec<_> = (0..2)
        .map(|_| {
            let both = both.clone();
            device.background().read(move |_| {
                both.wait();
                Ok(())
            })
        })
        .collect();
    for run in repair {
        block(run).unwrap();
    }
    // A client comes: one at most, and the other thread is for clients.
    block(device.read(|_| Ok(()))).unwrap();
    let (go, held) = hold(&device.background());
    let second = device.background().read(|_| Ok(()));
    block(device.read(|_| Ok(()))).unwrap();
    assert_eq!(device.background_share().done, 2);
    drop(go);
    block(held).unwrap();
    block(second).unwrap();
    // Told after the answer.
    devices.shutdown();
    assert_eq!(device.background_share().done, 4);
}

#[test]
fn background_commits_wait_behind_clients() {
    let (_root, devices) = devices(|config| config.commit_threads = 1);
    let device = devices.get("sda1").unwrap();
    let order = Order::default();
    let (client_goes, held_client) = hold_commit(&device);
    // Background work has a thread beside that of clients.
    let (repair_goes, held_repair) = hold_commit(&device.background());
    let noting = |device: &Device, what: &'static str| {
        let order = order.clone();
        device.commit(move |_| {
            order.note(what);
            Ok(Step::Done(()))
        })
    };
    let repair = noting(&device.background(), "repair");
    let client = noting(&device, "client");
    client_goes.send(()).unwrap();
    block(held_client).unwrap();
    block(client).unwrap();
    assert_eq!(order.seen(), ["client"], "its thread is clients' alone");
    repair_goes.send(()).unwrap();
    block(held_repair).unwrap();
    block(repair).unwrap();
    assert_eq!(order.seen(), ["client", "repair"]);
    // Jobs queued at shutdown complete in either class.
    let last = noting(&device.background(), "last");
    devices.shutdown();
    block(last).unwrap();
}

#[test]
fn background_commits_leave_clients_a_thread() {
    let (_root, devices) = devices(|config| config.commit_threads = 2);
    let device = devices.get("sda1").unwrap();
    let held: Vec<_> = (0..2).map(|_| hold_commit(&device.background())).collect();
    block(device.commit(|_| Ok(Step::Done(())))).unwrap();
    for (go, run) in held {
        drop(go);
        block(run).unwrap();
    }
}

/// Waits for what another thread will do.
fn wait_until(is_so: impl Fn() -> bool) {
    let patience = std::time::Instant::now();
    while !is_so() {
        assert!(patience.elapsed().as_secs() < 60, "waited in vain");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Threads of all lanes that work or wait.
fn threads(device: &Device) -> usize {
    let lanes = &device.lanes;
    lanes.reads.workers() + lanes.writes.workers() + lanes.commits.workers()
}

#[test]
fn threads_end_when_they_are_idle_and_start_again() {
    let idle = std::time::Duration::from_millis(20);
    let (_root, devices) = devices(|config| config.idle_close = idle);
    let device = devices.get("sda1").unwrap();
    for _ in 0..3 {
        let held = [hold(&device), hold(&device), hold_commit(&device)];
        assert_eq!(threads(&device), 3);
        std::thread::sleep(idle * 3);
        assert_eq!(threads(&device), 3, "one at work ended");
        for (go, run) in held {
            drop(go);
            block(run).unwrap();
        }
        wait_until(|| threads(&device) == 0);
    }
}

/// Jobs come just as the last thread of a lane ends.
#[test]
fn no_job_is_lost_to_a_thread_that_ends() {
    const ROUNDS: u32 = 4000;
    let idle = std::time::Duration::from_micros(200);
    let (_root, devices) = devices(|config| {
        config.idle_close = idle;
        (config.read_threads, config.commit_threads) = (1, 1);
    });
    let device = devices.get("sda1").unwrap();
    let background = device.background();
    let (done, all) = mpsc::channel();
    let ended = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            let device = if round % 4 == 0 { &background } else { &device };
            block(device.read(|_| Ok(()))).unwrap();
            block(device.commit(|_| Ok(Step::Done(())))).unwrap();
            // From half of the time to twice as long.
            std::thread::sleep(idle / 2 + idle * (round % 16) / 10);
        }
        done.send(()).unwrap();
    });
    let in_time = all.recv_timeout(std::time::Duration::from_secs(60));
    in_time.expect("a job waits, and no thread comes for it");
    ended.join().unwrap();
}
