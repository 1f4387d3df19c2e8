//! Values of `${name}`: parameters, and the values of sweeps around a stage.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::DeValue;

use super::super::error::{Source, WorkloadError, shown};
use super::super::limits;
use super::fields::{scalar_text, sorted};

/// Texts by name; those of sweeps are recorded for the results.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope {
    values: BTreeMap<String, String>,
    swept: BTreeMap<String, String>,
}

impl Scope {
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.values.insert(name.to_owned(), value);
    }

    pub(super) fn set_swept(&mut self, name: &str, value: String) {
        self.set(name, value.clone());
        self.swept.insert(name.to_owned(), value);
    }

    pub(super) fn swept(&self) -> &BTreeMap<String, String> {
        &self.swept
    }

    /// Binds a scalar to its name; a table's entries to `name.entry`.
    pub(super) fn bind(
        &mut self,
        source: &Source<'_>,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), WorkloadError> {
        self.bind_shown(source, name, value).map(|_| ())
    }

    /// Binds and records a sweep's value: a table by its `name`, or by its values.
    pub(super) fn bind_swept(
        &mut self,
        source: &Source<'_>,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), WorkloadError> {
        let shown = self.bind_shown(source, name, value)?;
        self.swept.insert(name.to_owned(), shown);
        Ok(())
    }

    fn bind_shown(
        &mut self,
        source: &Source<'_>,
        name: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<String, WorkloadError> {
        let at = value.span().start;
        let DeValue::Table(table) = value.get_ref() else {
            let text = self.scalar(source, value)?;
            self.set(name, text.clone());
            return Ok(text);
        };
        if table.len() > limits::ATTRIBUTES {
            let expected = format!("at most {}", limits::ATTRIBUTES);
            return Err(source.error(at, "a table of more values", expected));
        }
        let mut own_name = None;
        let mut shown = Vec::new();
        for (key, value) in sorted(table) {
            let text = self.scalar(source, value)?;
            self.set(&format!("{name}.{key}"), text.clone());
            if key == "name" {
                own_name = Some(text.clone());
            }
            shown.push(text);
        }
        Ok(own_name.unwrap_or_else(|| shown.join("/")))
    }

    fn scalar(
        &self,
        source: &Source<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<String, WorkloadError> {
        let at = value.span().start;
        let text = scalar_text(value.get_ref()).ok_or_else(|| {
            let found = format!("a value that is {}", value.get_ref().type_str());
            source.error(at, found, "a text, a number, true or false")
        })?;
        self.substitute(source, &text, at)
    }

    /// Replaces every `${name}`; `$${` is a literal `${`.
    pub(super) fn substitute(
        &self,
        source: &Source<'_>,
        text: &str,
        at: usize,
    ) -> Result<String, WorkloadError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let after = &rest[start + 2..];
            if let Some(before) = rest[..start].strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = after;
                continue;
            }
            out.push_str(&rest[..start]);
            let end = after.find('}').ok_or_else(|| {
                source.error(
                    at,
                    format!("'{}'", shown(&rest[start..])),
                    "'}' behind '${'",
                )
            })?;
            let name = after[..end].trim();
            let value = self.values.get(name).ok_or_else(|| {
                let known: Vec<&str> = self.values.keys().take(20).map(String::as_str).collect();
                let expected = if known.is_empty() {
                    "a name of [parameters] or of a sweep around".to_owned()
                } else {
                    format!("one of: {}", known.join(", "))
                };
                source.error(at, format!("'${{{}}}'", shown(name)), expected)
            })?;
            out.push_str(value);
            if out.len() > limits::TEXT_BYTES {
                break;
            }
            rest = &after[end + 1..];
        }
        out.push_str(rest);
        if out.len() > limits::TEXT_BYTES {
            let expected = format!("at most {} bytes", limits::TEXT_BYTES);
            return Err(source.error(at, "a longer text", expected));
        }
        Ok(out)
    }
}
