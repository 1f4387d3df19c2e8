//! Conf files and swift.conf.
#![no_main]

use cairn_formats::ini::Conf;
use cairn_formats::swift_conf::SwiftConf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = SwiftConf::parse("fuzz", bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(conf) = Conf::parse("fuzz", text) else { return };
    for name in conf.section_names() {
        let section = conf.section_or_defaults(name);
        for (option, _) in section.iter() {
            let _ = section.bool_or(option, false);
            let _ = section.u64_or(option, 0);
            let _ = section.seconds_or(option, 0.0);
            let _ = section.list_or(option, "");
        }
    }
});
