//! Filters' options about TLS towards servers that they ask.

use std::path::Path;

use cairn_formats::ini::Section;
use cairn_http::tls::{ClientTls, Trust};

use crate::FilterError;

/// By the options for the file of authorities (none: those that the system trusts), for a certificate
/// of our own and for its key (none).
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
        // Both may be in one file, as Python's ssl has it.
        (Some(both), None) => Some((Path::new(both), Path::new(both))),
        (None, None) => None,
        (None, Some(_)) => {
            let remedy = format!("goes with {cert}");
            return Err(section.bad(key, remedy).into());
        }
    };
    ClientTls::new(&trust, own).map_err(|error| section.bad(ca, error.to_string()).into())
}
