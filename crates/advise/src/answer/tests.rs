//! The three questions on a small catalogue.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::calibration::tests::example;
use crate::catalogue::tests::CATALOGUE;

const WORKLOAD: &str = "sizes = \"64KB\"\nread = 80\nwrite = 20\nworkers = 64\n";
const LIMITS: &str = "budget = 60000\ncapacity = \"50TB\"\nthroughput = 3000\nnodes_max = 6\n\
                      simulations = 40\n";

fn ask(question: Question, limits: &str) -> Result<Answer, AdviseError> {
    let catalogue = Catalogue::parse(CATALOGUE)?;
    let (workload, limits) = (Workload::parse(WORKLOAD)?, Limits::parse(limits)?);
    answer(question, &catalogue, &workload, &limits, &example(), true)
}

fn pick(answer: &Answer) -> &Simulated {
    &answer.simulated[answer.pick.unwrap()]
}

#[test]
fn least_cost() {
    let it = ask(Question::LeastCost, LIMITS).unwrap();
    let best = pick(&it);
    assert!(best.meets_limits && best.capacity >= 50e12);
    let cheaper = it.simulated.iter().filter(|s| s.cost < best.cost);
    assert!(cheaper.clone().all(|s| !s.meets_limits));
    // Every cheaper candidate was pruned by the bound or a limit.
    assert!(it.pruned > 0 && it.candidates > it.simulated.len());
    assert!(it.margins.windows(2).all(|m| m[0].room <= m[1].room));
    let more = ask(Question::LeastCost, &LIMITS.replace("3000", "9000")).unwrap();
    assert!(
        more.pick
            .is_none_or(|p| more.simulated[p].cost >= best.cost)
    );
}

#[test]
fn most_capacity_and_most_throughput() {
    let capacity = ask(Question::MostCapacity, LIMITS).unwrap();
    let throughput = ask(Question::MostThroughput, LIMITS).unwrap();
    let (large, quick) = (pick(&capacity), pick(&throughput));
    assert!(
        large.capacity >= quick.capacity,
        "{} {}",
        large.capacity,
        quick.capacity
    );
    assert!(quick.prediction.throughput.value >= large.prediction.throughput.value * 0.98);
    assert!(large.cost <= 60e3 && quick.cost <= 60e3);
    let front = |a: &Answer| a.simulated.iter().filter(|s| s.is_on_front).count();
    assert!(front(&throughput) >= 1 && front(&throughput) < throughput.simulated.len());
}

#[test]
fn what_cannot_be_is_said() {
    let none = ask(Question::LeastCost, &LIMITS.replace("60000", "100")).unwrap();
    assert_eq!((none.pick, none.simulated.len()), (None, 0));
    for (limits, part) in [
        ("capacity = \"50TB\"", "throughput is missing"),
        ("capacity = \"50TB\"\nthroughput = 0", "throughput is 0"),
        ("policies = [\"copies 3\"]", "policies is \"copies 3\""),
        ("fill = 2", "fill is 2"),
    ] {
        let error = ask(Question::LeastCost, limits).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let catalogue = Catalogue::parse(CATALOGUE).unwrap();
    let (workload, limits) = (
        Workload::parse(WORKLOAD).unwrap(),
        Limits::parse(LIMITS).unwrap(),
    );
    let refused = answer(
        Question::LeastCost,
        &catalogue,
        &workload,
        &limits,
        &example(),
        false,
    );
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("outside what was measured")
    );
}

#[test]
fn policies_are_read() {
    assert_eq!(policy("replicas 2").unwrap(), (2, None));
    assert_eq!(
        policy("erasure 4+2").unwrap().1,
        Some(Erasure { data: 4, parity: 2 })
    );
    for wrong in ["", "replicas", "erasure 4", "erasure x+2", "mirror 2"] {
        assert!(policy(wrong).is_err(), "{wrong}");
    }
}
