//! Listings that come from container and account servers, turned into other forms; and the ACLs
//! that decide who may see them.
#![no_main]

use cairn_formats::acl::{Acl, clean_acl, parse_account_acl};
use cairn_formats::listing::{account_to_xml, container_to_xml, to_json, to_text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for show_reserved in [false, true] {
        let _ = to_text(bytes, show_reserved);
        let _ = to_json(bytes, show_reserved);
        let _ = account_to_xml(bytes, "a", show_reserved);
        let _ = container_to_xml(bytes, "c", show_reserved);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = clean_acl("X-Container-Read", text);
    let _ = Acl::parse(Some(text)).referrer_allowed(Some("http://example.com/"));
    let _ = parse_account_acl(text);
});
