//! A seed makes a run repeatable: the store gets the same requests again.

#![allow(clippy::unwrap_used)]

mod store;

use std::time::Duration;

use cairn_lab::workload;
use store::Store;

const COSBENCH: &str = r#"<?xml version="1.0" encoding="UTF-8" ?>
<workload name="mix" description="reads, writes, deletes">
  <storage type="swift" />
  <auth type="swauth" config="username=test:tester;password=testing;auth_url=AUTH" />
  <workflow>
    <workstage name="init"><work type="init" workers="2" config="containers=r(1,4)" /></workstage>
    <workstage name="prepare">
      <work type="prepare" workers="3" config="containers=r(1,4);objects=r(1,25);sizes=c(2)KB" />
    </workstage>
    <workstage name="main">
      <work name="main" workers="4" totalOps="4000">
        <operation type="read" ratio="70" config="containers=u(1,4);objects=u(1,25)" />
        <operation type="write" ratio="30"
          config="containers=u(1,4);objects=u(26,50);sizes=h(1|1|25,3|4|75)KB" />
      </work>
    </workstage>
    <workstage name="cleanup">
      <work type="cleanup" workers="2" config="containers=r(1,4);objects=r(1,50)" />
    </workstage>
    <workstage name="dispose"><work type="dispose" workers="1" config="containers=r(1,4)" />
    </workstage>
  </workflow>
</workload>"#;

#[test]
fn the_same_seed_asks_the_same() {
    let asked = |seed| {
        let store = Store::start(Box::new(|_, _| Duration::ZERO));
        let text = COSBENCH.replace("AUTH", &store.auth_url());
        let mut workload = workload::read("mix.xml", text.as_bytes(), &Default::default()).unwrap();
        workload.plan.seed = seed;
        let folder = tempfile::tempdir().unwrap();
        store::run(&workload.plan, &folder.path().join("run"));
        let mut seen: Vec<_> = store
            .take_seen()
            .into_iter()
            .map(|seen| (seen.method, seen.path, seen.body_bytes))
            .collect();
        // Workers are not synchronised with each other.
        seen.sort();
        seen
    };
    let first = asked(7);
    assert_eq!(first, asked(7));
    assert_ne!(first, asked(8));
}
