use super::*;

fn options(data: &std::path::Path) -> UpOptions {
    UpOptions {
        data: Some(data.to_owned()),
        bind: Some("127.0.0.1:0".parse().unwrap()),
        part_power: Some(4),
        ..UpOptions::default()
    }
}

/// A start on a data folder that no other store of this test holds. A program that another test starts at
/// that moment holds a copy of the folder's lock from its fork to its exec: so that is waited for.
fn configured(options: &UpOptions) -> anyhow::Result<Store> {
    for _ in 0..1000 {
        match write_configuration(options) {
            Err(error)
                if error
                    .to_string()
                    .contains("another cairn is using this folder") =>
            {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done => return done,
        }
    }
    write_configuration(options)
}

#[test]
fn the_first_start_writes_swifts_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = configured(&options(folder.path())).unwrap();
    assert!(store.first_start);
    assert_ne!(store.bind.port(), 0);
    assert_eq!(store.users, [User::tester()]);
    for role in Role::ALL {
        let conf = ServerConf::load(&store.layout.conf(role.server_name())).unwrap();
        assert_eq!(conf.role, role);
        let settings = ServerSettings::read(&conf).unwrap();
        assert_eq!(settings.folders.swift_dir, store.layout.etc);
        assert_eq!(settings.folders.mount_check, role == Role::Proxy);
    }
    let text = fs::read(store.layout.conf("swift")).unwrap();
    cairn_formats::swift_conf::SwiftConf::parse("swift.conf", &text).unwrap();
    for name in ["account", "container", "object"] {
        let ring =
            cairn_ring::Ring::load(store.layout.etc.join(format!("{name}.ring.gz"))).unwrap();
        assert_eq!((ring.device_count(), ring.replica_count()), (4, 3.0));
        assert!(store.layout.etc.join(format!("{name}.builder")).is_file());
    }
    assert!(store.layout.devices.join("d4").is_dir());
}

#[test]
fn the_engine_is_the_first_starts() {
    let folder = tempfile::tempdir().unwrap();
    let with = |engine: &str| UpOptions {
        engine: Some(engine.parse().unwrap()),
        ..options(folder.path())
    };
    let (files, volumes) = (with("files"), with("pebbles"));
    let store = configured(&volumes).unwrap();
    let text = fs::read_to_string(store.layout.conf("swift")).unwrap();
    let line = format!("diskfile_module = {}\n", crate::engines::PEBBLES);
    assert!(text.ends_with(&line), "{text}");
    drop(store);
    drop(configured(&options(folder.path())).unwrap());
    drop(configured(&volumes).unwrap());
    let error = format!("{:#}", configured(&files).unwrap_err());
    for part in ["--engine files", crate::engines::PEBBLES, "cairn pebbles"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(
        "pebble"
            .parse::<EngineChoice>()
            .unwrap_err()
            .contains("files or")
    );
}

#[test]
fn others_see_nothing_of_it() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let store = configured(&options(&data)).unwrap();
    assert_eq!(mode(&data), 0o700);
    let ours = [&store.layout.etc, &store.layout.devices].map(Clone::clone);
    for path in &ours {
        assert_eq!(mode(path), 0o700, "{path:?}");
    }
    assert_eq!(mode(&store.layout.conf("proxy-server")), 0o600);
    drop(store);
    // As an earlier release left them.
    for path in &ours {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    configured(&options(&data)).unwrap();
    for path in &ours {
        assert_eq!(mode(path), 0o700, "{path:?}");
    }
}

#[test]
fn a_later_start_keeps_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let first = configured(&options(folder.path())).unwrap();
    let etc = first.layout.etc.clone();
    let held = write_configuration(&options(folder.path())).unwrap_err();
    assert!(
        held.to_string()
            .contains("another cairn is using this folder"),
        "{held}"
    );
    drop(first);
    let read = |name: &str| fs::read(etc.join(name)).unwrap();
    let (swift, ring) = (read("swift.conf"), read("object.ring.gz"));
    let proxy = String::from_utf8(read("proxy-server.conf")).unwrap();
    fs::remove_dir(folder.path().join("dev/d2")).unwrap();

    let again = UpOptions {
        bind: None,
        users: vec!["a_b:c=d,.admin".parse().unwrap(), "x:y=z".parse().unwrap()],
        ..options(folder.path())
    };
    let store = configured(&again).unwrap();
    assert!(!store.first_start);
    assert_eq!(store.users, again.users);
    assert_eq!((read("swift.conf"), read("object.ring.gz")), (swift, ring));
    assert_eq!(missing_devices(&store), ["d2"]);
    let changed = String::from_utf8(read("proxy-server.conf")).unwrap();
    assert!(!changed.contains("user_test_tester"), "{changed}");
    let port = format!("bind_port = {}", store.bind.port());
    assert!(proxy.contains(&port) && changed.contains(&port));
}

#[test]
fn refusals_name_option_value_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: fn(&mut UpOptions)| {
        let mut options = options(folder.path());
        change(&mut options);
        configured(&options).unwrap_err().to_string()
    };
    let text = refused(|o| o.replicas = Some(5));
    assert!(
        text.contains("--replicas 5") && text.contains("--devices 5"),
        "{text}"
    );
    assert!(refused(|o| o.devices = Some(0)).contains("--devices 0"));
    assert!(refused(|o| o.part_power = Some(40)).contains("--part-power 40"));
    configured(&options(folder.path())).unwrap();
    let text = refused(|o| o.devices = Some(6));
    assert!(
        text.contains("--devices 6") && text.contains("--data"),
        "{text}"
    );

    fs::create_dir(folder.path().join("dev/d1/objects")).unwrap();
    fs::remove_file(folder.path().join("etc/cairn-up.conf")).unwrap();
    assert!(refused(|_| {}).contains("holds data"));
}

#[test]
fn the_default_key_is_for_this_machine_alone() {
    let far = |options: UpOptions| UpOptions {
        bind: Some("0.0.0.0:0".parse().unwrap()),
        ..options
    };
    let folder = tempfile::tempdir().unwrap();
    let refused = |options: UpOptions| configured(&options).unwrap_err().to_string();
    let text = refused(far(options(folder.path())));
    assert!(
        text.contains("--bind 0.0.0.0") && text.contains("--user-file"),
        "{text}"
    );
    assert!(!folder.path().join("etc").exists(), "nothing was made");
    let console = ConsoleChoice::At("[::]:8081".parse().unwrap());
    let with_console = |options: UpOptions| UpOptions { console, ..options };
    assert!(refused(with_console(options(folder.path()))).contains("--console"));

    // Nor at a later start, which leaves the files as they are.
    drop(configured(&options(folder.path())).unwrap());
    let conf = folder.path().join("etc/proxy-server.conf");
    let before = fs::read(&conf).unwrap();
    assert!(refused(far(options(folder.path()))).contains("--bind"));
    assert_eq!(fs::read(&conf).unwrap(), before);
    let own = UpOptions {
        users: vec!["a:b=c,.admin".parse().unwrap()],
        ..far(options(folder.path()))
    };
    drop(configured(&own).unwrap());
    let unchanged = UpOptions {
        bind: None,
        ..with_console(options(folder.path()))
    };
    drop(configured(&unchanged).unwrap());
    let testers = UpOptions {
        bind: None,
        users: vec![User::tester()],
        ..options(folder.path())
    };
    assert!(refused(testers).contains("--bind"));
}

#[test]
fn the_start_shows_no_key_but_the_default_one() {
    let folder = tempfile::tempdir().unwrap();
    let new = console::Shown::New("pass-word".into());
    let kept = console::Shown::In("/x/console-password".into());
    let address = "127.0.0.1:8081".parse().unwrap();
    let store = configured(&options(folder.path())).unwrap();
    let text = welcome::text(&store, Some((address, &new)));
    for part in ["ST_KEY=testing", "region   RegionOne", "pass-word"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    drop(store);
    let own = UpOptions {
        users: vec!["a:b=hidden,.admin".parse().unwrap()],
        ..options(folder.path())
    };
    let store = configured(&own).unwrap();
    let text = welcome::text(&store, Some((address, &kept)));
    assert!(text.contains("password in /x/console-password"), "{text}");
    assert!(text.contains("a:b") && !text.contains("hidden"), "{text}");
}

fn servers_of(store: &Store) -> Vec<(ServerConf, ServerSettings)> {
    let server = |role: Role| {
        let conf = ServerConf::load(&store.layout.conf(role.server_name())).unwrap();
        let settings = ServerSettings::read(&conf).unwrap();
        (conf, settings)
    };
    Role::ALL.into_iter().map(server).collect()
}

/// Engines that are not there, and confs that differ about the same devices.
#[tokio::test]
async fn contradictions_stop_the_start() {
    use crate::engines::EngineModules;
    use crate::services::Services;

    let folder = tempfile::tempdir().unwrap();
    let store = configured(&options(folder.path())).unwrap();
    let refused = || {
        let built = Services::build(&servers_of(&store), EngineModules::all(), false, true);
        format!("{:#}", built.err().unwrap())
    };
    let edit = |name: &str, from: &str, to: &str| {
        let path = store.layout.etc.join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    };
    let (own, other) = ("egg:cairn#pebbles", "egg:mine#fast");
    edit("swift.conf", own, other);
    let error = refused();
    for part in [
        "swift.conf: [storage-policy:0] diskfile_module = \"egg:mine#fast\"",
        "egg:swift#replication.fs",
    ] {
        assert!(error.contains(part), "{error}");
    }
    edit("swift.conf", other, own);
    let (yes, no) = ("exclusive_databases = yes", "exclusive_databases = no");
    edit("container-server.conf", yes, no);
    let error = refused();
    for part in [yes, no, "account-server.conf", "container-server.conf"] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn all_daemons_run_and_only_once() {
    use crate::engines::EngineModules;
    use crate::role::DaemonKind;
    use crate::services::Services;

    let folder = tempfile::tempdir().unwrap();
    let store = configured(&options(folder.path())).unwrap();
    let mut servers = servers_of(&store);
    // A second container server over the same devices shares the updater of the first.
    let container = servers
        .iter()
        .position(|(conf, _)| conf.role == Role::Container);
    servers.push(servers[container.unwrap()].clone());
    let services = Services::build(&servers, EngineModules::all(), false, true).unwrap();
    assert_eq!(services.handlers().len(), 5);
    let kinds: Vec<DaemonKind> = services.daemons().iter().map(|d| d.kind()).collect();
    // For clusters with fragments, shards, several policies or other clusters.
    let idle = [
        DaemonKind::ContainerReconciler,
        DaemonKind::ContainerSharder,
        DaemonKind::ContainerSync,
        DaemonKind::ObjectReconstructor,
    ];
    for kind in DaemonKind::ALL {
        let count = usize::from(!idle.contains(&kind));
        let found = kinds.iter().filter(|k| **k == kind).count();
        assert_eq!(found, count, "{kind:?} in {kinds:?}");
    }
    services.into_storage().close();
    // Under the name of one server, that server alone.
    let services = Services::build(&servers, EngineModules::all(), false, false).unwrap();
    assert!(services.daemons().is_empty());
    services.into_storage().close();
}

#[test]
fn tls_is_made_once_and_kept() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let started = |tls: Option<TlsChoice>| {
        let options = UpOptions {
            tls,
            ..options(folder.path())
        };
        let store = configured(&options).unwrap();
        let conf = ServerConf::load(&store.layout.conf("proxy-server")).unwrap();
        let settings = ServerSettings::read(&conf).unwrap();
        assert_eq!(settings.tls.is_some(), store.tls.is_some());
        store
            .tls
            .clone()
            .map(|tls| (tls, welcome::text(&store, None)))
    };
    assert!(started(None).is_none());
    let (tls, text) = started(Some(TlsChoice::Own)).unwrap();
    assert!(tls.is_own && text.contains("Cairn serves https://127.0.0.1:"));
    assert!(text.contains(&tls.fingerprint) && text.contains("OS_CACERT="));
    let mode = fs::metadata(&tls.key).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (kept, _) = started(None).unwrap();
    assert_eq!(kept.fingerprint, tls.fingerprint);
    let given = TlsChoice::Given(tls.cert.clone(), folder.path().join("none"));
    let wrong = UpOptions {
        tls: Some(given),
        ..options(folder.path())
    };
    assert!(configured(&wrong).is_err());
    assert!(started(Some(TlsChoice::Off)).is_none());
    let (again, _) = started(Some(TlsChoice::Own)).unwrap();
    assert_eq!(again.fingerprint, tls.fingerprint);
}

/// Nothing is left behind that a next start would take for a store.
#[test]
fn an_occupied_port_makes_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options(folder.path());
    options.bind = Some(taken.local_addr().unwrap());
    let refused = configured(&options).unwrap_err().to_string();
    assert!(refused.contains("--bind"), "{refused}");
    let mut left = std::fs::read_dir(folder.path()).unwrap();
    assert!(left.all(|entry| entry.unwrap().file_name() == "lock"));
    drop(taken);
    configured(&options).unwrap();
}
