//! A submitted workload: its file, its target store, and modified parameters.

use cairn_lab::footprint::{Footprint, LocalAccess};
use cairn_lab::workload::{self, Workload};
use serde::Deserialize;

use crate::status::Refusal;

/// Maximum size of a workload file; the largest published ones have 300 KB.
pub(crate) const WORKLOAD_BYTES: usize = 4 << 20;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Submission {
    /// Name of the run; if empty, that of the file.
    #[serde(default)]
    pub(crate) name: String,
    /// The file's name, whose extension may determine the format.
    pub(crate) file_name: String,
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) target: Target,
    #[serde(default)]
    pub(crate) seed: Option<u64>,
    /// Factor for all times of the workload.
    #[serde(default)]
    pub(crate) time_scale: Option<f64>,
}

/// The store that the workload runs on.
#[derive(Clone, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Target {
    /// As stated in the workload file.
    #[default]
    File,
    /// The store beside this console, as the user who is signed in to it.
    Store,
    /// Another store or account.
    Url {
        url: String,
        #[serde(default)]
        user: String,
        #[serde(default)]
        key: String,
    },
}

/// A parsed workload that can be run, and the resources that the run uses.
pub(crate) struct Read {
    pub(crate) workload: Workload,
    pub(crate) footprint: Footprint,
}

impl Submission {
    /// Refuses invalid fields; [`Submission::read`] validates the workload.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let plain = |name: &str| {
            !name.is_empty()
                && name.len() <= 120
                && !name.starts_with('.')
                && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control())
        };
        if !plain(&self.file_name) {
            return Err(Refusal::field(
                "file_name",
                format!(
                    "file name {:?}: expected a plain name of at most 120 bytes, such as \
                     workload.xml",
                    self.file_name
                ),
            ));
        }
        if self.name.len() > 200 || self.name.contains(char::is_control) {
            return Err(Refusal::field(
                "name",
                "name: at most 200 bytes on one line",
            ));
        }
        if self.text.trim().is_empty() {
            return Err(Refusal::field(
                "text",
                "workload: it is empty; paste or upload one",
            ));
        }
        if self.text.len() > WORKLOAD_BYTES {
            let length = self.text.len();
            return Err(Refusal::field(
                "text",
                format!("workload: {length} bytes; at most {WORKLOAD_BYTES} are taken"),
            ));
        }
        if let Some(scale) = self.time_scale
            && !(scale > 0.0 && scale <= 1000.0)
        {
            return Err(Refusal::field(
                "time_scale",
                format!("time factor {scale}: expected a number above 0, at most 1000"),
            ));
        }
        if let Target::Url { url, user, key } = &self.target {
            let bad = |text: &str| text.len() > 2000 || text.contains(char::is_control);
            if url.trim().is_empty() || bad(url) || url.starts_with('-') {
                return Err(Refusal::field(
                    "url",
                    "target: expected a URL, such as http://127.0.0.1:8080/auth/v1.0",
                ));
            }
            if has_credentials(url) {
                return Err(Refusal::field(
                    "url",
                    "target: leave user and key out of the URL; they have fields of their own",
                ));
            }
            for (field, value) in [("user", user), ("key", key)] {
                if bad(value) {
                    return Err(Refusal::field(
                        field,
                        format!("{field}: at most 2000 bytes on one line"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Parses the workload like the lab, with `url` replacing its store: an error in it is reported
    /// at once with its position, and so is a local file that runs may not use.
    pub(crate) fn read(&self, url: Option<&str>, local: &LocalAccess) -> Result<Read, Refusal> {
        let options = workload::Options::default();
        let mut workload = workload::read(&self.file_name, self.text.as_bytes(), &options)
            .map_err(|error| Refusal::field("text", error.to_string()))?;
        let target = workload::Target {
            url: url.map(str::to_owned),
            ..workload::Target::default()
        };
        target
            .apply(&mut workload.plan)
            .map_err(|error| Refusal::field("url", error.to_string()))?;
        let footprint = Footprint::of(&workload.plan);
        local
            .check(&footprint)
            .map_err(|error| Refusal::no_local_access(error.to_string()))?;
        Ok(Read {
            workload,
            footprint,
        })
    }

    pub(crate) fn title(&self) -> String {
        match self.name.trim() {
            "" => match self.file_name.rsplit_once('.') {
                Some((stem, _)) if !stem.is_empty() => stem.to_owned(),
                _ => self.file_name.clone(),
            },
            name => name.to_owned(),
        }
    }
}

fn has_credentials(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    authority.split('/').next().is_some_and(|a| a.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(json: serde_json::Value) -> Submission {
        serde_json::from_value(json).expect("a submission")
    }

    #[test]
    fn what_is_refused() {
        use serde_json::json;
        let good = json!({"file_name": "w.xml", "text": "<workload/>"});
        assert!(submission(good.clone()).check().is_ok());
        assert_eq!(submission(good).title(), "w");
        for (field, json) in [
            ("file_name", json!({"file_name": "../w", "text": "x"})),
            ("file_name", json!({"file_name": ".ssh", "text": "x"})),
            ("text", json!({"file_name": "w", "text": " \n"})),
            (
                "url",
                json!({"file_name": "w", "text": "x", "target": {"kind": "url", "url": ""}}),
            ),
            (
                "url",
                json!({"file_name": "w", "text": "x",
                       "target": {"kind": "url", "url": "http://a:b@c/d"}}),
            ),
            (
                "key",
                json!({"file_name": "w", "text": "x",
                       "target": {"kind": "url", "url": "http://c/d", "key": "a\nb"}}),
            ),
        ] {
            let refusal = submission(json).check().expect_err(field);
            assert_eq!(refusal.field, Some(field), "{refusal:?}");
        }
    }
}
