//! Construction of a pipeline: the conf's filters around its application, a proxy or another server,
//! in the conf's order.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cairn_assembly::ProxyOptions;
use cairn_http::{Clock, Handler, InfoSource};
use cairn_middleware::{CrossOrigin, FilterEnv, Filters, Logins, NoInfo, Random};
use cairn_peer::Backends;
use cairn_proxy::Proxy;
use cairn_types::PolicyIndex;
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

/// The application at the end of a proxy's pipeline.
pub(crate) fn proxy(
    conf: &ServerConf,
    cluster: &Cluster,
    backends: &Arc<Backends>,
    clock: &Clock,
) -> Result<Arc<Proxy>> {
    let mut policy_sections = BTreeMap::new();
    for name in conf.conf.section_names() {
        let Some(index) = name.strip_prefix("proxy-server:policy:") else {
            continue;
        };
        let known = index.trim().parse().ok().map(PolicyIndex);
        let known = known.filter(|index| cluster.policies.by_index(*index).is_some());
        let Some(index) = known else {
            let path = conf.path.display();
            bail!("{path}: [{name}]: swift.conf has no policy with this index");
        };
        policy_sections.insert(index, conf.conf.section(name)?);
    }
    let options = ProxyOptions {
        section: conf.app.clone(),
        policy_sections,
        swift_info: cluster.swift_info.clone(),
    };
    let common = cluster.common(backends, clock);
    cairn_assembly::proxy(options, &common, cluster.rings()?)
}

/// The pipeline of a conf, without the filters that clients would need.
pub(crate) fn read_pipeline(
    path: &Path,
    cluster: &Cluster,
    backends: &Arc<Backends>,
    clock: &Clock,
) -> Result<Handler> {
    let conf = ServerConf::load(path)?;
    if conf.role != Role::Proxy {
        bail!("this is the conf of {}, not of a proxy", conf.role);
    }
    if conf.filters.iter().any(|f| f.entry_point == "gatekeeper") {
        bail!("gatekeeper is for clients: remove it from the pipeline");
    }
    let cluster = &cluster.apart();
    let proxy = proxy(&conf, cluster, backends, clock)?;
    let env = filter_env(cluster, Some(proxy.clone()), clock.clone());
    around(&conf.filters, proxy, &env)
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
