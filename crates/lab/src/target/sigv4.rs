//! AWS Signature Version 4 over request heads; bodies are UNSIGNED-PAYLOAD.

use std::time::{SystemTime, UNIX_EPOCH};

use cairn_formats::hmac::sha256 as hmac;
use cairn_types::{calendar, hex};
use sha2::{Digest, Sha256};

/// The hash that stands for a body that is not hashed.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// `20261122T010203Z`
pub(super) fn timestamp(now: SystemTime) -> String {
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs());
    let (day, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, date) = calendar::date_of(day as i64);
    format!(
        "{year:04}{month:02}{date:02}T{:02}{:02}{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Keys of a day are made once.
#[derive(Debug)]
pub(super) struct Signer {
    access_key: String,
    secret_key: String,
    region: String,
    day: String,
    key: [u8; 32],
}

impl Signer {
    pub(super) fn new(access_key: String, secret_key: String, region: String) -> Self {
        Self {
            access_key,
            secret_key,
            region,
            day: String::new(),
            key: [0; 32],
        }
    }

    /// The `Authorization` header of a request whose signed headers are host,
    /// x-amz-content-sha256, x-amz-date and those of `more`, which S3 wants signed: all that begin
    /// with `x-amz-`, in small letters. `path` and `query` are as sent, the query sorted.
    pub(super) fn authorization(
        &mut self,
        method: &str,
        path: &str,
        query: &str,
        host: &str,
        timestamp: &str,
        more: &[(String, String)],
    ) -> String {
        let day = &timestamp[..8];
        if self.day != day {
            day.clone_into(&mut self.day);
            let key = hmac(
                format!("AWS4{}", self.secret_key).as_bytes(),
                day.as_bytes(),
            );
            let key = hmac(&key, self.region.as_bytes());
            self.key = hmac(&hmac(&key, b"s3"), b"aws4_request");
        }
        let mut headers = vec![
            ("host", host),
            ("x-amz-content-sha256", UNSIGNED),
            ("x-amz-date", timestamp),
        ];
        headers.extend(more.iter().map(|(name, value)| (&**name, value.trim())));
        headers.sort_unstable();
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let signed = names.join(";");
        let lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        let lines = lines.concat();
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{signed}\n{UNSIGNED}");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let digest = hex::encode(Sha256::digest(canonical.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{digest}");
        let signature = hex::encode(hmac(&self.key, text.as_bytes()));
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={signature}",
            self.access_key
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(1_709_251_199), "20240229T235959Z");
    }

    /// The value AWS's own documentation derives in its example of a signing key.
    #[test]
    fn the_documented_signing_key() {
        let secret = "AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let key = hmac(
            &hmac(&hmac(secret.as_bytes(), b"20120215"), b"us-east-1"),
            b"iam",
        );
        assert_eq!(
            hex::encode(hmac(&key, b"aws4_request")),
            "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d"
        );
    }
}
