//! Filter `domain_remap`: takes account and container from the host name, so that
//! `container.AUTH-account.example.com/object` becomes `/v1/AUTH_account/container/object`.
//!
//! Options (default): `storage_domain` (`example.com`, a list), `path_root` (`v1`),
//! `reseller_prefixes` (`AUTH`), `default_reseller_prefix` (none: other accounts are not remapped),
//! `mangle_client_paths` (false: a leading `path_root` of the client's path is part of the object's
//! name). Browsers send hosts in lower case, so prefixes are matched ignoring case.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::params::{quote, quote_path, unquote};
use cairn_http::{Handler, Request, Response, Service, ServiceFuture, respond};
use http::StatusCode;
use http::header::HOST;
use serde_json::json;

use crate::location::{Rewritten, domains, host_and_port};
use crate::status;
use crate::{FilterEnv, FilterError};

struct DomainRemap {
    next: Handler,
    storage_domains: Vec<String>,
    /// With a trailing slash.
    path_root: String,
    reseller_prefixes: Vec<String>,
    default_reseller_prefix: Option<String>,
    mangle_client_paths: bool,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let default_reseller_prefix = section
        .get("default_reseller_prefix")
        .filter(|prefix| !prefix.is_empty())
        .map(str::to_owned);
    env.swift_info.register(
        "domain_remap",
        json!({ "default_reseller_prefix": default_reseller_prefix }),
    );
    Ok(Arc::new(DomainRemap {
        next,
        storage_domains: domains(section),
        path_root: format!("{}/", section.str_or("path_root", "v1").trim_matches('/')),
        reseller_prefixes: section.list_or("reseller_prefixes", "AUTH"),
        default_reseller_prefix,
        mangle_client_paths: section.bool_or("mangle_client_paths", false),
    }))
}

/// Result of parsing a host name.
enum Remapped {
    /// Not in a storage domain.
    No,
    Bad,
    To {
        account: String,
        container: Option<String>,
    },
}

impl Service for DomainRemap {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let host = respond::header(request.headers(), HOST.as_str())
            .or_else(|| request.uri().host())
            .unwrap_or("");
        match self.remap(host_and_port(host).0) {
            Remapped::No => self.next.call(request),
            Remapped::Bad => {
                let message = "Bad domain in host header";
                let refused = respond::text(StatusCode::BAD_REQUEST, message);
                Box::pin(std::future::ready(refused))
            }
            Remapped::To { account, container } => Box::pin(self.send(request, account, container)),
        }
    }
}

impl DomainRemap {
    fn remap(&self, host: &str) -> Remapped {
        let Some(names) = self
            .storage_domains
            .iter()
            .find_map(|domain| host.strip_suffix(domain.as_str()))
        else {
            return Remapped::No;
        };
        let parts: Vec<&str> = names.trim_matches('.').split('.').collect();
        let (container, account) = match parts[..] {
            [account] => (None, account),
            [container, account] => (Some(container.to_owned()), account),
            _ => return Remapped::Bad,
        };
        match self.account(account) {
            None => Remapped::No,
            Some(account) => Remapped::To { account, container },
        }
    }

    /// The account with its prefix in the right case; `None` if it has no known prefix.
    fn account(&self, name: &str) -> Option<String> {
        if self.reseller_prefixes.is_empty() {
            return Some(name.to_owned());
        }
        let name = if name.contains('_') {
            name.to_owned()
        } else {
            name.replacen('-', "_", 1)
        };
        let prefix = name.split('_').next().unwrap_or("");
        let real = self
            .reseller_prefixes
            .iter()
            .find(|real| real.eq_ignore_ascii_case(prefix));
        match (real, &self.default_reseller_prefix) {
            (Some(real), _) => Some(format!("{real}{}", &name[prefix.len()..])),
            (None, Some(default)) => Some(format!("{default}_{name}")),
            (None, None) => None,
        }
    }

    async fn send(
        &self,
        mut request: Request,
        account: String,
        container: Option<String>,
    ) -> Response {
        let requested = request.uri().path().to_owned();
        let mut path = requested.strip_prefix('/').unwrap_or(&requested);
        if self.mangle_client_paths && format!("{path}/").starts_with(&self.path_root) {
            path = path.get(self.path_root.len()..).unwrap_or("");
        }
        let mut rewritten = format!("/{}{}", quote_path(&self.path_root), quote(&account));
        for part in container
            .as_deref()
            .map(quote)
            .as_deref()
            .into_iter()
            .chain([path])
        {
            rewritten.push('/');
            rewritten.push_str(part);
        }
        let uri = match request.uri().query() {
            Some(query) => format!("{rewritten}?{query}"),
            None => rewritten.clone(),
        };
        match uri.parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return status::path_too_long(),
        }
        let mut response = self.next.call(request).await;
        // Locations have the standard encoding, whatever the client used.
        let usual = |path: &str| unquote(path).map(|path| quote_path(&path));
        if let (Ok(requested), Ok(rewritten)) = (usual(&requested), usual(&rewritten)) {
            let way = Rewritten::Path {
                requested: &requested,
                rewritten: &rewritten,
            };
            way.undo(&mut response);
        }
        response
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{filter, header, recorder, request};

    async fn ask(options: &[(&str, &str)], host: &str, path: &str) -> (u16, String) {
        let (inner, seen) = recorder(|_| respond::empty(StatusCode::OK));
        let app = filter("domain_remap", options, inner);
        let answer = app.call(request("GET", path, &[("host", host)])).await;
        let uri = seen
            .lock()
            .unwrap()
            .pop()
            .map(|(parts, _)| parts.uri.to_string());
        (answer.status().as_u16(), uri.unwrap_or_default())
    }

    #[tokio::test]
    async fn hosts_of_every_kind() {
        for (host, path, mapped) in [
            ("AUTH_a.example.com", "/", "/v1/AUTH_a/"),
            ("auth_a.example.com:8080", "/c", "/v1/AUTH_a/c"),
            ("AUTH-a.example.com", "/v1", "/v1/AUTH_a/v1"),
            ("auth-a-b.example.com", "/c/o", "/v1/AUTH_a-b/c/o"),
            ("c.auth-a.example.com", "/", "/v1/AUTH_a/c/"),
            (
                "c.AUTH_a.example.com",
                "/o%20p?q=1",
                "/v1/AUTH_a/c/o%20p?q=1",
            ),
            ("c.AUTH_a.example.com", "/%ff", "/v1/AUTH_a/c/%ff"),
            ("example.com", "/v1/x", "/v1/x"),
            ("c.other.example.com", "/o", "/o"),
            ("c.AUTH_a.elsewhere.com", "/o", "/o"),
            ("127.0.0.1:80", "/o", "/o"),
        ] {
            let (status, uri) = ask(&[], host, path).await;
            assert_eq!((status, uri.as_str()), (200, mapped), "{host}{path}");
        }
        assert_eq!(ask(&[], "a.b.AUTH_a.example.com", "/").await.0, 400);
    }

    #[tokio::test]
    async fn options() {
        let default = [("default_reseller_prefix", "AUTH")];
        let uri = ask(&default, "c.uuid-1.example.com", "/o").await.1;
        assert_eq!(uri, "/v1/AUTH_uuid_1/c/o");
        let none = [("reseller_prefixes", "")];
        let uri = ask(&none, "c.some-a.example.com", "/o").await.1;
        assert_eq!(uri, "/v1/some-a/c/o");
        let mangled = [("mangle_client_paths", "t")];
        for (path, mapped) in [
            ("/v1/o", "/v1/AUTH_a/c/o"),
            ("/v1", "/v1/AUTH_a/c/"),
            ("/v1o", "/v1/AUTH_a/c/v1o"),
        ] {
            assert_eq!(ask(&mangled, "c.AUTH_a.example.com", path).await.1, mapped);
        }
        let domains = [("storage_domain", "a.org, .b.org"), ("path_root", "/v1.0/")];
        for host in ["c.AUTH_a.a.org", "c.auth_a.b.org"] {
            assert_eq!(ask(&domains, host, "/o").await.1, "/v1.0/AUTH_a/c/o");
        }
        let empty = [("storage_domain", "")];
        assert_eq!(ask(&empty, "c.AUTH_a.example.com", "/o").await.1, "/o");
    }

    #[tokio::test]
    async fn locations_are_the_clients() {
        let (inner, _) = recorder(|parts| {
            let mut response = respond::empty(StatusCode::MOVED_PERMANENTLY);
            let location = format!("http://c.auth-a.example.com{}/", parts.uri.path());
            respond::set(response.headers_mut(), "location", location);
            response
        });
        let app = filter("domain_remap", &[], inner);
        let asked = request("GET", "/o%20p", &[("host", "c.auth-a.example.com")]);
        let location = header(&app.call(asked).await, "location");
        assert_eq!(
            location.as_deref(),
            Some("http://c.auth-a.example.com/o%20p/")
        );
    }
}
