//! Parser of swift-bench's conf by its lines.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::{Amount, Expected, Kind, Names, Operation, Order, Sizes, Stage, Work};

pub(super) fn read(text: &str) -> Result<Expected> {
    let options: BTreeMap<&str, &str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let number = |name: &str, default: u64| -> Result<u64> {
        match options.get(name) {
            Some(text) => Ok(text.parse()?),
            None => Ok(default),
        }
    };
    ensure!(
        !options.contains_key("object_sources"),
        "files as sources are not counted here"
    );
    let (objects, gets) = (number("num_objects", 1000)?, number("num_gets", 10_000)?);
    let name = options.get("container_name").copied();
    let containers = Names {
        prefix: format!("{}_", name.unwrap_or("swift-bench")),
        suffix: String::new(),
        low: 0,
        high: number("num_containers", 20)? - 1,
        order: Order::Any,
    };
    let (low, high) = (
        number("lower_object_size", 10)?,
        number("upper_object_size", 10)?,
    );
    let bar = match high > low {
        true => (low, high, 1),
        false => {
            let size = number("object_size", 1)?;
            (size, size, 1)
        }
    };
    let pool = Names {
        prefix: "object_".to_owned(),
        suffix: String::new(),
        low: 0,
        high: u64::MAX - 1,
        order: Order::Pool,
    };
    let of_containers = |kind: Kind| Work {
        operations: vec![Operation {
            kind,
            amount: Amount::Each(containers.span()),
            containers: containers.clone(),
            objects: None,
            sizes: None,
        }],
        ..Work::default()
    };
    let of_objects = |kind: Kind, total: u64| Work {
        total: Some(total),
        operations: vec![Operation {
            kind,
            amount: Amount::Share(1.0),
            containers: containers.clone(),
            objects: Some(pool.clone()),
            sizes: (kind == Kind::Create).then(|| Sizes {
                unit: 1,
                bars: vec![bar],
            }),
        }],
        ..Work::default()
    };
    let mut works = vec![
        ("init", of_containers(Kind::Make)),
        ("put", of_objects(Kind::Create, objects)),
        ("get", of_objects(Kind::Read, gets)),
    ];
    if matches!(
        options.get("delete").copied(),
        None | Some("yes" | "true" | "on" | "1")
    ) {
        works.push(("delete", of_objects(Kind::Delete, objects)));
        works.push(("dispose", of_containers(Kind::Drop)));
    }
    Ok(Expected {
        storage: "swift".to_owned(),
        stages: works
            .into_iter()
            .map(|(name, work)| Stage {
                name: name.to_owned(),
                works: vec![work],
            })
            .collect(),
    })
}
