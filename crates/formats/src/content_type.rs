//! Content type of an object whose client gave none, guessed from the ending of its name.

/// Endings for which Swift (that is, Python) differs from the common table.
const SWIFT_TYPES: [(&str, &str); 33] = [
    ("3g2", "audio/3gpp2"),
    ("3gp", "audio/3gpp"),
    ("3gpp", "audio/3gpp"),
    ("3gpp2", "audio/3gpp2"),
    ("a", "application/octet-stream"),
    ("aif", "audio/x-aiff"),
    ("aifc", "audio/x-aiff"),
    ("aiff", "audio/x-aiff"),
    ("bat", "text/plain"),
    ("cdf", "application/x-netcdf"),
    ("dll", "application/octet-stream"),
    ("h5", "application/x-hdf5"),
    ("ico", "image/vnd.microsoft.icon"),
    ("js", "application/javascript"),
    ("ksh", "text/plain"),
    ("m3u", "application/vnd.apple.mpegurl"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("mif", "application/x-mif"),
    ("o", "application/octet-stream"),
    ("obj", "application/octet-stream"),
    ("opus", "audio/opus"),
    ("pl", "text/plain"),
    ("py", "text/x-python"),
    ("pyc", "application/x-python-code"),
    ("ram", "application/x-pn-realaudio"),
    ("rdf", "application/xml"),
    ("sgm", "text/x-sgml"),
    ("sgml", "text/x-sgml"),
    ("srt", "text/plain"),
    ("wav", "audio/x-wav"),
    ("wsdl", "application/xml"),
    ("xpdl", "application/xml"),
    ("xsl", "application/xml"),
];

/// Endings of compressed files; the type is that of the content inside.
const COMPRESSED: [&str; 5] = ["gz", "Z", "bz2", "xz", "br"];
/// Endings that stand for a compressed tar archive.
const COMPRESSED_TAR: [&str; 5] = ["tgz", "taz", "tz", "tbz2", "txz"];

/// The content type for an object of this name.
pub fn guess(object: &str) -> &'static str {
    let name = object.rsplit('/').next().unwrap_or(object);
    let unknown = "application/octet-stream";
    let Some((stem, ending)) = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()) else {
        return unknown;
    };
    if COMPRESSED_TAR.contains(&ending) {
        return "application/x-tar";
    }
    let ending = if COMPRESSED.contains(&ending) {
        match stem.rsplit_once('.') {
            Some((_, inner)) => inner,
            None => return unknown,
        }
    } else {
        ending
    };
    let lower = ending.to_ascii_lowercase();
    if let Ok(i) = SWIFT_TYPES.binary_search_by(|(known, _)| (*known).cmp(&lower)) {
        return SWIFT_TYPES[i].1;
    }
    mime_guess::from_ext(&lower).first_raw().unwrap_or(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses() {
        assert!(SWIFT_TYPES.is_sorted());
        for (name, guessed) in [
            ("a.txt", "text/plain"),
            ("a.b/c.WAV", "audio/x-wav"),
            ("a.zip", "application/zip"),
            ("a.tar.gz", "application/x-tar"),
            ("a.tgz", "application/x-tar"),
            ("a.gz", "application/octet-stream"),
            ("a.jpg", "image/jpeg"),
            ("a", "application/octet-stream"),
            (".txt", "application/octet-stream"),
            ("a.", "application/octet-stream"),
        ] {
            assert_eq!(guess(name), guessed, "{name}");
        }
    }
}
