//! Codec: encodes segments into fragments and decodes fragments into segments.

use cairn_types::plant::Plant;
use cairn_types::{EcType, ErasureScheme};
use thiserror::Error;

use crate::combine::Combination;
use crate::fragment::{self, FragmentError, FragmentHeader, HEADER_LEN, code_of};
use crate::matrix::Matrix;

/// Reasons why fragments cannot be decoded or reconstructed.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum CodecError {
    #[error(transparent)]
    Fragment(#[from] FragmentError),
    #[error("{needed} different fragments are needed, and {found} were given")]
    TooFew { needed: usize, found: usize },
    #[error("the fragments given belong to segments of different lengths ({0} and {1} bytes)")]
    Mixed(u64, u64),
    #[error("a fragment of a segment of {segment} bytes has {payload} bytes of payload")]
    Length { segment: u64, payload: usize },
    #[error("the code can't be solved for the fragments given; others are needed")]
    Singular,
    #[error("there is no fragment {index}; this policy's fragments are {fragments}")]
    NoSuchFragment { index: usize, fragments: usize },
}

/// A code with its generator matrix, created once for a policy and used for all its segments.
#[derive(Clone, Debug)]
pub struct Codec {
    ec_type: EcType,
    data: usize,
    parity: usize,
    /// Fragments are written with a checksum of their payload.
    has_checksums: bool,
    generator: Matrix,
    parities: Vec<Combination>,
}

/// Payloads of one segment, by fragment index.
struct Payloads<'a> {
    by_index: Vec<Option<&'a [u8]>>,
    segment_len: u64,
    payload_len: usize,
    have_checksums: bool,
}

impl Codec {
    pub fn new(scheme: &ErasureScheme) -> Codec {
        let (data, parity) = (scheme.data(), scheme.parity());
        let generator = Matrix::generator(scheme.ec_type(), data, parity);
        let parities = (data..data + parity)
            .map(|row| Combination::new(generator.field(), generator.row(row)))
            .collect();
        Codec {
            ec_type: scheme.ec_type(),
            data,
            parity,
            has_checksums: false,
            generator,
            parities,
        }
    }

    /// Enables a CRC-32 of the payload in the header of encoded fragments, in liberasurecode's own
    /// field for it (`inline_crc32`), so that each fragment can be verified individually. Swift's
    /// policies write none, and read fragments with and without.
    pub fn with_checksums(mut self) -> Codec {
        self.has_checksums = true;
        self
    }

    /// Size in bytes of a fragment of a segment of `segment_len` bytes, header included.
    pub fn fragment_size(&self, segment_len: u64) -> u64 {
        self.payload_size(segment_len) + HEADER_LEN as u64
    }

    /// Payload size; the segment is padded so that each fragment has the same number of whole
    /// elements.
    fn payload_size(&self, segment_len: u64) -> u64 {
        let width = self.generator.field().width() as u64;
        segment_len.div_ceil(self.data as u64 * width) * width
    }

    /// Size in bytes of a fragment archive for an object of `length` bytes in segments of
    /// `segment_size`; 0 for an empty object.
    pub fn archive_size(&self, length: u64, segment_size: usize) -> u64 {
        let segment_size = segment_size as u64;
        let whole = length / segment_size * self.fragment_size(segment_size);
        match length % segment_size {
            0 => whole,
            last => whole + self.fragment_size(last),
        }
    }

    /// Encodes one segment into its fragments, in order of their indexes, headers included.
    pub fn encode(&self, segment: &[u8]) -> Vec<Vec<u8>> {
        let payload_len = self.payload_size(segment.len() as u64) as usize;
        let mut fragments: Vec<Vec<u8>> = (0..self.data + self.parity)
            .map(|index| self.begin(index, payload_len, segment.len() as u64))
            .collect();
        let (data, parity) = fragments.split_at_mut(self.data);
        let mut rest = segment;
        for fragment in data.iter_mut() {
            let (piece, after) = rest.split_at(payload_len.min(rest.len()));
            fragment.extend_from_slice(piece);
            fragment.resize(HEADER_LEN + payload_len, 0);
            rest = after;
        }
        let sources: Vec<&[u8]> = data.iter().map(|f| &f[HEADER_LEN..]).collect();
        for (combination, fragment) in self.parities.iter().zip(parity) {
            combination.append(&sources, fragment);
        }
        if self.has_checksums {
            fragments.iter_mut().for_each(|f| fragment::seal(f));
        }
        fragments
    }

    /// Decodes a segment from any sufficient number of different fragments. Additional ones are
    /// accepted; data fragments are preferred.
    ///
    /// # Errors
    /// `Fragment` for one that [`Codec::check`] refuses, `Mixed` or `Length` for lengths that do
    /// not belong together, `TooFew`, and `Singular` if this set has no solution.
    pub fn decode(&self, fragments: &[&[u8]]) -> Result<Vec<u8>, CodecError> {
        let payloads = self.payloads(fragments)?;
        let length = payloads.segment_len as usize;
        let mut segment = Vec::with_capacity(self.data * payloads.payload_len);
        if let Some(all) = payloads.by_index[..self.data].iter().copied().collect() {
            let all: Vec<&[u8]> = all;
            segment.extend(all.into_iter().flatten());
        } else {
            let (sources, inverse) = self.solve(&payloads)?;
            for (index, payload) in payloads.by_index[..self.data].iter().enumerate() {
                match payload {
                    Some(payload) => segment.extend_from_slice(payload),
                    None => Combination::new(self.generator.field(), inverse.row(index))
                        .append(&sources, &mut segment),
                }
            }
        }
        segment.truncate(length);
        Ok(segment)
    }

    /// Reconstructs fragment `index` from others of its segment. It gets a checksum only if all of
    /// them have one: otherwise their correctness is not proven.
    ///
    /// # Errors
    /// `NoSuchFragment` for an index the code does not have; else as [`Codec::decode`].
    pub fn reconstruct(&self, fragments: &[&[u8]], index: usize) -> Result<Vec<u8>, CodecError> {
        if index >= self.data + self.parity {
            return Err(CodecError::NoSuchFragment {
                index,
                fragments: self.data + self.parity,
            });
        }
        let payloads = self.payloads(fragments)?;
        let mut fragment = self.begin(index, payloads.payload_len, payloads.segment_len);
        match payloads.by_index[index] {
            Some(payload) => fragment.extend_from_slice(payload),
            None => {
                let (sources, inverse) = self.solve(&payloads)?;
                let row = inverse.multiply_row(self.generator.row(index));
                Combination::new(self.generator.field(), &row).append(&sources, &mut fragment);
            }
        }
        if self.has_checksums && payloads.have_checksums {
            fragment::seal(&mut fragment);
        }
        Ok(fragment)
    }

    /// Verifies a fragment: its header, code and length, and the payload's checksum if there is
    /// one.
    ///
    /// # Errors
    /// As [`FragmentHeader::parse`]; `OtherCode` or `Index` for a fragment of another code,
    /// `PayloadLength` or `PayloadChecksum` for a damaged payload.
    pub fn check(&self, fragment: &[u8]) -> Result<FragmentHeader, FragmentError> {
        let header = FragmentHeader::parse(fragment)?;
        if header.code != code_of(self.ec_type) {
            return Err(FragmentError::OtherCode {
                number: header.code.0,
                version: header.code.1,
            });
        }
        if header.index as usize >= self.data + self.parity {
            return Err(FragmentError::Index {
                index: header.index,
                fragments: self.data + self.parity,
            });
        }
        let is_whole = header.payload_is_whole(header.payload(fragment)?);
        if !is_whole && !Plant::FragmentsUnchecked.is_on() {
            return Err(FragmentError::PayloadChecksum);
        }
        Ok(header)
    }

    /// A fragment with a header and room for its payload.
    fn begin(&self, index: usize, payload_len: usize, segment_len: u64) -> Vec<u8> {
        let header = FragmentHeader::new(self.ec_type, index, payload_len, segment_len);
        let mut fragment = Vec::with_capacity(HEADER_LEN + payload_len);
        fragment.extend_from_slice(&header.to_bytes());
        fragment
    }

    /// Verifies fragments and sorts them by index; of two with the same index the first is used.
    fn payloads<'a>(&self, fragments: &[&'a [u8]]) -> Result<Payloads<'a>, CodecError> {
        let mut by_index = vec![None; self.data + self.parity];
        let mut lengths = None;
        let mut have_checksums = true;
        for fragment in fragments {
            let header = self.check(fragment)?;
            have_checksums &= header.payload_crc32.is_some();
            let payload = header.payload(fragment)?;
            let (segment_len, payload_len) =
                *lengths.get_or_insert((header.segment_len, payload.len()));
            if header.segment_len != segment_len {
                return Err(CodecError::Mixed(segment_len, header.segment_len));
            }
            if payload.len() != payload_len || payload_len as u64 != self.payload_size(segment_len)
            {
                return Err(CodecError::Length {
                    segment: segment_len,
                    payload: payload.len(),
                });
            }
            by_index[header.index as usize].get_or_insert(payload);
        }
        let found = by_index.iter().flatten().count();
        match lengths {
            Some((segment_len, payload_len)) if found >= self.data => Ok(Payloads {
                by_index,
                segment_len,
                payload_len,
                have_checksums,
            }),
            _ => Err(CodecError::TooFew {
                needed: self.data,
                found,
            }),
        }
    }

    /// The payloads to compute from, and the matrix that gives the data from them.
    fn solve<'a>(&self, payloads: &Payloads<'a>) -> Result<(Vec<&'a [u8]>, Matrix), CodecError> {
        let (rows, sources): (Vec<usize>, Vec<&[u8]>) = payloads
            .by_index
            .iter()
            .enumerate()
            .filter_map(|(index, payload)| Some((index, (*payload)?)))
            .take(self.data)
            .unzip();
        let inverse = self.generator.pick(&rows).inverse();
        Ok((sources, inverse.ok_or(CodecError::Singular)?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn codec(ec_type: EcType, data: usize, parity: usize) -> Codec {
        Codec::new(&ErasureScheme::new(ec_type, data, parity).unwrap())
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    #[test]
    fn any_fragments_that_are_enough_give_back_the_segment() {
        for ec_type in EcType::ALL {
            let codec = codec(ec_type, 4, 3);
            for length in [1, 7, 8, 100, 4096, 5001] {
                let segment = content(length);
                let fragments = codec.encode(&segment);
                for set in 0..1u32 << 7 {
                    if set.count_ones() != 4 {
                        continue;
                    }
                    let given: Vec<&[u8]> = (0..7)
                        .filter(|i| set >> i & 1 == 1)
                        .map(|i| fragments[i].as_slice())
                        .collect();
                    assert_eq!(codec.decode(&given).unwrap(), segment, "{ec_type} {set:b}");
                    for (index, fragment) in fragments.iter().enumerate() {
                        assert_eq!(&codec.reconstruct(&given, index).unwrap(), fragment);
                    }
                }
            }
        }
    }

    #[test]
    fn a_changed_byte_of_a_fragment_with_a_checksum_is_found() {
        let plain = codec(EcType::IsaLRsVand, 4, 2);
        let codec = plain.clone().with_checksums();
        let segment = content(5001);
        let fragments = codec.encode(&segment);
        for (fragment, without) in fragments.iter().zip(plain.encode(&segment)) {
            assert_eq!(fragment[HEADER_LEN..], without[HEADER_LEN..]);
            assert!(codec.check(fragment).unwrap().payload_crc32.is_some());
            // A codec without checksums can read fragments with one.
            assert!(plain.check(fragment).is_ok());
            for at in [0, 20, 21, 60, HEADER_LEN, 700, fragment.len() - 1] {
                let mut bad = fragment.clone();
                bad[at] ^= 1;
                assert!(codec.check(&bad).is_err(), "byte {at}");
            }
        }
        let given: Vec<&[u8]> = fragments[2..].iter().map(Vec::as_slice).collect();
        assert_eq!(codec.decode(&given).unwrap(), segment);
        assert_eq!(codec.reconstruct(&given, 0).unwrap(), fragments[0]);
        // Reconstructed from a fragment that may be wrong, so it must not get a checksum.
        let unsure = plain.encode(&segment);
        let mixed = [&unsure[2][..], given[1], given[2], given[3]];
        assert_eq!(codec.reconstruct(&mixed, 0).unwrap(), unsure[0]);
    }

    #[test]
    fn archives_are_the_fragments_of_all_segments() {
        let codec = codec(EcType::LiberasurecodeRsVand, 3, 2);
        for (length, archive) in [(0, 0), (1, 82), (60, 100), (61, 182), (120, 200)] {
            assert_eq!(codec.archive_size(length, 60), archive, "{length}");
        }
        assert_eq!(codec.encode(&content(61))[0].len(), 102);
    }

    #[test]
    fn the_order_of_fragments_and_copies_of_them_do_not_matter() {
        let codec = codec(EcType::IsaLRsVand, 3, 2);
        let segment = content(1000);
        let f = codec.encode(&segment);
        let given = [&f[4][..], &f[4], &f[1], &f[4], &f[0]];
        assert_eq!(codec.decode(&given).unwrap(), segment);
        assert_eq!(
            codec.decode(&given[..4]),
            Err(CodecError::TooFew {
                needed: 3,
                found: 2
            })
        );
    }

    #[test]
    fn fragments_that_do_not_belong_together_are_refused() {
        let codec = codec(EcType::IsaLRsVand, 2, 1);
        let a = codec.encode(&content(100));
        let b = codec.encode(&content(99));
        assert_eq!(
            codec.decode(&[&a[0], &b[1]]),
            Err(CodecError::Mixed(100, 99))
        );
        let other = self::codec(EcType::IsaLRsCauchy, 2, 1);
        assert!(matches!(
            other.decode(&[&a[0], &a[1]]),
            Err(CodecError::Fragment(FragmentError::OtherCode { .. }))
        ));
        assert!(matches!(
            codec.decode(&[&a[0], &a[1][..120]]),
            Err(CodecError::Fragment(FragmentError::PayloadLength { .. }))
        ));
        assert!(matches!(
            codec.reconstruct(&[&a[0], &a[1]], 3),
            Err(CodecError::NoSuchFragment { .. })
        ));
    }

    #[test]
    fn a_matrix_without_inverse_is_an_error() {
        // The sets of fragments for which five parities of this code are unsafe.
        let codec = codec(EcType::IsaLRsVand, 10, 6);
        let fragments = codec.encode(&content(1000));
        let singular = (0..1u32 << 16)
            .filter(|set| set.count_ones() == 10)
            .filter(|set| {
                let given: Vec<&[u8]> = (0..16)
                    .filter(|i| set >> i & 1 == 1)
                    .map(|i| fragments[i].as_slice())
                    .collect();
                codec.decode(&given) == Err(CodecError::Singular)
            })
            .count();
        assert!(singular > 0);
    }

    proptest::proptest! {
        #[test]
        fn damaged_fragments_are_refused_or_decoded(
            damage in proptest::collection::vec((0usize..4, 0usize..130, 0u8..=255), 0..4),
        ) {
            let codec = codec(EcType::LiberasurecodeRsVand, 2, 2);
            let mut fragments = codec.encode(&content(100));
            for (fragment, at, byte) in damage {
                fragments[fragment][at] = byte;
            }
            let given: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
            let _ = codec.decode(&given);
            let _ = codec.reconstruct(&given[1..], 0);
        }
    }
}
