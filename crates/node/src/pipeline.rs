//! Construction of a pipeline: the conf's filters around its application, in the conf's order.

use std::sync::Arc;

use anyhow::{Context, Result};
use cairn_http::{Clock, Handler, InfoSource};
use cairn_middleware::{CrossOrigin, FilterEnv, Filters, Logins, NoInfo, Random};
use tracing::info;

use crate::cluster::Cluster;
use crate::conf::{Filter, ServerConf};
use crate::role::Role;

/// The filters that a pipeline may have.
pub(crate) fn filters() -> Filters {
    Filters::all().with("identity", cairn_identity::make)
}

/// Environment of a pipeline's filters. `info` is the proxy's; filters of backends make no
/// requests.
pub(crate) fn filter_env(
    cluster: &Cluster,
    info: Option<Arc<dyn InfoSource>>,
    clock: Clock,
) -> FilterEnv {
    FilterEnv {
        info_source: info.unwrap_or_else(|| Arc::new(NoInfo)),
        swift_info: cluster.swift_info.clone(),
        constraints: cluster.constraints.clone(),
        policies: cluster.policies.clone(),
        hash_path: cluster.hash_path.clone(),
        clock,
        random: Random::system(),
        logins: Logins::default(),
        cross_origin: CrossOrigin::default(),
    }
}

/// Wraps `app` in the conf's filters, and in those that a proxy requires.
pub(crate) fn build(conf: &ServerConf, app: Handler, env: &FilterEnv) -> Result<Handler> {
    around(&with_required(conf), app, env)
}

/// Wraps `app` in these filters, outermost first.
pub(crate) fn around(filters: &[Filter], app: Handler, env: &FilterEnv) -> Result<Handler> {
    let known = self::filters();
    let mut next = app;
    for filter in filters.iter().rev() {
        next = known
            .build(&filter.entry_point, &filter.section, next, env)
            .with_context(|| format!("[filter:{}]", filter.name))?;
    }
    Ok(next)
}

/// The conf's filters with the required ones added.
pub(crate) fn with_required(conf: &ServerConf) -> Vec<Filter> {
    let mut filters = conf.filters.clone();
    if conf.role != Role::Proxy {
        return filters;
    }
    let names: Vec<String> = filters.iter().map(|f| f.entry_point.clone()).collect();
    for (index, name) in cairn_middleware::required_filters(&names) {
        info!(
            conf = conf.conf.file(),
            filter = name,
            index,
            "required filter added to pipeline"
        );
        let section = conf.conf.section_or_defaults(&format!("filter:{name}"));
        let filter = Filter {
            name: name.into(),
            entry_point: name.into(),
            section,
        };
        filters.insert(index.min(filters.len()), filter);
    }
    filters
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_gets_what_it_cannot_be_without() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy-server.conf");
        let text = "[pipeline:main]\npipeline = check app\n[app:app]\nuse = egg:swift#proxy\n\
                    [filter:check]\nuse = egg:swift#healthcheck\n";
        std::fs::write(&path, text).unwrap();
        let filters = with_required(&ServerConf::load(&path).unwrap());
        let names: Vec<_> = filters.iter().map(|f| f.entry_point.as_str()).collect();
        assert_eq!(names[..2], ["catch_errors", "gatekeeper"]);
        assert_eq!(filters.iter().filter(|f| f.name == "check").count(), 1);
    }
}
