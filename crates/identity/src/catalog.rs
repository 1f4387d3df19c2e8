//! The service catalog: endpoints of this store's object storage and identity, and the versions of
//! the identity API.

use cairn_formats::ini::Section;
use cairn_http::params::quote_path;
use cairn_http::{Request, Response};
use cairn_middleware::resellers::host_url;
use serde_json::{Value, json};

use super::directory::id_of;
use super::status;

const INTERFACES: [&str; 3] = ["public", "internal", "admin"];

pub(super) struct Catalog {
    region: String,
    /// URL under which clients reach this store, if it differs from their `Host`.
    public_url: Option<String>,
    prefix: String,
}

impl Catalog {
    pub(super) fn read(section: &Section, prefix: String) -> Catalog {
        let url = section.get("public_url").map(str::trim);
        Catalog {
            region: section.str_or("region", "RegionOne").to_owned(),
            public_url: url
                .filter(|u| !u.is_empty())
                .map(|u| u.trim_end_matches('/').to_owned()),
            prefix,
        }
    }

    pub(super) fn account_prefix(&self) -> &str {
        &self.prefix
    }

    /// Scheme and address of this store, as the requesting client must use them.
    pub(super) fn host(&self, request: &Request) -> String {
        self.public_url.clone().unwrap_or_else(|| host_url(request))
    }

    fn services(&self, host: &str, project_id: &str) -> [(&'static str, &'static str, String); 2] {
        let account = format!("{}{project_id}", self.prefix);
        let storage = format!("{host}/v1/{}", quote_path(&account));
        [
            ("object-store", "swift", storage),
            ("identity", "keystone", format!("{host}/v3")),
        ]
    }

    /// Catalog in the format of v3; tokens without a project have none.
    pub(super) fn v3(&self, host: &str, project_id: Option<&str>) -> Value {
        let Some(project_id) = project_id else {
            return json!([]);
        };
        let service = |(kind, name, url): (&str, &str, String)| {
            let endpoint = |interface: &&str| {
                json!({
                    "id": id_of("endpoint", &format!("{kind}:{interface}")),
                    "interface": interface,
                    "region": self.region,
                    "region_id": self.region,
                    "url": url,
                })
            };
            json!({
                "id": id_of("service", kind),
                "type": kind,
                "name": name,
                "endpoints": INTERFACES.iter().map(endpoint).collect::<Vec<_>>(),
            })
        };
        Value::from_iter(self.services(host, project_id).map(service))
    }

    /// Catalog in the format of v2.0.
    pub(super) fn v2(&self, host: &str, project_id: Option<&str>) -> Value {
        let Some(project_id) = project_id else {
            return json!([]);
        };
        let service = |(kind, name, url): (&str, &str, String)| {
            // A client that logged in by v2.0 continues with v2.0.
            let url = match kind {
                "identity" => format!("{host}/v2.0"),
                _ => url,
            };
            json!({
                "type": kind,
                "name": name,
                "endpoints_links": [],
                "endpoints": [{
                    "id": id_of("endpoint", kind),
                    "region": self.region,
                    "publicURL": url,
                    "internalURL": url,
                    "adminURL": url,
                }],
            })
        };
        Value::from_iter(self.services(host, project_id).map(service))
    }

    /// `services` of `GET /v3/services`, and `endpoints` of `GET /v3/endpoints`.
    pub(super) fn listed(&self, host: &str) -> (Vec<Value>, Vec<Value>) {
        let (mut services, mut endpoints) = (Vec::new(), Vec::new());
        let all = self.v3(host, Some("%(project_id)s"));
        for service in all.as_array().into_iter().flatten() {
            services.push(json!({
                "id": service["id"],
                "type": service["type"],
                "name": service["name"],
                "enabled": true,
                "links": { "self": format!("{host}/v3/services/{}", text(&service["id"])) },
            }));
            for endpoint in service["endpoints"].as_array().into_iter().flatten() {
                let mut endpoint = endpoint.clone();
                let url = text(&endpoint["url"]).replace("%25%28project_id%29s", "%(project_id)s");
                endpoint["url"] = url.into();
                endpoint["service_id"] = service["id"].clone();
                endpoint["enabled"] = true.into();
                let link = format!("{host}/v3/endpoints/{}", text(&endpoint["id"]));
                endpoint["links"] = json!({ "self": link });
                endpoints.push(endpoint);
            }
        }
        (services, endpoints)
    }

    pub(super) fn region(&self) -> &str {
        &self.region
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn version(host: &str, id: &str, path: &str, status: &str, media: &str) -> Value {
    json!({
        "id": id,
        "status": status,
        "updated": "2020-04-07T00:00:00Z",
        "links": [{ "rel": "self", "href": format!("{host}/{path}/") }],
        "media-types": [{
            "base": "application/json",
            "type": format!("application/vnd.openstack.identity-{media}+json"),
        }],
    })
}

pub(super) fn version_3(host: &str) -> Value {
    version(host, "v3.14", "v3", "stable", "v3")
}

pub(super) fn version_2(host: &str) -> Value {
    version(host, "v2.0", "v2.0", "deprecated", "v2.0")
}

/// The list of versions, for clients that know only the store's address.
pub(super) fn all_versions(host: &str) -> Response {
    let values = [version_3(host), version_2(host)];
    status::choices(&json!({ "versions": { "values": values } }))
}
