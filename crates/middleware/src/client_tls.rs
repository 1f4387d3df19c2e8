//! TLS options of filters for the servers that they call.

use std::path::Path;

use cairn_formats::ini::Section;
use cairn_http::tls::{ClientTls, Trust};

use crate::FilterError;

/// Builds the TLS client by the options for the file of authorities (default: the system's), for a
/// client certificate and for its key (default: none).
pub(crate) fn client_tls(
    section: &Section,
    [ca, cert, key]: [&str; 3],
) -> Result<ClientTls, FilterError> {
    let file = |option: &str| section.get(option).filter(|path| !path.is_empty());
    let trust = match file(ca) {
        Some(path) => Trust::File(path.into()),
        None => Trust::System,
    };
    let own = match (file(cert), file(key)) {
        (Some(cert), Some(key)) => Some((Path::new(cert), Path::new(key))),
        // One file may contain both, as in Python's ssl.
        (Some(both), None) => Some((Path::new(both), Path::new(both))),
        (None, None) => None,
        (None, Some(_)) => {
            let remedy = format!("goes with {cert}");
            return Err(section.bad(key, remedy).into());
        }
    };
    ClientTls::new(&trust, own).map_err(|error| section.bad(ca, error.to_string()).into())
}
