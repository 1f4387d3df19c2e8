//! Filter `cname_lookup`: follows the CNAME of a foreign host name to one of the store's, for
//! `domain_remap` behind it: the owner of `www.mine.org` points it at
//! `container.AUTH-account.example.com`.
//!
//! Options (default): `storage_domain` (`example.com`, a list), `lookup_depth` (1: CNAMEs
//! followed), `nameservers` (those of `/etc/resolv.conf`; addresses, each with an optional port).

mod dns;

use std::net::IpAddr;
use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::{Handler, Request, Response, Service, ServiceFuture, respond};
use http::StatusCode;
use http::header::HOST;
use serde_json::json;
use tracing::{debug, info};

use crate::location::{Rewritten, domains, host_and_port};
use crate::{FilterEnv, FilterError};
use dns::Resolver;

struct CnameLookup {
    next: Handler,
    storage_domains: Vec<String>,
    lookup_depth: u64,
    resolver: Resolver,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let lookup_depth = section.u64_or("lookup_depth", 1)?;
    let servers = section.list_or("nameservers", "");
    let servers = if servers.is_empty() {
        dns::system_servers()
    } else {
        let addresses: Option<_> = servers.iter().map(|text| dns::address(text)).collect();
        addresses.ok_or_else(|| {
            let remedy = "expected IPv4 or IPv6 addresses, each with an optional :port";
            section.bad("nameservers", remedy)
        })?
    };
    env.swift_info
        .register("cname_lookup", json!({ "lookup_depth": lookup_depth }));
    Ok(Arc::new(CnameLookup {
        next,
        storage_domains: domains(section),
        lookup_depth,
        resolver: Resolver::new(servers, env.clock.clone(), env.random.clone()),
    }))
}

impl Service for CnameLookup {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let host = respond::header(request.headers(), HOST.as_str())
            .or_else(|| request.uri().host())
            .unwrap_or("");
        let (name, _) = host_and_port(host);
        let is_address = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok();
        if self.storage_domains.is_empty() || is_address || self.is_ours(name) {
            return self.next.call(request);
        }
        let host = host.to_owned();
        Box::pin(self.look_up(request, host))
    }
}

impl CnameLookup {
    fn is_ours(&self, name: &str) -> bool {
        let name = format!(".{name}");
        self.storage_domains
            .iter()
            .any(|domain| name.ends_with(domain.as_str()))
    }

    async fn look_up(&self, mut request: Request, host: String) -> Response {
        let (name, port) = host_and_port(&host);
        let found = match self.follow(name).await {
            Ok(found) => found,
            Err(message) => return respond::text(StatusCode::BAD_REQUEST, message),
        };
        info!(from = name, to = found, "mapped a host by its CNAME");
        let rewritten = match port {
            Some(port) => format!("{found}:{port}"),
            None => found,
        };
        respond::set(request.headers_mut(), HOST.as_str(), &rewritten);
        let mut response = self.next.call(request).await;
        let way = Rewritten::Host {
            requested: &host,
            rewritten: &rewritten,
        };
        way.undo(&mut response);
        response
    }

    /// Follows CNAMEs to the first name in a storage domain; the error is for the client.
    async fn follow(&self, name: &str) -> Result<String, String> {
        let mut name = name.to_owned();
        for _ in 0..self.lookup_depth {
            match self.resolver.cname(&name).await {
                Some(found) if found == name => break,
                None => break,
                Some(found) if self.is_ours(&found) => return Ok(found),
                Some(found) => {
                    debug!(from = name, to = found, "following a CNAME");
                    name = found;
                }
            }
        }
        Err("CNAME lookup failed to resolve to a valid domain".to_owned())
    }
}

#[cfg(test)]
mod tests;
