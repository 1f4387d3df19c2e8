//! The header before each fragment, as liberasurecode's `fragment_header_t` (packed, in the byte
//! order of the machine that wrote it; this is the little-endian one):
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | index of the fragment; parities come after the data |
//! | 4 | 4 | bytes of payload |
//! | 8 | 4 | bytes that the code itself added to the payload: 0 |
//! | 12 | 8 | bytes of the segment before it was padded |
//! | 20 | 1 | kind of the payload's checksum: 1 none (as Swift's policies have it), 2 CRC-32, 3 MD5 (never computed) |
//! | 21 | 32 | the checksum, its first 4 bytes for a CRC-32 |
//! | 53 | 1 | 0; set in memory when the checksum was found wrong |
//! | 54 | 1 | number of the code |
//! | 55 | 4 | version of the code |
//! | 59 | 4 | 0x0b0c5ecc |
//! | 63 | 4 | version of liberasurecode |
//! | 67 | 4 | CRC-32 of bytes 0 to 58 |
//! | 71 | 9 | 0 |

use cairn_types::EcType;
use thiserror::Error;

pub const HEADER_LEN: usize = 80;

const MAGIC: u32 = 0x0b0c_5ecc;
/// Bytes covered by the header's own checksum.
const META_LEN: usize = 59;
/// Library version written into headers: the one that defines this format.
const LIBRARY_VERSION: u32 = version(1, 8, 0);
/// First library version whose headers have a checksum.
const FIRST_WITH_CHECKSUM: u32 = version(1, 2, 0);

const CHECKSUM_NONE: u8 = 1;
const CHECKSUM_CRC32: u8 = 2;

const fn version(major: u32, minor: u32, revision: u32) -> u32 {
    major << 16 | minor << 8 | revision
}

/// Reasons why a fragment cannot be used.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum FragmentError {
    #[error("a fragment of {0} bytes is shorter than its header of {HEADER_LEN}")]
    Short(usize),
    #[error("not a fragment: its magic number is {0:#010x}, not {MAGIC:#010x}")]
    Magic(u32),
    #[error("a fragment whose header was written by no version of liberasurecode (version 0)")]
    NoVersion,
    #[error("a fragment's header does not match its checksum")]
    HeaderChecksum,
    #[error("a fragment's payload does not match its checksum")]
    PayloadChecksum,
    #[error("a fragment says it has {said} bytes of payload, and has {found}")]
    PayloadLength { said: u64, found: usize },
    #[error("a fragment of code {number} version {version:#x}, which is not this policy's")]
    OtherCode { number: u8, version: u32 },
    #[error("a fragment has the index {index}; this policy's fragments are {fragments}")]
    Index { index: u32, fragments: usize },
}

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    pub index: u32,
    /// Number of bytes after the header.
    pub payload_len: u32,
    /// Number of bytes of the coded segment.
    pub segment_len: u64,
    /// CRC-32 of the payload, if the writer computed it (Swift's policies do not).
    pub payload_crc32: Option<u32>,
    /// The code's number and version, as defined by liberasurecode.
    pub code: (u8, u32),
    /// Version of the liberasurecode that wrote it, 0xMMmmrr.
    pub library_version: u32,
}

/// The code's number and version.
pub(crate) fn code_of(ec_type: EcType) -> (u8, u32) {
    match ec_type {
        EcType::IsaLRsVand => (4, version(2, 13, 0)),
        EcType::LiberasurecodeRsVand => (6, version(1, 0, 0)),
        EcType::IsaLRsCauchy => (7, version(2, 14, 1)),
    }
}

impl FragmentHeader {
    pub(crate) fn new(ec_type: EcType, index: usize, payload: usize, segment_len: u64) -> Self {
        FragmentHeader {
            index: index as u32,
            payload_len: payload as u32,
            segment_len,
            payload_crc32: None,
            code: code_of(ec_type),
            library_version: LIBRARY_VERSION,
        }
    }

    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.index.to_le_bytes());
        put(4, &self.payload_len.to_le_bytes());
        put(12, &self.segment_len.to_le_bytes());
        match self.payload_crc32 {
            None => put(20, &[CHECKSUM_NONE]),
            Some(crc) => {
                put(20, &[CHECKSUM_CRC32]);
                put(21, &crc.to_le_bytes());
            }
        }
        put(54, &[self.code.0]);
        put(55, &self.code.1.to_le_bytes());
        put(59, &MAGIC.to_le_bytes());
        put(63, &self.library_version.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..META_LEN]);
        bytes[67..71].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses and checks the header at the start of `fragment`, without its payload.
    ///
    /// # Errors
    /// `Short`, `Magic` or `NoVersion` if it is no fragment, `HeaderChecksum` if its header is
    /// damaged.
    pub fn parse(fragment: &[u8]) -> Result<FragmentHeader, FragmentError> {
        let Some(bytes) = fragment.first_chunk::<HEADER_LEN>() else {
            return Err(FragmentError::Short(fragment.len()));
        };
        let magic = u32_at(bytes, 59);
        if magic != MAGIC {
            return Err(FragmentError::Magic(magic));
        }
        let library_version = u32_at(bytes, 63);
        if library_version == 0 {
            return Err(FragmentError::NoVersion);
        }
        if library_version >= FIRST_WITH_CHECKSUM
            && !matches_crc32(&bytes[..META_LEN], u32_at(bytes, 67))
        {
            return Err(FragmentError::HeaderChecksum);
        }
        Ok(FragmentHeader {
            index: u32_at(bytes, 0),
            payload_len: u32_at(bytes, 4),
            segment_len: u64::from(u32_at(bytes, 12)) | u64::from(u32_at(bytes, 16)) << 32,
            payload_crc32: (bytes[20] == CHECKSUM_CRC32).then(|| u32_at(bytes, 21)),
            code: (bytes[54], u32_at(bytes, 55)),
            library_version,
        })
    }

    /// The payload of the fragment with this header.
    pub(crate) fn payload<'a>(&self, fragment: &'a [u8]) -> Result<&'a [u8], FragmentError> {
        let payload = fragment.get(HEADER_LEN..).unwrap_or_default();
        if payload.len() as u64 != u64::from(self.payload_len) {
            return Err(FragmentError::PayloadLength {
                said: u64::from(self.payload_len),
                found: payload.len(),
            });
        }
        Ok(payload)
    }

    /// Does the payload match the checksum in the header? True if there is none.
    pub(crate) fn payload_is_whole(&self, payload: &[u8]) -> bool {
        self.payload_crc32
            .is_none_or(|crc| matches_crc32(payload, crc))
    }
}

/// Writes the payload's CRC-32 into a fragment's header.
pub(crate) fn seal(fragment: &mut [u8]) {
    let Some((bytes, payload)) = fragment.split_first_chunk_mut::<HEADER_LEN>() else {
        return;
    };
    if let Ok(mut header) = FragmentHeader::parse(bytes) {
        header.payload_crc32 = Some(crc32fast::hash(payload));
        *bytes = header.to_bytes();
    }
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Compares with zlib's CRC-32, and with the one that liberasurecode used before 1.6.
fn matches_crc32(bytes: &[u8], expected: u32) -> bool {
    crc32fast::hash(bytes) == expected || early_crc32(bytes) == expected
}

/// A CRC-32 whose register is shifted arithmetically: a bug of old liberasurecode versions
/// (Launchpad 1666320) that affects the fragments they wrote.
fn early_crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        let mut low = (crc ^ u32::from(*byte)) & 0xff;
        for _ in 0..8 {
            low = (low >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(low & 1));
        }
        // Bits 8 to 31, with the highest one extended into the eight bits above.
        crc = low ^ (crc.cast_signed() >> 8).cast_unsigned();
    }
    !crc
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sample() -> FragmentHeader {
        FragmentHeader::new(EcType::IsaLRsVand, 3, 1000, 3999)
    }

    #[test]
    fn headers_come_back() {
        let crc = FragmentHeader {
            payload_crc32: Some(0x1234_5678),
            ..sample()
        };
        for header in [sample(), crc] {
            assert_eq!(FragmentHeader::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn damage_is_found() {
        let good = sample().to_bytes();
        for at in 0..META_LEN {
            let mut bad = good;
            bad[at] ^= 4;
            assert_eq!(
                FragmentHeader::parse(&bad),
                Err(FragmentError::HeaderChecksum)
            );
        }
        let mut bad = good;
        bad[60] ^= 1;
        assert!(matches!(
            FragmentHeader::parse(&bad),
            Err(FragmentError::Magic(_))
        ));
        assert_eq!(
            FragmentHeader::parse(&good[..79]),
            Err(FragmentError::Short(79))
        );
        let mut old = good;
        old[63..67].copy_from_slice(&[0; 4]);
        assert_eq!(FragmentHeader::parse(&old), Err(FragmentError::NoVersion));
    }

    #[test]
    fn the_early_checksum_is_accepted() {
        let mut header = sample().to_bytes();
        let early = early_crc32(&header[..META_LEN]);
        assert_ne!(early, crc32fast::hash(&header[..META_LEN]));
        header[67..71].copy_from_slice(&early.to_le_bytes());
        assert_eq!(FragmentHeader::parse(&header), Ok(sample()));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(0u8..=255, 0..200),
        ) {
            let _ = FragmentHeader::parse(&bytes);
        }
    }
}
