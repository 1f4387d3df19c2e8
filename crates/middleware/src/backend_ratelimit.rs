//! `egg:swift#backend_ratelimit`: passes everything, as Swift's does while no rate is set, which
//! is how the backends' sample confs have it. Where a rate may be set, in the section or in the
//! filter's own conf file, the filter is refused as not built: a limit must not go unheeded.
//!
//! Options (default): `backend_ratelimit_conf_path` (`backend-ratelimit.conf` in `swift_dir`),
//! `requests_per_device_per_second` and the same for each method,
//! `put_requests_per_device_per_second` and so on (0: no limit). A conf file that appears while
//! the server runs, which Swift would load, is not looked for.

use std::path::{Path, PathBuf};

use cairn_formats::ini::{ConfError, Section};
use cairn_http::Handler;

use crate::{FilterEnv, FilterError};

const METHODS: [&str; 7] = [
    "get",
    "head",
    "put",
    "post",
    "delete",
    "update",
    "replicate",
];

pub(crate) fn make(
    section: &Section,
    next: Handler,
    _: &FilterEnv,
) -> Result<Handler, FilterError> {
    if sets_a_rate(section)? || conf_path(section).exists() {
        let name = "backend_ratelimit".to_owned();
        return Err(FilterError::NotYet { name });
    }
    Ok(next)
}

fn conf_path(section: &Section) -> PathBuf {
    match section.get("backend_ratelimit_conf_path") {
        Some(path) => path.into(),
        None => Path::new(section.str_or("swift_dir", "/etc/swift")).join("backend-ratelimit.conf"),
    }
}

fn sets_a_rate(section: &Section) -> Result<bool, ConfError> {
    let all = "requests_per_device_per_second";
    let options = METHODS.iter().map(|method| format!("{method}_{all}"));
    let mut any = false;
    for option in options.chain([all.to_owned()]) {
        let rate = section.f64_or(&option, 0.0)?;
        if rate < 0.0 {
            return Err(section.bad(&option, "expected 0 (no limit) or more"));
        }
        any |= rate > 0.0;
    }
    Ok(any)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{build, testing};

    #[test]
    fn passes_only_where_no_rate_may_be_set() {
        let folder = tempfile::tempdir().unwrap();
        let swift_dir = folder.path().to_str().unwrap();
        let made = |option: &str, value: &str| {
            let pairs = [("swift_dir", swift_dir), (option, value)];
            let section = Section::from_pairs("filter:backend_ratelimit", &pairs);
            let next = testing::answers(200);
            build("backend_ratelimit", &section, next, &testing::env()).map(|_| ())
        };
        let not_yet = |result| matches!(result, Err(FilterError::NotYet { .. }));
        assert!(made("requests_per_device_per_second", "0.0").is_ok());
        assert!(made("requests_per_device_rate_buffer", "2").is_ok());
        assert!(not_yet(made("requests_per_device_per_second", "10")));
        assert!(not_yet(made("put_requests_per_device_per_second", "0.5")));
        let bad = made("get_requests_per_device_per_second", "-1");
        assert!(matches!(bad, Err(FilterError::Conf(_))));

        std::fs::write(folder.path().join("backend-ratelimit.conf"), "").unwrap();
        assert!(not_yet(made("config_reload_interval", "60")));
        let elsewhere = folder.path().join("none.conf");
        let path = elsewhere.to_str().unwrap();
        assert!(made("backend_ratelimit_conf_path", path).is_ok());
    }
}
