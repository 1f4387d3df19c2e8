//! Detection of TempAuth users with the well-known keys of OpenStack Swift's sample conf. Swift
//! starts with them anywhere, and so do the servers here, which run its confs; a warning is logged
//! if other hosts can reach the proxy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use cairn_formats::ini::Section;
use tracing::warn;

use crate::conf::ServerConf;
use crate::role::Role;
use crate::settings::ServerSettings;

/// Account, user and key of `etc/proxy-server.conf-sample`.
const SAMPLE: [(&str, &str, &str); 7] = [
    ("admin", "admin", "admin"),
    ("admin", "auditor", "admin_ro"),
    ("test", "tester", "testing"),
    ("test", "tester2", "testing2"),
    ("test", "tester3", "testing3"),
    ("test2", "tester2", "testing2"),
    ("test5", "tester5", "testing5"),
];

/// Logs a line for each section with such users, if other hosts can reach this proxy.
pub(crate) fn warn_of_known(conf: &ServerConf, settings: &ServerSettings) {
    let is_near = settings.bind.ip().to_canonical().is_loopback();
    if conf.role != Role::Proxy || is_near {
        return;
    }
    let authenticating = conf.filters.iter().filter(|f| f.entry_point == "tempauth");
    for filter in authenticating {
        let users = known_users(&filter.section);
        if !users.is_empty() {
            warn!(
                conf = conf.conf.file(),
                section = format!("filter:{}", filter.name),
                users = users.join(", "),
                bind = %settings.bind,
                "other machines can log in by keys of Swift's sample conf, which everybody knows: give \
                 these users keys of their own, remove their lines, or set bind_ip = 127.0.0.1"
            );
        }
    }
}

/// Names as `account:user`, in the sample's order.
fn known_users(section: &Section) -> Vec<String> {
    let base64 = |name: &str| STANDARD_NO_PAD.encode(name);
    let has_key = |option: &str, key: &str| {
        let value = section.get(option);
        value.is_some_and(|value| value.split_whitespace().next() == Some(key))
    };
    SAMPLE
        .iter()
        .filter(|(account, user, key)| {
            has_key(&format!("user_{account}_{user}"), key)
                || has_key(&format!("user64_{}_{}", base64(account), base64(user)), key)
        })
        .map(|(account, user, _)| format!("{account}:{user}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_sample_are_known_and_others_are_not() {
        let users = |lines: &[(&str, &str)]| known_users(&Section::from_pairs("tempauth", lines));
        assert_eq!(
            users(&[
                ("user_test_tester", "testing .admin"),
                ("user_admin_admin", "admin .admin .reseller_admin"),
                ("user64_dGVzdDU_dGVzdGVyNQ", "testing5 service"),
            ]),
            ["admin:admin", "test:tester", "test5:tester5"]
        );
        let own = [
            ("user_test_tester", "testing-no-more .admin"),
            ("user_test_tester2", "testing"),
            ("user_photos_tester", "testing .admin"),
            ("reseller_prefix", "AUTH"),
        ];
        assert!(users(&own).is_empty());
    }
}
