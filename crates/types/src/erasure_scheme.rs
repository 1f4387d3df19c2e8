//! How an erasure-coded policy cuts its objects: the `ec_*` options of swift.conf as values.

use std::fmt;

use thiserror::Error;

/// The erasure codes that can be had, by the names liberasurecode gave them.
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

/// What is wrong with a scheme.
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

/// Most fragments that a segment can be cut into, parity included.
pub const MAX_FRAGMENTS: usize = 256;
/// The largest segment: liberasurecode counts a segment's bytes in an `int`, and a segment is held
/// in memory.
pub const MAX_SEGMENT_SIZE: usize = 1 << 30;
/// `ec_object_segment_size` where none is given.
pub const DEFAULT_SEGMENT_SIZE: usize = 1 << 20;

/// The scheme of one policy. Its counts are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErasureScheme {
    ec_type: EcType,
    data: usize,
    parity: usize,
    segment_size: usize,
    duplication: usize,
}

impl ErasureScheme {
    /// `data` fragments of content and `parity` of parity make a segment.
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

    /// With segments of another size than 1 MiB; the last of an object may be shorter.
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

    /// With every fragment kept so many times.
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

    /// How many fragments hold content, and how many are enough to read a segment.
    pub fn data(&self) -> usize {
        self.data
    }

    pub fn parity(&self) -> usize {
        self.parity
    }

    /// Bytes of an object that are coded at a time.
    pub fn segment_size(&self) -> usize {
        self.segment_size
    }

    /// How often each fragment is kept (`ec_duplication_factor`).
    pub fn duplication(&self) -> usize {
        self.duplication
    }

    /// How many different fragments there are.
    pub fn unique(&self) -> usize {
        self.data + self.parity
    }

    /// How many fragments are kept: the replica count that the policy's ring must have.
    pub fn replicas(&self) -> usize {
        self.unique().saturating_mul(self.duplication)
    }

    /// How many servers must have taken a write: one parity more than what can be read.
    pub fn quorum(&self) -> usize {
        (self.data + 1).saturating_mul(self.duplication)
    }

    /// The fragment that the partition's primary node of this index keeps.
    pub fn fragment_of_node(&self, node_index: usize) -> usize {
        node_index % self.unique()
    }

    /// As in the header `X-Object-Sysmeta-Ec-Scheme`: `isa_l_rs_vand 4+2`.
    pub fn description(&self) -> String {
        format!("{} {}+{}", self.ec_type, self.data, self.parity)
    }

    /// `isa_l_rs_vand` with five parities or more loses objects: some sets of fragments can't be
    /// read (Launchpad bug 1639691).
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
        assert_eq!(scheme.quorum(), 10);
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
