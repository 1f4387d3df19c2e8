//! The examples in `docs/advise.md` can be parsed.

#![allow(clippy::unwrap_used)]

use cairn_advise::answer::Limits;
use cairn_advise::catalogue::Catalogue;
use cairn_advise::cell::Cell;
use cairn_advise::cluster::Cluster;
use cairn_advise::workload::Workload;

const PAGE: &str = include_str!("../../../docs/advise.md");

fn block(begin: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(begin).unwrap();
    rest.split_once("\n```").unwrap().0
}

#[test]
fn examples_are_read() {
    let cluster = Cluster::parse(block("```toml\n# cluster.toml\n")).unwrap();
    assert_eq!(cluster.storage_nodes(), 6);
    let workload = Workload::parse(block("```toml\n# workload.toml\n")).unwrap();
    assert!(workload.stored_bytes() > 73e12);
    let catalogue = Catalogue::parse(block("```toml\n# catalogue.toml\n")).unwrap();
    assert_eq!(catalogue.node[0].slots, 8);
    let limits = Limits::parse(block("```toml\n# limits.toml\n")).unwrap();
    assert_eq!(limits.policies.len(), 2);
    let cell = Cell::parse(block("```json\n")).unwrap();
    assert_eq!(cell.mean().within.len(), 2);
}
