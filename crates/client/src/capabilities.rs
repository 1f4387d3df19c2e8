//! Capabilities that a store announces in `/info`.

use http::Method;
use serde::Deserialize;

use crate::error::ClientError;
use crate::object::protocol;
use crate::swift::Swift;

const INFO_MAX_BYTES: u64 = 1 << 20;

/// Capabilities beyond those of every Swift. A store that announces nothing has none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Policies in which conditions of writes are evaluated at commit.
    conditional_policies: Vec<String>,
}

#[derive(Deserialize)]
struct InfoDocument {
    conditional_writes: Option<ConditionalWrites>,
}

#[derive(Deserialize)]
struct ConditionalWrites {
    #[serde(default)]
    policies: Vec<String>,
}

impl Capabilities {
    fn parse(body: &[u8]) -> serde_json::Result<Capabilities> {
        let info: InfoDocument = serde_json::from_slice(body)?;
        Ok(Capabilities {
            conditional_policies: info
                .conditional_writes
                .map(|writes| writes.policies)
                .unwrap_or_default(),
        })
    }

    /// Are conditions of writes in this policy evaluated at commit? Then of several writers that
    /// replace the same version of an object exactly one succeeds.
    pub fn has_conditional_writes(&self, policy: &str) -> bool {
        let mut policies = self.conditional_policies.iter();
        policies.any(|name| name.eq_ignore_ascii_case(policy))
    }
}

impl Swift {
    /// Reads `/info`. A store that does not serve it has no capabilities.
    ///
    /// # Errors
    /// [`ClientError`]: the store is unreachable, or its response is not valid.
    pub async fn capabilities(&self) -> Result<Capabilities, ClientError> {
        let answer = match self.request_info().await {
            Ok(answer) => answer,
            Err(error) if error.status().is_some() && !error.is_passing() => {
                tracing::debug!(%error, "the store announces nothing");
                return Ok(Capabilities::default());
            }
            Err(error) => return Err(error),
        };
        let body = self.whole(answer, "/info", INFO_MAX_BYTES).await?;
        Capabilities::parse(&body).map_err(|error| protocol(Method::GET, "/info", error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn conditional_writes_are_those_of_the_policies_that_are_named() {
        let of = |text: &str| Capabilities::parse(text.as_bytes()).unwrap();
        let some =
            of(r#"{"swift":{},"conditional_writes":{"methods":["PUT"],"policies":["gold"]}}"#);
        assert!(some.has_conditional_writes("gold"));
        assert!(some.has_conditional_writes("Gold"), "names have no case");
        assert!(!some.has_conditional_writes("ec"));
        assert!(!of(r#"{"swift":{}}"#).has_conditional_writes("gold"));
        assert!(!of(r#"{"conditional_writes":{}}"#).has_conditional_writes("gold"));
        assert!(Capabilities::parse(b"<html>").is_err());
    }
}
