//! MIME framing of an upload with footers: a multipart document of the content and then a JSON part
//! with metadata known only at the content's end, with its MD5.

use bytes::Bytes;
use cairn_http::own_thread;
use cairn_types::hex;
use md5::{Digest, Md5};

/// The bytes before the content.
pub(crate) fn head(boundary: &str) -> Bytes {
    format!("--{boundary}\r\nX-Document: object body\r\n\r\n").into()
}

/// The part with the footers, up to and including the boundary after it. `footers` is a JSON object
/// of headers.
pub(crate) fn footers(boundary: &str, footers: &str) -> String {
    let md5 = hex::encode(Md5::digest(footers.as_bytes()));
    format!(
        "\r\n--{boundary}\r\nX-Document: object metadata\r\nContent-MD5: {md5}\r\n\r\n\
         {footers}\r\n--{boundary}"
    )
}

/// A random boundary that does not occur in any content.
pub fn boundary() -> String {
    let words: [u64; 4] = std::array::from_fn(|_| own_thread::random());
    words.iter().map(|word| format!("{word:016x}")).collect()
}
