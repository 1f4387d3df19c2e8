//! COSBench's XML.

use std::time::Duration;

use super::{plan, refused, workload};
use crate::plan::{
    Content, Division, Names, Objects, Operation, OperationKind, Plan, Trigger, Work, WorkKind,
};
use crate::selector::{Bar, Selector};

const WHOLE: &str = r#"<?xml version="1.0" encoding="UTF-8" ?>
<workload name="whole" description="all of it" trigger="all.sh(a, b)" config="cprefix=outer;name=w">
  <!-- comments & "anything" in them -->
  <auth type="swauth" config="username=u:x;password=p;url=http://h:1/auth/v1.0" />
  <storage type="swift" config="policy=gold;timeout=3000"/>
  <workflow config="csuffix=.flow">
    <workstage name="init" closuredelay="3">
      <work type="init" workers="2" config="containers=r(1,32)" />
    </workstage>
    <workstage name="delay" closuredelay="60"><work type="delay" workers="1" /></workstage>
    <workstage name="prepare">
      <work type="prepare" workers="4"
        config="containers=r(1,32);objects=1-50;sizes=c(64)KB;createContainer=true" />
    </workstage>
    <workstage name="main" trigger="one.sh()" config="cprefix=stage">
      <work name="timed" workers="8" runtime="300" rampup="10" rampdown="5" afr="1000"
            interval="7" division="object" driver="driver2">
        <auth type="none"/>
        <operation type="read" ratio="70" config="containers=u(1,32);objects=u(1,50);hashCheck=true" />
        <operation type="write" ratio="20" id="op9"
          config="cprefix=inner;containers=c(3);objects=s(51,100);sizes=h(1|64|10,64|512|20)KB;content=zero;chunked=true" />
        <operation type="read" ratio="10" id="op7" config="containers=u(1,2);objects=r(1,9);name=other"/>
        <operation type="delete" ratio="0" config="containers=u(1,32);objects=u(1,50)"/>
      </work>
      <work name="counted" workers="1" totalOps="100" totalBytes="64000" rampup="9">
        <storage type="s3" config="accesskey=a;endpoint=http://s/" />
        <operation type="filewrite" ratio="40" config="containers=c(2);fileselection=s;files=/tmp/f"/>
        <operation type="list" ratio="30" config="containers=u(1,3)"/>
        <operation type="head" ratio="30" config="containers=u(1,3);objects=u(1,3);oprefix=o;osuffix=.x"/>
      </work>
    </workstage>
    <workstage name="cleanup">
      <work type="cleanup" workers="1" config="containers=r(1,32);objects=r(1,100);deleteContainer=true" />
    </workstage>
    <workstage name="dispose">
      <work type="dispose" workers="1" afr="5" config="containers=r(1,32)" />
    </workstage>
  </workflow>
</workload>"#;

fn work<'a>(plan: &'a Plan, stage: &str, work: usize) -> &'a Work {
    let found = plan.stages.iter().find(|candidate| candidate.name == stage);
    &found.unwrap_or_else(|| panic!("no stage {stage}")).works[work]
}

fn containers(operation: &Operation) -> (&str, &str, Selector) {
    let names = &operation.containers;
    (&names.prefix, &names.suffix, names.numbers.clone())
}

fn objects(operation: &Operation) -> &Names {
    match &operation.objects {
        Objects::Numbered(names) => names,
        Objects::Pool { .. } => panic!("a pool"),
    }
}

#[test]
fn stages_and_their_names() {
    let plan = plan(WHOLE);
    assert_eq!(
        (plan.name.as_str(), plan.description.as_str()),
        ("whole", "all of it")
    );
    assert_eq!(plan.format, "cosbench");
    let names: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "s1-init",
            "s2-delay",
            "s3-prepare-containers",
            "s3-prepare",
            "s4-main",
            "s5-cleanup",
            "s5-cleanup-containers",
            "s6-dispose"
        ]
    );
    assert_eq!(plan.stages[0].close_delay, Duration::from_secs(3));
    assert_eq!(plan.stages[1].close_delay, Duration::from_secs(60));
    assert!(plan.stages[1].works.is_empty(), "a delay only waits");
    let trigger = |command: &str, arguments: &[&str]| {
        Some(Trigger {
            command: command.into(),
            arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
        })
    };
    assert_eq!(plan.stages[4].trigger, trigger("one.sh", &[]));
    assert_eq!(plan.stages[0].trigger, trigger("all.sh", &["a", "b"]));
}

#[test]
fn stores_and_who_overrides_them() {
    let plan = plan(WHOLE);
    assert_eq!(plan.access.auth.kind, "swauth");
    assert_eq!(plan.access.auth.config["auth_url"], "http://h:1/auth/v1.0");
    assert_eq!(plan.access.storage.config["policy"], "gold");
    assert_eq!(work(&plan, "s1-init", 0).access, None);
    let own = work(&plan, "s4-main", 0).access.as_ref().unwrap();
    assert_eq!(
        (own.auth.kind.as_str(), own.storage.kind.as_str()),
        ("none", "")
    );
    let own = work(&plan, "s4-main", 1).access.as_ref().unwrap();
    assert_eq!(
        (own.auth.kind.as_str(), own.storage.kind.as_str()),
        ("", "s3")
    );
}

#[test]
fn special_works_do_each_thing_once() {
    let plan = plan(WHOLE);
    let range = |low, high| Selector::Range { low, high };
    let init = work(&plan, "s1-init", 0);
    assert_eq!((init.kind, init.workers, init.afr), (WorkKind::Init, 2, 0));
    assert_eq!(init.division, Division::Container);
    assert_eq!(
        containers(&init.operations[0]),
        ("outer", ".flow", range(1, 32))
    );
    let prepare = work(&plan, "s3-prepare", 0);
    assert_eq!(
        (prepare.kind, prepare.division),
        (WorkKind::Prepare, Division::Object)
    );
    let operation = &prepare.operations[0];
    assert_eq!(operation.kind, OperationKind::Prepare);
    assert_eq!(objects(operation).prefix, "myobjects");
    assert_eq!(
        objects(operation).numbers,
        range(1, 50),
        "the old way to write it"
    );
    assert_eq!(operation.sizes, Some(Selector::Constant(64_000)));
    let made = work(&plan, "s3-prepare-containers", 0);
    assert_eq!(
        (made.kind, made.operations[0].kind),
        (WorkKind::Init, OperationKind::Init)
    );
    assert_eq!(containers(&made.operations[0]).2, range(1, 32));
    let deleted = work(&plan, "s5-cleanup-containers", 0);
    assert_eq!(deleted.kind, WorkKind::Dispose);
    assert_eq!(
        work(&plan, "s5-cleanup", 0).operations[0].kind,
        OperationKind::Cleanup
    );
    assert_eq!(work(&plan, "s6-dispose", 0).afr, 5);
}

#[test]
fn a_mix_with_all_it_inherits() {
    let plan = plan(WHOLE);
    let timed = work(&plan, "s4-main", 0);
    assert_eq!(
        (timed.kind, timed.workers, timed.afr),
        (WorkKind::Main, 8, 1000)
    );
    assert_eq!(timed.runtime, Some(Duration::from_secs(300)));
    assert_eq!((timed.rampup.as_secs(), timed.rampdown.as_secs()), (10, 5));
    assert_eq!(
        (timed.interval.as_secs(), timed.division),
        (7, Division::Object)
    );
    assert_eq!(timed.driver.as_deref(), Some("driver2"));
    let [read, write, other] = timed.operations.as_slice() else {
        panic!("an operation of ratio 0 is none: {:?}", timed.operations);
    };
    assert_eq!(
        (read.kind, read.ratio, read.hashcheck),
        (OperationKind::Read, 70.0, true)
    );
    assert_eq!(read.name, "w", "a name is inherited, too");
    assert_eq!(
        containers(read),
        ("stage", ".flow", Selector::Uniform { low: 1, high: 32 })
    );
    assert_eq!(containers(write), ("inner", ".flow", Selector::Constant(3)));
    assert_eq!(
        objects(write).numbers,
        Selector::Sequential { low: 51, high: 100 }
    );
    let bar = |low, high, weight| Bar { low, high, weight };
    let of = Box::new(Selector::Histogram(vec![bar(1, 64, 10), bar(64, 512, 20)]));
    let sizes = Selector::Times { unit: 1000, of };
    assert_eq!(write.sizes, Some(sizes));
    assert_eq!((write.content, write.chunked), (Content::Zero, true));
    assert_eq!((other.name.as_str(), other.ratio), ("other", 10.0));
    let counted = work(&plan, "s4-main", 1);
    assert_eq!(
        (counted.total_ops, counted.total_bytes),
        (Some(100), Some(64_000))
    );
    assert_eq!((counted.runtime, counted.rampup), (None, Duration::ZERO));
    assert_eq!(counted.afr, 200_000);
    let [file, list, head] = counted.operations.as_slice() else {
        panic!()
    };
    assert_eq!(file.files.as_deref(), Some("/tmp/f"));
    assert!(matches!(
        objects(file).numbers,
        Selector::Sequential { low: 1, .. }
    ));
    assert_eq!(list.kind, OperationKind::List);
    assert_eq!(
        (objects(head).prefix.as_str(), objects(head).suffix.as_str()),
        ("o", ".x")
    );
}

/// A config archived by COSBench: with everything repeated at all levels.
#[test]
fn what_cosbench_wrote_itself() {
    let text = r#"<workload name="a" description="" config="">
      <auth type="none"/><storage type="mock" config=""/>
      <workflow config=""><workstage name="init" closuredelay="0" config="">
        <auth type="none"/><storage type="mock" config=""/>
        <work name="init" type="init" workers="1" interval="5" division="container" runtime="0"
          rampup="0" rampdown="0" afr="0" totalOps="1" totalBytes="0" config="">
          <auth type="none"/><storage type="mock" config=""/>
          <operation type="init" ratio="100" division="container"
            config="cprefix=m;containers=r(1,2);objects=r(0,0);sizes=c(0)B;cprefix=n" id="op1"/>
        </work></workstage></workflow></workload>"#;
    let plan = plan(text);
    let init = work(&plan, "s1-init", 0);
    assert_eq!(init.access, None, "the same as the workload's");
    let range = Selector::Range { low: 1, high: 2 };
    assert_eq!(
        containers(&init.operations[0]),
        ("n", "", range),
        "the last of two holds"
    );
}

/// Published samples have placeholders in brackets that are invalid XML.
#[test]
fn placeholders_are_as_good_as_nothing() {
    let text = r#"<workload name="p"><storage type="s3" config="accesskey=<key>;endpoint=<e>;region=r"/>
      <workflow><workstage name="x"><work name="x" workers="1" totalOps="5">
        <operation type="read" config="containers=c(1);objects=c(1)"/>
      </work></workstage></workflow></workload>"#;
    let read = workload(text);
    let config = &read.plan.access.storage.config;
    assert_eq!(config.keys().collect::<Vec<_>>(), ["region"]);
    assert_eq!(read.placeholders, ["accesskey of s3", "endpoint of s3"]);
    assert!(read.notes.is_empty(), "{:?}", read.notes);
    assert_eq!(read.plan.stages[0].works[0].operations[0].ratio, 100.0);
}

#[test]
fn what_is_passed_over_is_told() {
    let text = r#"<workload name="p" colour="red"><workflow><workstage name="x">
      <work name="x" workers="1" totalOps="5">
        <operation type="read" config="containers=c(1);objects=c(1);custom=1;nonsense"/>
      </work></workstage></workflow></workload>"#;
    let notes = workload(text).notes.join("\n");
    for word in ["colour", "custom", "nonsense"] {
        assert!(notes.contains(word), "{notes}");
    }
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let within = |inner: &str| {
        format!(
            "<workload name=\"p\">\n<workflow>\n<workstage name=\"x\">\n{inner}\n</workstage>\n</workflow>\n</workload>"
        )
    };
    let read = "<operation type=\"read\" config=\"containers=c(1);objects=c(1)\"/>";
    let half = read.replace("type", "ratio=\"50\" type");
    let wrong = [
        (
            format!("<work name=\"x\" workers=\"0\" runtime=\"1\">{read}</work>"),
            25,
            "from 1",
        ),
        (
            format!("<work name=\"x\" workers=\"1\">{read}</work>"),
            1,
            "runtime",
        ),
        (
            format!("<work workers=\"1\" runtime=\"1\">{read}</work>"),
            1,
            "name=",
        ),
        (
            "<work name=\"x\" workers=\"1\" runtime=\"1\"></work>".to_owned(),
            1,
            "operation",
        ),
        (
            format!("<work name=\"x\" workers=\"1\" runtime=\"1\">{half}</work>"),
            1,
            "100",
        ),
        (
            "<work type=\"init\" workers=\"1\" config=\"\"/>".to_owned(),
            39,
            "containers=",
        ),
        (
            "<work type=\"init\" workers=\"1\" config=\"x=1;containers=q(1)\"/>".to_owned(),
            43,
            "selector",
        ),
        (
            "<work type=\"init\" workers=\"1\" config=\"containers=r(5,1)\"/>".to_owned(),
            39,
            "in order",
        ),
        (
            "<work type=\"inti\" workers=\"1\"/>".to_owned(),
            13,
            "prepare",
        ),
        ("<works/>".to_owned(), 1, "<work>"),
    ];
    for (inner, column, expected) in wrong {
        let error = refused(&within(&inner));
        assert_eq!((error.line, error.column), (4, column), "{error}\n{inner}");
        assert!(error.expected.contains(expected), "{error}");
    }
}
