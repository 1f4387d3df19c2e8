//! A version and the segments that it has, which another host's write comes between.

use futures_util::FutureExt;

use super::*;

const FILE: &[u8] = &[7; 600];
const SMALL: &[u8] = b"small";

/// A file of zeros has no segments of its own to mark; what is written before its copy has.
#[tokio::test]
async fn a_large_file_that_is_written_before_its_copy_is_whole_under_both_names() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), Arc::new(mount(&store.beside())));
    let ino = here.put("f", b"").await.unwrap();
    let changes = Changes {
        size: Some(FILE.len() as u64),
        ..Changes::default()
    };
    here.setattr(ino, changes).await.unwrap();
    there.ino("f").await.unwrap();
    let (writes, mut is_written) = (there.clone(), false);
    store.fail(move |verb, name| match (verb, name) {
        ("COPY", "f") => {
            if !std::mem::replace(&mut is_written, true) {
                let written = writes.put("f", FILE).now_or_never();
                written.expect("it waits for nothing").unwrap();
            }
            None
        }
        // It is killed here.
        ("DELETE", "f") => Some(Why::Refused),
        _ => None,
    });
    let renamed = here.rename((ROOT, "f"), (ROOT, "g"), false).await;
    renamed.unwrap_err();
    assert_eq!(store.whole("g").unwrap(), FILE);
    there.unlink(ROOT, "f").await.unwrap();
    there.settle().await;
    assert_eq!(store.whole("g").unwrap(), FILE);
}

/// The answer to a commit is lost, and before it can be looked for another host renames the file.
#[tokio::test(start_paused = true)]
async fn a_version_in_doubt_that_another_host_renames_keeps_its_segments() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), mount(&store.beside()));
    let ino = here.put("f", SMALL).await.unwrap();
    let (handle, _) = here.open(ino, WRITE).await.unwrap();
    here.write(handle, 0, FILE.into(), false).await.unwrap();
    store.lose(|verb, name| ((verb, name) == ("PUT", "f")).then_some(Why::Timeout));
    store.fail(|verb, name| ((verb, name) == ("HEAD", "f")).then_some(Why::Timeout));
    here.sync(handle).await.unwrap_err();
    assert_eq!(store.whole("f").unwrap(), FILE);
    there.rename((ROOT, "f"), (ROOT, "g"), false).await.unwrap();
    store.heal();
    here.close(handle).await.unwrap();
    here.settle().await;
    for name in ["f", "g"] {
        assert_eq!(store.whole(name).unwrap(), FILE, "{name}");
    }
}
