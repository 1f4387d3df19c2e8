//! Reader of a `[[stage.work.operation]]`, or of a special work's operation. Most of its keys may
//! be set at the work or in `[defaults]` for all operations.

use std::collections::BTreeMap;

use super::super::error::WorkloadError;
use super::super::limits;
use super::super::names::Unique;
use super::super::value::Kind;
use super::Texts;
use super::fields::Fields;
use crate::plan::{Content, Draw, Names, Objects, Operation, OperationKind, RangeRead, WorkKind};
use crate::selector::Selector;

pub(super) const INHERITED: &[&str] = &[
    "containers",
    "container_prefix",
    "container_suffix",
    "container_digits",
    "objects",
    "object_prefix",
    "object_suffix",
    "object_digits",
    "pool",
    "draw",
    "sizes",
    "size_class",
    "content",
    "hashcheck",
    "range",
    "part_size",
    "chunked",
    "files",
    "headers",
    "copy_container_suffix",
    "copy_suffix",
    "batch",
    "versioned",
];
pub(super) const OWN: &[&str] = &["type", "ratio", "name"];

/// Ending of a copy's name when nothing is said.
const COPY_SUFFIX: &str = "-copy";
/// Objects that a bulk deletion names when nothing is said.
const BATCH: u64 = 100;

const KINDS: &[(&str, OperationKind)] = &[
    ("read", OperationKind::Read),
    ("write", OperationKind::Write),
    ("filewrite", OperationKind::FileWrite),
    ("update", OperationKind::Update),
    ("delete", OperationKind::Delete),
    ("head", OperationKind::Head),
    ("list", OperationKind::List),
    ("copy", OperationKind::Copy),
    ("post", OperationKind::Post),
    ("bulk-delete", OperationKind::BulkDelete),
    ("versions", OperationKind::Versions),
    ("init", OperationKind::Init),
    ("dispose", OperationKind::Dispose),
    ("prepare", OperationKind::Prepare),
    ("cleanup", OperationKind::Cleanup),
];

type Checked<T> = Result<T, WorkloadError>;

/// `own` is the operation's own table, if it has one; `fields` includes the inherited ones.
pub(super) fn read(
    fields: &Fields<'_>,
    own: Option<&Fields<'_>>,
    work: WorkKind,
) -> Checked<Operation> {
    let special = match work {
        WorkKind::Init => Some(OperationKind::Init),
        WorkKind::Prepare => Some(OperationKind::Prepare),
        WorkKind::Cleanup => Some(OperationKind::Cleanup),
        WorkKind::Dispose => Some(OperationKind::Dispose),
        WorkKind::Main | WorkKind::Delay => None,
    };
    let kind = own.map_or(Ok(None), |own| own.word("type", KINDS))?;
    let kind = match (special, kind) {
        (Some(special), Some(kind)) if special != kind => {
            let at = own
                .and_then(|own| own.place("type"))
                .unwrap_or_else(|| fields.start());
            let found = format!("an operation '{}' of a special work", kind.as_str());
            return Err(fields
                .source
                .error(at, found, format!("'{}'", special.as_str())));
        }
        (Some(special), _) => special,
        (None, kind) => fields.required("type", kind, "\"read\", \"write\" …")?,
    };
    let ratio = own
        .map_or(Ok(None), |own| own.real("ratio", 0.0, 1e9))?
        .unwrap_or(1.0);
    let name = own
        .map_or(Ok(None), |own| own.text("name"))?
        .unwrap_or_default();
    let writes = matches!(
        kind,
        OperationKind::Write | OperationKind::Update | OperationKind::Prepare
    );
    let sizes = fields.selector("sizes", Kind::Sizes)?.filter(|_| writes);
    if writes && sizes.is_none() {
        fields.required::<()>("sizes", None, "\"c(64KB)\", \"u(4KB,1MB)\"")?;
    }
    let containers = fields.selector("containers", Kind::Numbers)?;
    let containers = fields.required("containers", containers, "\"u(1,32)\"")?;
    let files = fields
        .text("files")?
        .filter(|_| kind == OperationKind::FileWrite);
    if kind == OperationKind::FileWrite && files.is_none() {
        fields.required::<()>("files", None, "\"/a/folder\"")?;
    }
    let part = fields.size("part_size", limits::OBJECT_BYTES)?;
    let (copy_container_suffix, copy_suffix) = copy_suffixes(fields, kind)?;
    let batch = fields.whole("batch", 1, limits::BATCH)?.unwrap_or(BATCH);
    Ok(Operation {
        kind,
        ratio,
        name,
        size_class: fields.text("size_class")?,
        containers: names(
            fields,
            "container",
            "mycontainers",
            in_turn(containers, special),
        )?,
        objects: objects(fields, kind, special)?,
        sizes,
        content: fields
            .word(
                "content",
                &[("random", Content::Random), ("zero", Content::Zero)],
            )?
            .unwrap_or_default(),
        hashcheck: fields.boolean("hashcheck")?.unwrap_or(false),
        range: range(fields)?.filter(|_| kind == OperationKind::Read),
        part_bytes: part.filter(|part| *part > 0 && writes),
        chunked: fields.boolean("chunked")?.unwrap_or(false),
        files,
        headers: match fields.table("headers")? {
            Some(table) => fields.texts_of(&table)?,
            None => Texts::new(),
        },
        copy_container_suffix,
        copy_suffix,
        batch: match kind {
            OperationKind::BulkDelete => u32::try_from(batch).unwrap_or(u32::MAX),
            _ => 0,
        },
        versioned: fields.boolean("versioned")?.unwrap_or(false)
            && matches!(
                kind,
                OperationKind::Init | OperationKind::Cleanup | OperationKind::Delete
            ),
    })
}

/// Endings of a copy's container and name; empty of other operations.
fn copy_suffixes(fields: &Fields<'_>, kind: OperationKind) -> Checked<(String, String)> {
    let copies = kind == OperationKind::Copy;
    let suffix = |key: &str| fields.text(key).map(|text| text.filter(|_| copies));
    let copy_container_suffix = suffix("copy_container_suffix")?.unwrap_or_default();
    let copy_suffix = suffix("copy_suffix")?.unwrap_or_else(|| match copies {
        true => COPY_SUFFIX.to_owned(),
        false => String::new(),
    });
    if copies && copy_suffix.is_empty() && copy_container_suffix.is_empty() {
        return Err(fields.source.error(
            fields
                .place("copy_suffix")
                .unwrap_or_else(|| fields.start()),
            "a copy onto itself",
            "a 'copy_suffix' or a 'copy_container_suffix'",
        ));
    }
    Ok((copy_container_suffix, copy_suffix))
}

/// Special works use each number once, whatever the selector; only for a pool's containers the
/// selector is kept.
fn in_turn(numbers: Selector, special: Option<OperationKind>) -> Selector {
    match special {
        Some(OperationKind::Init | OperationKind::Dispose) => {
            let (low, high) = numbers.bounds();
            Selector::Range { low, high }
        }
        _ => numbers,
    }
}

fn objects(
    fields: &Fields<'_>,
    kind: OperationKind,
    special: Option<OperationKind>,
) -> Checked<Objects> {
    let pool = fields.text("pool")?;
    let numbers = fields.selector("objects", Kind::Numbers)?;
    if matches!(kind, OperationKind::Init | OperationKind::Dispose) {
        return Ok(Objects::default());
    }
    let endless = || Selector::Sequential {
        low: 1,
        high: limits::NUMBER,
    };
    let numbers = match numbers {
        Some(numbers) => numbers,
        None if matches!(kind, OperationKind::List | OperationKind::Versions) && pool.is_none() => {
            return Ok(Objects::default());
        }
        None if kind == OperationKind::FileWrite => endless(),
        None if pool.is_some() && special != Some(OperationKind::Prepare) => endless(),
        None => fields.required("objects", None, "\"u(1,1000)\"")?,
    };
    let names = names(fields, "object", "myobjects", numbers)?;
    let draw = fields
        .word(
            "draw",
            &[("random", Draw::Random), ("oldest", Draw::Oldest)],
        )?
        .unwrap_or_default();
    Ok(match pool {
        Some(pool) => Objects::Pool { pool, names, draw },
        None => Objects::Numbered(names),
    })
}

fn names(fields: &Fields<'_>, what: &str, prefix: &str, numbers: Selector) -> Checked<Names> {
    let said = |key: &str| fields.text(&format!("{what}_{key}"));
    let digits = fields.whole(&format!("{what}_digits"), 0, 18)?.unwrap_or(0);
    Ok(Names {
        prefix: said("prefix")?.unwrap_or_else(|| prefix.to_owned()),
        suffix: said("suffix")?.unwrap_or_default(),
        digits: u8::try_from(digits).unwrap_or(0),
        numbers,
    })
}

fn range(fields: &Fields<'_>) -> Checked<Option<RangeRead>> {
    let Some(table) = fields.table("range")? else {
        return Ok(None);
    };
    let inner = fields.within(table);
    inner.known(&[&["length", "align", "object"]])?;
    let length = inner.selector("length", Kind::Sizes)?;
    let object = inner.size("object", limits::OBJECT_BYTES)?;
    Ok(Some(RangeRead {
        length: inner.required("length", length, "\"64KB\"")?,
        align: inner
            .size("align", limits::OBJECT_BYTES)?
            .unwrap_or(1)
            .max(1),
        object_bytes: inner.required("object", object, "\"1MB\", how large the objects are")?,
    }))
}

/// Results are recorded by name, so each operation of a mix gets a unique one: its own, or its
/// kind, with a number if that is taken. Size classes already distinguish operations.
pub(super) fn name_apart(operations: &mut [Operation]) {
    let mut taken: BTreeMap<Option<String>, Unique> = BTreeMap::new();
    for operation in operations
        .iter()
        .filter(|operation| !operation.name.is_empty())
    {
        taken
            .entry(operation.size_class.clone())
            .or_default()
            .take(operation.name.clone());
    }
    for operation in operations
        .iter_mut()
        .filter(|operation| operation.name.is_empty())
    {
        let names = taken.entry(operation.size_class.clone()).or_default();
        operation.name = names.take(operation.kind.as_str().to_owned());
    }
}
