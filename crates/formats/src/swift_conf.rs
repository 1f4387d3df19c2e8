//! Parser of swift.conf, the settings that all servers of a cluster must share: the hash prefix and
//! suffix, the storage policies, the limits of the API.
//!
//! The file is read byte by byte (as Latin-1, as Swift does): a prefix or suffix may contain any
//! bytes, which are kept as they are written.

use std::collections::BTreeMap;

use cairn_types::{
    Constraints, EcType, ErasureScheme, HashPath, PolicyError, PolicyIndex, PolicyKind, PolicySet,
    StoragePolicy, erasure_scheme::DEFAULT_SEGMENT_SIZE,
};
use thiserror::Error;

use crate::ini::{Conf, ConfError, Section};

/// Reasons why a swift.conf is refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SwiftConfError {
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error(
        "{file}: [swift-hash] needs swift_hash_path_suffix or swift_hash_path_prefix: set one to \
         a random text, the same on every node, and never change it"
    )]
    NoHashPath { file: String },
    #[error("{file}: {source}")]
    Policy { file: String, source: PolicyError },
}

/// A parsed swift.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwiftConf {
    pub hash_path: HashPath,
    pub policies: PolicySet,
    /// `diskfile_module` of the policies that give it, as written.
    pub diskfile_modules: BTreeMap<PolicyIndex, String>,
    pub constraints: Constraints,

    /// `[swift-hash] swift_cluster_name`, if given; for display only.
    pub cluster_name: Option<String>,
}

impl SwiftConf {
    /// Parses the file's bytes; `file` is its name for errors.
    ///
    /// # Errors
    /// `Conf` for bad syntax or a bad option, `NoHashPath` with neither prefix nor suffix, `Policy`
    /// if the policies do not make a set.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<SwiftConf, SwiftConfError> {
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        let conf = Conf::parse(file, &text)?;
        Ok(SwiftConf {
            hash_path: hash_path(&conf)?,
            policies: policies(&conf)?,
            diskfile_modules: diskfile_modules(&conf)?,
            constraints: constraints(&conf)?,
            cluster_name: conf
                .section_or_defaults("swift-hash")
                .get("swift_cluster_name")
                .map(str::to_owned),
        })
    }
}

fn hash_path(conf: &Conf) -> Result<HashPath, SwiftConfError> {
    let section = conf.section_or_defaults("swift-hash");
    let bytes = |option: &str| -> Vec<u8> {
        // Each char of the text is one byte of the file.
        section
            .str_or(option, "")
            .chars()
            .map(|c| c as u8)
            .collect()
    };
    let hash_path = HashPath::new(
        bytes("swift_hash_path_prefix"),
        bytes("swift_hash_path_suffix"),
    );
    if hash_path.prefix.is_empty() && hash_path.suffix.is_empty() {
        return Err(SwiftConfError::NoHashPath {
            file: conf.file().to_owned(),
        });
    }
    Ok(hash_path)
}

fn policies(conf: &Conf) -> Result<PolicySet, SwiftConfError> {
    let mut policies = Vec::new();
    for name in conf.section_names() {
        if let Some(index) = name.strip_prefix("storage-policy:") {
            policies.push(policy(index, &conf.section(name)?)?);
        }
    }
    PolicySet::new(policies).map_err(|source| SwiftConfError::Policy {
        file: conf.file().to_owned(),
        source,
    })
}

fn diskfile_modules(conf: &Conf) -> Result<BTreeMap<PolicyIndex, String>, ConfError> {
    let mut modules = BTreeMap::new();
    for name in conf.section_names() {
        let index = name.strip_prefix("storage-policy:");
        let Some(index) = index.and_then(|index| index.trim().parse().ok()) else {
            continue;
        };
        if let Some(module) = conf.section(name)?.get("diskfile_module") {
            modules.insert(PolicyIndex(index), module.to_owned());
        }
    }
    Ok(modules)
}

const POLICY_OPTIONS: [&str; 6] = [
    "name",
    "aliases",
    "policy_type",
    "default",
    "deprecated",
    "diskfile_module",
];
const ERASURE_OPTIONS: [&str; 5] = [
    "ec_type",
    "ec_num_data_fragments",
    "ec_num_parity_fragments",
    "ec_object_segment_size",
    "ec_duplication_factor",
];

fn policy(index: &str, section: &Section) -> Result<StoragePolicy, ConfError> {
    let is_erasure_coded = match section.str_or("policy_type", "replication") {
        "replication" => false,
        "erasure_coding" => true,
        _ => return Err(section.bad("policy_type", "expected replication or erasure_coding")),
    };
    for (option, _) in section.iter() {
        let known = POLICY_OPTIONS.contains(&option)
            || (is_erasure_coded && ERASURE_OPTIONS.contains(&option));
        if !known {
            return Err(section.bad(option, "a storage policy has no such option; remove it"));
        }
    }
    let index = index.trim().parse().map_err(|_| {
        section.bad(
            "name",
            "the section's name must end in the policy's number, 0 or more",
        )
    })?;
    let name = section
        .required("name", "give the policy a name")?
        .to_owned();
    let aliases: Vec<String> = section
        .list_or("aliases", "")
        .into_iter()
        .filter(|alias| *alias != name)
        .collect();
    let reserved = |name: &String| name.eq_ignore_ascii_case("Policy-0");
    if index != 0 && (reserved(&name) || aliases.iter().any(reserved)) {
        return Err(section.bad("name", "Policy-0 is the name of policy 0 alone"));
    }
    let deprecated = section.bool_or("deprecated", false);
    let kind = if is_erasure_coded {
        PolicyKind::ErasureCoding(erasure_scheme(section, deprecated)?)
    } else {
        PolicyKind::Replication
    };
    Ok(StoragePolicy {
        index: PolicyIndex(index),
        name,
        aliases,
        is_default: section.bool_or("default", false),
        deprecated,
        kind,
    })
}

/// Parses the `ec_*` options of a policy.
fn erasure_scheme(section: &Section, deprecated: bool) -> Result<ErasureScheme, ConfError> {
    let name = section.required("ec_type", "name the policy's erasure code")?;
    let Some(ec_type) = EcType::by_name(name) else {
        return Err(section.bad(
            "ec_type",
            "expected isa_l_rs_vand, isa_l_rs_cauchy or liberasurecode_rs_vand",
        ));
    };
    let count = |option: &str, default: Option<usize>| match (section.get(option), default) {
        (None, Some(default)) => Ok(default),
        (None, None) => Err(section.bad(option, "an erasure-coded policy needs it")),
        (Some(value), _) => value
            .trim()
            .parse()
            .map_err(|_| section.bad(option, "expected a whole number, 1 or more")),
    };
    let data = count("ec_num_data_fragments", None)?;
    let parity = count("ec_num_parity_fragments", None)?;
    let segment_size = count("ec_object_segment_size", Some(DEFAULT_SEGMENT_SIZE))?;
    let duplication = count("ec_duplication_factor", Some(1))?;
    let scheme = ErasureScheme::new(ec_type, data, parity)
        .and_then(|scheme| scheme.with_segment_size(segment_size))
        .and_then(|scheme| scheme.with_duplication(duplication))
        .map_err(|error| section.bad(error.option(), error.to_string()))?;
    if scheme.is_known_to_lose_data() && !deprecated {
        return Err(section.bad(
            "ec_num_parity_fragments",
            "isa_l_rs_vand can lose objects with 5 or more: take isa_l_rs_cauchy, or say \
             'deprecated = yes' and move the objects to another policy",
        ));
    }
    Ok(scheme)
}

fn constraints(conf: &Conf) -> Result<Constraints, ConfError> {
    let section = conf.section_or_defaults("swift-constraints");
    let default = Constraints::default();
    let count = |option: &str, default: usize| section.usize_or(option, default);
    let versions = section.list_or("valid_api_versions", "");
    Ok(Constraints {
        max_file_size: section.u64_or("max_file_size", default.max_file_size)?,
        max_meta_name_length: count("max_meta_name_length", default.max_meta_name_length)?,
        max_meta_value_length: count("max_meta_value_length", default.max_meta_value_length)?,
        max_meta_count: count("max_meta_count", default.max_meta_count)?,
        max_meta_overall_size: count("max_meta_overall_size", default.max_meta_overall_size)?,
        max_header_size: count("max_header_size", default.max_header_size)?,
        max_request_line: count("max_request_line", default.max_request_line)?,
        extra_header_count: count("extra_header_count", default.extra_header_count)?,
        max_object_name_length: count("max_object_name_length", default.max_object_name_length)?,
        max_container_name_length: count(
            "max_container_name_length",
            default.max_container_name_length,
        )?,
        max_account_name_length: count("max_account_name_length", default.max_account_name_length)?,
        container_listing_limit: count("container_listing_limit", default.container_listing_limit)?,
        account_listing_limit: count("account_listing_limit", default.account_listing_limit)?,
        valid_api_versions: if versions.is_empty() {
            default.valid_api_versions
        } else {
            versions
        },
        auto_create_account_prefix: section
            .str_or(
                "auto_create_account_prefix",
                &default.auto_create_account_prefix,
            )
            .to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
[swift-hash]
swift_hash_path_prefix = pre
swift_hash_path_suffix = \xfe\xff end

[storage-policy:0]
name = gold
aliases = gold, yellow
default = yes

[storage-policy:7]
name = deep
policy_type = erasure_coding
ec_type = isa_l_rs_vand
ec_num_data_fragments = 4
ec_num_parity_fragments = 2
diskfile_module = egg:swift#x

[swift-constraints]
max_meta_count = 5
valid_api_versions = v1, v2
";

    #[test]
    fn a_whole_file() {
        let conf = SwiftConf::parse("swift.conf", SAMPLE).unwrap();
        assert_eq!(
            conf.hash_path,
            HashPath::new("pre", b"\xfe\xff end".to_vec())
        );
        assert_eq!(conf.policies.default_policy().name, "gold");
        assert_eq!(conf.diskfile_modules.len(), 1);
        assert_eq!(conf.diskfile_modules[&PolicyIndex(7)], "egg:swift#x");
        assert_eq!(
            conf.policies.by_name("YELLOW").unwrap().index,
            PolicyIndex(0)
        );
        let deep = conf.policies.by_index(PolicyIndex(7)).unwrap();
        let scheme = deep.erasure().unwrap();
        assert_eq!(scheme.description(), "isa_l_rs_vand 4+2");
        assert_eq!((scheme.segment_size(), scheme.duplication()), (1 << 20, 1));
        assert_eq!(conf.constraints.max_meta_count, 5);
        assert_eq!(conf.constraints.valid_api_versions, ["v1", "v2"]);
        assert_eq!(conf.constraints.max_file_size, 5_368_709_122);
    }

    #[test]
    fn the_least_that_is_needed() {
        let text = b"[swift-hash]\nswift_hash_path_suffix = x\n";
        let conf = SwiftConf::parse("swift.conf", text).unwrap();
        assert_eq!(conf.policies, PolicySet::single());
        assert_eq!(conf.constraints, Constraints::default());
    }

    #[test]
    fn refusals_name_the_place() {
        let refused = |text: &str| {
            let text = format!("[swift-hash]\nswift_hash_path_suffix = x\n{text}");
            SwiftConf::parse("swift.conf", text.as_bytes())
                .unwrap_err()
                .to_string()
        };
        for (text, part) in [
            (
                "[storage-policy:0]\nname = a\nsize = 3",
                "[storage-policy:0] size",
            ),
            ("[storage-policy:x]\nname = a", "[storage-policy:x]"),
            (
                "[storage-policy:0]\nname = a\npolicy_type = magic",
                "replication or erasure_coding",
            ),
            ("[storage-policy:0]\nname = a\nec_type = x", "ec_type"),
            (
                "[storage-policy:0]\nname = a\npolicy_type = erasure_coding",
                "ec_type",
            ),
            (
                "[storage-policy:0]\nname = a\npolicy_type = erasure_coding\nec_type = shss",
                "isa_l_rs_cauchy",
            ),
            (
                "[storage-policy:1]\nname = a\ndefault = yes",
                "none has index 0",
            ),
            (
                "[swift-constraints]\nmax_meta_count = lots",
                "max_meta_count",
            ),
        ] {
            let error = refused(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
        for (options, part) in [
            ("ec_num_data_fragments = 4", "ec_num_parity_fragments"),
            (
                "ec_num_data_fragments = 0\nec_num_parity_fragments = 2",
                "data",
            ),
            (
                "ec_num_data_fragments = 4\nec_num_parity_fragments = -2",
                "\"-2\"",
            ),
            (
                "ec_num_data_fragments = 9\nec_num_parity_fragments = 5",
                "deprecated",
            ),
            (
                "ec_num_data_fragments = 4\nec_num_parity_fragments = 2\n\
                 ec_object_segment_size = 0",
                "ec_object_segment_size",
            ),
            (
                "ec_num_data_fragments = 4\nec_num_parity_fragments = 2\n\
                 ec_duplication_factor = none",
                "ec_duplication_factor",
            ),
        ] {
            let error = refused(&format!(
                "[storage-policy:0]\nname = a\npolicy_type = erasure_coding\n\
                 ec_type = isa_l_rs_vand\n{options}"
            ));
            assert!(error.contains(part), "{options:?}: {error}");
        }
        let error = SwiftConf::parse("swift.conf", b"").unwrap_err();
        assert_eq!(
            error,
            SwiftConfError::NoHashPath {
                file: "swift.conf".into()
            }
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(0u8..=255, 0..300),
        ) {
            let _ = SwiftConf::parse("swift.conf", &bytes);
            let mut with_head = b"[storage-policy:0]\n".to_vec();
            with_head.extend(&bytes);
            let _ = SwiftConf::parse("swift.conf", &with_head);
        }
    }
}
