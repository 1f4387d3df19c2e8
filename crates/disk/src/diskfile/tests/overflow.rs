//! Metadata that does not fit into extended attributes.

use super::*;

fn large_metadata() -> Vec<(String, String)> {
    (0..90)
        .map(|i| (format!("X-Object-Meta-{i:04}"), format!("{i:0>128}")))
        .collect()
}

#[test]
fn metadata_larger_than_attributes() {
    let Some(world) = world() else { return };
    let large = large_metadata();
    let items: Vec<(&str, &str)> = large
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    let is_complete = || {
        let info = world.open().unwrap().info;
        let found = |(n, v): &(&str, &str)| info.metadata.get_str(n) == Some(*v);
        items.iter().all(found) && info.metadata.get_str("ETag") == Some(&etag(b"one"))
    };
    let overflows = || {
        let is_overflow = |name: &&String| name.ends_with(".overflow");
        world.files().iter().filter(is_overflow).count()
    };
    world.put_with(ts(1), "one", &items);
    assert!(is_complete());
    let has_overflow = overflows() == 1;
    if !has_overflow {
        println!("this file system holds large metadata itself");
    }
    // Cleaning up keeps it, a POST has its own, and an overwrite removes both.
    world
        .engine
        .clean_up(&world.disk, world.key.policy, 7, world.key.hash)
        .unwrap();
    assert!(is_complete());
    world.post(ts(2), &items);
    assert!(is_complete());
    assert_eq!(overflows(), if has_overflow { 2 } else { 0 });
    world.put(ts(3), "x");
    assert_eq!(world.files().len(), 1);
    world.put_with(ts(4), "one", &items);
    if has_overflow {
        let path = world.dir().join(
            world
                .files()
                .iter()
                .find(|n| n.ends_with(".overflow"))
                .unwrap(),
        );
        // Missing, it may be on its way; damaged, the object is.
        let pickle = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(world.open(), Err(DiskError::StateChanged)));
        std::fs::write(&path, &pickle).unwrap();
        assert!(is_complete());
        std::fs::write(&path, &pickle[1..]).unwrap();
        assert!(matches!(world.open(), Err(DiskError::Quarantined(_))));
    }
    world.put_with(ts(5), "one", &items);
    world.delete(ts(6));
    assert_eq!(world.files(), [format!("{}.ts", ts(6))]);
}
