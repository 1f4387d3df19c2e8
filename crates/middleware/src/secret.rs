//! Passwords as configured: plain, like TempAuth's keys, or `{pbkdf2-sha256}ROUNDS$SALT$HASH` with
//! salt and hash in base64.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::Hmac;
use sha2::Sha256;
use subtle::ConstantTimeEq;

const HASHED: &str = "{pbkdf2-sha256}";
/// Maximum number of rounds; more would occupy a thread for seconds.
const ROUNDS_MAX: u32 = 5_000_000;

#[derive(Clone)]
pub enum Secret {
    Plain(Arc<str>),
    Hashed {
        rounds: u32,
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
}

impl Secret {
    /// Parses a password. The error describes what was expected.
    ///
    /// # Errors
    /// An empty text, and a hash whose rounds, salt or length are not valid.
    pub fn read(text: &str) -> Result<Secret, &'static str> {
        let Some(hashed) = text.strip_prefix(HASHED) else {
            return match text {
                "" => Err("expected a password"),
                text => Ok(Secret::Plain(text.into())),
            };
        };
        let expected = "expected {pbkdf2-sha256}ROUNDS$SALT$HASH, salt and hash in base64";
        let mut parts = hashed.split('$');
        let rounds: Option<u32> = parts.next().and_then(|r| r.parse().ok());
        let mut bytes = || {
            STANDARD
                .decode(parts.next()?)
                .ok()
                .filter(|b| !b.is_empty())
        };
        match (rounds, bytes(), bytes()) {
            (Some(rounds @ 1..=ROUNDS_MAX), Some(salt), Some(hash)) if hash.len() <= 64 => {
                Ok(Secret::Hashed { rounds, salt, hash })
            }
            _ => Err(expected),
        }
    }

    /// Compares a password. Takes as long as the rounds need, so it must run on a blocking thread.
    pub fn matches(&self, password: &str) -> bool {
        match self {
            Secret::Plain(key) => {
                !password.is_empty() && bool::from(key.as_bytes().ct_eq(password.as_bytes()))
            }
            Secret::Hashed { rounds, salt, hash } => {
                let mut made = vec![0; hash.len()];
                let password = password.as_bytes();
                pbkdf2::pbkdf2::<Hmac<Sha256>>(password, salt, *rounds, &mut made).is_ok()
                    && bool::from(made.ct_eq(hash))
            }
        }
    }

    /// Rounds of hashing that a comparison takes; 0 for a password in clear.
    pub fn rounds(&self) -> u32 {
        match self {
            Secret::Plain(_) => 0,
            Secret::Hashed { rounds, .. } => *rounds,
        }
    }

    /// Whether comparisons are worth a thread of their own.
    pub fn is_slow(&self) -> bool {
        matches!(self, Secret::Hashed { .. })
    }

    /// Input of a token's proof, which changes with the password.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Secret::Plain(key) => key.as_bytes(),
            Secret::Hashed { hash, .. } => hash,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let plain = Secret::read("pass word").unwrap();
        assert!(plain.matches("pass word") && !plain.matches("pass") && !plain.matches(""));
        // hashlib.pbkdf2_hmac("sha256", b"testing", b"saltsalt", 1000)
        let text = "{pbkdf2-sha256}1000$c2FsdHNhbHQ=$HASH";
        let hash = "QHtvVQOPhsig3ze5wP3SU5+1kKGgIx19/rCmn1qY02g=";
        let hashed = Secret::read(&text.replace("HASH", hash)).unwrap();
        assert!(hashed.matches("testing") && !hashed.matches("testin"));
        for bad in [
            "",
            "{pbkdf2-sha256}",
            "{pbkdf2-sha256}0$c2FsdA==$c2FsdA==",
            "{pbkdf2-sha256}9999999999$c2FsdA==$c2FsdA==",
            "{pbkdf2-sha256}10$!$c2FsdA==",
            "{pbkdf2-sha256}10$c2FsdA==",
        ] {
            assert!(Secret::read(bad).is_err(), "{bad}");
        }
    }
}
