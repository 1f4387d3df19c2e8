//! Parameters of an erasure-coded policy: the `ec_*` options of swift.conf as checked values.

use std::fmt;

use thiserror::Error;

use crate::quorum::Quorum;

/// The supported erasure codes, by their names in liberasurecode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EcType {
    /// `isa_l_rs_vand`: powers of two over GF(2^8), as Intel's ISA-L makes them.
    IsaLRsVand,
    /// `isa_l_rs_cauchy`: a Cauchy matrix over GF(2^8), ISA-L's too.
    IsaLRsCauchy,
    /// `liberasurecode_rs_vand`: a Vandermonde matrix over GF(2^16), liberasurecode's own.
    LiberasurecodeRsVand,
}

impl EcType {
    pub const ALL: [EcType; 3] = [
        EcType::IsaLRsVand,
        EcType::IsaLRsCauchy,
        EcType::LiberasurecodeRsVand,
    ];

    pub fn name(self) -> &'static str {
        match self {
            EcType::IsaLRsVand => "isa_l_rs_vand",
            EcType::IsaLRsCauchy => "isa_l_rs_cauchy",
            EcType::LiberasurecodeRsVand => "liberasurecode_rs_vand",
        }
    }

    pub fn by_name(name: &str) -> Option<EcType> {
        EcType::ALL.into_iter().find(|known| known.name() == name)
    }
}

impl fmt::Display for EcType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reasons why the parameters of an erasure code are refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SchemeError {
    #[error("ec_num_data_fragments is 0; it must be 1 or more")]
    NoData,
    #[error("ec_num_parity_fragments is 0; it must be 1 or more")]
    NoParity,
    #[error("ec_object_segment_size is 0; it must be 1 or more bytes")]
    NoSegment,
    #[error("ec_object_segment_size is {0}; it must be at most {MAX_SEGMENT_SIZE} bytes")]
    LargeSegment(usize),
    #[error("ec_duplication_factor is 0; it must be 1 or more")]
    NoDuplicate,
    #[error(
        "ec_num_data_fragments + ec_num_parity_fragments is {0}; it must be at most \
         {MAX_FRAGMENTS}"
    )]
    TooManyFragments(usize),
}

impl SchemeError {
    /// The option of swift.conf that is at fault.
    pub fn option(&self) -> &'static str {
        match self {
            SchemeError::NoData | SchemeError::TooManyFragments(_) => "ec_num_data_fragments",
            SchemeError::NoParity => "ec_num_parity_fragments",
            SchemeError::NoSegment | SchemeError::LargeSegment(_) => "ec_object_segment_size",
            SchemeError::NoDuplicate => "ec_duplication_factor",
        }
    }
}

/// Maximum number of fragments of a segment, parity included.
pub const MAX_FRAGMENTS: usize = 256;
/// Maximum size of a segment in bytes: liberasurecode counts them in an `int`, and a segment is
/// held in memory.
pub const MAX_SEGMENT_SIZE: usize = 1 << 30;
/// `ec_object_segment_size` if the conf has none.
pub const DEFAULT_SEGMENT_SIZE: usize = 1 << 20;

/// The erasure-coding parameters of one policy. No count is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErasureScheme {
    ec_type: EcType,
    data: usize,
    parity: usize,
    segment_size: usize,
    duplication: usize,
}

impl ErasureScheme {
    /// A scheme that codes each segment into `data` fragments of content and `parity` fragments of
    /// parity.
    ///
    /// # Errors
    /// `NoData` or `NoParity` for a count of 0, `TooManyFragments` if the sum is over the maximum.
    pub fn new(ec_type: EcType, data: usize, parity: usize) -> Result<Self, SchemeError> {
        if data == 0 {
            return Err(SchemeError::NoData);
        }
        if parity == 0 {
            return Err(SchemeError::NoParity);
        }
        let fragments = data.saturating_add(parity);
        if fragments > MAX_FRAGMENTS {
            return Err(SchemeError::TooManyFragments(fragments));
        }
        Ok(ErasureScheme {
            ec_type,
            data,
            parity,
            segment_size: DEFAULT_SEGMENT_SIZE,
            duplication: 1,
        })
    }

    /// Sets the segment size, 1 MiB by default; the last segment of an object may be shorter.
    ///
    /// # Errors
    /// `NoSegment` for 0, `LargeSegment` for a size over the maximum.
    pub fn with_segment_size(self, bytes: usize) -> Result<Self, SchemeError> {
        match bytes {
            0 => Err(SchemeError::NoSegment),
            _ if bytes > MAX_SEGMENT_SIZE => Err(SchemeError::LargeSegment(bytes)),
            segment_size => Ok(ErasureScheme {
                segment_size,
                ..self
            }),
        }
    }

    /// Keeps every fragment `duplication` times (`ec_duplication_factor`).
    ///
    /// # Errors
    /// `NoDuplicate` for 0.
    pub fn with_duplication(self, duplication: usize) -> Result<Self, SchemeError> {
        match duplication {
            0 => Err(SchemeError::NoDuplicate),
            duplication => Ok(ErasureScheme {
                duplication,
                ..self
            }),
        }
    }

    pub fn ec_type(&self) -> EcType {
        self.ec_type
    }

    /// Number of data fragments, which is also how many different fragments are enough to decode a
    /// segment.
    pub fn data(&self) -> usize {
        self.data
    }

    pub fn parity(&self) -> usize {
        self.parity
    }

    /// Bytes of an object that are coded at once.
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// Number of copies of each fragment (`ec_duplication_factor`).
    pub fn duplication(&self) -> usize {
        self.duplication
    }

    /// Number of different fragments of a segment.
    pub fn unique(&self) -> usize {
        self.data + self.parity
    }

    /// Number of fragments stored, copies included: the replica count that the policy's ring must
    /// have.
    pub fn replicas(&self) -> usize {
        self.unique().saturating_mul(self.duplication)
    }

    /// The quorum of an upload: one fragment more than decoding needs.
    pub fn quorum(&self) -> Quorum {
        Quorum::of_fragments(self.data, self.parity, self.duplication)
    }

    /// Index of the fragment that the partition's primary node `node_index` keeps.
    pub fn fragment_of_node(&self, node_index: usize) -> usize {
        node_index % self.unique()
    }

    /// The scheme as in the header `X-Object-Sysmeta-Ec-Scheme`: `isa_l_rs_vand 4+2`.
    pub fn description(&self) -> String {
        format!("{} {}+{}", self.ec_type, self.data, self.parity)
    }

    /// Is this `isa_l_rs_vand` with five parity fragments or more? That combination loses objects:
    /// some sets of fragments cannot be decoded (Launchpad bug 1639691).
    pub fn is_known_to_lose_data(&self) -> bool {
        self.ec_type == EcType::IsaLRsVand && self.parity >= 5
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_from_the_scheme() {
        let scheme = ErasureScheme::new(EcType::IsaLRsVand, 4, 2)
            .unwrap()
            .with_duplication(2)
            .unwrap();
        assert_eq!((scheme.unique(), scheme.replicas()), (6, 12));
        assert_eq!(
            (scheme.quorum().size(), scheme.quorum().servers()),
            (10, 12)
        );
        assert_eq!(scheme.fragment_of_node(7), 1);
        assert_eq!(scheme.description(), "isa_l_rs_vand 4+2");
        assert_eq!(scheme.segment_size(), 1_048_576);
    }

    #[test]
    fn bad_counts_are_refused() {
        let scheme = |data, parity| ErasureScheme::new(EcType::IsaLRsVand, data, parity);
        assert_eq!(scheme(0, 2), Err(SchemeError::NoData));
        assert_eq!(scheme(2, 0), Err(SchemeError::NoParity));
        assert_eq!(scheme(200, 57), Err(SchemeError::TooManyFragments(257)));
        let good = scheme(4, 2).unwrap();
        assert_eq!(good.with_segment_size(0), Err(SchemeError::NoSegment));
        assert_eq!(good.with_duplication(0), Err(SchemeError::NoDuplicate));
        assert!(scheme(4, 5).unwrap().is_known_to_lose_data());
    }
}
