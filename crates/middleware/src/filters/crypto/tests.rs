#![allow(clippy::unwrap_used)]

use cairn_formats::ini::Section;

use crate::build;
use crate::testing::{answers, env};

/// A pipeline with these keymasters must not start: without keys nothing would be encrypted.
#[test]
fn keymasters_that_are_not_built_refuse_and_name_the_remedy() {
    for (name, option) in [
        ("kmip_keymaster", "host"),
        ("kms_keymaster", "auth_endpoint"),
    ] {
        let section = Section::from_pairs(&format!("filter:{name}"), &[(option, "kms.example")]);
        let refused = build(name, &section, answers(200), &env()).map(|_| ());
        let words = refused.unwrap_err().to_string();
        for part in [
            name,
            "is not built",
            "Use keymaster",
            "keymaster_config_path",
        ] {
            assert!(words.contains(part), "{name}: {words}");
        }
    }
}
