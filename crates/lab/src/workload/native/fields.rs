//! Typed access to TOML tables with positions. A table may inherit keys from others.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::error::{Source, WorkloadError, Wrong, shown};
use super::super::limits;
use super::super::value::{self, Kind};
use super::Texts;
use super::scope::Scope;
use crate::selector::Selector;

/// A table with its position.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) keys: &'a DeTable<'a>,
    pub(super) at: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(table: &'a Spanned<DeTable<'a>>) -> Self {
        Self::at(table.get_ref(), table.span().start)
    }

    pub(super) fn at(keys: &'a DeTable<'a>, at: usize) -> Self {
        Self { keys, at }
    }
}

/// A table's entries in document order.
pub(super) fn sorted<'a>(table: &'a DeTable<'a>) -> Vec<(&'a str, &'a Spanned<DeValue<'a>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
        .into_iter()
        .map(|(key, value)| (key.get_ref().as_ref(), value))
        .collect()
}

/// A scalar as text, so that `8` and `"${workers}"` are equivalent.
pub(super) fn scalar_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.as_ref().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Float(number) => Some(number.as_str().replace('_', "")),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            match number.radix() {
                10 => Some(digits),
                radix => u64::from_str_radix(&digits, radix)
                    .ok()
                    .map(|n| n.to_string()),
            }
        }
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Access to a list of tables, of which the first that has a key counts.
pub(super) struct Fields<'a> {
    pub(super) source: &'a Source<'a>,
    scope: &'a Scope,
    tables: Vec<Table<'a>>,
}

type Checked<T> = Result<T, WorkloadError>;

impl<'a> Fields<'a> {
    pub(super) fn new(source: &'a Source<'a>, scope: &'a Scope, tables: Vec<Table<'a>>) -> Self {
        Self {
            source,
            scope,
            tables,
        }
    }

    /// Refuses unknown keys of the nearest table.
    pub(super) fn known(&self, known: &[&[&str]]) -> Checked<()> {
        let Some(table) = self.tables.first() else {
            return Ok(());
        };
        let known: Vec<&str> = known.iter().copied().flatten().copied().collect();
        for (key, _) in table.keys.iter() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                return Err(self.source.error(
                    key.span().start,
                    format!("the key '{}'", shown(name)),
                    format!("one of: {}", known.join(", ")),
                ));
            }
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.tables.iter().find_map(|table| table.keys.get(key))
    }

    /// Position of a key's value.
    pub(super) fn place(&self, key: &str) -> Option<usize> {
        self.get(key).map(|value| value.span().start)
    }

    /// Position of the nearest table, for errors about missing keys.
    pub(super) fn start(&self) -> usize {
        self.tables.first().map_or(0, |table| table.at)
    }

    /// A text before parameters are replaced.
    pub(super) fn raw(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(|value| value.get_ref().as_str())
    }

    pub(super) fn scalar(&self, key: &str) -> Checked<Option<(String, usize)>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let at = value.span().start;
        let text = scalar_text(value.get_ref()).ok_or_else(|| {
            let found = format!("'{key}' that is {}", value.get_ref().type_str());
            self.source
                .error(at, found, "a text, a number, true or false")
        })?;
        Ok(Some((self.scope.substitute(self.source, &text, at)?, at)))
    }

    /// A scalar, parsed by `read`; an error names the key.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Checked<Option<T>> {
        let Some((text, at)) = self.scalar(key)? else {
            return Ok(None);
        };
        read(&text).map(Some).map_err(|wrong| {
            self.source
                .error(at, format!("{key} = {}", wrong.found), wrong.expected)
        })
    }

    pub(super) fn text(&self, key: &str) -> Checked<Option<String>> {
        self.parsed(key, value::plain)
    }

    pub(super) fn whole(&self, key: &str, low: u64, high: u64) -> Checked<Option<u64>> {
        self.parsed(key, |text| value::whole(text, low, high))
    }

    pub(super) fn real(&self, key: &str, low: f64, high: f64) -> Checked<Option<f64>> {
        self.parsed(key, |text| value::real(text, low, high))
    }

    pub(super) fn boolean(&self, key: &str) -> Checked<Option<bool>> {
        self.parsed(key, value::boolean)
    }

    pub(super) fn time(&self, key: &str) -> Checked<Option<std::time::Duration>> {
        self.parsed(key, value::time)
    }

    pub(super) fn size(&self, key: &str, high: u64) -> Checked<Option<u64>> {
        self.parsed(key, |text| value::size(text, high))
    }

    pub(super) fn selector(&self, key: &str, kind: Kind) -> Checked<Option<Selector>> {
        self.parsed(key, |text| value::selector(text, kind))
    }

    /// One of several keywords.
    pub(super) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Checked<Option<T>> {
        self.parsed(key, |text| {
            let found = words.iter().find(|(word, _)| *word == text.trim());
            found.map(|(_, meaning)| *meaning).ok_or_else(|| {
                let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Wrong::new(
                    format!("'{}'", shown(text)),
                    format!("one of: {}", words.join(", ")),
                )
            })
        })
    }

    /// A required value.
    pub(super) fn required<T>(&self, key: &str, found: Option<T>, example: &str) -> Checked<T> {
        found.ok_or_else(|| {
            self.source.error(
                self.start(),
                format!("no '{key}'"),
                format!("{key} = {example}"),
            )
        })
    }

    pub(super) fn table(&self, key: &str) -> Checked<Option<Table<'a>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(Table::at(table, value.span().start))),
            other => Err(self.source.error(
                value.span().start,
                format!("'{key}' that is {}", other.type_str()),
                "a table",
            )),
        }
    }

    /// Access to an inner table alone.
    pub(super) fn within(&self, table: Table<'a>) -> Fields<'a> {
        Fields::new(self.source, self.scope, vec![table])
    }

    /// The tables of `[[key]]`; empty if absent. Never inherited.
    pub(super) fn tables(&self, key: &str) -> Checked<Vec<Table<'a>>> {
        let Some(value) = self.tables.first().and_then(|table| table.keys.get(key)) else {
            return Ok(Vec::new());
        };
        let DeValue::Array(array) = value.get_ref() else {
            return Err(self.source.error(
                value.span().start,
                format!("'{key}' that is {}", value.get_ref().type_str()),
                format!("[[{key}]] tables"),
            ));
        };
        let tables = array.iter().map(|entry| match entry.get_ref() {
            DeValue::Table(table) => Ok(Table::at(table, entry.span().start)),
            other => Err(self.source.error(
                entry.span().start,
                format!("an entry of '{key}' that is {}", other.type_str()),
                "a table",
            )),
        });
        tables.collect()
    }

    /// A table with arbitrary keys, as texts.
    pub(super) fn texts_of(&self, table: &Table<'a>) -> Checked<Texts> {
        if table.keys.len() > limits::ATTRIBUTES {
            let expected = format!("at most {}", limits::ATTRIBUTES);
            return Err(self
                .source
                .error(table.at, "a table of more entries", expected));
        }
        let inner = Fields::new(self.source, self.scope, vec![*table]);
        let mut out = Texts::new();
        for key in table.keys.keys() {
            let name = value::plain(key.get_ref())
                .map_err(|wrong| self.source.wrong(key.span().start, wrong))?;
            let found = inner.text(&name)?;
            let text = inner.required(&name, found, "a text")?;
            out.insert(name, text);
        }
        Ok(out)
    }
}
