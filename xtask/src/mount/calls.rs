//! File-system calls, checked against POSIX and `docs/mount.md`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{CONTAINER, Mount, Setup};
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::run_quiet;

const FSX: &str = include_str!("../../mount/fsx.py");

pub(super) fn basics(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let file = dir.join("file");
    fs::write(&file, b"content")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
    std::os::unix::fs::chown(&file, Some(12), Some(34))?;
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    OpenOptions::new()
        .write(true)
        .open(&file)?
        .set_modified(time)?;
    symlink("file", dir.join("link"))?;
    // The kernel's attribute and entry caches expire after a second.
    std::thread::sleep(Duration::from_millis(1200));
    let meta = fs::metadata(&file)?;
    ensure!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777) == (12, 34, 0o640),
        "{meta:?}"
    );
    ensure!(meta.modified()? == time, "mtime {:?}", meta.modified()?);
    ensure!(
        fs::read_link(dir.join("link"))? == Path::new("file"),
        "a link"
    );
    ensure!(fs::read(dir.join("link"))? == b"content", "through a link");
    ensure!(
        fs::symlink_metadata(dir.join("link"))?.len() == 4,
        "a link's size"
    );
    rustix::fs::setxattr(&file, "user.color", b"blue", rustix::fs::XattrFlags::CREATE)?;
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(&file, "user.color", &mut value)?;
    ensure!(&value[..length] == b"blue", "an extended attribute");
    // `ls -l` asks for these of every file, unless it hears that there are none.
    for name in ["security.selinux", "system.posix_acl_access"] {
        let asked = rustix::fs::getxattr(&file, name, &mut value);
        let is_refused = asked == Err(rustix::io::Errno::OPNOTSUPP);
        ensure!(is_refused, "{name}: {asked:?}");
    }
    fs::create_dir_all(dir.join("a/b/c"))?;
    fs::write(dir.join("a/b/c/deep"), b"deep")?;
    ensure!(
        fs::remove_dir(dir.join("a")).is_err(),
        "a directory that is not empty went"
    );
    fs::rename(dir.join("a"), dir.join("z"))?;
    ensure!(
        fs::read(dir.join("z/b/c/deep"))? == b"deep",
        "in a renamed directory"
    );
    ensure!(!dir.join("a").exists(), "the old name is there");
    fs::rename(dir.join("z/b/c/deep"), &file)?;
    ensure!(fs::read(&file)? == b"deep", "a file renamed over another");
    let mut open = OpenOptions::new().read(true).write(true).open(&file)?;
    fs::remove_file(&file)?;
    open.seek(SeekFrom::End(0))?;
    open.write_all(b" and gone")?;
    open.rewind()?;
    let mut text = String::new();
    open.read_to_string(&mut text)?;
    ensure!(text == "deep and gone", "an unlinked file holds {text:?}");
    drop(open);
    let exclusive = || {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(dir.join("new"))
    };
    exclusive()?;
    ensure!(exclusive().is_err(), "O_EXCL made a file twice");
    let sparse = File::create(dir.join("sparse"))?;
    sparse.set_len(1 << 30)?;
    drop(sparse);
    ensure!(
        fs::metadata(dir.join("sparse"))?.len() == 1 << 30,
        "a sparse file"
    );
    let mut names: Vec<_> = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    ensure!(names == ["link", "new", "sparse", "z"], "{names:?}");
    fs::remove_dir_all(dir)?;
    ensure!(!dir.exists(), "what was removed is there");
    Ok(())
}

pub(super) fn fsx(file: &Path, seed: u64, operations: u64, bytes: u64) -> Result<()> {
    let mut command = Command::new("python3");
    command.arg("-c").arg(FSX).arg(file);
    for number in [seed, operations, bytes] {
        command.arg(number.to_string());
    }
    run_quiet(&mut command)?;
    Ok(())
}

pub(super) fn large(dir: &Path, account: &mut Account) -> Result<()> {
    let (file, bytes) = (dir.join("large"), Random::new(3).bytes(1 << 20));
    let mut out = File::create(&file)?;
    for i in 0..150u32 {
        out.write_all(&i.to_le_bytes())?;
        out.write_all(&bytes)?;
    }
    out.sync_all()?;
    drop(out);
    let mut input = File::open(&file)?;
    let mut piece = vec![0; bytes.len() + 4];
    for i in 0..150u32 {
        input.read_exact(&mut piece)?;
        ensure!(
            piece[..4] == i.to_le_bytes() && piece[4..] == bytes[..],
            "piece {i}"
        );
    }
    let answer = account.must("HEAD", &format!("/{CONTAINER}/large"), "", &[], b"")?;
    let is_large = answer.header("x-static-large-object").is_some();
    ensure!(is_large, "a file of 150 MB is no large object");
    let range = [("Range", "bytes=104857600-104858599")];
    let part = account.must("GET", &format!("/{CONTAINER}/large"), "", &range, b"")?;
    let mut file = File::open(&file)?;
    file.seek(SeekFrom::Start(104_857_600))?;
    let mut here = vec![0; 1000];
    file.read_exact(&mut here)?;
    ensure!(part.body == here, "another client reads other bytes");
    Ok(())
}

/// Names with bytes that are special in URLs, in listings or on terminals, and deeply nested names.
/// Goes down a directory at a time, since a path of a call has 4,096 bytes at most and the store's
/// names begin at the mount.
const LONG_PATHS: &str = "
import errno, os, sys
os.chdir(sys.argv[1])
limit, part = int(sys.argv[2]), 'p' * 200

def refused(call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == errno.ENAMETOOLONG, error
    else:
        sys.exit(f'{call.__name__}: a path of more than {limit} bytes')

os.mkdir('long')
os.chdir('long')
used = len('long')
while used + 1 + len(part) <= limit - 20:
    os.mkdir(part)
    os.chdir(part)
    used += 1 + len(part)
last = 'l' * (limit - used - 1)
with open(last, 'w') as file:
    file.write('deep')
refused(os.mkdir, last + 'x')
refused(os.rename, last, last + 'x')
refused(os.symlink, 'target', last + 'x')
assert os.listdir('.') == [last] and open(last).read() == 'deep'
os.chdir(sys.argv[1])
refused(os.rename, 'long', 'longer')
assert os.listdir('long') == [part]
os.rename('long', 'gnol')
print('/'.join(['gnol'] + [part] * (used // (1 + len(part))) + [last]))
";

pub(super) fn long_paths(dir: &Path, name_bytes: usize, account: &mut Account) -> Result<()> {
    let mut command = Command::new("python3");
    command.arg("-c").arg(LONG_PATHS).arg(dir);
    let name = run_quiet(command.arg(name_bytes.to_string()))?;
    let path = format!("/{CONTAINER}/{}", name.trim());
    let body = account.must("GET", &path, "", &[], b"")?.body;
    ensure!(body == b"deep", "{body:?}");
    let intents = format!("/{CONTAINER}");
    let query = "?prefix=.segments/intents/";
    let intents = account.must("GET", &intents, query, &[], b"")?.text();
    ensure!(intents.is_empty(), "a rename is to be finished: {intents}");
    run_quiet(Command::new("rm").arg("-r").arg(dir.join("gnol")))?;
    Ok(())
}

/// Several names of one file: on two mounts, and to another client.
pub(super) fn hard_links(setup: &Setup, dir: &Path, account: &mut Account) -> Result<()> {
    fs::create_dir(dir)?;
    // As one object, and as a large object over segments.
    for (number, bytes) in [&b"content"[..], &vec![7; 20_000_000]].iter().enumerate() {
        let names = ["a", "b", "c"].map(|name| format!("{name}{number}"));
        let [a, b, c] = names.clone().map(|name| dir.join(name));
        fs::write(&a, bytes)?;
        fs::hard_link(&a, &b)?;
        let (one, two) = (fs::metadata(&a)?, fs::metadata(&b)?);
        ensure!(one.ino() == two.ino(), "two inodes");
        ensure!(
            (one.nlink(), two.nlink()) == (2, 2),
            "{}, {}",
            one.nlink(),
            two.nlink()
        );
        let refused = fs::hard_link(&a, &b).map_err(|error| error.kind());
        ensure!(
            refused == Err(std::io::ErrorKind::AlreadyExists),
            "{refused:?}"
        );
        OpenOptions::new()
            .write(true)
            .open(&b)?
            .write_all_at(b"C", 0)?;
        let mut changed = bytes.to_vec();
        changed[0] = b'C';
        let second = Mount::start(setup, "mnt-links", &[])?;
        let there = |name: &str| second.dir.join("links").join(name);
        fs::hard_link(there(&names[1]), there(&names[2]))?;
        ensure!(
            fs::metadata(there(&names[0]))?.nlink() == 3,
            "on another mount"
        );
        for name in &names {
            ensure!(fs::read(there(name))? == changed, "{name} on another mount");
            let path = format!("/{CONTAINER}/links/{name}");
            let body = account.must("GET", &path, "", &[], b"")?.body;
            ensure!(body == changed, "{name} is {} other bytes", body.len());
        }
        second.stop()?;
        fs::remove_file(&a)?;
        fs::rename(&b, &a)?;
        ensure!(
            fs::read(&c)? == changed && fs::read(&a)? == changed,
            "a name less"
        );
        fs::remove_file(&a)?;
        fs::remove_file(&c)?;
    }
    let query = "?prefix=.segments/links/";
    let left = account.must("GET", &format!("/{CONTAINER}"), query, &[], b"")?;
    ensure!(left.text().is_empty(), "left: {}", left.text());
    Ok(())
}

pub(super) fn odd_names(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let odd = [
        "a b",
        "%41",
        "q?x",
        "h#x",
        "ümläut",
        "日本",
        "a\nb",
        "tab\t",
        "\"quote\"",
        "'",
        "\\back",
        "&amp;",
        "+plus",
        " lead",
        "trail ",
        ".hidden",
        "*",
        "a;b",
        "<x>",
        "\u{1}\u{7f}",
        "...",
        "%2F",
        "%",
        ":",
        "[1]",
        "\u{202e}",
        "😀",
    ];
    let mut names: Vec<String> = odd.map(str::to_owned).to_vec();
    names.push("x".repeat(255));
    for name in &names {
        fs::write(dir.join(name), name).with_context(|| format!("{name:?}"))?;
    }
    names.sort();
    // The kernel's attribute and entry caches expire after a second.
    std::thread::sleep(Duration::from_millis(1200));
    ensure!(listed(dir)? == names, "{:?}", listed(dir)?);
    for name in &names {
        ensure!(fs::read_to_string(dir.join(name))? == *name, "{name:?}");
    }
    let long = fs::write(dir.join("y".repeat(256)), "").map_err(|error| error.raw_os_error());
    let too_long = rustix::io::Errno::NAMETOOLONG.raw_os_error();
    ensure!(long == Err(Some(too_long)), "{long:?}");
    let mut deep = dir.to_owned();
    for level in 0..40 {
        deep.push(format!("d{level}"));
        fs::create_dir(&deep)?;
    }
    fs::write(deep.join("f"), "deep")?;
    fs::rename(dir.join("d0"), dir.join("e0"))?;
    let moved = dir.join("e0").join(deep.strip_prefix(dir.join("d0"))?);
    ensure!(
        fs::read_to_string(moved.join("f"))? == "deep",
        "moved with its directory"
    );
    fs::remove_dir_all(dir)?;
    ensure!(!dir.exists(), "it is there after its removal");
    Ok(())
}

fn listed(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Many writers at once, each of its own file.
pub(super) fn many_writers(dir: &Path) -> Result<()> {
    const WRITERS: u64 = 64;
    fs::create_dir(dir)?;
    let write = |writer: u64| {
        let mut random = Random::new(writer);
        for number in 0..3 {
            let size = *random.pick(&[1, 4000, 100_000, 2_000_000]);
            let bytes = random.bytes(size);
            let file = dir.join(format!("{writer}-{number}"));
            fs::write(&file, &bytes)?;
            ensure!(fs::read(&file)? == bytes, "{}", file.display());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers = (0..WRITERS).map(|writer| scope.spawn(move || write(writer)));
        let writers: Vec<_> = writers.collect();
        let mut ended = writers.into_iter().map(|writer| writer.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a writer panicked")))
    })?;
    let count = listed(dir)?.len();
    ensure!(count == 3 * WRITERS as usize, "{count} files are listed");
    Ok(())
}

/// A large file is changed in place while it is read: the reader sees no error, and another client
/// reads the same bytes.
pub(super) fn changed_in_place(dir: &Path, account: &mut Account) -> Result<()> {
    const BYTES: usize = 24 << 20;
    let file = dir.join("in-place");
    let mut model = Random::new(8).bytes(BYTES);
    fs::write(&file, &model)?;
    let out = OpenOptions::new().read(true).write(true).open(&file)?;
    let is_over = AtomicBool::new(false);
    let read = || {
        while !is_over.load(Ordering::Relaxed) {
            let length = fs::read(&file)?.len();
            ensure!(length == BYTES, "a reader got {length} bytes");
        }
        Ok(())
    };
    let mut random = Random::new(9);
    let mut change = || {
        for _ in 0..10 {
            let bytes = random.bytes(1 << 20);
            let offset = random.below((BYTES - bytes.len()) as u64);
            out.write_all_at(&bytes, offset)?;
            out.sync_all()?;
            model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok::<(), std::io::Error>(())
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(read);
        let changed = change();
        is_over.store(true, Ordering::Relaxed);
        reader
            .join()
            .unwrap_or_else(|_| bail!("the reader panicked"))?;
        changed.context("the writer")
    })?;
    ensure!(fs::read(&file)? == model, "other bytes are read here");
    let answer = account.must("GET", &format!("/{CONTAINER}/in-place"), "", &[], b"")?;
    ensure!(answer.body == model, "another client reads other bytes");
    fs::remove_file(&file)?;
    Ok(())
}

/// An open file is replaced, and another is removed: their open handles keep the old content, and a
/// mount that has ended leaves no segment behind.
pub(super) fn replaced_while_open(setup: &Setup, account: &mut Account) -> Result<()> {
    let before = segments(account)?;
    let mount = Mount::start(setup, "replaced", &[])?;
    replace_while_open(&mount.dir.join("replaced"))?;
    // Until then segments of replaced versions are kept for downloads under way.
    mount.stop()?;
    let after = segments(account)?;
    let left: Vec<&String> = after.difference(&before).collect();
    ensure!(left.is_empty(), "segments that nothing refers to: {left:?}");
    Ok(())
}

/// The names of all segments but those of zeros, which holes share, and the pins of open files.
fn segments(account: &mut Account) -> Result<BTreeSet<String>> {
    let path = format!("/{CONTAINER}");
    let list = account.must("GET", &path, "?prefix=.segments/", &[], b"")?;
    let is_own = |line: &&str| !["/zeros/", "/pins/"].iter().any(|kept| line.contains(kept));
    let text = list.text();
    Ok(text.lines().filter(is_own).map(str::to_owned).collect())
}

fn replace_while_open(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for size in [100, 20 << 20] {
        let (old, new) = (Random::new(1).bytes(size), Random::new(2).bytes(size));
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::write(&from, &new)?;
        fs::write(&to, &old)?;
        let open = OpenOptions::new().read(true).write(true).open(&to)?;
        fs::rename(&from, &to)?;
        let mut tail = [0; 50];
        open.read_exact_at(&mut tail, size as u64 - 50)?;
        ensure!(tail == old[size - 50..], "the old file is not what it was");
        open.write_all_at(b"not to be seen", 0)?;
        open.sync_all()?;
        drop(open);
        ensure!(
            fs::read(&to)? == new,
            "a write to the old file shows in the new one"
        );
        let open = File::open(&to)?;
        fs::remove_file(&to)?;
        open.read_exact_at(&mut tail, 25)?;
        ensure!(tail == new[25..75], "an unlinked file is not what it was");
    }
    Ok(())
}
