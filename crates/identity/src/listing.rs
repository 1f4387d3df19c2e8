//! The read-only lists of v3: projects, users, roles, and what clients request on their way to
//! these. An administrator sees everything; others see themselves and their projects.

use cairn_http::params::Params;
use serde_json::{Value, json};

use super::directory::{Person, Project, id_of};
use super::status::{self, Answer, Refusal};
use super::{Core, Valid};

/// A kind of entity that can be listed, with its names in paths and bodies.
struct Kind {
    one: &'static str,
    many: &'static str,
}

const PROJECT: Kind = Kind {
    one: "project",
    many: "projects",
};
const USER: Kind = Kind {
    one: "user",
    many: "users",
};
const ROLE: Kind = Kind {
    one: "role",
    many: "roles",
};
const DOMAIN: Kind = Kind {
    one: "domain",
    many: "domains",
};
const REGION: Kind = Kind {
    one: "region",
    many: "regions",
};
const SERVICE: Kind = Kind {
    one: "service",
    many: "services",
};
const ENDPOINT: Kind = Kind {
    one: "endpoint",
    many: "endpoints",
};
const GROUP: Kind = Kind {
    one: "group",
    many: "groups",
};

/// Query parameters that filter lists.
const FILTERS: [&str; 8] = [
    "name",
    "id",
    "domain_id",
    "enabled",
    "type",
    "interface",
    "region_id",
    "service_id",
];

pub(super) fn role_ref(name: &str) -> Value {
    json!({ "id": id_of("role", name), "name": name })
}

/// The entities that the requester may see.
struct View<'a> {
    core: &'a Core,
    host: &'a str,
    asker: &'a Person,
}

pub(super) fn answer(
    core: &Core,
    host: &str,
    valid: &Valid,
    segments: &[&str],
    params: &Params,
) -> Answer {
    let asker = core.person(valid).ok_or(status::NO_TOKEN)?;
    let view = View { core, host, asker };
    let project_id = valid.token.project_id.as_deref();
    match segments {
        ["auth", "catalog"] => Ok(status::ok(&json!({
            "catalog": core.catalog.v3(host, project_id),
            "links": view.links("auth/catalog"),
        }))),
        ["auth", "projects"] => {
            Ok(view.list(&PROJECT, "auth/projects", view.own_projects(asker), params))
        }
        ["auth", "domains"] => Ok(view.list(&DOMAIN, "auth/domains", Vec::new(), params)),
        ["auth", "system"] => Ok(status::ok(
            &json!({ "system": [], "links": view.links("auth/system") }),
        )),
        ["users", id, "projects"] => {
            let person = view.person(id)?;
            Ok(view.list(
                &PROJECT,
                &format!("users/{id}/projects"),
                view.own_projects(person),
                params,
            ))
        }
        ["users", id, "groups"] => {
            view.person(id)?;
            Ok(view.list(&GROUP, &format!("users/{id}/groups"), Vec::new(), params))
        }
        ["projects", project, "users", user, "roles"] => {
            let path = format!("projects/{project}/users/{user}/roles");
            let person = view.person(user)?;
            let roles = person.roles.get(*project).into_iter().flatten();
            let roles = roles.map(|role| view.role(role)).collect();
            Ok(view.list(&ROLE, &path, roles, params))
        }
        ["role_assignments"] => Ok(view.role_assignments(params)),
        [many] => {
            let (kind, all) = view.all(many)?;
            Ok(view.list(kind, many, all, params))
        }
        [many, id] => {
            let (kind, all) = view.all(many)?;
            let found = all.into_iter().find(|one| one["id"] == *id);
            let found = found.ok_or_else(|| Refusal::NotFound(format!("{}: {id}", kind.one)))?;
            Ok(status::ok(&json!({ kind.one: found })))
        }
        _ => Err(Refusal::NotFound("this path".into())),
    }
}

impl<'a> View<'a> {
    fn all(&self, many: &str) -> Result<(&'static Kind, Vec<Value>), Refusal> {
        let (services, endpoints) = self.core.catalog.listed(self.host);
        let directory = self.core.directory();
        Ok(match many {
            "projects" => {
                let seen = directory.projects().filter(|p| self.sees(&p.id));
                (&PROJECT, seen.map(|p| self.project(p)).collect())
            }
            "users" => {
                let seen = directory.people().filter(|p| self.sees_person(p));
                (&USER, seen.map(|p| self.user(p)).collect())
            }
            "roles" => (
                &ROLE,
                directory
                    .roles()
                    .into_iter()
                    .map(|r| self.role(r))
                    .collect(),
            ),
            "domains" => (&DOMAIN, vec![self.domain()]),
            "regions" => (&REGION, vec![self.region()]),
            "services" => (&SERVICE, services),
            "endpoints" => (&ENDPOINT, endpoints),
            "groups" => (&GROUP, Vec::new()),
            _ => return Err(Refusal::NotFound("this path".into())),
        })
    }

    fn sees(&self, project_id: &str) -> bool {
        self.asker.is_admin() || self.asker.roles.contains_key(project_id)
    }

    fn sees_person(&self, person: &Person) -> bool {
        self.asker.is_admin() || person.id == self.asker.id
    }

    fn person(&self, id: &str) -> Result<&'a Person, Refusal> {
        let person = self.core.directory().person(id);
        person
            .filter(|p| self.sees_person(p))
            .ok_or_else(|| Refusal::NotFound(format!("user: {id}")))
    }

    fn own_projects(&self, person: &Person) -> Vec<Value> {
        let directory = self.core.directory();
        let of = |id: &String| directory.project(id).map(|p| self.project(p));
        person.roles.keys().filter_map(of).collect()
    }

    fn links(&self, path: &str) -> Value {
        let own = format!("{}/v3/{path}", self.host);
        json!({ "self": own, "next": null, "previous": null })
    }

    fn link(&self, many: &str, id: &str) -> Value {
        json!({ "self": format!("{}/v3/{many}/{id}", self.host) })
    }

    fn list(
        &self,
        kind: &Kind,
        path: &str,
        mut all: Vec<Value>,
        params: &Params,
    ) -> cairn_http::Response {
        for filter in FILTERS {
            if let Some(wanted) = params.get(filter) {
                all.retain(|one| match &one[filter] {
                    Value::String(text) => text == wanted,
                    Value::Bool(yes) => cairn_http::params::is_true(wanted) == *yes,
                    _ => false,
                });
            }
        }
        status::ok(&json!({ kind.many: all, "links": self.links(path) }))
    }

    fn project(&self, project: &Project) -> Value {
        json!({
            "id": project.id,
            "name": project.name,
            "description": project.description,
            "domain_id": "default",
            "parent_id": "default",
            "is_domain": false,
            "enabled": true,
            "tags": [],
            "options": {},
            "links": self.link("projects", &project.id),
        })
    }

    fn user(&self, person: &Person) -> Value {
        json!({
            "id": person.id,
            "name": person.name,
            "domain_id": "default",
            "default_project_id": person.default_project,
            "enabled": true,
            "password_expires_at": null,
            "options": {},
            "links": self.link("users", &person.id),
        })
    }

    fn role(&self, name: &str) -> Value {
        let id = id_of("role", name);
        json!({
            "id": id,
            "name": name,
            "domain_id": null,
            "description": null,
            "options": {},
            "links": self.link("roles", &id),
        })
    }

    fn domain(&self) -> Value {
        json!({
            "id": "default",
            "name": "Default",
            "description": "Everybody here",
            "enabled": true,
            "tags": [],
            "options": {},
            "links": self.link("domains", "default"),
        })
    }

    fn region(&self) -> Value {
        let id = self.core.catalog.region();
        json!({
            "id": id,
            "description": "",
            "parent_region_id": null,
            "links": self.link("regions", id),
        })
    }

    /// The list of role assignments.
    fn role_assignments(&self, params: &Params) -> cairn_http::Response {
        let with_names = params
            .get("include_names")
            .is_some_and(|v| !["0", "false", "False"].contains(&v));
        let wanted = |filter: &str, id: &str| params.get(filter).is_none_or(|wanted| wanted == id);
        let mut assignments = Vec::new();
        for person in self
            .core
            .directory()
            .people()
            .filter(|p| self.sees_person(p))
        {
            for (project_id, roles) in &person.roles {
                for role in roles {
                    let role_id = id_of("role", role);
                    let is_wanted = wanted("user.id", &person.id)
                        && wanted("scope.project.id", project_id)
                        && wanted("role.id", &role_id)
                        && params.get("group.id").is_none()
                        && params.get("scope.domain.id").is_none()
                        && params.get("scope.system").is_none();
                    if is_wanted {
                        let assignment = self.assignment(person, project_id, role, with_names);
                        assignments.push(assignment);
                    }
                }
            }
        }
        status::ok(&json!({
            "role_assignments": assignments,
            "links": self.links("role_assignments"),
        }))
    }

    fn assignment(&self, person: &Person, project_id: &str, role: &str, with_names: bool) -> Value {
        let role_id = id_of("role", role);
        let path = format!("projects/{project_id}/users/{}/roles", person.id);
        let link = format!("{}/v3/{path}/{role_id}", self.host);
        let mut assignment = json!({
            "role": { "id": role_id },
            "user": { "id": person.id },
            "scope": { "project": { "id": project_id } },
            "links": { "assignment": link },
        });
        if with_names {
            let domain = json!({ "id": "default", "name": "Default" });
            let project = self.core.directory().project(project_id);
            assignment["role"]["name"] = role.into();
            assignment["user"]["name"] = person.name.as_str().into();
            assignment["user"]["domain"] = domain.clone();
            assignment["scope"]["project"]["name"] = project.map(|p| p.name.as_str()).into();
            assignment["scope"]["project"]["domain"] = domain;
        }
        assignment
    }
}
