//! Object versioning: dispatches requests to its parts.
//!
//! A container with versions has `X-Container-Sysmeta-Versions-Container` (their container,
//! percent-encoded) and `X-Container-Sysmeta-Versions-Enabled` (`True`, or `False` if suspended).

use std::sync::Arc;

use cairn_http::params::{is_true, unquote};
use cairn_http::{Clock, ContainerInfo, Handler, InfoSource, Request, Service, ServiceFuture};
use cairn_types::{Constraints, PolicySet};
use http::Method;
use http::header::HeaderName;

use crate::FilterEnv;
use crate::api_path::{ApiPath, ObjectPath};

pub(super) const SOURCE: &str = "OV";
pub(super) const VERSIONS_ENABLED: HeaderName = HeaderName::from_static("x-versions-enabled");
pub(super) const STORED_ENABLED: HeaderName =
    HeaderName::from_static("x-container-sysmeta-versions-enabled");
pub(super) const STORED_CONTAINER: HeaderName =
    HeaderName::from_static("x-container-sysmeta-versions-container");
pub(super) const OBJECT_VERSION_ID: HeaderName = HeaderName::from_static("x-object-version-id");

pub(super) struct ObjectVersioning {
    pub(super) next: Handler,
    pub(super) info_source: Arc<dyn InfoSource>,
    pub(super) clock: Clock,
    pub(super) constraints: Arc<Constraints>,
    pub(super) policies: Arc<PolicySet>,
}

impl ObjectVersioning {
    pub(super) fn new(next: Handler, env: &FilterEnv) -> Self {
        ObjectVersioning {
            next,
            info_source: env.info_source.clone(),
            clock: env.clock.clone(),
            constraints: env.constraints.clone(),
            policies: env.policies.clone(),
        }
    }
}

impl Service for ObjectVersioning {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let versions = &self.constraints.valid_api_versions;
        let path = ApiPath::of(request.uri().path()).filter(|p| versions.contains(&p.version));
        let Some(path) = path else {
            return self.next.call(request);
        };
        let ApiPath {
            version,
            account,
            container,
            object,
        } = path;
        let Some(container) = container else {
            return if request.method() == Method::GET {
                Box::pin(self.list_account(request, account))
            } else {
                self.next.call(request)
            };
        };
        if let Some(object) = object {
            let path = ObjectPath {
                version,
                account,
                container,
                object,
            };
            return Box::pin(self.object(request, path));
        }
        let path = ContainerPath {
            version,
            account,
            container,
        };
        let writes = request.method() == Method::PUT || request.method() == Method::POST;
        if writes && request.headers().contains_key(VERSIONS_ENABLED) {
            Box::pin(self.enable(request, path))
        } else if request.method() == Method::DELETE {
            Box::pin(self.delete_container(request, path))
        } else {
            Box::pin(self.show_container(request, path))
        }
    }
}

/// A decoded path of a container.
pub(super) struct ContainerPath {
    pub(super) version: String,
    pub(super) account: String,
    pub(super) container: String,
}

impl ContainerPath {
    /// The path of another container in the account.
    pub(super) fn sibling(&self, container: &str) -> String {
        format!("/{}/{}/{container}", self.version, self.account)
    }
}

/// The container of a container's versions, if it ever had any.
pub(crate) fn versions_container(info: &ContainerInfo) -> Option<String> {
    let stored = info.sysmeta.get("versions-container")?;
    let name = unquote(stored).ok()?;
    let name = name.split('/').next().unwrap_or("");
    (!name.is_empty()).then(|| name.to_owned())
}

/// Are new versions created?
pub(super) fn is_enabled(info: &ContainerInfo) -> bool {
    info.sysmeta
        .get("versions-enabled")
        .is_some_and(|text| is_true(text))
}
