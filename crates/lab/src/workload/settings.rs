//! COSBench's `key=value;key=value` lists, and the alternative names of its auth and storage types
//! for the same settings. Of equal keys the last one counts, so an element's own values override
//! inherited ones.

use std::collections::BTreeMap;

use super::error::{Source, WorkloadError, shown};
use super::{Notes, limits, value};
use crate::plan::Settings;

/// Values with their positions, by key.
#[derive(Debug, Clone, Default)]
pub(super) struct List {
    values: BTreeMap<String, (String, usize)>,
    /// Position of the list, for errors about missing keys.
    at: usize,
}

impl List {
    /// Adds the values of `text`, which begins at offset `at`, overriding existing ones.
    pub(super) fn extend(
        &mut self,
        source: &Source<'_>,
        text: &str,
        at: usize,
        notes: &mut Notes,
    ) -> Result<(), WorkloadError> {
        self.at = at;
        let mut offset = at;
        for entry in text.split(';') {
            match entry.split_once('=') {
                Some((key, value)) => {
                    let key = value::plain(key.trim()).map_err(|w| source.wrong(offset, w))?;
                    let value = value::plain(value.trim()).map_err(|w| source.wrong(offset, w))?;
                    self.values.insert(key, (value, offset));
                }
                None if entry.trim().is_empty() => {}
                None => notes.add(format!(
                    "passed over '{}' in a config: it is no key=value",
                    shown(entry.trim())
                )),
            }
            if self.values.len() > limits::ATTRIBUTES {
                return Err(source.error(
                    offset,
                    "a config with more keys",
                    format!("at most {}", limits::ATTRIBUTES),
                ));
            }
            offset += entry.len() + 1;
        }
        Ok(())
    }

    /// A key's value and position. COSBench's guide and samples differ in the case of keys
    /// (`hashCheck`, `hashcheck`), so case is ignored.
    pub(super) fn get(&self, key: &str) -> Option<(&str, usize)> {
        let found = self.values.get(key).or_else(|| {
            let mut values = self.values.iter();
            values.find_map(|(k, v)| k.eq_ignore_ascii_case(key).then_some(v))
        });
        found.map(|(value, at)| (value.as_str(), *at))
    }

    pub(super) fn required(
        &self,
        source: &Source<'_>,
        key: &str,
        example: &str,
    ) -> Result<(&str, usize), WorkloadError> {
        self.get(key).ok_or_else(|| {
            source.error(
                self.at,
                format!("a config without '{key}'"),
                format!("'{key}=…', as in '{example}'"),
            )
        })
    }

    pub(super) fn boolean(
        &self,
        source: &Source<'_>,
        key: &str,
        default: bool,
    ) -> Result<bool, WorkloadError> {
        self.get(key).map_or(Ok(default), |(text, at)| {
            value::boolean(text).map_err(|w| source.wrong(at, w))
        })
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Converts to settings of an auth or storage type: alternative keys get their usual names, and
    /// placeholders of published samples (`<accesskey>`) count as absent.
    pub(super) fn into_settings(self, kind: &str, notes: &mut Notes) -> Settings {
        let mut config = BTreeMap::new();
        for (key, (value, _)) in self.values {
            if value.starts_with('<') && value.ends_with('>') {
                notes.add_placeholder(format!("{key} of {kind}"));
                continue;
            }
            let usual = match (kind, key.as_str()) {
                ("swauth" | "keystone", "url") => "auth_url",
                ("keystone", "tenname") => "tenant_name",
                _ => key.as_str(),
            };
            // The usual name takes precedence over the alternative, as in COSBench.
            if usual == key || !config.contains_key(usual) {
                config.insert(usual.to_owned(), value);
            }
        }
        Settings {
            kind: kind.to_owned(),
            config,
        }
    }
}
