//! Parser of ssbench's scenarios: JSON with `#` comments to the end of the line.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Amount, Expected, Kind, Names, Operation, Order, Sizes, Stage, Work};

pub(super) fn read(text: &str) -> Result<Expected> {
    let plain: Vec<&str> = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""))
        .collect();
    let scenario: Value = serde_json::from_str(&plain.join("\n"))?;
    let containers = Names {
        prefix: format!(
            "{}_",
            scenario["container_base"].as_str().unwrap_or("ssbench")
        ),
        suffix: "_default_policy".to_owned(),
        low: 0,
        high: scenario["container_count"].as_u64().unwrap_or(100) - 1,
        order: Order::Any,
    };
    let mut population = Work::default();
    let mut run = Work {
        runtime: scenario["run_seconds"].as_f64(),
        total: scenario["operation_count"].as_u64(),
        operations: Vec::new(),
    };
    let mut cleanup = Work::default();
    let all = scenario["initial_files"].as_object().context("no files")?;
    let all: u64 = all.values().filter_map(Value::as_u64).sum();
    for size in scenario["sizes"].as_array().context("no sizes")? {
        let name = size["name"].as_str().context("no name")?;
        let files = scenario["initial_files"][name].as_u64().unwrap_or(0);
        if files == 0 {
            continue;
        }
        let operation = |kind: Kind, amount: Amount| operation(size, &containers, kind, amount);
        let mut filled = operation(Kind::Write, Amount::Each(files))?;
        filled.containers.order = Order::Turn;
        population.operations.push(filled);
        let profile = match &size["crud_profile"] {
            Value::Null => &scenario["crud_profile"],
            own => own,
        };
        let profile: Vec<f64> = serde_json::from_value(profile.clone())?;
        let sum: f64 = profile.iter().sum();
        ensure!(profile.len() == 4 && sum > 0.0, "no profile");
        let kinds = [Kind::Create, Kind::Read, Kind::Update, Kind::Delete];
        for (kind, part) in kinds.into_iter().zip(profile) {
            // A class is drawn by its number of files, then the operation by its profile.
            let share = files as f64 / all as f64 * part / sum;
            run.operations.push(operation(kind, Amount::Share(share))?);
        }
        cleanup
            .operations
            .push(operation(Kind::Delete, Amount::Rest)?);
    }
    let init = Work {
        operations: vec![Operation {
            kind: Kind::Make,
            amount: Amount::Each(containers.span()),
            containers,
            objects: None,
            sizes: None,
        }],
        ..Work::default()
    };
    let stages = [
        ("init", init),
        ("population", population),
        ("run", run),
        ("cleanup", cleanup),
    ];
    Ok(Expected {
        storage: "swift".to_owned(),
        stages: stages
            .into_iter()
            .map(|(name, work)| Stage {
                name: name.to_owned(),
                works: vec![work],
            })
            .collect(),
    })
}

/// An operation over the objects of one size class.
fn operation(size: &Value, containers: &Names, kind: Kind, amount: Amount) -> Result<Operation> {
    let name = size["name"].as_str().context("no name")?;
    let bytes = |key: &str| size[key].as_u64().context("no size");
    let writes = matches!(kind, Kind::Write | Kind::Create | Kind::Update);
    Ok(Operation {
        kind,
        amount,
        containers: containers.clone(),
        objects: Some(Names {
            prefix: format!("{name}_"),
            suffix: String::new(),
            low: 0,
            high: u64::MAX - 1,
            order: Order::Pool,
        }),
        sizes: match writes {
            true => Some(Sizes {
                unit: 1,
                bars: vec![(bytes("size_min")?, bytes("size_max")?, 1)],
            }),
            false => None,
        },
    })
}
