//! The login that `dispersion.conf` describes, in the options of Swift's programs.

use anyhow::Result;
use cairn_client::{EndpointChoice, Keystone, KeystoneSecret, Login, StoreUrl};
use cairn_formats::ini::Section;

pub(super) fn login(section: &Section) -> Result<Login> {
    let remedy = "it is how to sign in";
    let url = StoreUrl::parse(section.required("auth_url", remedy)?)?;
    let user = section.required("auth_user", remedy)?;
    let key = section.required("auth_key", remedy)?.to_owned();
    // `project:user`, unless the project has an option of its own.
    let (project, name) = match section.get("project_name") {
        Some(project) => (project, user),
        None => user.split_once(':').unwrap_or(("", user)),
    };
    let (project, name) = (Some(project.to_owned()), name.to_owned());
    let secret = match section.str_or("auth_version", "1.0") {
        "1" | "1.0" => {
            let user = user.to_owned();
            return Ok(Login::Tempauth { url, user, key });
        }
        "2" | "2.0" => KeystoneSecret::Tenant {
            user: name,
            password: key,
            tenant: project,
        },
        "3" | "3.0" => {
            let domain = |option: &str| section.str_or(option, "Default").to_owned();
            KeystoneSecret::Password {
                user: name,
                password: key,
                user_domain: domain("user_domain_name"),
                project,
                project_domain: domain("project_domain_name"),
            }
        }
        _ => return Err(section.bad("auth_version", "expected 1.0, 2.0 or 3").into()),
    };
    let region = section.get("region_name").filter(|name| !name.is_empty());
    let kind = section.str_or("endpoint_type", "publicURL");
    Ok(Login::Keystone(Box::new(Keystone {
        url,
        secret,
        endpoint: EndpointChoice {
            region: region.map(str::to_owned),
            service: None,
            interface: kind.trim_end_matches("URL").to_owned(),
        },
    })))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_formats::ini::Conf;

    use super::*;

    fn of(lines: &str) -> Result<Login> {
        let text = format!("[dispersion]\nauth_url = http://h:5000/v3/\n{lines}");
        let conf = Conf::parse("dispersion.conf", &text).unwrap();
        login(&conf.section("dispersion").unwrap())
    }

    #[test]
    fn versions_and_projects() {
        let tempauth = of("auth_user = a:u\nauth_key = k\n").unwrap();
        assert!(matches!(tempauth, Login::Tempauth { user, .. } if user == "a:u"));
        let more = "auth_user = p:u\nauth_key = k\nauth_version = 3\nendpoint_type = internalURL\n\
                    region_name = r\nuser_domain_name = d\n";
        let Login::Keystone(keystone) = of(more).unwrap() else {
            panic!("no Keystone");
        };
        let of_password = KeystoneSecret::Password {
            user: "u".to_owned(),
            password: "k".to_owned(),
            user_domain: "d".to_owned(),
            project: Some("p".to_owned()),
            project_domain: "Default".to_owned(),
        };
        assert!(keystone.secret == of_password);
        let endpoint = &keystone.endpoint;
        assert_eq!(endpoint.region.as_deref(), Some("r"));
        assert_eq!(endpoint.interface, "internal");
        let named = "auth_user = p:u\nauth_key = k\nauth_version = 2.0\nproject_name = q\n";
        let Login::Keystone(keystone) = of(named).unwrap() else {
            panic!("no Keystone");
        };
        assert!(matches!(
            keystone.secret,
            KeystoneSecret::Tenant { user, tenant: Some(tenant), .. } if user == "p:u" && tenant == "q"
        ));
        assert!(of("auth_user = u\nauth_key = k\nauth_version = 4\n").is_err());
        assert!(of("auth_user = u\n").is_err());
    }
}
