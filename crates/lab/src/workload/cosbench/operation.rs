//! COSBench's operations: those of a normal work's mix, and the single one of each special work.

use super::super::error::{Source, WorkloadError, shown};
use super::super::settings::List;
use super::super::value::{self, Kind};
use super::super::xml::Element;
use super::super::{Notes, limits};
use super::ReadWork;
use crate::plan::{Content, Names, Objects, Operation, OperationKind, Work, WorkKind};
use crate::selector::Selector;

/// COSBench's default prefixes of names.
const CONTAINERS: &str = "mycontainers";
const OBJECTS: &str = "myobjects";

/// Supported keys of an operation's config.
const KEYS: &[&str] = &[
    "containers",
    "cprefix",
    "csuffix",
    "objects",
    "oprefix",
    "osuffix",
    "sizes",
    "chunked",
    "content",
    "createContainer",
    "deleteContainer",
    "hashCheck",
    "files",
    "fileselection",
    "name",
];

/// An operation of a normal work; the caller sets its ratio, and its name is empty if not given.
pub(super) fn main(
    source: &Source<'_>,
    element: &Element,
    list: &List,
    notes: &mut Notes,
) -> Result<Operation, WorkloadError> {
    note_strangers(list, notes);
    let Some(kind) = element.attribute("type") else {
        return Err(source.error(
            element.at,
            "an <operation> without 'type'",
            "type=\"read\", write, filewrite, delete, head or list",
        ));
    };
    let kind = match kind.value.as_str() {
        "read" => OperationKind::Read,
        "write" => OperationKind::Write,
        "filewrite" => OperationKind::FileWrite,
        "delete" => OperationKind::Delete,
        "head" => OperationKind::Head,
        "list" => OperationKind::List,
        other => {
            return Err(source.error(
                kind.at,
                format!("the operation '{}'", shown(other)),
                "read, write, filewrite, delete, head or list",
            ));
        }
    };
    let mut operation = common(source, list, kind)?;
    match kind {
        OperationKind::List => {
            if let Some(objects) = names(source, list, "objects")? {
                operation.objects = Objects::Numbered(objects);
            }
        }
        OperationKind::FileWrite => {
            let (files, at) = list.required(source, "files", "files=/tmp/testfiles")?;
            if files.is_empty() {
                return Err(source.error(at, "an empty 'files'", "a folder"));
            }
            operation.files = Some(files.to_owned());
            operation.objects = Objects::Numbered(Names {
                numbers: file_selection(source, list)?,
                ..Names::default()
            });
        }
        _ => {
            operation.objects = Objects::Numbered(required_names(source, list, "objects")?);
            if kind == OperationKind::Write {
                operation.sizes = Some(sizes(source, list)?);
            }
        }
    }
    Ok(operation)
}

/// The operation of a special work, by the work's kind.
pub(super) fn special(
    source: &Source<'_>,
    mut work: Work,
    list: &List,
    notes: &mut Notes,
) -> Result<ReadWork, WorkloadError> {
    note_strangers(list, notes);
    let kind = match work.kind {
        WorkKind::Prepare => OperationKind::Prepare,
        WorkKind::Cleanup => OperationKind::Cleanup,
        WorkKind::Dispose => OperationKind::Dispose,
        WorkKind::Init | WorkKind::Main | WorkKind::Delay => OperationKind::Init,
    };
    let mut operation = common(source, list, kind)?;
    in_turn(&mut operation.containers.numbers);
    let mut makes_containers = false;
    let mut deletes_containers = false;
    if matches!(kind, OperationKind::Prepare | OperationKind::Cleanup) {
        let (objects, _) = list.required(source, "objects", "objects=r(1,100)")?;
        // COSBench's notation for none.
        let none = matches!(objects, "r(0,0)" | "0-0");
        if !none {
            let mut objects = required_names(source, list, "objects")?;
            in_turn(&mut objects.numbers);
            operation.objects = Objects::Numbered(objects);
        }
        if kind == OperationKind::Prepare {
            makes_containers = list.boolean(source, "createContainer", false)?;
            if !none {
                operation.sizes = Some(sizes(source, list)?);
            }
        } else {
            deletes_containers = list.boolean(source, "deleteContainer", false)?;
        }
        if none {
            // Only the containers remain.
            work.kind = match (makes_containers, deletes_containers) {
                (true, _) => WorkKind::Init,
                (_, true) => WorkKind::Dispose,
                _ => {
                    return Ok(ReadWork::plain(work));
                }
            };
            work.operations = containers_only(&[operation], work.kind);
            return Ok(ReadWork::plain(work));
        }
    }
    if operation.name.is_empty() {
        kind.as_str().clone_into(&mut operation.name);
    }
    work.operations = vec![operation];
    Ok(ReadWork {
        work,
        makes_containers,
        deletes_containers,
    })
}

/// Operations on the containers of others, to create or delete them.
pub(super) fn containers_only(of: &[Operation], kind: WorkKind) -> Vec<Operation> {
    let kind = match kind {
        WorkKind::Dispose => OperationKind::Dispose,
        _ => OperationKind::Init,
    };
    of.iter()
        .map(|operation| Operation {
            kind,
            name: kind.as_str().to_owned(),
            containers: operation.containers.clone(),
            ..Operation::default()
        })
        .collect()
}

fn common(
    source: &Source<'_>,
    list: &List,
    kind: OperationKind,
) -> Result<Operation, WorkloadError> {
    let content = match list.get("content") {
        // In COSBench anything but `zero` is random.
        Some(("zero", _)) => Content::Zero,
        _ => Content::Random,
    };
    Ok(Operation {
        kind,
        name: list.get("name").map_or("", |(name, _)| name).to_owned(),
        containers: required_names(source, list, "containers")?,
        content,
        hashcheck: list.boolean(source, "hashCheck", false)?,
        chunked: list.boolean(source, "chunked", false)?,
        ..Operation::default()
    })
}

fn required_names(source: &Source<'_>, list: &List, what: &str) -> Result<Names, WorkloadError> {
    list.required(source, what, &format!("{what}=u(1,32)"))?;
    names(source, list, what).map(Option::unwrap_or_default)
}

/// Names by `containers` or `objects`, with prefix and suffix.
fn names(source: &Source<'_>, list: &List, what: &str) -> Result<Option<Names>, WorkloadError> {
    let Some((text, at)) = list.get(what) else {
        return Ok(None);
    };
    let (prefix, suffix, default) = if what == "containers" {
        ("cprefix", "csuffix", CONTAINERS)
    } else {
        ("oprefix", "osuffix", OBJECTS)
    };
    let said = |key: &str, default: &str| list.get(key).map_or(default, |(v, _)| v).to_owned();
    Ok(Some(Names {
        prefix: said(prefix, default),
        suffix: said(suffix, ""),
        digits: 0,
        numbers: value::selector(text, Kind::Numbers).map_err(|w| source.wrong(at, w))?,
    }))
}

fn sizes(source: &Source<'_>, list: &List) -> Result<Selector, WorkloadError> {
    let (text, at) = list.required(source, "sizes", "sizes=c(64)KB")?;
    value::selector(text, Kind::Sizes).map_err(|wrong| source.wrong(at, wrong))
}

/// Special works use each number once, whatever the selector.
fn in_turn(numbers: &mut Selector) {
    let (low, high) = numbers.bounds();
    *numbers = Selector::Range { low, high };
}

/// `fileselection`: only its letter counts. The folder determines the number of files, so the
/// numbers are unbounded here.
fn file_selection(source: &Source<'_>, list: &List) -> Result<Selector, WorkloadError> {
    let (text, at) = list.required(source, "fileselection", "fileselection=s")?;
    let (low, high) = (1, limits::NUMBER);
    match text.chars().next() {
        Some('s') => Ok(Selector::Sequential { low, high }),
        Some('r') => Ok(Selector::Range { low, high }),
        Some('u') => Ok(Selector::Uniform { low, high }),
        _ => Err(source.error(
            at,
            format!("the file selection '{}'", shown(text)),
            "s (one after the other), r or u (any)",
        )),
    }
}

fn note_strangers(list: &List, notes: &mut Notes) {
    for key in list.keys() {
        if !KEYS.iter().any(|known| known.eq_ignore_ascii_case(key)) {
            notes.add(format!(
                "passed over '{}' in the config of an operation",
                shown(key)
            ));
        }
    }
}
