//! Progress of cleaving one database file, stored in the container's system metadata under the
//! file's id.

use cairn_formats::json_ascii;
use cairn_index::{ContainerBroker, IndexError};
use serde_json::{Value, json};

const PREFIX: &str = "Context-";

/// Cleaving progress of a file. Rows up to `cleave_to_row` belong to this round; those up to
/// `last_cleave_to_row` to earlier ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Context {
    /// Id of the file.
    pub(super) id: String,
    /// Upper bound of the last cleaved range.
    pub(super) cursor: String,
    pub(super) max_row: i64,
    pub(super) cleave_to_row: Option<i64>,
    pub(super) last_cleave_to_row: Option<i64>,
    pub(super) cleaving_done: bool,
    pub(super) misplaced_done: bool,
    pub(super) ranges_done: i64,
    pub(super) ranges_todo: i64,
    /// Seconds spent on replication.
    pub(super) replication_time: f64,
}

impl Context {
    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name).and_then(Value::as_i64);
        let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| {
            let text = value.get(name).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        value.as_object()?;
        Some(Context {
            id: text("ref"),
            cursor: text("cursor"),
            max_row: number("max_row").unwrap_or(-1),
            cleave_to_row: number("cleave_to_row"),
            last_cleave_to_row: number("last_cleave_to_row"),
            cleaving_done: flag("cleaving_done"),
            misplaced_done: flag("misplaced_done"),
            ranges_done: number("ranges_done").unwrap_or(0),
            ranges_todo: number("ranges_todo").unwrap_or(0),
            replication_time: value
                .get("replication_time")
                .and_then(Value::as_f64)
                .unwrap_or(0.0),
        })
    }

    fn to_text(&self) -> String {
        json_ascii::to_string(&json!({
            "ref": self.id, "cursor": self.cursor, "max_row": self.max_row,
            "cleave_to_row": self.cleave_to_row, "last_cleave_to_row": self.last_cleave_to_row,
            "cleaving_done": self.cleaving_done, "misplaced_done": self.misplaced_done,
            "ranges_done": self.ranges_done, "ranges_todo": self.ranges_todo,
            "replication_time": self.replication_time,
        }))
    }

    /// Loads the context of the file being cleaved.
    pub(super) fn load(broker: &ContainerBroker<'_>) -> Result<Self, IndexError> {
        let (id, max_row) = broker.with_source(|source| Ok((source.id()?, source.max_row()?)))?;
        let name = format!("{PREFIX}{id}");
        let saved = broker.sharding_sysmeta()?;
        let saved = saved.iter().find(|(saved, ..)| *saved == name);
        let context = saved.and_then(|(_, value, _)| Context::parse(value));
        Ok(Context {
            id,
            max_row,
            ..context.unwrap_or_default()
        })
    }

    /// All contexts, with the time of their last update.
    pub(super) fn all(broker: &ContainerBroker<'_>) -> Result<Vec<(Self, String)>, IndexError> {
        let saved = broker.sharding_sysmeta()?;
        let contexts = saved.into_iter().filter_map(|(name, value, time)| {
            name.strip_prefix(PREFIX)?;
            Some((Context::parse(&value)?, time))
        });
        Ok(contexts.collect())
    }

    pub(super) fn store(&self, broker: &ContainerBroker<'_>) -> Result<(), IndexError> {
        broker.set_sharding_sysmeta(&format!("{PREFIX}{}", self.id), &self.to_text())
    }

    pub(super) fn delete(&self, broker: &ContainerBroker<'_>) -> Result<(), IndexError> {
        broker.set_sharding_sysmeta(&format!("{PREFIX}{}", self.id), "")
    }

    /// Marker from which the next ranges are listed.
    pub(super) fn marker(&self) -> String {
        format!("{}\0", self.cursor)
    }

    /// Starts another round for rows added since.
    pub(super) fn reset(&mut self) {
        *self = Context {
            id: std::mem::take(&mut self.id),
            max_row: self.max_row,
            cleave_to_row: self.cleave_to_row,
            last_cleave_to_row: self.cleave_to_row,
            ..Context::default()
        };
    }

    pub(super) fn start(&mut self, from: &str) {
        self.cursor = from.to_owned();
        self.ranges_done = 0;
        self.ranges_todo = 0;
        self.cleaving_done = false;
        self.cleave_to_row = Some(self.max_row);
        self.replication_time = 0.0;
    }

    pub(super) fn range_done(&mut self, upper: &str) {
        self.ranges_done += 1;
        self.ranges_todo -= 1;
        self.cursor = upper.to_owned();
    }

    pub(super) fn is_done(&self) -> bool {
        self.misplaced_done && self.cleaving_done && self.cleave_to_row == Some(self.max_row)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rounds() {
        let mut context = Context {
            id: "id".into(),
            max_row: 7,
            ..Context::default()
        };
        context.start("");
        context.range_done("é");
        context.cleaving_done = true;
        context.misplaced_done = true;
        assert!(context.is_done());
        assert_eq!(Context::parse(&context.to_text()).unwrap(), context);
        // A row was added meanwhile.
        context.max_row = 8;
        assert!(!context.is_done());
        context.reset();
        assert_eq!(context.last_cleave_to_row, Some(7));
        assert!(context.cursor.is_empty() && !context.misplaced_done);
        // In the form of OpenStack Swift.
        let text = r#"{"ref": "x", "cursor": "m", "max_row": 3, "cleave_to_row": null,
            "last_cleave_to_row": null, "cleaving_done": false, "misplaced_done": true,
            "ranges_done": 1, "ranges_todo": 2, "replication_time": 0}"#;
        assert!(Context::parse(text).unwrap().misplaced_done);
        assert!(Context::parse("[]").is_none());
    }
}
