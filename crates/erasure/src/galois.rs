//! Arithmetic of single field elements, for matrices. Content is processed by `combine.rs`.

use std::sync::OnceLock;

/// A field of characteristic 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1; an element is a byte.
    Gf8,
    /// GF(2^16) modulo x^16 + x^12 + x^3 + x + 1; an element is two bytes, the low one first.
    Gf16,
}

/// Logarithm table to base 2, and its inverse.
struct Tables {
    log: Vec<u32>,
    /// Twice as long as the group's order, so that a sum of logarithms needs no reduction.
    power: Vec<u16>,
}

impl Field {
    pub(crate) const fn bits(self) -> usize {
        match self {
            Field::Gf8 => 8,
            Field::Gf16 => 16,
        }
    }

    /// Number of bytes of an element.
    pub(crate) const fn width(self) -> usize {
        self.bits() / 8
    }

    const fn polynomial(self) -> u32 {
        match self {
            Field::Gf8 => 0x11d,
            Field::Gf16 => 0x1100b,
        }
    }

    const fn group(self) -> usize {
        (1 << self.bits()) - 1
    }

    fn tables(self) -> &'static Tables {
        static GF8: OnceLock<Tables> = OnceLock::new();
        static GF16: OnceLock<Tables> = OnceLock::new();
        let slot = match self {
            Field::Gf8 => &GF8,
            Field::Gf16 => &GF16,
        };
        slot.get_or_init(|| Tables::new(self))
    }

    pub(crate) fn multiply(self, a: u16, b: u16) -> u16 {
        if a == 0 || b == 0 {
            return 0;
        }
        let tables = self.tables();
        let sum = tables.log[usize::from(a)] + tables.log[usize::from(b)];
        tables.power[sum as usize]
    }

    /// The inverse of an element other than 0.
    pub(crate) fn inverse(self, a: u16) -> u16 {
        let tables = self.tables();
        let log = tables.log[usize::from(a)] as usize;
        tables.power[self.group() - log]
    }
}

impl Tables {
    fn new(field: Field) -> Tables {
        let group = field.group();
        let mut log = vec![0; group + 1];
        let mut power = vec![0; 2 * group];
        let mut x = 1u32;
        for i in 0..group {
            log[x as usize] = i as u32;
            power[i] = x as u16;
            power[i + group] = x as u16;
            x <<= 1;
            if x >> field.bits() != 0 {
                x ^= field.polynomial();
            }
        }
        Tables { log, power }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_inverses() {
        assert_eq!(Field::Gf8.multiply(0x80, 2), 0x1d);
        assert_eq!(Field::Gf16.multiply(0x8000, 2), 0x100b);
        for field in [Field::Gf8, Field::Gf16] {
            for a in 1..=field.group() {
                let a = a as u16;
                assert_eq!(field.multiply(a, field.inverse(a)), 1);
                assert_eq!(field.multiply(a, 0), 0);
            }
        }
    }
}
