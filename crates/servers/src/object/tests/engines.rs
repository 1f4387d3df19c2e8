//! A server whose policies have different engines.

use cairn_types::{PolicyKind, StoragePolicy};

use super::*;

fn policies() -> PolicySet {
    let policy = |index, name: &str| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: Vec::new(),
        is_default: index == 0,
        deprecated: false,
        kind: PolicyKind::Replication,
    };
    PolicySet::new(vec![policy(0, "gold"), policy(1, "fast")]).unwrap()
}

/// Requests of all kinds go to the engine of their policy, side by side on one device.
#[tokio::test]
async fn each_policy_has_its_own() {
    let hash_path = HashPath::new("", "endcap");
    let memory = MemoryEngine::new(hash_path.clone(), &policies());
    let config = DiskFileConfig::default();
    let diskfile: Arc<dyn Engine> =
        Arc::new(DiskFileEngine::new(hash_path.clone(), &policies(), config));
    let engines = Engines::try_new(&policies(), |policy| {
        Ok::<Arc<dyn Engine>, std::convert::Infallible>(match policy.index {
            PolicyIndex(1) => Arc::new(memory.clone()),
            _ => diskfile.clone(),
        })
    });
    let mut world = world(Kind::Files);
    world.server = ObjectServer::new(
        ObjectServerConfig::new(hash_path, policies()),
        engines.unwrap(),
        world.devices.clone(),
        world.backends.clone(),
    );
    let of = |policy: u32| format!("x-backend-storage-policy-index: {policy}");
    for (policy, time) in [(0, T[1]), (1, T[2])] {
        let put = world.put_with("o", time, &[&of(policy)]).await;
        assert_eq!(put.status, 201);
    }
    assert_eq!(world.data_files().len(), 1);
    assert_eq!(memory.content_count("sda1"), 1);
    for (policy, time) in [(0, T[1]), (1, T[2])] {
        let get = world.get("o", &[&of(policy)]).await;
        assert_eq!((get.status, get.header("x-timestamp")), (200, time));
    }
    let replicate = async |policy: u32| {
        let of = of(policy);
        let headers = [of.as_str()];
        let answer = world.send_to("REPLICATE", "/sda1/7", &headers, "").await;
        cairn_formats::pickle::loads(&answer.body).unwrap()
    };
    assert_ne!(replicate(0).await, replicate(1).await, "of different times");
    let time = format!("x-timestamp: {}", T[3]);
    let deleted = world.send("DELETE", "o", &[&time, &of(1)], "").await;
    assert_eq!(deleted.status, 204);
    assert_eq!(world.get("o", &[&of(0)]).await.status, 200);
    assert_eq!(world.get("o", &[&of(1)]).await.status, 404);
    assert_eq!(world.get("o", &[&of(2)]).await.status, 503);
    assert!(world.files("objects-1").is_empty());
}

/// A write while the ring gets more partitions, to an engine that needs no second name.
#[tokio::test]
async fn nothing_is_linked_where_nothing_can_be() {
    let world = world(Kind::Memory);
    let next = "x-backend-next-part-power: 9";
    assert_eq!(world.put_with("o", T[1], &[next]).await.status, 201);
    assert_eq!(world.get("o", &[]).await.status, 200);
}
