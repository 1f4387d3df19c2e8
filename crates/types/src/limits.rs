//! The limits of the API (`[swift-constraints]` in swift.conf) and their defaults.

/// Limits that a cluster enforces; the defaults are Swift's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraints {
    /// Maximum bytes of one object.
    pub max_file_size: u64,
    /// Maximum bytes of a metadata name, without its `X-Object-Meta-` prefix.
    pub max_meta_name_length: usize,
    /// Maximum bytes of a metadata value.
    pub max_meta_value_length: usize,
    /// Maximum metadata items of one account, container or object.
    pub max_meta_count: usize,
    /// Maximum bytes of all metadata names and values together.
    pub max_meta_overall_size: usize,
    /// Maximum bytes of one header line.
    pub max_header_size: usize,
    /// Maximum bytes of a request line.
    pub max_request_line: usize,
    /// Headers that a request may carry in addition to the metadata and the usual 36.
    pub extra_header_count: usize,
    pub max_object_name_length: usize,
    pub max_container_name_length: usize,
    pub max_account_name_length: usize,
    pub container_listing_limit: usize,
    pub account_listing_limit: usize,
    /// First path segments under which the API is served, such as `v1`.
    pub valid_api_versions: Vec<String>,
    /// Prefix of internal accounts, which are created on first use.
    pub auto_create_account_prefix: String,
}

impl Default for Constraints {
    fn default() -> Self {
        Constraints {
            max_file_size: 5_368_709_122,
            max_meta_name_length: 128,
            max_meta_value_length: 256,
            max_meta_count: 90,
            max_meta_overall_size: 4096,
            max_header_size: 8192,
            max_request_line: 8192,
            extra_header_count: 0,
            max_object_name_length: 1024,
            max_container_name_length: 256,
            max_account_name_length: 256,
            container_listing_limit: 10_000,
            account_listing_limit: 10_000,
            valid_api_versions: vec!["v1".into(), "v1.0".into()],
            auto_create_account_prefix: ".".into(),
        }
    }
}

impl Constraints {
    /// Maximum number of headers of a request.
    pub fn max_header_count(&self) -> usize {
        self.max_meta_count + 36 + self.extra_header_count
    }
}
