//! Workload files of every format; and what is written of one is read as the same.
#![no_main]

use cairn_lab::workload::{Format, Options, read, to_toml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut formats = vec![None];
    formats.extend(Format::ALL.map(Some));
    for format in formats {
        let options = Options {
            format,
            ..Options::default()
        };
        match read("fuzz", bytes, &options) {
            Ok(workload) => {
                let written = to_toml(&workload.plan);
                let again = read("again", written.as_bytes(), &Options::default());
                // A plan may be larger written out than a file may be.
                if let Ok(again) = again {
                    assert_eq!(again.plan, workload.plan);
                } else {
                    assert!(written.len() > 1 << 20, "{again:?}\n{written}");
                }
            }
            Err(error) => {
                assert!(error.line > 0 && error.column > 0);
                assert!(!error.to_string().is_empty());
            }
        }
    }
});
