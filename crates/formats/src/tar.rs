//! Tar archives, block by block: the headers of ustar, GNU and pax archives. The caller moves the
//! members' content; this module holds at most one block, or one extended header.
//!
//! An archive is a row of 512-byte blocks: for each member a header, then its content, filled up
//! with zeros to a whole block. A block of zeros ends it. Numbers are octal digits, or, with the
//! first bit set, big-endian binary. Names too long for their field come before the member, as the
//! content of a member of type `L` (GNU), or as `path` of the records of type `x` (pax).

use thiserror::Error;

pub const BLOCK: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TarError {
    #[error("bad checksum")]
    Checksum,
    #[error("invalid number in a header")]
    Number,
    #[error("malformed extended header")]
    Extended,
}

/// Type of a member, as far as extracting files needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    /// A file with holes; its content begins with a map of them.
    Sparse,
    /// A folder, link or device: no content, or content that is not extracted.
    Other,
    /// The content is the name of the next member, or the target of its link.
    LongName,
    LongLink,
    /// The content is attributes of the next member, or of all that follow.
    Extended,
    GlobalExtended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: Vec<u8>,
    pub size: u64,
    pub kind: Kind,
}

/// Parses a header; `None` is the end of the archive.
///
/// # Errors
/// `Checksum` for a header that does not match its checksum, `Number` for a size or checksum that
/// is no number.
pub fn parse_header(block: &[u8; BLOCK]) -> Result<Option<Header>, TarError> {
    if block.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    check_sum(block)?;
    let mut name = text(&block[..100]).to_vec();
    let is_ustar = &block[257..263] == b"ustar\0";
    let prefix = text(&block[345..500]);
    if is_ustar && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let kind = match block[156] {
        // In the oldest archives a folder is a file whose name ends with a slash.
        b'\0' if name.ends_with(b"/") => Kind::Other,
        b'0' | b'\0' | b'7' => Kind::File,
        b'S' => Kind::Sparse,
        b'L' => Kind::LongName,
        b'K' => Kind::LongLink,
        b'x' | b'X' => Kind::Extended,
        b'g' => Kind::GlobalExtended,
        _ => Kind::Other,
    };
    let mut size = number(&block[124..136])?;
    // Links, folders and devices may have a size field, but no content follows.
    if matches!(block[156], b'1'..=b'6') {
        size = 0;
    }
    Ok(Some(Header { name, size, kind }))
}

/// Number of padding zeros after content of that size.
pub fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// The text before the first NUL of a field.
pub fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    &field[..end]
}

/// Verifies the checksum: the sum of all bytes, the sum's own field counted as blanks. Some
/// programs summed signed bytes, which is accepted too.
fn check_sum(block: &[u8; BLOCK]) -> Result<(), TarError> {
    let told = number(&block[148..156])? as i64;
    let blanks = 8 * i64::from(b' ');
    let others = || block[..148].iter().chain(&block[156..]);
    let unsigned: i64 = others().map(|b| i64::from(*b)).sum();
    let signed: i64 = others().map(|b| i64::from(*b as i8)).sum();
    if told == unsigned + blanks || told == signed + blanks {
        Ok(())
    } else {
        Err(TarError::Checksum)
    }
}

fn number(field: &[u8]) -> Result<u64, TarError> {
    if field[0] == 0x80 {
        return field[1..].iter().try_fold(0u64, |number, byte| {
            number
                .checked_mul(256)
                .map(|n| n + u64::from(*byte))
                .ok_or(TarError::Number)
        });
    }
    let digits = std::str::from_utf8(text(field)).map_err(|_| TarError::Number)?;
    let digits = digits.trim();
    if digits.is_empty() {
        return Ok(0);
    }
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(TarError::Number);
    }
    u64::from_str_radix(digits, 8).map_err(|_| TarError::Number)
}

/// Parses the records of an extended header: `length name=value\n`, where the decimal length counts
/// the whole record.
///
/// # Errors
/// `Extended` for a record whose length is wrong, or that has no equals sign or end of line.
pub fn parse_extended(content: &[u8]) -> Result<Vec<(String, Vec<u8>)>, TarError> {
    let mut records = Vec::new();
    let mut rest = content;
    while rest.first().is_some_and(|b| *b != 0) {
        let space = rest.iter().position(|b| *b == b' ');
        let space = space.ok_or(TarError::Extended)?;
        let length = std::str::from_utf8(&rest[..space]).ok();
        let length: usize = length
            .and_then(|l| l.parse().ok())
            .ok_or(TarError::Extended)?;
        // The minimum is the equals sign and the line's end.
        if length < space + 3 || length > rest.len() || rest[length - 1] != b'\n' {
            return Err(TarError::Extended);
        }
        let record = &rest[space + 1..length - 1];
        let equals = record.iter().position(|b| *b == b'=');
        let equals = equals.ok_or(TarError::Extended)?;
        let name = String::from_utf8_lossy(&record[..equals]).into_owned();
        records.push((name, record[equals + 1..].to_vec()));
        rest = &rest[length..];
    }
    Ok(records)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(name: &[u8], size: &[u8], kind: u8, magic: &[u8], prefix: &[u8]) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..name.len()].copy_from_slice(name);
        block[124..124 + size.len()].copy_from_slice(size);
        block[156] = kind;
        block[257..257 + magic.len()].copy_from_slice(magic);
        block[345..345 + prefix.len()].copy_from_slice(prefix);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }

    fn parse(block: &[u8; BLOCK]) -> Header {
        parse_header(block).unwrap().unwrap()
    }

    #[test]
    fn headers() {
        let plain = parse(&block(b"a/b", b"00000000012\0", b'0', b"ustar\0", b""));
        assert_eq!(
            (plain.name.as_slice(), plain.size, plain.kind),
            (&b"a/b"[..], 10, Kind::File)
        );
        let long = parse(&block(b"b", b"      1 \0", b'\0', b"ustar\0", b"very/long"));
        assert_eq!((long.name.as_slice(), long.size), (&b"very/long/b"[..], 1));
        // GNU archives use the prefix field for other data.
        let gnu = parse(&block(
            b"b",
            b"\x80\0\0\0\0\0\0\0\x01\0\0\0",
            b'0',
            b"ustar  \0",
            b"x",
        ));
        assert_eq!((gnu.name.as_slice(), gnu.size), (&b"b"[..], 1 << 24));
        assert_eq!(parse(&block(b"d/", b"", b'\0', b"", b"")).kind, Kind::Other);
        let link = parse(&block(b"l", b"00000000012\0", b'2', b"ustar\0", b""));
        assert_eq!((link.kind, link.size), (Kind::Other, 0));
        assert_eq!(parse_header(&[0; BLOCK]), Ok(None));
        let mut broken = block(b"a", b"0", b'0', b"ustar\0", b"");
        broken[0] = b'b';
        assert_eq!(parse_header(&broken), Err(TarError::Checksum));
        let huge = block(
            b"a",
            &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            b'0',
            b"",
            b"",
        );
        assert_eq!(parse_header(&huge), Err(TarError::Number));
        assert_eq!(
            parse_header(&block(b"a", b"-1", b'0', b"", b"")),
            Err(TarError::Number)
        );
    }

    #[test]
    fn extended_headers() {
        let records = parse_extended(b"9 path=a\n13 size=1234\n\0\0").unwrap();
        assert_eq!(
            records,
            [
                ("path".to_owned(), b"a".to_vec()),
                ("size".to_owned(), b"1234".to_vec())
            ]
        );
        for wrong in [
            &b"9 path=a"[..],
            b"99 path=a\n",
            b"0 path=a\n",
            b"3 =\n",
            b"x path=a\n",
            b"7 patha\n",
            b"18446744073709551616 a=b\n",
        ] {
            assert_eq!(parse_extended(wrong), Err(TarError::Extended), "{wrong:?}");
        }
        assert_eq!(padding(0), 0);
        assert_eq!(padding(1), 511);
        assert_eq!(padding(512), 0);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), BLOCK), more in ".{0,80}") {
            let block: [u8; BLOCK] = bytes.try_into().unwrap();
            let _ = parse_header(&block);
            let _ = parse_extended(more.as_bytes());
            let _ = parse_extended(&block);
        }
    }
}
