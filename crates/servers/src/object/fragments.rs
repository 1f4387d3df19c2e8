//! Headers about fragments of erasure-coded objects: preferences, and fragments found.

use std::fmt::Write;

use cairn_disk::{FragmentChoice, FragmentInfo, FragmentPreference};
use cairn_http::respond::header;
use cairn_types::Timestamp;
use http::HeaderMap;
use serde_json::Value;

use super::status::Refusal;

const PREFERENCES: &str = "X-Backend-Fragment-Preferences";
const SSYNC_INDEX: &str = "X-Backend-Ssync-Frag-Index";

/// Parses preferences: `[{"timestamp": "…", "exclude": [1, 3]}, …]`. If present, even if empty, a
/// fragment need not be durable. Invalid JSON is ignored.
pub(super) fn preferred(headers: &HeaderMap) -> Result<FragmentChoice, Refusal> {
    let text = header(headers, "x-backend-fragment-preferences");
    let value: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
    let preferences = match value {
        None | Some(Value::Null) => None,
        Some(value) => Some(preferences(&value).ok_or_else(|| {
            Refusal::BadRequest(format!(
                "{PREFERENCES}: expected a list of \
                 {{\"timestamp\": \"…\", \"exclude\": [<fragment index>, …]}}"
            ))
        })?),
    };
    Ok(FragmentChoice {
        index: None,
        preferences,
    })
}

fn preferences(value: &Value) -> Option<Vec<FragmentPreference>> {
    let preference = |item: &Value| {
        let timestamp = match item.get("timestamp")? {
            Value::String(text) => Timestamp::parse(text).ok()?,
            Value::Number(number) => Timestamp::parse(&number.to_string()).ok()?,
            _ => return None,
        };
        let exclude = item.get("exclude")?.as_array()?.iter();
        let exclude: Option<Vec<u32>> = exclude.map(index_of).collect();
        Some(FragmentPreference {
            timestamp,
            exclude: exclude?,
        })
    };
    value.as_array()?.iter().map(preference).collect()
}

fn index_of(value: &Value) -> Option<u32> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => u32::try_from(value.as_u64()?).ok(),
    }
}

/// The fragment index of a replicator's request.
pub(super) fn ssync_index(headers: &HeaderMap) -> Result<Option<u32>, Refusal> {
    match header(headers, "x-backend-ssync-frag-index") {
        None | Some("" | "None") => Ok(None),
        Some(text) => match text.trim().parse() {
            Ok(index) => Ok(Some(index)),
            Err(_) => Err(Refusal::BadRequest(format!(
                "Invalid {SSYNC_INDEX} '{text}': expected a number"
            ))),
        },
    }
}

/// Value of `X-Backend-Fragments`: all fragments of an object on this device.
pub(super) fn found(info: &FragmentInfo) -> String {
    let mut text = String::from("{");
    for (timestamp, indices) in &info.found {
        if text.len() > 1 {
            text.push_str(", ");
        }
        let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
        let _ = write!(text, "\"{timestamp}\": [{}]", indices.join(", "));
    }
    text.push('}');
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<FragmentChoice, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert("x-backend-fragment-preferences", text.parse().unwrap());
        preferred(&headers)
    }

    #[test]
    fn preferences_are_read() {
        assert_eq!(read("no json").unwrap(), FragmentChoice::default());
        assert_eq!(read("[]").unwrap().preferences, Some(vec![]));
        let one = read("[{\"timestamp\": \"0000000008.00000\", \"exclude\": [1, \"3\"]}]");
        let expected = FragmentPreference {
            timestamp: Timestamp::from_secs(8),
            exclude: vec![1, 3],
        };
        assert_eq!(one.unwrap().preferences, Some(vec![expected]));
        for text in ["{}", "[1]", "[{\"timestamp\": \"x\", \"exclude\": []}]"] {
            let Err(Refusal::BadRequest(reason)) = read(text) else {
                panic!("{text}");
            };
            assert!(reason.contains(PREFERENCES));
        }
    }

    #[test]
    fn fragments_are_told_newest_first() {
        let info = FragmentInfo {
            index: 2,
            durable: None,
            deleted: None,
            found: vec![
                (Timestamp::from_secs(8), vec![0, 2]),
                (Timestamp::from_secs(7), vec![1]),
            ],
        };
        assert_eq!(
            found(&info),
            "{\"0000000008.00000\": [0, 2], \"0000000007.00000\": [1]}"
        );
    }
}
