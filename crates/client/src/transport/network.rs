//! Requests over pooled connections, plain and with TLS.

use std::sync::OnceLock;
use std::time::Duration;

use cairn_http::Response;
use cairn_http::client::{CallError, Client};
use cairn_http::tls::ClientTls;
use http::Method;

use super::Options;
use super::direct::{Direct, Outcome, Patience};
use super::lines::{self, Lines};
use crate::call::Call;
use crate::error::ClientError;
use crate::names::Names;
use crate::url::StoreUrl;

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Network {
    plain: Client,
    /// Made when the first `https` URL is called: it reads the trusted certificates.
    tls: OnceLock<Client>,
    names: Names,
    direct: Direct,
    lines: Lines,
    options: Options,
}

impl Network {
    pub(super) fn new(options: &Options, tls: Option<ClientTls>) -> Network {
        let with_tls = OnceLock::new();
        if let Some(tls) = tls {
            with_tls.get_or_init(|| client(options, Some(tls)));
        }
        Network {
            plain: client(options, None),
            tls: with_tls,
            names: Names::default(),
            direct: Direct::default(),
            lines: Lines::new(options.connect_timeout, IDLE_TIMEOUT),
            options: options.clone(),
        }
    }

    fn client(&self, url: &StoreUrl) -> Result<&Client, ClientError> {
        if !url.tls {
            return Ok(&self.plain);
        }
        if let Some(client) = self.tls.get() {
            return Ok(client);
        }
        let tls = ClientTls::new(&self.options.trust, None)
            .map_err(|error| ClientError::Tls(error.to_string()))?;
        Ok(self.tls.get_or_init(|| client(&self.options, Some(tls))))
    }

    pub(super) async fn check(&self, url: &StoreUrl) -> Result<(), ClientError> {
        self.client(url)?;
        self.look_up(url, &Method::HEAD).await?;
        Ok(())
    }

    async fn look_up(
        &self,
        url: &StoreUrl,
        method: &Method,
    ) -> Result<Vec<std::net::SocketAddr>, ClientError> {
        let timeout = self.options.connect_timeout;
        let found = self.names.look_up(&url.host, url.port, timeout).await;
        found.map_err(|reason| ClientError::Connect {
            method: method.clone(),
            path: url.path.clone(),
            host: url.authority(),
            reason,
        })
    }

    /// Reads a range into an empty buffer, past the buffers of the ordinary way; `None` if that has to be
    /// gone.
    pub(super) async fn read_range(
        &self,
        url: &StoreUrl,
        call: &mut Call<'_>,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Result<(), ClientError>> {
        if url.tls {
            return None;
        }
        let address = *self.look_up(url, &call.method).await.ok()?.first()?;
        let request = call.request(url).ok()?;
        let patience = Patience {
            connect: self.options.connect_timeout,
            answer: self.options.answer_timeout,
            stall: self.options.stall_timeout,
            idle: IDLE_TIMEOUT,
        };
        let read = self
            .direct
            .read(address, &request, length, buffer, patience);
        let error = match read.await {
            Outcome::Read => return Some(Ok(())),
            Outcome::Ordinary => return None,
            Outcome::Broken(reason) => CallError::Broken { address, reason },
            Outcome::Late(after) => CallError::Timeout { address, after },
        };
        Some(Err(failed(url, &call.method, error)))
    }

    /// One attempt: each address of the host is tried until one takes a connection. A stream goes
    /// to the first of them only, as it cannot be read again.
    pub(super) async fn call(
        &self,
        url: &StoreUrl,
        call: &mut Call<'_>,
        patience: Duration,
    ) -> Result<Response, ClientError> {
        let client = self.client(url)?;
        let addresses = self.look_up(url, &call.method).await?;
        let mut refused = None;
        for (at, address) in addresses.iter().enumerate() {
            let request = call.request(url)?;
            let called = match url.tls {
                true => {
                    let calling = client.call_by_name(&url.host, *address, request, patience);
                    calling.await
                }
                false if lines::covers(call) => {
                    match self.lines.call(*address, request, patience).await {
                        Ok(Some(answer)) => Ok(answer),
                        Ok(None) => {
                            let again = call.request(url)?;
                            client.call(*address, again, patience).await
                        }
                        Err(error) => Err(error),
                    }
                }
                false => client.call(*address, request, patience).await,
            };
            match called {
                Err(error @ CallError::Connect { .. }) => {
                    refused = Some(error);
                    if !call.payload.can_repeat() {
                        break;
                    }
                }
                outcome => {
                    if at > 0 {
                        self.names.prefer(&url.host, url.port, *address);
                    }
                    return outcome.map_err(|error| failed(url, &call.method, error));
                }
            }
        }
        self.names.forget(&url.host, url.port);
        let refused = refused.unwrap_or(CallError::BadRequest("no address".to_owned()));
        Err(failed(url, &call.method, refused))
    }
}

fn client(options: &Options, tls: Option<ClientTls>) -> Client {
    Client::with_tls(
        options.connect_timeout,
        options.idle_connections,
        IDLE_TIMEOUT,
        tls,
    )
}

fn failed(url: &StoreUrl, method: &Method, error: CallError) -> ClientError {
    let (method, path, host) = (method.clone(), url.path.clone(), url.authority());
    match error {
        CallError::Connect { reason, .. } => ClientError::Connect {
            method,
            path,
            host,
            reason,
        },
        CallError::Timeout { after, .. } => ClientError::Timeout {
            method,
            path,
            host,
            after,
        },
        CallError::Broken { reason, .. } => ClientError::Broken {
            method,
            path,
            host,
            reason,
        },
        CallError::BadRequest(reason) => ClientError::Invalid(format!("{path}: {reason}")),
    }
}
