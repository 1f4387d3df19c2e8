//! Paths and query strings of requests.
#![no_main]

use cairn_http::params::{Params, quote, split_path, unquote, with_path_and_query};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    if let Ok(params) = Params::parse(Some(query)) {
        let again = Params::parse(Some(&params.encode()));
        assert_eq!(again.as_ref(), Ok(&params), "parameters survive being encoded");
    }
    if let Ok(path) = unquote(path) {
        assert_eq!(unquote(&quote(&path)).as_ref(), Ok(&path), "a path survives being quoted");
        for rest in [false, true] {
            if let Some(parts) = split_path(&path, 1, 3, rest) {
                assert_eq!(parts.len(), 3);
            }
        }
        let _ = with_path_and_query(&path, Some("format=json"));
    }
});
