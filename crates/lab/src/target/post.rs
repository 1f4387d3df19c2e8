//! A client of one URL that is no store: metrics are sent to it.

use std::time::Duration;

use super::http::{Client, Endpoint};
use super::url::Url;
use super::{TargetError, TargetOptions};

/// Characters of an answer that are told when it refuses.
const TOLD_CHARS_MAX: usize = 120;

/// A connection that is kept open from request to request.
#[derive(Debug)]
pub(crate) struct Post {
    client: Client,
    /// With its query.
    path: String,
}

impl Post {
    /// Reads the URL and looks its host up; connects to nothing yet.
    ///
    /// # Errors
    /// `Setting` for what is no URL, `Unreachable` for a host without an address, `Other` for TLS.
    pub(crate) fn new(
        url: &str,
        timeout: Duration,
        options: &TargetOptions,
    ) -> Result<Self, TargetError> {
        let parsed = Url::parse(url)?;
        let query = url.split('#').next().unwrap_or_default().split_once('?');
        let query = query.map_or(String::new(), |(_, query)| format!("?{query}"));
        let path = match parsed.path.as_str() {
            "" => "/",
            path => path,
        };
        let path = format!("{path}{query}");
        let client = Client::new(Endpoint::resolve(parsed, options)?, timeout);
        Ok(Self { client, path })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Sends a body; the time of the whole is bounded by the timeout.
    ///
    /// # Errors
    /// Why it was not taken, in words.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(), String> {
        let path = self.path.clone();
        let answer = self.client.simple(method, &path, headers, body).await;
        let answer = answer.map_err(|kind| self.client.explain(&kind))?;
        if (200..300).contains(&answer.status) {
            return Ok(());
        }
        let told = String::from_utf8_lossy(&answer.body);
        let told: String = told
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .filter(|char| !char.is_control())
            .take(TOLD_CHARS_MAX)
            .collect();
        let status = answer.status;
        Err(match told.is_empty() {
            true => format!("HTTP {status}"),
            false => format!("HTTP {status}: {told}"),
        })
    }
}
