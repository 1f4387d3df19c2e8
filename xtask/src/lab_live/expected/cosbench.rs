//! Parser of COSBench's XML by its tags: published files have `<accesskey>` inside attributes,
//! which XML parsers reject.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::{Amount, Expected, Kind, Names, Operation, Order, Sizes, Stage, Work};

/// A start tag with its attributes; an end tag's name begins with `/`.
struct Tag {
    name: String,
    attributes: BTreeMap<String, String>,
}

/// All tags in order, without comments.
fn tags(text: &str) -> Result<Vec<Tag>> {
    let mut tags = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        if let Some(comment) = rest.strip_prefix("!--") {
            let end = comment.find("-->").context("a comment without an end")?;
            rest = &comment[end + 3..];
            continue;
        }
        let mut quote = None;
        let end = rest.find(|c: char| match quote {
            Some(open) => {
                if c == open {
                    quote = None;
                }
                false
            }
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                false
            }
            None => c == '>',
        });
        let end = end.context("a tag without an end")?;
        let (inside, behind) = (&rest[..end], &rest[end + 1..]);
        rest = behind;
        let closed = inside.ends_with('/') && !inside.starts_with('/');
        let tag = tag(inside.trim_end_matches('/'));
        let name = format!("/{}", tag.name);
        tags.push(tag);
        if closed {
            tags.push(self::tag(&name));
        }
    }
    Ok(tags)
}

fn tag(inside: &str) -> Tag {
    let (name, mut rest) = inside
        .split_once(char::is_whitespace)
        .unwrap_or((inside, ""));
    let mut attributes = BTreeMap::new();
    while let Some((key, behind)) = rest.split_once('=') {
        let behind = behind.trim_start();
        let quote = behind.chars().next().unwrap_or('"');
        let Some((value, behind)) = behind.get(1..).and_then(|text| text.split_once(quote)) else {
            break;
        };
        attributes.insert(key.trim().to_owned(), value.to_owned());
        rest = behind;
    }
    Tag {
        name: name.to_owned(),
        attributes,
    }
}

impl Tag {
    fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

pub(super) fn read(text: &str) -> Result<Expected> {
    let mut expected = Expected::default();
    // Configs of the open elements, outermost first.
    let mut configs: Vec<(String, String)> = Vec::new();
    let mut special = None;
    for tag in tags(text)? {
        if let Some(name) = tag.name.strip_prefix('/') {
            let last = configs.iter().rposition(|(open, _)| open == name);
            configs.truncate(last.unwrap_or(configs.len()));
            continue;
        }
        let storage = tag.name == "storage" || tag.name == "auth";
        if storage {
            if tag.name == "storage" && expected.storage.is_empty() {
                expected.storage = tag.get("type").to_owned();
            }
            continue;
        }
        configs.push((tag.name.clone(), tag.get("config").to_owned()));
        match tag.name.as_str() {
            "workstage" => expected.stages.push(Stage {
                name: tag.get("name").to_owned(),
                works: Vec::new(),
            }),
            "work" => {
                let stage = expected.stages.last_mut().context("a work outside")?;
                let (work, kind) = work(&tag, &config(&configs))?;
                stage.works.push(work);
                special = kind;
            }
            "operation" if special.is_none() => {
                let stage = expected.stages.last_mut().context("no stage")?;
                let work = stage.works.last_mut().context("no work")?;
                work.operations.push(operation(&tag, &config(&configs))?);
            }
            _ => {}
        }
    }
    ensure!(!expected.stages.is_empty(), "no workstage");
    Ok(expected)
}

type Config<'a> = BTreeMap<&'a str, &'a str>;

/// Merges configs; inner elements take precedence.
fn config(configs: &[(String, String)]) -> Config<'_> {
    let pairs = configs.iter().flat_map(|(_, text)| text.split(';'));
    let pairs = pairs.filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
}

/// A work, and for a special one the kind of its operation.
fn work(tag: &Tag, config: &Config<'_>) -> Result<(Work, Option<Kind>)> {
    let kind = match tag.get("type") {
        "" | "normal" => None,
        "init" => Some(Kind::Make),
        "prepare" => Some(Kind::Write),
        "cleanup" => Some(Kind::Delete),
        "dispose" => Some(Kind::Drop),
        other => bail!("the work type {other}"),
    };
    let number = |name: &str| -> Result<u64> {
        match tag.get(name) {
            "" => Ok(0),
            text => Ok(text.parse()?),
        }
    };
    let Some(kind) = kind else {
        let (runtime, total) = (number("runtime")?, number("totalOps")?);
        ensure!(number("rampup")? == 0, "ramps are not counted here");
        let work = Work {
            runtime: (runtime > 0).then_some(runtime as f64),
            total: (total > 0).then_some(total),
            operations: Vec::new(),
        };
        return Ok((work, None));
    };
    let containers = names(config, "containers", "cprefix", "csuffix", "mycontainers")?;
    let objects = match kind {
        Kind::Write | Kind::Delete => Some(objects(config)?),
        _ => None,
    };
    let each = containers.span() * objects.as_ref().map_or(1, Names::span);
    let operation = Operation {
        kind,
        amount: Amount::Each(each),
        containers,
        objects,
        sizes: match kind {
            Kind::Write => Some(sizes(config)?),
            _ => None,
        },
    };
    let work = Work {
        operations: vec![operation],
        ..Work::default()
    };
    Ok((work, Some(kind)))
}

fn operation(tag: &Tag, config: &Config<'_>) -> Result<Operation> {
    let kind = match tag.get("type") {
        "read" => Kind::Read,
        "write" => Kind::Write,
        "delete" => Kind::Delete,
        "head" => Kind::Head,
        "list" => Kind::List,
        other => bail!("the operation {other}"),
    };
    let ratio: f64 = match tag.get("ratio") {
        "" => 100.0,
        text => text.parse()?,
    };
    Ok(Operation {
        kind,
        amount: Amount::Share(ratio / 100.0),
        containers: names(config, "containers", "cprefix", "csuffix", "mycontainers")?,
        objects: match kind {
            Kind::List => None,
            _ => Some(objects(config)?),
        },
        sizes: match kind {
            Kind::Write => Some(sizes(config)?),
            _ => None,
        },
    })
}

fn objects(config: &Config<'_>) -> Result<Names> {
    names(config, "objects", "oprefix", "osuffix", "myobjects")
}

fn names(
    config: &Config<'_>,
    key: &str,
    prefix: &str,
    suffix: &str,
    default: &str,
) -> Result<Names> {
    let text = config.get(key).with_context(|| format!("no {key}"))?;
    let (letter, arguments, _) = selector(text)?;
    let mut ends = arguments.split(',').map(|end| end.trim().parse::<u64>());
    let low = ends.next().context("no number")??;
    let high = ends.next().unwrap_or(Ok(low))?;
    let text = |key: &str, default: &str| config.get(key).map_or(default, |v| v).to_owned();
    Ok(Names {
        prefix: text(prefix, default),
        suffix: text(suffix, ""),
        low,
        high,
        order: match letter {
            'u' | 'c' => Order::Any,
            'r' | 's' => Order::Turn,
            other => bail!("the selector {other}"),
        },
    })
}

fn sizes(config: &Config<'_>) -> Result<Sizes> {
    let text = config.get("sizes").context("no sizes")?;
    let (letter, arguments, unit) = selector(text)?;
    let unit = match unit {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        other => bail!("the unit {other}"),
    };
    let bar = |text: &str, separator: char| -> Result<(u64, u64, u64)> {
        let numbers = text.split(separator).map(|n| n.trim().parse::<u64>());
        let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
        match numbers.as_slice() {
            [n] => Ok((*n, *n, 1)),
            [low, high] => Ok((*low, *high, 1)),
            [low, high, weight] => Ok((*low, *high, *weight)),
            _ => bail!("the bar {text}"),
        }
    };
    let bars = match letter {
        'c' | 'u' | 'r' | 's' => vec![bar(arguments, ',')?],
        'h' => arguments
            .split(',')
            .map(|text| bar(text, '|'))
            .collect::<Result<_>>()?,
        other => bail!("the sizes {other}"),
    };
    Ok(Sizes { unit, bars })
}

/// Splits `u(1,32)KB` into its letter, the arguments, and the unit.
fn selector(text: &str) -> Result<(char, &str, &str)> {
    let (letter, rest) = text.split_once('(').with_context(|| text.to_owned())?;
    let (arguments, unit) = rest.split_once(')').with_context(|| text.to_owned())?;
    let letter = letter.trim().chars().next().context("no selector")?;
    Ok((letter, arguments, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_oddities() {
        let text = r#"<?xml version="1.0"?><!-- <storage type="mock"/> -->
          <workload name="w" config="cprefix=c">
            <storage type="s3" config="accesskey=<accesskey>;endpoint=<endpoint>" />
            <workflow><workstage name="main"><work name="m" workers="8" runtime="30">
              <operation type="read" ratio="80" config="containers=u(1,2);objects=u(1,10)"/>
              <operation type="write" ratio="20"
                config="containers=c(3);objects=s(11,20);sizes=h(1|2|3,4|4|1)KB" />
            </work></workstage></workflow></workload>"#;
        let expected = read(text).unwrap();
        assert_eq!(expected.storage, "s3");
        let work = &expected.stages[0].works[0];
        assert_eq!((work.runtime, work.total), (Some(30.0), None));
        let [read, write] = work.operations.as_slice() else {
            panic!("{work:?}");
        };
        assert_eq!((read.kind, read.amount), (Kind::Read, Amount::Share(0.8)));
        assert_eq!(read.containers.number("c2"), Some(2));
        assert_eq!(read.containers.number("c3"), None);
        let sizes = write.sizes.as_ref().unwrap();
        assert_eq!((sizes.unit, sizes.bars.len()), (1000, 2));
        assert_eq!(write.objects.as_ref().unwrap().order, Order::Turn);
    }
}
