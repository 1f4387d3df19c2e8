//! Filter `ratelimit`: limits the rate of writes to an account or container by delaying requests,
//! and refuses (498) those that would be delayed too long.
//!
//! Options (default): `account_ratelimit` (0: off): containers created and deleted in an account
//! per second; `container_ratelimit_SIZE`: writes per second to a container of SIZE objects,
//! interpolated linearly between the given sizes; `container_listing_ratelimit_SIZE`: the same for
//! listings; `max_sleep_time_seconds` (60), `log_sleep_time_seconds` (0: off),
//! `rate_buffer_seconds` (5: unused rate that a slow client accumulates), `clock_accuracy` (1000
//! ticks per second), `account_whitelist`, `account_blacklist`. An account's system metadata
//! `Global-Write-Ratelimit` is a rate of all its writes, or `WHITELIST` or `BLACKLIST`.
//!
//! Swift counts in memcached, for all proxies together; here each process counts for itself, so the
//! total limit grows with the number of proxies.

mod buckets;
mod rates;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::{
    AccountInfo, Clock, Handler, InfoSource, Request, Response, Service, ServiceFuture, respond,
};
use cairn_types::Constraints;
use http::Method;
use serde_json::json;
use tracing::{error, warn};

use crate::names::Names;
use crate::{FilterEnv, FilterError};
use buckets::{Buckets, Wait};
use rates::Rates;

/// Status for blacklisted accounts.
const BLACKLISTED: u16 = 497;
const BLACKLIST_SLEEP: Duration = Duration::from_secs(1);
const GLOBAL: &str = "global-write-ratelimit";

/// Marks a request that has been delayed already.
#[derive(Clone, Copy)]
struct Handled;

struct RateLimit {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    constraints: Arc<Constraints>,
    clock: Clock,
    account_rate: f64,
    container_rates: Rates,
    listing_rates: Rates,
    log_sleep: Duration,
    whitelist: Vec<String>,
    blacklist: Vec<String>,
    buckets: Buckets,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let account_rate = section.f64_or("account_ratelimit", 0.0)?;
    let max_sleep = section.f64_or("max_sleep_time_seconds", 60.0)?;
    let container_rates = Rates::read(section, "container_ratelimit_")?;
    let listing_rates = Rates::read(section, "container_listing_ratelimit_")?;
    env.swift_info.register(
        "ratelimit",
        json!({
            "account_ratelimit": account_rate,
            "max_sleep_time_seconds": max_sleep,
            "container_ratelimits": container_rates.info(),
            "container_listing_ratelimits": listing_rates.info(),
        }),
    );
    let accuracy = section.u64_or("clock_accuracy", 1000)?.max(1);
    let buffer = section.u64_or("rate_buffer_seconds", 5)?;
    Ok(Arc::new(RateLimit {
        next,
        info_source: env.info_source.clone(),
        constraints: env.constraints.clone(),
        clock: env.clock.clone(),
        account_rate,
        container_rates,
        listing_rates,
        log_sleep: section.seconds_or("log_sleep_time_seconds", 0.0)?,
        whitelist: section.list_or("account_whitelist", ""),
        blacklist: section.list_or("account_blacklist", ""),
        buckets: Buckets::new(accuracy, buffer, max_sleep),
    }))
}

impl Service for RateLimit {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if request.extensions().get::<Handled>().is_some() {
            return self.next.call(request);
        }
        match Names::of_api(request.uri().path(), &self.constraints) {
            None => self.next.call(request),
            Some(names) => Box::pin(self.limit(request, names)),
        }
    }
}

impl RateLimit {
    async fn limit(&self, mut request: Request, names: Names) -> Response {
        request.extensions_mut().insert(Handled);
        let context = Context::of_request(&request);
        let info = self.info_source.account(&context, &names.account).await;
        let global = info.sysmeta.get(GLOBAL).map(String::as_str);
        let is_on = |list: &[String], word| list.contains(&names.account) || global == Some(word);
        if is_on(&self.whitelist, "WHITELIST") {
            return self.next.call(request).await;
        }
        if is_on(&self.blacklist, "BLACKLIST") {
            error!(
                account = names.account,
                "497: the account is on the black list"
            );
            tokio::time::sleep(BLACKLIST_SLEEP).await;
            let message = "Your account has been blacklisted";
            let code = respond::status(BLACKLISTED);
            return respond::typed(code, respond::HTML, message);
        }
        let method = request.method().clone();
        for (key, rate) in self.limits(&context, &method, &names, &info).await {
            if let Err(refused) = self.wait(&key, rate, &method, &names).await {
                return refused;
            }
        }
        self.next.call(request).await
    }

    /// The buckets of a request, each with its rate per second.
    async fn limits(
        &self,
        context: &Context,
        method: &Method,
        names: &Names,
        account_info: &AccountInfo,
    ) -> Vec<(String, f64)> {
        let account = &names.account;
        let writes = ["PUT", "DELETE", "POST", "COPY"].contains(&method.as_str());
        let mut limits = Vec::new();
        match (&names.container, &names.object) {
            (Some(container), Some(_)) if writes && self.container_rates.are_set() => {
                let size = self.size(context, account, container).await;
                let rate = self.container_rates.at(size);
                limits.extend(rate.map(|rate| (format!("ratelimit/{account}/{container}"), rate)));
            }
            (Some(container), None) if method == Method::GET && self.listing_rates.are_set() => {
                let size = self.size(context, account, container).await;
                let rate = self.listing_rates.at(size);
                let key = || format!("ratelimit_listing/{account}/{container}");
                limits.extend(rate.map(|rate| (key(), rate)));
            }
            (Some(_), None)
                if self.account_rate > 0.0
                    && (method == Method::PUT || method == Method::DELETE) =>
            {
                limits.push((format!("ratelimit/{account}"), self.account_rate));
            }
            _ => {}
        }
        let global = account_info.sysmeta.get(GLOBAL);
        let rate = global.and_then(|text| text.trim().parse::<f64>().ok());
        if let Some(rate) = rate.filter(|rate| writes && rate.is_finite() && *rate > 0.0) {
            limits.push((format!("ratelimit/global-write/{account}"), rate));
        }
        limits
    }

    async fn size(&self, context: &Context, account: &str, container: &str) -> u64 {
        let info = self.info_source.container(context, account, container);
        info.await.object_count
    }

    async fn wait(
        &self,
        key: &str,
        rate: f64,
        method: &Method,
        names: &Names,
    ) -> Result<(), Response> {
        let (account, container) = (&names.account, names.container.as_deref().unwrap_or(""));
        match self.buckets.take(key, rate, self.clock.now()) {
            Wait::For(wait) => {
                if !self.log_sleep.is_zero() && wait > self.log_sleep {
                    warn!(?wait, account, container, "a request waits for its rate");
                }
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                Ok(())
            }
            Wait::TooLong(wait) => {
                error!(%method, account, container, ?wait, "498: beyond the longest wait");
                let code = respond::status(respond::RATE_LIMITED);
                Err(respond::typed(code, respond::HTML, "Slow down"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
