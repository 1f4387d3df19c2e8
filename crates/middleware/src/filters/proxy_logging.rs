//! Filter `proxy-logging`: the access log, one line per request under the tracing target `access`,
//! with the fields of `log_msg_template`. A line is written when the response's body has ended or
//! broken off, so that it states what was really sent: 499 if the client disconnected, 500 if the
//! source failed.
//!
//! The filter is in a pipeline twice: the outer one logs clients' requests, the inner one those of
//! filters in between. If the target is disabled, nothing is collected. Tokens, keys and signatures
//! are truncated to `reveal_sensitive_prefix` characters.

mod entry;
mod moment;
mod template;

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler, Request, Response, Service, ServiceFuture};
use cairn_types::Constraints;
use http::Method;
use tracing::Level;

use crate::watch::{Ending, Received, count, watch};
use crate::{FilterEnv, FilterError};
use entry::Entry;
use template::{Anonymize, Template};

const DEFAULT_TEMPLATE: &str = "{client_ip} {remote_addr} {end_time.datetime} {method} {path} \
    {protocol} {status_int} {referer} {user_agent} {auth_token} {bytes_recvd} {bytes_sent} \
    {client_etag} {transaction_id} {headers} {request_time} {source} {log_info} {start_time} \
    {end_time} {policy_index} {access_user_id}";

/// Marks a request that is logged already.
#[derive(Clone, Copy)]
struct Logged;

/// Format of the lines.
struct Format {
    template: Template,
    anonymize: Anonymize,
    reveal_sensitive_prefix: usize,
    /// Request headers to log; all of them if the list is empty.
    headers: Option<Vec<String>>,
    constraints: Arc<Constraints>,
    clock: Clock,
}

struct ProxyLogging {
    next: Handler,
    format: Arc<Format>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let template = Template::parse(section.str_or("log_msg_template", DEFAULT_TEMPLATE))
        .map_err(|why| section.bad("log_msg_template", why))?;
    let method = section.str_or("log_anonymization_method", "md5");
    let salt = section.str_or("log_anonymization_salt", "");
    let anonymize = Anonymize::new(method, salt).ok_or_else(|| {
        section.bad(
            "log_anonymization_method",
            "expected md5, sha1, sha224, sha256, sha384 or sha512",
        )
    })?;
    let log_headers = section.bool_or("access_log_headers", section.bool_or("log_headers", false));
    let only = section.list_or("access_log_headers_only", "");
    let format = Format {
        template,
        anonymize,
        reveal_sensitive_prefix: section.usize_or("reveal_sensitive_prefix", 16)?,
        headers: log_headers.then(|| only.iter().map(|n| n.to_ascii_lowercase()).collect()),
        constraints: env.constraints.clone(),
        clock: env.clock.clone(),
    };
    Ok(Arc::new(ProxyLogging {
        next,
        format: Arc::new(format),
    }))
}

impl Service for ProxyLogging {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let on = tracing::enabled!(target: "access", Level::INFO);
        if !on || request.extensions().get::<Logged>().is_some() {
            return self.next.call(request);
        }
        Box::pin(self.log(request))
    }
}

impl ProxyLogging {
    async fn log(&self, mut request: Request) -> Response {
        request.extensions_mut().insert(Logged);
        let received = Arc::new(Received::default());
        let is_head = request.method() == Method::HEAD;
        // If the entry is dropped before it is finished, it logs that the client disconnected.
        let mut entry = Entry::new(&self.format, &request, received.clone());
        let request = request.map(|body| count(body, &received));
        let mut response = self.next.call(request).await;
        entry.answered(&response);
        if is_head {
            entry.finish(Ending::Complete, 0);
            return response;
        }
        if let Some(whole) = response.body().as_full() {
            entry.finish(Ending::Complete, whole.len() as u64);
            return response;
        }
        let body = std::mem::take(response.body_mut());
        *response.body_mut() = watch(body, None, move |ending, sent| entry.finish(ending, sent));
        response
    }
}

#[cfg(test)]
mod tests;
