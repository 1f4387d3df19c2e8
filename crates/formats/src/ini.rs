//! Swift's conf files: INI with a `[DEFAULT]` section, `set key = value`, continuation lines and
//! `%(name)s`, as Python's ConfigParser and Paste Deploy read them. Option names keep their case.
//!
//! The errors of the typed getters on [`Section`] name the file, section, option and value.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

/// Maximum size of a conf file.
pub const MAX_CONF_BYTES: usize = 4 << 20;

/// Reasons why a conf file is refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ConfError {
    #[error("{file}: line {line}: {what}")]
    Syntax {
        file: String,
        line: usize,
        what: String,
    },
    #[error("{file}: [{section}] {option} = {value:?}: {remedy}")]
    Value {
        file: String,
        section: String,
        option: String,
        value: String,
        remedy: String,
    },
    #[error("{file}: [{section}] {option} is missing: {remedy}")]
    Missing {
        file: String,
        section: String,
        option: String,
        remedy: String,
    },
    #[error("{file}: there is no section [{section}]")]
    NoSection { file: String, section: String },
}

/// A parsed conf file, or a folder of them read as one.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    file: String,
    defaults: BTreeMap<String, String>,
    sections: BTreeMap<String, BTreeMap<String, String>>,
}

/// One section, on top of the defaults.
#[derive(Clone, Debug, Default)]
pub struct Section {
    file: String,
    name: String,
    options: BTreeMap<String, String>,
}

impl Conf {
    /// Parses one file's text; `file` is its name for errors.
    ///
    /// # Errors
    /// `Syntax` as from [`Conf::merge`].
    pub fn parse(file: &str, text: &str) -> Result<Conf, ConfError> {
        let mut conf = Conf {
            file: file.to_owned(),
            ..Conf::default()
        };
        conf.merge(file, text)?;
        Ok(conf)
    }

    /// Adds another file's text (a conf.d folder): later options win.
    ///
    /// # Errors
    /// `Syntax` for a text over the size limit, a section's head without `]`, an option without `=`
    /// or name, or a line before the first section.
    pub fn merge(&mut self, file: &str, text: &str) -> Result<(), ConfError> {
        let syntax = |line: usize, what: String| ConfError::Syntax {
            file: file.to_owned(),
            line: line + 1,
            what,
        };
        if text.len() > MAX_CONF_BYTES {
            return Err(syntax(0, format!("larger than {MAX_CONF_BYTES} bytes")));
        }
        let mut section: Option<String> = None;
        let mut last: Option<String> = None;
        for (number, raw) in text.lines().enumerate() {
            let line = raw.trim_end();
            let body = line.trim_start();
            if body.is_empty() || body.starts_with(['#', ';']) {
                continue;
            }
            let indented = body.len() < line.len();
            if let (true, Some(option), Some(section)) = (indented, &last, &section) {
                if let Some(value) = self.options_mut(section).get_mut(option) {
                    value.push('\n');
                    value.push_str(body);
                }
                continue;
            }
            if let Some(rest) = body.strip_prefix('[') {
                let name = rest.split(']').next().filter(|n| n.len() < rest.len());
                let name = name.ok_or_else(|| {
                    syntax(number, format!("section head without ']': {}", shown(body)))
                })?;
                self.options_mut(name);
                section = Some(name.to_owned());
                last = None;
                continue;
            }
            let Some(section) = &section else {
                let what = format!("expected a [section] before: {}", shown(body));
                return Err(syntax(number, what));
            };
            let Some(cut) = body.find(['=', ':']) else {
                return Err(syntax(
                    number,
                    format!("expected 'option = value': {}", shown(body)),
                ));
            };
            let option = body[..cut].trim().to_owned();
            if option.is_empty() {
                return Err(syntax(
                    number,
                    format!("no option name before '=': {}", shown(body)),
                ));
            }
            let value = body[cut + 1..].trim().to_owned();
            self.options_mut(section).insert(option.clone(), value);
            last = Some(option);
        }
        Ok(())
    }

    fn options_mut(&mut self, section: &str) -> &mut BTreeMap<String, String> {
        if section == "DEFAULT" {
            &mut self.defaults
        } else {
            self.sections.entry(section.to_owned()).or_default()
        }
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn section_names(&self) -> impl Iterator<Item = &str> {
        self.sections.keys().map(String::as_str)
    }

    pub fn has_section(&self, name: &str) -> bool {
        self.sections.contains_key(name)
    }

    /// The section `[DEFAULT]` alone.
    pub fn defaults(&self) -> Section {
        self.build("DEFAULT", None)
    }

    /// A section that must exist.
    ///
    /// # Errors
    /// `NoSection` if there is none of this name.
    pub fn section(&self, name: &str) -> Result<Section, ConfError> {
        match self.sections.get(name) {
            Some(own) => Ok(self.build(name, Some(own))),
            None => Err(ConfError::NoSection {
                file: self.file.clone(),
                section: name.into(),
            }),
        }
    }

    /// A section, or only the defaults if it does not exist.
    pub fn section_or_defaults(&self, name: &str) -> Section {
        self.build(name, self.sections.get(name))
    }

    fn build(&self, name: &str, own: Option<&BTreeMap<String, String>>) -> Section {
        let mut options = self.defaults.clone();
        // Paste Deploy: a plain option of a section does not override a default, `set option` does.
        // Daemons' sections (read without Paste) override by plain options; if both forms are
        // present, `set` wins.
        for (option, value) in own.into_iter().flatten() {
            if !option.starts_with("set ") {
                options.insert(option.clone(), value.clone());
            }
        }
        for (option, value) in own.into_iter().flatten() {
            if let Some(option) = option.strip_prefix("set ") {
                options.insert(option.trim().to_owned(), value.clone());
            }
        }
        let resolved = options
            .iter()
            .map(|(option, value)| (option.clone(), interpolate(value, &options, 0, &mut 1000)))
            .collect();
        Section {
            file: self.file.clone(),
            name: name.to_owned(),
            options: resolved,
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Replaces `%(name)s` by an option of the same section; an unknown name stays as it is. `budget`
/// is the number of substitutions left, which bounds options that refer to each other.
fn interpolate(
    value: &str,
    options: &BTreeMap<String, String>,
    depth: usize,
    budget: &mut usize,
) -> String {
    if depth > 8 || !value.contains("%(") {
        return value.to_owned();
    }
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(start) = rest.find("%(") {
        out.push_str(&rest[..start]);
        let after = &rest[start + 2..];
        match after.find(")s") {
            Some(end) if options.contains_key(&after[..end]) && *budget > 0 => {
                *budget -= 1;
                out.push_str(&interpolate(
                    &options[&after[..end]],
                    options,
                    depth + 1,
                    budget,
                ));
                rest = &after[end + 2..];
            }
            _ => {
                out.push_str("%(");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

impl Section {
    /// Makes a section in code, for tests and defaults.
    pub fn from_pairs(name: &str, pairs: &[(&str, &str)]) -> Section {
        Section {
            file: "(built in)".into(),
            name: name.into(),
            options: pairs
                .iter()
                .map(|(o, v)| ((*o).into(), (*v).into()))
                .collect(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the conf file, for errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(o, v)| (o.as_str(), v.as_str()))
    }

    pub fn get(&self, option: &str) -> Option<&str> {
        self.options.get(option).map(String::as_str)
    }

    pub fn str_or<'a>(&'a self, option: &str, default: &'a str) -> &'a str {
        self.get(option).unwrap_or(default)
    }

    /// The value of an option that must be given; `remedy` is advice for the error.
    ///
    /// # Errors
    /// `Missing` if it is not given, or is empty.
    pub fn required(&self, option: &str, remedy: &str) -> Result<&str, ConfError> {
        self.get(option)
            .filter(|v| !v.is_empty())
            .ok_or_else(|| ConfError::Missing {
                file: self.file.clone(),
                section: self.name.clone(),
                option: option.into(),
                remedy: remedy.into(),
            })
    }

    /// An error about one option's value.
    pub fn bad(&self, option: &str, remedy: impl Into<String>) -> ConfError {
        ConfError::Value {
            file: self.file.clone(),
            section: self.name.clone(),
            option: option.into(),
            value: self.get(option).unwrap_or("").into(),
            remedy: remedy.into(),
        }
    }

    /// Swift's texts for true; every other text is false.
    pub fn bool_or(&self, option: &str, default: bool) -> bool {
        self.get(option).map_or(default, |v| {
            ["true", "1", "yes", "on", "t", "y"]
                .iter()
                .any(|w| v.eq_ignore_ascii_case(w))
        })
    }

    /// A whole number; `default` if the option is absent or empty.
    ///
    /// # Errors
    /// `Value` for a text that is no whole number of 0 or more, or one over 64 bits.
    pub fn u64_or(&self, option: &str, default: u64) -> Result<u64, ConfError> {
        match self.get(option) {
            None | Some("") => Ok(default),
            Some(text) => text
                .trim()
                .parse()
                .map_err(|_| self.bad(option, "expected a whole number, 0 or more")),
        }
    }

    /// As [`Section::u64_or`], for sizes and counts.
    ///
    /// # Errors
    /// `Value` as [`Section::u64_or`].
    pub fn usize_or(&self, option: &str, default: usize) -> Result<usize, ConfError> {
        Ok(self.u64_or(option, default as u64)? as usize)
    }

    /// A number, possibly fractional; `default` if the option is absent or empty.
    ///
    /// # Errors
    /// `Value` for a text that is no finite number.
    pub fn f64_or(&self, option: &str, default: f64) -> Result<f64, ConfError> {
        match self.get(option) {
            None | Some("") => Ok(default),
            Some(text) => match text.trim().parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(number),
                _ => Err(self.bad(option, "expected a number")),
            },
        }
    }

    /// A duration in seconds, possibly fractional.
    ///
    /// # Errors
    /// `Value` for a text that is no number, and for a negative or too large one.
    pub fn seconds_or(&self, option: &str, default: f64) -> Result<Duration, ConfError> {
        let seconds = self.f64_or(option, default)?;
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| self.bad(option, "expected a number of seconds, 0 or more"))
    }

    /// A comma-separated list without blanks around items; empty items are dropped.
    pub fn list_or(&self, option: &str, default: &str) -> Vec<String> {
        self.str_or(option, default)
            .split(',')
            .map(|item| item.trim().to_owned())
            .filter(|item| !item.is_empty())
            .collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# a comment
[DEFAULT]
bind_port = 6200
log_name = x

[app:object-server]
use = egg:swift#object
set log_name = y-%(bind_port)s
allowed = a,
    b
user_Test_tester = testing .admin
";

    #[test]
    fn reads_swift_style() {
        let conf = Conf::parse("object-server.conf", SAMPLE).unwrap();
        let app = conf.section("app:object-server").unwrap();
        assert_eq!(app.get("log_name"), Some("y-6200"));
        assert_eq!(app.get("user_Test_tester"), Some("testing .admin"));
        assert_eq!(app.list_or("allowed", ""), ["a", "b"]);
        assert_eq!(app.u64_or("bind_port", 0), Ok(6200));
        assert!(!app.bool_or("mount_check", false));
    }

    #[test]
    fn errors_name_the_place() {
        let text = Conf::parse("f", "x = 1").unwrap_err().to_string();
        assert_eq!(text, "f: line 1: expected a [section] before: x = 1");
        let conf = Conf::parse("f", "[a]\nn = many").unwrap();
        let text = conf
            .section("a")
            .unwrap()
            .u64_or("n", 1)
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "f: [a] n = \"many\": expected a whole number, 0 or more"
        );
        assert!(conf.section("b").is_err());
    }

    #[test]
    fn interpolation_is_bounded() {
        let conf = Conf::parse("f", "[a]\nx = %(x)s%(x)s\ny = %(z)s").unwrap();
        assert_eq!(conf.section("a").unwrap().get("y"), Some("%(z)s"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*|[\\[\\]=:%()s a\n]{0,200}") {
            if let Ok(conf) = Conf::parse("f", &text) {
                for name in conf.section_names().map(str::to_owned).collect::<Vec<_>>() {
                    let _ = conf.section(&name);
                }
            }
        }
    }
}
