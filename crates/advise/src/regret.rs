//! Decisions: choices among clusters with prices, made by predictions and judged by measurements.
//!
//! A choice has one workload and several clusters. Which of them it takes depends on predicted
//! throughputs alone; its regret is how much worse that was than the best by measured ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Planned;
use crate::random::Dice;

/// The way of predicting whose choices are told one by one.
pub const SIMULATION: &str = "simulation";

/// Bounds of what a catalogue asks for a kind of node, against its usual price.
const PRICE_FACTORS: [f64; 2] = [0.6, 1.6];

/// A cell that a choice may have, and its throughput by each way of predicting.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    pub planned: &'a Planned,
    pub throughputs: BTreeMap<&'a str, f64>,
}

impl Candidate<'_> {
    fn predicted(&self, way: &str) -> f64 {
        self.throughputs.get(way).copied().unwrap_or(0.0)
    }
}

/// A question that a choice answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Asked {
    /// The most throughput for this budget.
    MostThroughput { budget: f64 },
    /// The least cost for this throughput.
    LeastCost { throughput: f64 },
}

/// A choice among cells that have the same workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    pub asked: Asked,
    /// Prices of the clusters, by the names of their cells.
    pub prices: BTreeMap<String, f64>,
}

/// The outcome of a choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chosen {
    pub asked: Asked,
    pub picked: String,
    pub best: String,
    /// Fraction of the best throughput that was lost, or of the least cost that was paid in addition;
    /// where the pick does less than was asked, the fraction that is missing if that is more.
    pub regret: f64,
}

/// Regret of choices by each way of predicting.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Regret {
    /// Mean over choices.
    pub by: BTreeMap<String, f64>,
    /// Mean of taking any of the clusters that a choice has.
    pub any: f64,
    /// Choices whose clusters were not all measured.
    pub missing: usize,
    /// The simulation's choices.
    pub each: Vec<Chosen>,
}

impl Choice {
    /// The cluster that these throughputs choose, and none where they meet no condition.
    fn pick<'a>(&'a self, throughput: &dyn Fn(&str) -> f64) -> Option<&'a str> {
        let names = self.prices.keys().map(String::as_str);
        match self.asked {
            Asked::MostThroughput { budget } => names
                .filter(|name| self.prices[*name] <= budget)
                .max_by(|a, b| throughput(a).total_cmp(&throughput(b))),
            Asked::LeastCost { throughput: asked } => names
                .filter(|name| throughput(name) >= asked)
                .min_by(|a, b| self.prices[*a].total_cmp(&self.prices[*b])),
        }
    }

    /// As [`Choice::pick`]; where none is expected to do what is asked, the one that comes nearest.
    fn pick_any<'a>(&'a self, throughput: &dyn Fn(&str) -> f64) -> Option<&'a str> {
        let names = self.prices.keys().map(String::as_str);
        let fastest = || names.max_by(|a, b| throughput(a).total_cmp(&throughput(b)));
        match self.asked {
            Asked::MostThroughput { .. } => self.pick(throughput),
            Asked::LeastCost { .. } => self.pick(throughput).or_else(fastest),
        }
    }

    /// How much worse a pick is than the best by measured throughputs.
    fn regret(&self, pick: &str, best: &str, measured: &dyn Fn(&str) -> f64) -> f64 {
        match self.asked {
            Asked::MostThroughput { .. } => 1.0 - measured(pick) / measured(best),
            Asked::LeastCost { throughput } => {
                let more = self.prices[pick] / self.prices[best] - 1.0;
                let short = 1.0 - measured(pick) / throughput;
                more.max(short).max(0.0)
            }
        }
    }
}

/// Draws choices, in turn for each workload of the cells, with prices of nodes and disks as drawn for
/// each choice, and limits between the lowest and the highest.
pub fn draw(cells: &[Candidate<'_>], seed: u64, count: usize) -> Vec<Choice> {
    let mut groups: Vec<Vec<&Candidate<'_>>> = Vec::new();
    for cell in cells {
        // The names of workloads have those of their clusters in them.
        let same = |other: &&Candidate<'_>| {
            let (mut one, two) = (cell.planned.workload.clone(), &other.planned.workload);
            one.name.clone_from(&two.name);
            one == *two
        };
        match groups.iter_mut().find(|group| group.iter().any(same)) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    groups.retain(|group| group.len() > 1);
    if groups.is_empty() {
        return Vec::new();
    }
    let mut dice = Dice::new(seed ^ 0xc401ce);
    (0..count)
        .map(|number| {
            let group = &groups[number % groups.len()];
            choice(group, (number / groups.len()).is_multiple_of(2), &mut dice)
        })
        .collect()
}

fn choice(group: &[&Candidate<'_>], is_budget: bool, dice: &mut Dice) -> Choice {
    let [low, high] = PRICE_FACTORS;
    let prices: BTreeMap<String, f64> = group
        .iter()
        .map(|cell| {
            let factor = low + (high - low) * dice.part();
            let price = usual_price(cell) * factor;
            (cell.planned.name.clone(), price.round())
        })
        .collect();
    let between = |values: Vec<f64>, dice: &mut Dice| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        least + (most - least) * dice.part()
    };
    let throughputs = || group.iter().map(|cell| cell.predicted(SIMULATION));
    let asked = match is_budget {
        true => Asked::MostThroughput {
            budget: between(prices.values().copied().collect(), dice),
        },
        false => Asked::LeastCost {
            throughput: between(throughputs().collect(), dice),
        },
    };
    Choice { asked, prices }
}

/// Price of a cluster: its nodes, and their disks by what they do.
fn usual_price(cell: &Candidate<'_>) -> f64 {
    let nodes = &cell.planned.cluster.node;
    let disk = |medium: &str| match medium {
        "nvme" => 900.0,
        "ssd" => 500.0,
        "plain-ssd" => 300.0,
        _ => 150.0,
    };
    let node = |node: &crate::cluster::Node| {
        let disks = node
            .disk
            .iter()
            .map(|group| f64::from(group.count) * disk(&group.medium));
        f64::from(node.count) * (1500.0 + disks.sum::<f64>())
    };
    nodes.iter().map(node).sum()
}

/// Judges choices by measured throughputs; none without choices.
pub fn regret(
    choices: &[Choice],
    candidates: &[Candidate<'_>],
    measured: &BTreeMap<String, f64>,
) -> Option<Regret> {
    if choices.is_empty() {
        return None;
    }
    let ways = candidates.first().map(|cell| cell.throughputs.keys());
    let ways: Vec<&str> = ways.into_iter().flatten().copied().collect();
    let mut regret = Regret::default();
    let mut sums: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut any = Vec::new();
    for choice in choices {
        if !choice.prices.keys().all(|name| measured.contains_key(name)) {
            regret.missing += 1;
            continue;
        }
        let truth = |name: &str| measured[name];
        let Some(best) = choice.pick_any(&truth) else {
            continue;
        };
        for way in &ways {
            let figures = |name: &str| {
                let cell = candidates.iter().find(|cell| cell.planned.name == name);
                cell.map_or(0.0, |cell| cell.predicted(way))
            };
            let Some(picked) = choice.pick_any(&figures) else {
                continue;
            };
            let its = choice.regret(picked, best, &truth);
            sums.entry((*way).to_owned()).or_default().push(its);
            if *way == SIMULATION {
                regret.each.push(Chosen {
                    asked: choice.asked,
                    picked: picked.to_owned(),
                    best: best.to_owned(),
                    regret: its,
                });
            }
        }
        let allowed = |name: &&String| match choice.asked {
            Asked::MostThroughput { budget } => choice.prices[*name] <= budget,
            Asked::LeastCost { .. } => true,
        };
        let each = choice.prices.keys().filter(allowed);
        let each: Vec<f64> = each.map(|name| choice.regret(name, best, &truth)).collect();
        any.push(mean(&each));
    }
    regret.by = sums
        .iter()
        .map(|(way, all)| (way.clone(), mean(all)))
        .collect();
    regret.any = mean(&any);
    Some(regret)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl Regret {
    /// The regret as Markdown.
    pub fn lines(&self) -> Vec<String> {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let mut lines = vec![
            format!(
                "{} choices among clusters with prices, {} more whose clusters were not all measured",
                self.each.len(),
                self.missing
            ),
            String::new(),
            "| chosen by | mean regret |".into(),
            "| --- | --- |".into(),
        ];
        let ways = self.by.iter();
        lines.extend(ways.map(|(way, part)| format!("| {way} | {} |", percent(*part))));
        lines.push(format!("| (any of them) | {} |", percent(self.any)));
        lines.push(String::new());
        lines.push("| asked | picked | best | regret |".into());
        lines.push("| --- | --- | --- | --- |".into());
        let short = crate::predict::short;
        for it in &self.each {
            let asked = match it.asked {
                Asked::MostThroughput { budget } => {
                    format!("most throughput for {}", short(budget))
                }
                Asked::LeastCost { throughput } => {
                    format!("least cost for {}/s", short(throughput))
                }
            };
            let best = match it.best == it.picked {
                true => "the same",
                false => &it.best,
            };
            lines.push(format!(
                "| {asked} | {} | {best} | {} |",
                it.picked,
                percent(it.regret)
            ));
        }
        lines.push(String::new());
        lines
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plan::emulated::choice_cells;

    /// Cells, each predicted to do a hundred more than the one before.
    fn candidates(cells: &[Planned]) -> Vec<Candidate<'_>> {
        let of = |(number, planned)| Candidate {
            planned,
            throughputs: [(SIMULATION, 100.0 * (number + 1) as f64)].into(),
        };
        cells.iter().enumerate().map(of).collect()
    }

    fn measured(cells: &[Candidate<'_>]) -> BTreeMap<String, f64> {
        let of = |cell: &Candidate<'_>| (cell.planned.name.clone(), cell.predicted(SIMULATION));
        cells.iter().map(of).collect()
    }

    #[test]
    fn choices_have_one_workload_each_and_a_seed_repeats_them() {
        let planned = choice_cells(3, 8);
        let cells = candidates(&planned);
        let choices = draw(&cells, 1, 20);
        assert_eq!((choices.len(), &draw(&cells, 1, 20)), (20, &choices));
        assert_ne!(draw(&cells, 2, 20), choices);
        let workload = |name: &String| {
            let of = planned.iter().position(|cell| cell.name == *name);
            of.unwrap() / 4
        };
        for choice in &choices {
            assert_eq!(choice.prices.len(), 4, "{choice:?}");
            let mut workloads: Vec<usize> = choice.prices.keys().map(workload).collect();
            workloads.dedup();
            assert_eq!(workloads.len(), 1, "{choice:?}");
        }
        let asks_budget = |c: &&Choice| matches!(c.asked, Asked::MostThroughput { .. });
        assert_eq!(choices.iter().filter(asks_budget).count(), 10);
        assert_eq!(draw(&cells[..1], 1, 20), []);
    }

    #[test]
    fn who_predicts_what_is_measured_regrets_nothing() {
        let planned = choice_cells(3, 8);
        let cells = candidates(&planned);
        let (choices, mut truth) = (draw(&cells, 1, 20), measured(&cells));
        let it = regret(&choices, &cells, &truth).unwrap();
        assert_eq!((it.by[SIMULATION], it.each.len()), (0.0, 20));
        assert!(it.any > 0.05, "{}", it.any);
        assert!(it.lines().join("\n").contains("| simulation | 0.0 % |"));
        assert_eq!(regret(&[], &cells, &truth), None);
        truth.pop_first();
        assert!(regret(&choices, &cells, &truth).unwrap().missing >= 10);
    }

    #[test]
    fn regret_is_what_the_best_would_have_given() {
        let planned = choice_cells(3, 2);
        let cells = candidates(&planned);
        let [slow, fast] = [&planned[0].name, &planned[1].name];
        // Measured the other way round: the pick does three quarters of the other.
        let truth = BTreeMap::from([(fast.clone(), 75.0), (slow.clone(), 100.0)]);
        let of = |asked, prices: [f64; 2]| {
            let choice = Choice {
                asked,
                prices: [(fast.clone(), prices[0]), (slow.clone(), prices[1])].into(),
            };
            regret(&[choice], &cells, &truth).unwrap().by[SIMULATION]
        };
        let budget = Asked::MostThroughput { budget: 10.0 };
        assert_eq!(of(budget, [10.0, 10.0]), 0.25);
        assert_eq!(of(budget, [10.0, 11.0]), 0.0);
        let least = Asked::LeastCost { throughput: 50.0 };
        assert_eq!(of(least, [8.0, 10.0]), 0.0);
        // Only the one is expected to do as much, and lacks half of it.
        let much = Asked::LeastCost { throughput: 150.0 };
        assert_eq!(of(much, [8.0, 10.0]), 0.5);
        assert_eq!(of(much, [20.0, 10.0]), 1.0);
    }
}
