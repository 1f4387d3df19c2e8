//! The console's password: configured or generated. Kept as a digest and compared in constant time,
//! so that neither its text nor its length can be learned from responses.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rand::RngExt;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Letters and digits that are not easily confused: 20 of 31 characters give 99 bits.
const ALPHABET: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
const LENGTH_MIN: usize = 8;
const LENGTH_MAX: usize = 1024;

pub struct Password([u8; 32]);

impl Password {
    /// A configured password; for one of a wrong length the error names `source`.
    ///
    /// # Errors
    /// It has fewer than 8 or more than 1024 characters.
    pub fn given(text: &str, source: &str) -> Result<Password> {
        let length = text.chars().count();
        if !(LENGTH_MIN..=LENGTH_MAX).contains(&length) {
            bail!(
                "{source}: the password has {length} characters; expected {LENGTH_MIN} to {LENGTH_MAX}"
            );
        }
        Ok(Password(Sha256::digest(text).into()))
    }

    /// Generates a random password.
    pub fn generate() -> String {
        let mut random = rand::rng();
        let letter = |_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())]);
        let letters: Vec<char> = (0..20).map(letter).collect();
        letters
            .chunks(5)
            .map(|five| five.iter().collect::<String>())
            .collect::<Vec<_>>()
            .join("-")
    }

    /// Reads the first line of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not UTF-8.
    pub fn read(path: &Path) -> Result<String> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the password in {}", path.display()))?;
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// Whether `text` is the password; takes as long for any text of its length.
    pub fn is(&self, text: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(text).into();
        digest.ct_eq(&self.0).into()
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn made_and_compared() {
        let text = Password::generate();
        assert_eq!(text.len(), 23);
        assert_ne!(text, Password::generate());
        let password = Password::given(&text, "x").unwrap();
        assert!(password.is(&text) && !password.is("") && !password.is(&text[1..]));
        let short = Password::given("short", "--password-file f").unwrap_err();
        assert!(
            short
                .to_string()
                .contains("--password-file f: the password has 5")
        );
    }
}
