//! Concurrent requests to servers for what they say of themselves, which is not the API that
//! `cairn_client` speaks.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use cairn_http::client::Client;
use cairn_http::{Body, Request, respond};
use http::{Method, Uri};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::locations::ip_of;

/// Maximum number of servers asked at a time.
const CONCURRENT_MAX: usize = 30;
/// Maximum bytes of a response: data of a node with thousands of devices has some hundred
/// kilobytes.
const ANSWER_MAX_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Host {
    pub(super) ip: String,
    pub(super) port: u16,
}

impl Host {
    pub(super) fn netloc(&self) -> String {
        match self.ip.contains(':') {
            true => format!("[{}]:{}", self.ip, self.port),
            false => format!("{}:{}", self.ip, self.port),
        }
    }

    fn address(&self) -> Result<SocketAddr, String> {
        let ip = ip_of(&self.ip).map_err(|error| error.to_string())?;
        Ok(SocketAddr::new(ip, self.port))
    }
}

/// A server's response.
pub(super) struct Answer {
    pub(super) host: Host,
    pub(super) url: String,
    /// The value; `None` if there was no valid response, which has been reported.
    pub(super) value: Option<Value>,
    /// Times before and after the request, in seconds since 1970.
    pub(super) asked: f64,
    pub(super) answered: f64,
}

pub(super) struct Scout<'a> {
    /// Kind of server: `account`, `container` or `object`.
    pub(super) kind: &'a str,
    pub(super) hosts: Vec<Host>,
    pub(super) verbose: bool,
    pub(super) suppress: bool,
    pub(super) timeout: Duration,
}

impl Scout<'_> {
    /// Requests `/recon/<check>` from all hosts.
    pub(super) async fn recon(&self, check: &str, out: &mut dyn Write) -> Result<Vec<Answer>> {
        self.recon_of(self.hosts.clone(), check, out).await
    }

    pub(super) async fn recon_of(
        &self,
        hosts: Vec<Host>,
        check: &str,
        out: &mut dyn Write,
    ) -> Result<Vec<Answer>> {
        let path = format!("/recon/{check}");
        self.ask(hosts, Method::GET, &path, out, |_, body| {
            serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))
        })
        .await
    }

    /// The server type that each host reports.
    pub(super) async fn server_types(&self, out: &mut dyn Write) -> Result<Vec<Answer>> {
        let hosts = self.hosts.clone();
        self.ask(hosts, Method::OPTIONS, "/", out, |headers, _| {
            let server = respond::header(headers, "server").unwrap_or_default();
            Ok(server.split('/').next().unwrap_or_default().into())
        })
        .await
    }

    async fn ask(
        &self,
        hosts: Vec<Host>,
        method: Method,
        path: &str,
        out: &mut dyn Write,
        read: fn(&http::HeaderMap, &[u8]) -> Result<Value, String>,
    ) -> Result<Vec<Answer>> {
        let client = Client::new(self.timeout, 1, Duration::from_secs(1));
        let mut calls = JoinSet::new();
        let mut answers = Vec::new();
        for (i, host) in hosts.into_iter().enumerate() {
            if calls.len() >= CONCURRENT_MAX {
                answers.extend(calls.join_next().await.transpose()?);
            }
            let (client, method, patience) = (client.clone(), method.clone(), self.timeout);
            let path = path.to_owned();
            calls.spawn(async move {
                let asked = now();
                let outcome = call(&client, &host, method, &path, patience, read).await;
                (i, host, asked, now(), outcome)
            });
        }
        while let Some(answer) = calls.join_next().await {
            answers.push(answer?);
        }
        answers.sort_by_key(|answer| answer.0);
        let mut read = Vec::new();
        for (_, host, asked, answered, outcome) in answers {
            let url = format!("http://{}{path}", host.netloc());
            match &outcome {
                Ok(value) if self.verbose => writeln!(out, "-> {url}: {value}")?,
                Err(error) if self.verbose || !self.suppress => writeln!(out, "-> {url}: {error}")?,
                _ => {}
            }
            read.push(Answer {
                host,
                url,
                value: outcome.ok(),
                asked,
                answered,
            });
        }
        Ok(read)
    }
}

async fn call(
    client: &Client,
    host: &Host,
    method: Method,
    path: &str,
    patience: Duration,
    read: fn(&http::HeaderMap, &[u8]) -> Result<Value, String>,
) -> Result<Value, String> {
    let address = host.address()?;
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = path
        .parse::<Uri>()
        .map_err(|error| format!("<urlopen error {error}>"))?;
    let answer = client.call(address, request, patience).await;
    let (head, body) = answer
        .map_err(|error| format!("<urlopen error {error}>"))?
        .into_parts();
    if !head.status.is_success() {
        let reason = head.status.canonical_reason().unwrap_or_default();
        return Err(format!("HTTP Error {}: {reason}", head.status.as_u16()));
    }
    let body = tokio::time::timeout(patience, body.collect(ANSWER_MAX_BYTES)).await;
    let body = body
        .map_err(|_| "timed out".to_owned())?
        .map_err(|error| error.to_string())?;
    read(&head.headers, &body)
}

pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
