//! A driver that is lost during a stage: what is measured from then on differs from the plan.

// Tests may panic.
#![allow(clippy::unwrap_used)]

mod store;

use std::sync::mpsc::Sender;
use std::time::Duration;

use cairn_lab::controller::{DriverMessage, Link, Report};
use cairn_lab::drive::Share;
use cairn_lab::plan::{Plan, Stage};
use cairn_lab::record::{DriverMeta, State};
use cairn_lab::workload::{Options, Target, read};
use store::Store;

const WORKLOAD: &str = r#"<workload name="loss" config="cprefix=c">
  <workflow>
    <workstage name="one"><work name="main" workers="4" runtime="5">
      <operation type="write" ratio="100" config="containers=c(1);objects=s(1,9);sizes=c(1)KB"/>
    </work></workstage>
    <workstage name="two"><work name="main" workers="4" runtime="1">
      <operation type="write" ratio="100" config="containers=c(1);objects=s(1,9);sizes=c(1)KB"/>
    </work></workstage>
    <workstage name="three"><work name="main" workers="4" runtime="1">
      <operation type="write" ratio="100" config="containers=c(1);objects=s(1,9);sizes=c(1)KB"/>
    </work></workstage>
  </workflow></workload>"#;

/// A driver whose connection ends some time after the first stage has begun.
struct Doomed {
    report: Sender<Report>,
    after: Duration,
}

impl Link for Doomed {
    fn meta(&self) -> DriverMeta {
        DriverMeta {
            name: "driver2".into(),
            address: "10.0.0.2:1".into(),
            ..DriverMeta::default()
        }
    }

    fn start(&mut self, _: u32, _: &Stage, begin_at: f64) -> Result<(), String> {
        let report = self.report.clone();
        let wait = Duration::try_from_secs_f64(begin_at - cairn_lab::drive::now());
        let wait = wait.unwrap_or_default() + self.after;
        std::thread::spawn(move || {
            std::thread::sleep(wait);
            let lost = DriverMessage::Lost("its connection ended".into());
            // The run may be over.
            let _ = report.send((1, lost));
        });
        Ok(())
    }

    fn end_work(&mut self, _: u32) {}

    fn cancel(&mut self) {}
}

fn plan(store: &Store) -> Plan {
    let mut plan = read("workload", WORKLOAD.as_bytes(), &Options::default())
        .unwrap()
        .plan;
    let target = Target {
        url: Some(store.auth_url()),
        user: Some("test:tester".to_owned()),
        key: Some("testing".to_owned()),
        ..Target::default()
    };
    target.apply(&mut plan).unwrap();
    plan
}

#[test]
fn a_lost_driver_fails_the_stages_that_miss_its_load() {
    let store = Store::start(Box::new(|_, _| Duration::from_millis(2)));
    let plan = plan(&store);
    let folder = tempfile::tempdir().unwrap();
    let (meta, stages) = store::run_with(&plan, &folder.path().join("run"), |report| {
        let share = Share {
            driver: 0,
            drivers: 2,
        };
        let doomed = Doomed {
            report: report.clone(),
            after: Duration::from_millis(2500),
        };
        vec![
            Box::new(store::local_link(&plan, share, report)),
            Box::new(doomed),
        ]
    });
    let states: Vec<_> = stages.iter().map(|stage| stage.state).collect();
    assert_eq!(states, [State::Failed; 3], "{}", meta.message);
    assert_eq!(meta.state, State::Failed);
    let first = &stages[0].message;
    assert!(
        first.contains("driver driver2 was lost 3.") && first.contains("its connection ended"),
        "{first}"
    );
    assert!(
        first.contains("work main: ") && first.contains("/s before that, "),
        "{first}"
    );
    for stage in &stages[1..] {
        let told = &stage.message;
        assert_eq!(told, "it ran without the load of driver2, lost before");
    }
    assert!(
        meta.message.contains(first.as_str())
            && meta
                .message
                .contains("stage s2-two and 1 more ran without the load of driver2"),
        "{}",
        meta.message
    );
    // Measured results are kept all the same.
    assert!(stages[0].works[0].operations[0].ops > 0);
    let view = cairn_lab::results::read_folder(&folder.path().join("run"))
        .unwrap()
        .view();
    assert!(view.notes[0].contains("was lost"), "{:?}", view.notes);
}
