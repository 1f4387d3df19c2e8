//! The limits of the API (`[swift-constraints]` in swift.conf) and their defaults.

/// What a cluster accepts; the defaults are Swift's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraints {
    /// Bytes in one object.
    pub max_file_size: u64,
    /// Bytes in a metadata name, without its `X-Object-Meta-` prefix.
    pub max_meta_name_length: usize,
    /// Bytes in a metadata value.
    pub max_meta_value_length: usize,
    /// Metadata items of one account, container or object.
    pub max_meta_count: usize,
    /// Bytes of all metadata names and values together.
    pub max_meta_overall_size: usize,
    /// Bytes in one header line.
    pub max_header_size: usize,
    /// Bytes in a request line.
    pub max_request_line: usize,
    /// Headers beyond the metadata that a request may carry in addition to the usual 36.
    pub extra_header_count: usize,
    pub max_object_name_length: usize,
    pub max_container_name_length: usize,
    pub max_account_name_length: usize,
    pub container_listing_limit: usize,
    pub account_listing_limit: usize,
    /// First path segments under which the API is served.
    pub valid_api_versions: Vec<String>,
    /// Accounts of this prefix are internal and made without being asked for.
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
    /// Headers a request may carry in all.
    pub fn max_header_count(&self) -> usize {
        self.max_meta_count + 36 + self.extra_header_count
    }
}
