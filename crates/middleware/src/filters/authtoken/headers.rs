//! Headers by which keystonemiddleware passes the identity to applications. A client that sends one
//! could impersonate a user, so all are removed first.

use cairn_http::respond;
use http::header::{HeaderMap, HeaderName};
use serde_json::{Map, Value, json};

use crate::keystone::{Holder, Named};

pub(super) const STATUS: HeaderName = HeaderName::from_static("x-identity-status");
pub(super) const SERVICE_STATUS: HeaderName = HeaderName::from_static("x-service-identity-status");

/// Header names after `X-` or `X-Service-`.
const IDENTITY_HEADERS: [&str; 11] = [
    "domain-id",
    "domain-name",
    "project-id",
    "project-name",
    "project-domain-id",
    "project-domain-name",
    "user-id",
    "user-name",
    "user-domain-id",
    "user-domain-name",
    "roles",
];
/// Further header names, after `x-`.
const OTHER_HEADERS: [&str; 9] = [
    "service-catalog",
    "identity-status",
    "service-identity-status",
    "is-admin-project",
    "role",
    "user",
    "tenant-id",
    "tenant-name",
    "tenant",
];
const SYSTEM_SCOPE: &str = "openstack-system-scope";
/// Maximum bytes of a catalog that is passed on; larger ones would not fit into a request's head.
const CATALOG_MAX_BYTES: usize = 64 * 1024;

fn is_ours(name: &str) -> bool {
    if name == SYSTEM_SCOPE {
        return true;
    }
    let Some(rest) = name.strip_prefix("x-") else {
        return false;
    };
    let of_holder = rest.strip_prefix("service-").unwrap_or(rest);
    OTHER_HEADERS.contains(&rest) || IDENTITY_HEADERS.contains(&of_holder)
}

pub(super) fn remove(headers: &mut HeaderMap) {
    let sent: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_ours(name.as_str()))
        .cloned()
        .collect();
    for name in sent {
        headers.remove(name);
    }
}

fn set_holder(headers: &mut HeaderMap, prefix: &str, holder: &Holder) {
    let mut set = |name: &str, value: &str| {
        if !value.is_empty() {
            respond::set(headers, &format!("{prefix}{name}"), value);
        }
    };
    let mut pair = |name: &str, of: &Named| {
        set(&format!("{name}-id"), &of.id);
        set(&format!("{name}-name"), &of.name);
    };
    pair("user", &holder.user);
    pair("user-domain", &holder.user_domain);
    if let Some(project) = &holder.project {
        let of = Named {
            id: project.id.clone(),
            name: project.name.clone(),
        };
        pair("project", &of);
        pair("project-domain", &project.domain);
    }
    if let Some(domain) = &holder.domain {
        pair("domain", domain);
    }
    respond::set(headers, &format!("{prefix}roles"), holder.roles.join(","));
    if holder.is_system {
        respond::set(headers, SYSTEM_SCOPE, "all");
    }
}

pub(super) fn set_service(headers: &mut HeaderMap, holder: &Holder) {
    set_holder(headers, "x-service-", holder);
}

pub(super) fn set_user(headers: &mut HeaderMap, holder: &Holder) {
    set_holder(headers, "x-", holder);
    let admin = if holder.is_admin_project {
        "True"
    } else {
        "False"
    };
    respond::set(headers, "x-is-admin-project", admin);
    // Older names of these headers.
    for (old, new) in [
        ("x-role", "x-roles"),
        ("x-user", "x-user-name"),
        ("x-tenant-id", "x-project-id"),
        ("x-tenant-name", "x-project-name"),
        ("x-tenant", "x-project-name"),
    ] {
        if let Some(value) = headers.get(new).cloned() {
            headers.insert(HeaderName::from_static(old), value);
        }
    }
}

pub(super) fn set_catalog(headers: &mut HeaderMap, catalog: Option<&Value>) {
    let Some(services) = catalog.and_then(Value::as_array) else {
        return;
    };
    let text = Value::from_iter(services.iter().map(service)).to_string();
    if text.len() <= CATALOG_MAX_BYTES {
        respond::set(headers, "x-service-catalog", text);
    }
}

/// A service of a v3 catalog in the format of v2.0: one entry per region, with one URL per
/// interface.
fn service(v3: &Value) -> Value {
    let mut regions: Vec<(Value, Map<String, Value>)> = Vec::new();
    for endpoint in v3["endpoints"].as_array().into_iter().flatten() {
        let region = endpoint["region"].clone();
        let at = match regions.iter().position(|(known, _)| *known == region) {
            Some(at) => at,
            None => {
                let mut first = Map::new();
                if !region.is_null() {
                    first.insert("region".into(), region.clone());
                }
                regions.push((region, first));
                regions.len() - 1
            }
        };
        if let Some(interface) = endpoint["interface"].as_str() {
            let name = format!("{}URL", interface.to_lowercase());
            regions[at].1.insert(name, endpoint["url"].clone());
        }
    }
    let mut service = json!({
        "type": v3["type"],
        "endpoints": regions.into_iter().map(|(_, of)| Value::Object(of)).collect::<Vec<_>>(),
    });
    if let Some(name) = v3.get("name") {
        service["name"] = name.clone();
    }
    service
}
