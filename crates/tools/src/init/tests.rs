use std::fs;

use super::*;

fn folders() -> (tempfile::TempDir, Folders) {
    let root = tempfile::tempdir().unwrap();
    let (swift, run) = (root.path().join("etc"), root.path().join("run"));
    for file in [
        "proxy-server.conf",
        "object-server/1.conf",
        "object-server/2.conf",
        "object-server/notes.txt",
        "container-server/1.conf.d/a.conf",
        "container-server/2.conf.d/a.conf",
        "account-server.conf-sample",
        "object-expirer.conf",
    ] {
        let path = swift.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let folders = Folders::new(Some(swift), Some(run));
    (root, folders)
}

fn confs(name: &str, number: Option<usize>, folders: &Folders) -> Vec<String> {
    let program = Program::named(name, folders).unwrap();
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(&folders.swift_dir).unwrap().to_owned();
        path.to_string_lossy().into_owned()
    };
    program.confs(number).into_iter().map(relative).collect()
}

#[test]
fn confs_are_found_as_upstream_finds_them() {
    let (_root, folders) = folders();
    let of = |name, number| confs(name, number, &folders);
    assert_eq!(of("proxy", None), ["proxy-server.conf"]);
    let both = ["object-server/1.conf", "object-server/2.conf"];
    assert_eq!(of("object-updater", None), both);
    assert_eq!(of("object", Some(2)), ["object-server/2.conf"]);
    assert_eq!(of("object.2", None), ["object-server/2.conf"]);
    assert!(of("object", Some(3)).is_empty());
    assert_eq!(
        of("container", None),
        ["container-server/1.conf.d", "container-server/2.conf.d"]
    );
    assert!(of("account", None).is_empty());
    assert_eq!(of("object-expirer", None), ["object-expirer.conf"]);
    fs::write(
        folders.swift_dir.join("object-server/1.conf"),
        "[object-expirer]\n",
    )
    .unwrap();
    assert_eq!(of("object-expirer", None), ["object-server/1.conf"]);
}

#[test]
fn words_become_programs() {
    let (_root, folders) = folders();
    let names = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let (programs, named) = programs(&words, &folders).unwrap();
        let names: Vec<String> = programs.iter().map(|p| p.name().to_owned()).collect();
        (names, named)
    };
    assert_eq!(names(&["object"]), (vec!["object-server".to_owned()], true));
    assert_eq!(names(&["main"]).0.len(), 4);
    let (updaters, named) = names(&["*-updater"]);
    assert_eq!(updaters, ["container-updater", "object-updater"]);
    assert!(!named);
    let error = programs(&["objekt".to_owned()], &folders).err().unwrap();
    assert!(
        error.to_string().contains("did you mean object-server"),
        "{error}"
    );
}

#[test]
fn files_of_processes_that_are_gone_are_removed() {
    let (_root, folders) = folders();
    let file = folders.run_dir.join("object-updater/1.pid");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    // This process lives, and is no updater.
    fs::write(&file, std::process::id().to_string()).unwrap();
    let program = Program::named("object-updater", &folders).unwrap();
    assert!(program.running(None).is_empty());
    assert!(!file.exists());
}
