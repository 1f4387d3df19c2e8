//! Replacement of `${name}` and expansion of `for.name = [...]`.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::{StudyError, deserialize};

const TEXT_BYTES_MAX: usize = 4096;
const DEPTH_MAX: usize = 16;

/// Values by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    values: Table,
    swept: BTreeMap<String, String>,
}

/// Parses a text as a number or boolean if possible.
pub(super) fn typed(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return Value::Integer(number);
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    match (number, text) {
        (Some(number), _) => Value::Float(number),
        (None, "true") => Value::Boolean(true),
        (None, "false") => Value::Boolean(false),
        (None, _) => Value::String(text.to_owned()),
    }
}

impl Scope {
    pub(super) fn new(values: Table) -> Scope {
        Scope {
            values,
            swept: BTreeMap::new(),
        }
    }

    pub(super) fn swept(&self) -> &BTreeMap<String, String> {
        &self.swept
    }

    pub(super) fn with(&self, name: &str, value: Value) -> Scope {
        let mut scope = self.clone();
        scope.values.insert(name.to_owned(), value);
        scope
    }

    /// A scope for every combination of the sweeps' values; only this one without sweeps.
    pub(super) fn sweep(
        &self,
        at: &str,
        sweeps: &Table,
        most: usize,
    ) -> Result<Vec<Scope>, StudyError> {
        let mut scopes = vec![self.clone()];
        for (name, values) in sweeps {
            let at = format!("{at} for.{name}");
            let Value::Array(values) = self.filled(&at, values, 0)? else {
                return Err(StudyError::wrong(at, values.type_str(), "a list of values"));
            };
            if scopes.len().saturating_mul(values.len()) > most {
                return Err(StudyError::wrong(
                    at,
                    "more combinations",
                    format!("at most {most}"),
                ));
            }
            let mut combined = Vec::new();
            for scope in &scopes {
                for value in &values {
                    let mut scope = scope.with(name, value.clone());
                    scope.swept.insert(name.clone(), shown(value));
                    combined.push(scope);
                }
            }
            scopes = combined;
        }
        Ok(scopes)
    }

    /// Deserialises the value with all names replaced.
    pub(super) fn fill<T: DeserializeOwned>(
        &self,
        at: &str,
        value: &Value,
    ) -> Result<T, StudyError> {
        deserialize(at, self.filled(at, value, 0)?)
    }

    fn filled(&self, at: &str, value: &Value, depth: usize) -> Result<Value, StudyError> {
        if depth > DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} tables inside each other");
            return Err(StudyError::wrong(at, "tables nested deeper", expected));
        }
        Ok(match value {
            Value::String(text) => self.text(at, text)?,
            Value::Array(values) => {
                let filled = values.iter().map(|v| self.filled(at, v, depth + 1));
                Value::Array(filled.collect::<Result<_, _>>()?)
            }
            Value::Table(table) => {
                let mut filled = Table::new();
                for (key, value) in table {
                    let at = format!("{at} {key}");
                    filled.insert(key.clone(), self.filled(&at, value, depth + 1)?);
                }
                Value::Table(filled)
            }
            other => other.clone(),
        })
    }

    /// Replaces names; a text that consists of one name becomes that name's value, possibly a
    /// number.
    fn text(&self, at: &str, text: &str) -> Result<Value, StudyError> {
        if let Some(name) = text.strip_prefix("${").and_then(|t| t.strip_suffix('}'))
            && !name.contains('}')
        {
            return self.value(at, name).cloned();
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            out.push_str(before);
            let Some((name, after)) = after.split_once('}') else {
                return Err(StudyError::wrong(
                    at,
                    format!("{text:?}"),
                    "a '}' behind '${'",
                ));
            };
            out.push_str(&shown(self.value(at, name)?));
            rest = after;
        }
        out.push_str(rest);
        if out.len() > TEXT_BYTES_MAX {
            let expected = format!("at most {TEXT_BYTES_MAX} bytes");
            return Err(StudyError::wrong(at, "a longer text", expected));
        }
        Ok(Value::String(out))
    }

    fn value(&self, at: &str, name: &str) -> Result<&Value, StudyError> {
        let mut words = name.split('.');
        let mut value = words.next().and_then(|word| self.values.get(word));
        for word in words {
            value = value.and_then(|v| v.as_table()).and_then(|t| t.get(word));
        }
        value.ok_or_else(|| {
            let known: Vec<&str> = self.values.keys().map(String::as_str).collect();
            let expected = format!("one of: {}", known.join(", "));
            StudyError::wrong(at, format!("${{{name}}}"), expected)
        })
    }
}

/// A value as part of a name: a table by its `name`.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Table(table) => match table.get("name") {
            Some(name) => shown(name),
            None => table.values().map(shown).collect::<Vec<_>>().join("/"),
        },
        other => other.to_string(),
    }
}
