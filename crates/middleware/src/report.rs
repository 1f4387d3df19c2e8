//! Reports of long operations, as text, JSON or XML: fields by name, then errors. Used by bulk
//! operations, heartbeats and the deletion of large objects.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::accept::best_match;

/// Content types of a report, the default first.
pub(crate) const FORMATS: [&str; 4] = [
    "text/plain",
    "application/json",
    "application/xml",
    "text/xml",
];

/// The best format for an `Accept`; `None` if none is acceptable, or the header is malformed.
pub(crate) fn format_for(accept: Option<&str>) -> Option<&'static str> {
    best_match(accept, &FORMATS).ok().flatten()
}

/// The content of a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) facts: BTreeMap<String, Value>,
    /// Quoted names and their errors.
    pub(crate) errors: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.facts.insert(name.into(), value.into());
    }

    /// Renders the report in one of [`FORMATS`]; any other is text. `root` is the name of the XML's
    /// outermost element.
    pub(crate) fn render(&self, format: &str, root: &str) -> String {
        match format {
            "application/json" => self.json(),
            xml if xml.ends_with("/xml") => self.xml(root),
            _ => self.text(),
        }
    }

    fn json(&self) -> String {
        let mut all: serde_json::Map<String, Value> = self.facts.clone().into_iter().collect();
        let errors = self.errors.iter();
        let errors: Vec<Value> = errors
            .map(|(name, status)| Value::from(vec![name.as_str(), status.as_str()]))
            .collect();
        all.insert("Errors".into(), errors.into());
        Value::Object(all).to_string()
    }

    fn xml(&self, root: &str) -> String {
        let mut out = format!("<{root}>\n");
        for (name, value) in &self.facts {
            let name = name.replace(' ', "_").to_lowercase();
            out.push_str(&format!("<{name}>{}</{name}>\n", escape(&plain(value))));
        }
        out.push_str("<errors>\n");
        for (name, status) in &self.errors {
            out.push_str(&format!(
                "<object><name>{}</name><status>{}</status></object>\n",
                escape(name),
                escape(status)
            ));
        }
        out.push_str(&format!("</errors>\n</{root}>\n"));
        out
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.facts {
            out.push_str(&format!("{name}: {}\n", plain(value)));
        }
        out.push_str("Errors:\n");
        for (name, status) in &self.errors {
            out.push_str(&format!("{name}, {status}\n"));
        }
        out
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format() {
        let mut report = Report::default();
        report.set("Response Status", "400 Bad Request");
        report.set("Number Deleted", 2);
        report.errors.push(("a<b".into(), "404 Not Found".into()));
        assert_eq!(
            report.render("text/plain", "delete"),
            "Number Deleted: 2\nResponse Status: 400 Bad Request\nErrors:\na<b, 404 Not Found\n"
        );
        assert_eq!(
            report.render("application/json", "delete"),
            r#"{"Errors":[["a<b","404 Not Found"]],"Number Deleted":2,"Response Status":"400 Bad Request"}"#
        );
        assert_eq!(
            report.render("text/xml", "delete"),
            "<delete>\n<number_deleted>2</number_deleted>\n<response_status>400 Bad Request\
             </response_status>\n<errors>\n<object><name>a&lt;b</name><status>404 Not Found\
             </status></object>\n</errors>\n</delete>\n"
        );
    }
}
