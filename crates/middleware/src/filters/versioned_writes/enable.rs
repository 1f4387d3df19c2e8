//! `X-Versions-Enabled` on a container: creates the hidden versions container, or suspends the
//! creation of versions.

use cairn_http::params::{is_true, quote_path};
use cairn_http::{ContainerInfo, Request, Response, respond};
use http::header::{HeaderMap, HeaderName};
use http::request::Parts;
use http::{Method, StatusCode};

use super::authorize;
use super::object_versioning::{
    ContainerPath, ObjectVersioning, SOURCE, STORED_CONTAINER, STORED_ENABLED, VERSIONS_ENABLED,
};
use crate::api_path::set;
use crate::cause::{Cause, drain};
use crate::filters::symlink::BACKEND_ALLOW_RESERVED;
use crate::version_names;

const STORAGE_POLICY: HeaderName = HeaderName::from_static("x-storage-policy");

fn html(status: StatusCode, message: &'static str) -> Response {
    respond::typed(status, respond::HTML, message)
}

fn bad_request(message: &'static str) -> Response {
    html(StatusCode::BAD_REQUEST, message)
}

impl ObjectVersioning {
    pub(super) async fn enable(&self, request: Request, path: ContainerPath) -> Response {
        let (mut parts, body) = request.into_parts();
        let cause = Cause::of_parts(&parts);
        let made = match self.prepare(&mut parts, &cause, &path).await {
            Ok(made) => made,
            Err(refused) => return refused,
        };
        let mut response = self.next.call(Request::from_parts(parts, body)).await;
        if let Some(versions) = made.filter(|_| !response.status().is_success()) {
            // The client will retry; if other requests use it, it is not empty and stays.
            let versions = path.sibling(&versions);
            if let Ok(mut delete) = cause.pre_authorized(SOURCE, Method::DELETE, &versions, "") {
                set(delete.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
                drain(self.next.call(delete).await).await;
            }
        }
        if let Some(enabled) = response.headers().get(STORED_ENABLED).cloned() {
            response.headers_mut().insert(VERSIONS_ENABLED, enabled);
        }
        response
    }

    /// Checks and converts the header; returns the versions container's name, if one is to be
    /// created.
    async fn prepare(
        &self,
        parts: &mut Parts,
        cause: &Cause,
        path: &ContainerPath,
    ) -> Result<Option<String>, Response> {
        // Nothing is created for, or revealed to, unauthorized clients.
        authorize(parts, None).await?;
        let info = self
            .info_source
            .container(&cause.context, &path.account, &path.container)
            .await;
        refuse_mixtures(&info)?;
        let enabled =
            respond::header(&parts.headers, VERSIONS_ENABLED.as_str()).is_some_and(is_true);
        let stored = if enabled { "True" } else { "False" };
        set(&mut parts.headers, STORED_ENABLED, stored);
        if !enabled {
            return Ok(None);
        }
        let failed = || {
            html(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Error enabling object versioning",
            )
        };
        let versions = version_names::versions_container(&path.container).ok_or_else(failed)?;
        let there = path.sibling(&versions);
        let mut put = cause.pre_authorized(SOURCE, Method::PUT, &there, "")?;
        set(put.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        self.choose_policy(put.headers_mut(), parts, &info)?;
        let made = self.next.call(put).await;
        let status = made.status();
        drain(made).await;
        if !status.is_success() && status != StatusCode::CONFLICT {
            return Err(failed());
        }
        set(&mut parts.headers, STORED_CONTAINER, &quote_path(&versions));
        Ok(Some(versions))
    }

    /// Versions have the policy of their container.
    fn choose_policy(
        &self,
        headers: &mut HeaderMap,
        parts: &Parts,
        info: &ContainerInfo,
    ) -> Result<(), Response> {
        if info.exists() {
            let policy = self.policies.by_index(info.policy);
            if policy.is_some_and(|policy| policy.deprecated) {
                return Err(bad_request(
                    "Cannot enable object versioning on a container that uses a deprecated \
                     storage policy.",
                ));
            }
            if let Some(policy) = policy {
                set(headers, STORAGE_POLICY, &policy.name);
            }
        } else if let Some(name) = parts.headers.get(STORAGE_POLICY)
            && parts.method == Method::PUT
        {
            headers.insert(STORAGE_POLICY, name.clone());
        }
        Ok(())
    }
}

/// Refuses the combination with the other kind of versions, or with container sync.
fn refuse_mixtures(info: &ContainerInfo) -> Result<(), Response> {
    let is_set = |text: Option<&String>| text.is_some_and(|text| !text.is_empty());
    if is_set(info.sysmeta.get("versions-location")) || is_set(info.versions.as_ref()) {
        return Err(bad_request(
            "Cannot enable object versioning on a container that is already using the legacy \
             versioned writes feature.",
        ));
    }
    if is_set(info.sync_to.as_ref()) {
        return Err(bad_request(
            "Cannot enable object versioning on a container configured as source of container \
             syncing.",
        ));
    }
    Ok(())
}
