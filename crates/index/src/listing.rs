//! Listings, by page: objects of a container, containers of an account.
//!
//! A `ListCursor` is the position of a listing, as a value: every page is a query of its own on any
//! free connection, so a slow client holds no resources. With a delimiter, names that share a
//! prefix up to it become one subdir and the next query starts behind them, so a folder of a
//! million objects costs one step.

use std::collections::VecDeque;

use cairn_types::Timestamp;
use cairn_types::timestamp::decode_timestamps;
use rusqlite::types::Value;
use rusqlite::{Row, params_from_iter};

use crate::broker::{Broker, timestamp};
use crate::{AccountBroker, ContainerBroker, DbKind, Result};

/// Parameters of a listing. Empty markers impose no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    pub limit: usize,
    pub marker: String,
    pub end_marker: String,
    pub prefix: String,
    pub delimiter: String,
    /// Lists only the direct children of a folder (Swift's older API). Overrides prefix and
    /// delimiter. Containers only.
    pub path: Option<String>,
    pub reverse: bool,
    /// Includes reserved names, which begin with NUL.
    pub allow_reserved: bool,
    /// Containers only.
    pub storage_policy_index: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEntry<R> {
    Row(R),
    /// Names up to and including the delimiter.
    Subdir(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    pub name: String,
    /// Time of the last metadata change: `last_modified` in listings.
    pub modified: Timestamp,
    pub size: i64,
    /// With its `swift_bytes`, if any.
    pub content_type: String,
    pub etag: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEntry {
    pub name: String,
    pub object_count: i64,
    pub bytes_used: i64,
    pub put_timestamp: Timestamp,
    pub storage_policy_index: i64,
}

/// A page of entries and the cursor of the next; no cursor at the end.
#[derive(Clone, Debug)]
pub struct ListPage<R> {
    pub entries: Vec<ListEntry<R>>,
    pub next: Option<ListCursor>,
}

/// Position of a listing.
#[derive(Clone, Debug)]
pub struct ListCursor {
    remaining: usize,
    /// The lower bound, and the upper; a reversed listing moves the upper one.
    marker: String,
    end_marker: String,
    /// Whether the marker itself is included.
    marker_included: bool,
    marker_given: String,
    prefix: String,
    /// Least text greater than all with the prefix.
    prefix_end: Option<String>,
    delimiter: String,
    path: Option<String>,
    reverse: bool,
    allow_reserved: bool,
    storage_policy_index: i64,
}

/// The least text greater than every text that begins with `text`, if one exists.
fn after_prefix(text: &str) -> Option<String> {
    let mut chars: VecDeque<char> = text.chars().collect();
    while let Some(last) = chars.pop_back() {
        if last < char::MAX {
            let next = u32::from(last) + 1;
            // Surrogates are no characters: skips to the next one.
            chars.push_back(char::from_u32(next).unwrap_or('\u{e000}'));
            return Some(chars.into_iter().collect());
        }
    }
    None
}

impl ListCursor {
    pub fn new(query: ListQuery) -> Self {
        let (mut prefix, mut delimiter) = (query.prefix, query.delimiter);
        let path = query.path.map(|path| {
            if path.is_empty() {
                path
            } else {
                format!("{}/", path.trim_end_matches('/'))
            }
        });
        if let Some(path) = &path {
            prefix.clone_from(path);
            delimiter = "/".into();
        }
        let (marker, end_marker) = if query.reverse {
            (query.end_marker, query.marker)
        } else {
            (query.marker, query.end_marker)
        };
        ListCursor {
            remaining: query.limit,
            marker_given: marker.clone(),
            marker,
            end_marker,
            marker_included: false,
            prefix_end: after_prefix(&prefix),
            prefix,
            delimiter,
            path,
            reverse: query.reverse,
            allow_reserved: query.allow_reserved,
            storage_policy_index: query.storage_policy_index,
        }
    }

    /// Builds the query for up to `limit` rows from the current position.
    fn select(&self, broker: &Broker<'_>, columns: &str, limit: usize) -> (String, Vec<Value>) {
        let mut sql = broker.sql(&format!("SELECT {columns} FROM {{contains}} WHERE "));
        let mut values = Vec::with_capacity(6);
        let mut add = |condition: &str, value: Value| {
            sql.push_str(condition);
            sql.push_str(" AND ");
            values.push(value);
        };
        let text = |text: &String| Value::Text(text.clone());
        let prefix_end = self.prefix_end.as_ref().filter(|_| !self.prefix.is_empty());
        match prefix_end {
            Some(prefix_end) if self.end_marker.is_empty() || self.end_marker >= *prefix_end => {
                add("name < ?", text(prefix_end));
            }
            _ if !self.end_marker.is_empty() => add("name < ?", text(&self.end_marker)),
            _ => {}
        }
        if self.marker_included {
            add("name >= ?", text(&self.marker));
        } else if !self.marker.is_empty() && (self.prefix.is_empty() || self.marker >= self.prefix)
        {
            add("name > ?", text(&self.marker));
        } else if !self.prefix.is_empty() {
            add("name >= ?", text(&self.prefix));
        }
        if !self.allow_reserved {
            add("name >= ?", Value::Text("\u{1}".into()));
        }
        if broker.kind() == DbKind::Container {
            add(
                "storage_policy_index = ?",
                Value::Integer(self.storage_policy_index),
            );
        }
        // The unary plus prevents the use of a partial index.
        sql.push_str(if broker.schema.indexed {
            "deleted = 0"
        } else {
            "+deleted = 0"
        });
        sql.push_str(" ORDER BY name ");
        sql.push_str(if self.reverse {
            "DESC LIMIT ?"
        } else {
            "LIMIT ?"
        });
        values.push(Value::Integer(limit as i64));
        (sql, values)
    }

    /// Reads up to `page_rows` entries, and returns the next cursor.
    fn page<R>(
        mut self,
        broker: &Broker<'_>,
        columns: &str,
        page_rows: usize,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<R>,
    ) -> Result<ListPage<R>> {
        let mut entries = Vec::with_capacity(self.remaining.min(page_rows));
        while self.remaining > 0 && entries.len() < page_rows {
            let limit = self.remaining.min(page_rows - entries.len());
            let (sql, values) = self.select(broker, columns, limit);
            self.marker_included = false;
            let mut query = broker.conn.prepare_cached(&sql)?;
            let mut rows = query.query(params_from_iter(values))?;
            let (mut seen, mut jumped) = (0, false);
            while let Some(row) = rows.next()? {
                seen += 1;
                let name = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
                match self.step(name) {
                    Step::Take => {
                        entries.push(ListEntry::Row(read(row)?));
                        self.remaining -= 1;
                    }
                    Step::Skip => {}
                    Step::Jump(subdir) => {
                        if let Some(subdir) = subdir {
                            entries.push(ListEntry::Subdir(subdir));
                            self.remaining -= 1;
                        }
                        jumped = true;
                        break;
                    }
                    Step::End(subdir) => {
                        entries.extend(subdir.map(ListEntry::Subdir));
                        return Ok(ListPage {
                            entries,
                            next: None,
                        });
                    }
                }
            }
            if !jumped && seen < limit {
                return Ok(ListPage {
                    entries,
                    next: None,
                });
            }
        }
        Ok(ListPage {
            entries,
            next: (self.remaining > 0).then_some(self),
        })
    }

    /// Advances over one name, and classifies it.
    fn step(&mut self, name: &str) -> Step {
        self.move_to(name);
        if self.delimiter.is_empty() {
            return Step::Take;
        }
        let rest = name.get(self.prefix.len()..).unwrap_or("");
        let end = rest
            .find(&self.delimiter)
            .map(|at| self.prefix.len() + at + self.delimiter.len());
        if let Some(path) = &self.path {
            if name == path {
                return Step::Skip;
            }
            // The folder's own marker object is listed; objects in the folder are not.
            return match end.filter(|end| name.len() > *end) {
                Some(end) if self.jump_behind(&name[..end], false) => Step::Jump(None),
                Some(_) => Step::End(None),
                None => Step::Take,
            };
        }
        let Some(end) = end else { return Step::Take };
        let subdir = Some(name[..end].to_owned()).filter(|subdir| *subdir != self.marker_given);
        if self.jump_behind(&name[..end], true) {
            Step::Jump(subdir)
        } else {
            Step::End(subdir)
        }
    }

    fn move_to(&mut self, name: &str) {
        let bound = if self.reverse {
            &mut self.end_marker
        } else {
            &mut self.marker
        };
        bound.clear();
        bound.push_str(name);
    }

    /// Advances past all names that begin with `subdir`; false at the end of the listing.
    fn jump_behind(&mut self, subdir: &str, include_next: bool) -> bool {
        if self.reverse {
            self.move_to(subdir);
            return true;
        }
        let Some(next) = after_prefix(subdir) else {
            return false;
        };
        self.move_to(&next);
        self.marker_included = include_next;
        true
    }
}

enum Step {
    Take,
    Skip,
    /// Continue with a new query, behind a subdir that may have to be listed.
    Jump(Option<String>),
    End(Option<String>),
}

impl ContainerBroker<'_> {
    /// Lists the next page of objects.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn list_objects(
        &self,
        cursor: ListCursor,
        page_rows: usize,
    ) -> Result<ListPage<ObjectEntry>> {
        let columns = "name, created_at, size, content_type, etag";
        cursor.page(&self.0, columns, page_rows, |row| {
            let created_at = row.get_ref(1)?.as_str_or_null()?.unwrap_or_default();
            Ok(ObjectEntry {
                name: row.get(0)?,
                modified: decode_timestamps(created_at).map_or(Timestamp::ZERO, |times| times.2),
                size: row.get::<_, Option<i64>>(2)?.unwrap_or(0),
                content_type: row.get::<_, Option<String>>(3)?.unwrap_or_default(),
                etag: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
            })
        })
    }
}

impl AccountBroker<'_> {
    /// Lists the next page of containers.
    ///
    /// # Errors
    /// As every query: see [`Broker`].
    pub fn list_containers(
        &self,
        cursor: ListCursor,
        page_rows: usize,
    ) -> Result<ListPage<ContainerEntry>> {
        let columns = "name, object_count, bytes_used, put_timestamp, storage_policy_index";
        cursor.page(&self.0, columns, page_rows, |row| {
            let put_timestamp = row.get_ref(3)?.as_str_or_null()?.unwrap_or_default();
            Ok(ContainerEntry {
                name: row.get(0)?,
                object_count: row.get::<_, Option<i64>>(1)?.unwrap_or(0),
                bytes_used: row.get::<_, Option<i64>>(2)?.unwrap_or(0),
                put_timestamp: timestamp(put_timestamp),
                storage_policy_index: row.get::<_, Option<i64>>(4)?.unwrap_or(0),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn text_after_a_prefix() {
        assert_eq!(after_prefix("a/").as_deref(), Some("a0"));
        assert_eq!(after_prefix("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(after_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(after_prefix("\u{10ffff}"), None);
        assert_eq!(after_prefix(""), None);
    }
}
