//! The rates of a conf, and their reloading from a file.

use cairn_formats::ini::{Conf, ConfError, Section};
use http::Method;
use parking_lot::MutexGuard;
use tracing::{debug, info, warn};

use super::{Shared, State};

/// Limited methods, in the order of their rates in [`Limits`].
const METHODS: [&str; 7] = [
    "GET",
    "HEAD",
    "PUT",
    "POST",
    "DELETE",
    "UPDATE",
    "REPLICATE",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitedMethod(usize);

impl LimitedMethod {
    pub(super) fn of(method: &Method) -> Option<LimitedMethod> {
        let index = METHODS.iter().position(|m| *m == method.as_str())?;
        Some(LimitedMethod(index))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limits {
    /// Requests per second of all methods together; 0: no limit.
    in_all: f64,
    by_method: [f64; METHODS.len()],
    pub(super) buffer_seconds: f64,
}

impl Limits {
    pub(super) fn read(section: &Section) -> Result<Limits, ConfError> {
        let all = "requests_per_device_per_second";
        let mut by_method = [0.0; METHODS.len()];
        for (rate, method) in by_method.iter_mut().zip(METHODS) {
            let option = format!("{}_{all}", method.to_lowercase());
            *rate = non_negative(section, &option, 0.0)?;
        }
        Ok(Limits {
            in_all: non_negative(section, all, 0.0)?,
            by_method,
            buffer_seconds: non_negative(section, "requests_per_device_rate_buffer", 1.0)?,
        })
    }

    pub(super) fn are_off(&self) -> bool {
        self.in_all == 0.0 && self.by_method.iter().all(|rate| *rate == 0.0)
    }

    /// The rate of a method; `None`: of all methods together.
    pub(super) fn rate(&self, method: Option<LimitedMethod>) -> f64 {
        method.map_or(self.in_all, |method| self.by_method[method.0])
    }
}

fn non_negative(section: &Section, option: &str, default: f64) -> Result<f64, ConfError> {
    let number = section.f64_or(option, default)?;
    if number < 0.0 {
        return Err(section.bad(option, "expected 0 (no limit) or more"));
    }
    Ok(number)
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes over the file's current rates; rates no longer in the file are dropped. Reads a file,
    /// so it must not be called on the event loop.
    pub(super) fn load_file(&self) {
        let path = self.conf_path.display().to_string();
        let text = match std::fs::read_to_string(&self.conf_path) {
            Ok(text) => text,
            Err(error) => {
                let mut state = self.state();
                if std::mem::take(&mut state.is_file_expected) {
                    warn!(path, %error, "the rates' conf cannot be read; they stay as they are");
                }
                return;
            }
        };
        match self.with_file(&path, &text) {
            Err(error) => {
                warn!(path, %error, "the rates' conf is not valid; they stay as they are")
            }
            Ok(limits) => {
                let mut state = self.state();
                if limits != state.limits {
                    info!(path, "rates read from the conf");
                    state.limits = limits;
                } else {
                    debug!(path, "the rates' conf is unchanged");
                }
                state.is_file_expected = true;
            }
        }
    }

    /// The filter's section, overridden by the file's options.
    fn with_file(&self, path: &str, text: &str) -> Result<Limits, ConfError> {
        let file = Conf::parse(path, text)?.section("backend_ratelimit")?;
        let pairs: Vec<(&str, &str)> = self.section.iter().chain(file.iter()).collect();
        Limits::read(&Section::from_pairs("backend_ratelimit", &pairs))
    }
}
