//! One line for each request, under the tracing target `access`, in the fields and order of
//! `log_msg_template`. It is written when the answer's body has ended or broken off, so that it
//! tells what was really sent: 499 when the client left, 500 when the source failed.
//!
//! The filter stands in a pipeline twice: the outer one logs clients' requests, the inner one
//! those that filters between them make. Where the target is off, nothing is gathered at all.
//! Tokens, keys and signatures are cut to `reveal_sensitive_prefix` characters.

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

/// A request that has this in its extensions is on a line already.
#[derive(Clone, Copy)]
struct Logged;

/// How lines are written.
struct Format {
    template: Template,
    anonymize: Anonymize,
    reveal_sensitive_prefix: usize,
    /// Log request headers; all of them where the list is empty.
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
        // Dropped before it is finished, the entry logs that the client left.
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
