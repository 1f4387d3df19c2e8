//! The directory of users and projects: those in `identity.conf`, and the users of the pipeline's
//! TempAuth.
//!
//!
//! ```text
//! [project:photos]            ; only where it needs more than a name
//! id = 3f2a                   ; the account is AUTH_<id>; the name unless given
//! description = Holiday pictures
//!
//! [user:alice]
//! password = wonderland       ; or {pbkdf2-sha256}ROUNDS$SALT$HASH
//! roles = photos: swiftoperator, films: member reader
//! default_project = photos    ; for logins that name none
//! ```
//!
//! A TempAuth user `account:user` is the user `user` with one project, its account, and the same
//! key. All are in the domain `default`.

use std::collections::{BTreeMap, BTreeSet};

use cairn_formats::ini::{Conf, ConfError, Section};
use cairn_middleware::logins::Login;
use cairn_middleware::secret::Secret;
use cairn_types::hex;
use sha2::{Digest, Sha256};
use tracing::warn;

/// The TempAuth group that owns its account, and the roles that its members have here.
const OWNER: (&str, [&str; 2]) = (".admin", ["swiftoperator", "member"]);
const RESELLER_ADMIN: (&str, [&str; 2]) = (".reseller_admin", ["ResellerAdmin", "admin"]);
const RESELLER_READER: (&str, [&str; 2]) = (".reseller_reader", ["system_reader", "member"]);

/// Roles with a special meaning regardless of `keystoneauth`'s options, in lower case.
const PRIVILEGED: [&str; 4] = ["admin", "swiftoperator", "reselleradmin", "system_reader"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Project {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
}

pub(super) struct Person {
    pub(super) id: String,
    pub(super) name: String,
    /// `account:user` of TempAuth, if the user comes from there.
    login: Option<String>,
    pub(super) secret: Secret,
    /// Role names by project id.
    pub(super) roles: BTreeMap<String, Vec<String>>,
    pub(super) default_project: Option<String>,
}

#[derive(Default)]
pub(super) struct Directory {
    people: Vec<Person>,
    /// Projects by id.
    projects: BTreeMap<String, Project>,
}

/// A client's reference to a user or project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    Id(String),
    Name(String),
}

impl Naming {
    /// The text in the request.
    pub(super) fn text(&self) -> &str {
        match self {
            Naming::Id(text) | Naming::Name(text) => text,
        }
    }
}

/// An id that looks like Keystone's, and is the same for the same name at every start.
pub(super) fn id_of(kind: &str, name: &str) -> String {
    let digest = Sha256::digest(format!("{kind}:{name}").as_bytes());
    hex::encode(&digest[..16])
}

impl Directory {
    /// Reads the users of the file.
    pub(super) fn read(conf: &Conf) -> Result<Directory, ConfError> {
        let mut directory = Directory::default();
        for name in conf.section_names() {
            if let Some(project) = name.strip_prefix("project:") {
                let section = conf.section(name)?;
                let id = section.str_or("id", project).trim();
                directory.add_project(&section, id, project.trim())?;
            } else if !name.starts_with("user:") {
                let remedy = "nothing reads this section; known are [project:NAME] and [user:NAME]";
                return Err(conf.section(name)?.bad("", remedy));
            }
        }
        for name in conf.section_names() {
            if let Some(user) = name.strip_prefix("user:") {
                directory.add_user(&conf.section(name)?, user.trim())?;
            }
        }
        Ok(directory)
    }

    fn add_project(&mut self, section: &Section, id: &str, name: &str) -> Result<(), ConfError> {
        let is_usable = |text: &str| {
            let fits = (1..=200).contains(&text.len());
            fits && !text.contains(|c: char| c == '/' || c == ',' || c.is_control())
        };
        if !is_usable(id) || !is_usable(name) {
            let remedy = "a project's name and id are 1 to 200 bytes without '/' and ','";
            return Err(section.bad("id", remedy));
        }
        let known = self.projects.values().any(|p| p.name == name);
        if known || self.projects.contains_key(id) {
            return Err(section.bad("id", "another project has this id or name already"));
        }
        let project = Project {
            id: id.to_owned(),
            name: name.to_owned(),
            description: section.str_or("description", "").to_owned(),
        };
        self.projects.insert(id.to_owned(), project);
        Ok(())
    }

    fn add_user(&mut self, section: &Section, name: &str) -> Result<(), ConfError> {
        let hidden = |remedy: &str| {
            let mut error = section.bad("password", remedy);
            if let ConfError::Value { value, .. } = &mut error {
                *value = "(not shown)".into();
            }
            error
        };
        let secret = Secret::read(section.str_or("password", "")).map_err(hidden)?;
        let mut roles: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for item in section.list_or("roles", "") {
            let remedy = "expected PROJECT: ROLE [ROLE ...], and a comma before the next project";
            let (project, named) = item.rsplit_once(':').ok_or(section.bad("roles", remedy))?;
            let named: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
            if named.is_empty() {
                return Err(section.bad("roles", remedy));
            }
            let id = self.project_of_file(section, project.trim())?;
            roles.entry(id).or_default().extend(named);
        }
        let default_project = match section.get("default_project") {
            None => roles.keys().next().filter(|_| roles.len() == 1).cloned(),
            Some(project) => {
                let id = self.project_named(project.trim()).map(|p| p.id.clone());
                let id = id.filter(|id| roles.contains_key(id));
                let remedy = "the user has no role on this project";
                Some(id.ok_or(section.bad("default_project", remedy))?)
            }
        };
        let id = match section.get("id") {
            Some(id) => id.trim().to_owned(),
            None => id_of("user", name),
        };
        if self.people.iter().any(|p| p.id == id) {
            return Err(section.bad("id", "another user has this id already"));
        }
        self.people.push(Person {
            id,
            name: name.to_owned(),
            login: None,
            secret,
            roles,
            default_project,
        });
        Ok(())
    }

    fn project_named(&self, name: &str) -> Option<&Project> {
        self.projects.values().find(|project| project.name == name)
    }

    /// The id of a project that a user's roles name; a project without a section is created.
    fn project_of_file(&mut self, section: &Section, name: &str) -> Result<String, ConfError> {
        if let Some(project) = self.project_named(name) {
            return Ok(project.id.clone());
        }
        let undescribed = Section::from_pairs(section.name(), &[]);
        self.add_project(&undescribed, name, name)?;
        Ok(name.to_owned())
    }

    /// Adds TempAuth's users, except those whose account has another prefix. `privileged` lists
    /// roles that a group of the same name does not confer.
    pub(super) fn add_logins(
        &mut self,
        logins: &[Login],
        prefix: &str,
        privileged: &BTreeSet<String>,
    ) {
        for login in logins {
            let Some(project_id) = login.account_id.strip_prefix(prefix) else {
                continue;
            };
            if project_id.is_empty() || project_id.contains(',') {
                continue;
            }
            let project = || Project {
                id: project_id.to_owned(),
                name: login.account.clone(),
                description: String::new(),
            };
            self.projects
                .entry(project_id.to_owned())
                .or_insert_with(project);
            let account_user = format!("{}:{}", login.account, login.user);
            self.people.push(Person {
                id: id_of("login", &account_user),
                name: login.user.clone(),
                login: Some(account_user),
                secret: login.key.clone(),
                roles: BTreeMap::from([(project_id.to_owned(), roles_of(login, privileged))]),
                default_project: Some(project_id.to_owned()),
            });
        }
    }

    pub(super) fn people(&self) -> impl Iterator<Item = &Person> {
        self.people.iter()
    }

    pub(super) fn projects(&self) -> impl Iterator<Item = &Project> {
        self.projects.values()
    }

    pub(super) fn person(&self, id: &str) -> Option<&Person> {
        self.people.iter().find(|person| person.id == id)
    }

    pub(super) fn project(&self, id: &str) -> Option<&Project> {
        self.projects.get(id)
    }

    pub(super) fn find_project(&self, naming: &Naming) -> Option<&Project> {
        match naming {
            Naming::Id(id) => self.project(id),
            Naming::Name(name) => self.project_named(name),
        }
    }

    /// All users that a reference may mean: TempAuth may have a `tester` in several accounts.
    pub(super) fn find_people(&self, naming: &Naming) -> Vec<&Person> {
        let is_meant = |person: &&Person| match naming {
            Naming::Id(id) => person.id == *id,
            Naming::Name(name) => {
                person.name == *name || person.login.as_ref().is_some_and(|l| l == name)
            }
        };
        self.people.iter().filter(is_meant).collect()
    }

    /// All role names that are assigned to anyone, sorted.
    pub(super) fn roles(&self) -> BTreeSet<&str> {
        let of = |person| Person::all_roles(person).map(String::as_str);
        self.people.iter().flat_map(of).collect()
    }
}

impl Person {
    fn all_roles(&self) -> impl Iterator<Item = &String> {
        self.roles.values().flatten()
    }

    /// Is this an administrator, who sees all users and may revoke all tokens?
    pub(super) fn is_admin(&self) -> bool {
        self.all_roles().any(|role| role == "admin")
    }
}

/// The roles conferred by TempAuth's groups; other groups are roles of the same name, unless that
/// name is privileged.
fn roles_of(login: &Login, privileged: &BTreeSet<String>) -> Vec<String> {
    let is_privileged = |group: &String| {
        let group = group.to_lowercase();
        PRIVILEGED.contains(&group.as_str()) || privileged.contains(&group)
    };
    let mut roles: Vec<String> = Vec::new();
    let known = [OWNER, RESELLER_ADMIN, RESELLER_READER];
    for group in &login.groups {
        match known.iter().find(|(name, _)| name == group) {
            Some((_, named)) => roles.extend(named.map(str::to_owned)),
            None if is_privileged(group) => warn!(
                account = login.account,
                user = login.user,
                group,
                "this group of tempauth is no role of this name: .admin, .reseller_admin or \
                 identity.conf give such roles"
            ),
            None => roles.push(group.clone()),
        }
    }
    if roles.is_empty() {
        roles.push("member".to_owned());
    }
    let mut seen = BTreeSet::new();
    roles.retain(|role| seen.insert(role.clone()));
    roles
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Directory, ConfError> {
        Directory::read(&Conf::parse("identity.conf", text)?)
    }

    #[test]
    fn the_file() {
        let directory = read(
            "[project:photos]\nid = 3f2a\ndescription = pictures\n\
             [user:alice]\npassword = x\nroles = photos: swiftoperator, films: member reader\n\
             default_project = films\n\
             [user:bob]\npassword = y\nroles = photos: member\nid = b0b\n",
        )
        .unwrap();
        let [alice] = directory.find_people(&Naming::Name("alice".into()))[..] else {
            panic!("one alice");
        };
        assert_eq!(alice.roles["3f2a"], ["swiftoperator"]);
        assert_eq!(alice.roles["films"], ["member", "reader"]);
        assert_eq!(alice.default_project.as_deref(), Some("films"));
        assert_eq!(alice.id.len(), 32);
        let bob = directory.person("b0b").unwrap();
        assert_eq!(bob.default_project.as_deref(), Some("3f2a"));
        let photos = directory.find_project(&Naming::Name("photos".into()));
        assert_eq!(photos.unwrap().description, "pictures");
        assert!(directory.roles().contains("reader"));
    }

    #[test]
    fn users_of_tempauth() {
        let login = |account: &str, groups: &[&str]| Login {
            account: account.into(),
            user: "tester".into(),
            key: Secret::Plain("testing".into()),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            account_id: format!("AUTH_{account}"),
        };
        let mut directory = Directory::default();
        directory.add_logins(
            &[
                login("test", &[".admin"]),
                login("two", &["service"]),
                login("three", &["admin", "resellerADMIN", "Boss", "team"]),
            ],
            "AUTH_",
            &BTreeSet::from(["boss".to_owned()]),
        );
        let testers = directory.find_people(&Naming::Name("tester".into()));
        assert_eq!(testers.len(), 3);
        assert_eq!(testers[2].roles["three"], ["team"]);
        assert_eq!(testers[0].roles["test"], ["swiftoperator", "member"]);
        assert_eq!(testers[1].roles["two"], ["service"]);
        let one = directory.find_people(&Naming::Name("two:tester".into()));
        assert_eq!(one.len(), 1);
        assert_ne!(testers[0].id, testers[1].id);
    }

    #[test]
    fn mistakes_are_named_without_the_password() {
        for (text, part) in [
            ("[user:a]\nroles = p: r\n", "password"),
            ("[user:a]\npassword = {pbkdf2-sha256}secret\n", "password"),
            ("[user:a]\npassword = secret\nroles = p\n", "roles"),
            ("[user:a]\npassword = secret\nroles = p:\n", "roles"),
            (
                "[user:a]\npassword = secret\nroles = p: r\ndefault_project = q\n",
                "default_project",
            ),
            ("[project:a/b]\n", "without '/'"),
            ("[project:a]\nid = x\n[project:b]\nid = x\n", "already"),
            ("[users:a]\n", "[user:NAME]"),
        ] {
            let error = read(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_file_is_read_or_refused(
            password: String,
            roles in "[a-c:, ]{0,40}",
            project in "[a-c/,=]{0,8}",
        ) {
            let text = format!(
                "[project:{project}]\n[user:u]\npassword = {password}\nroles = {roles}\n"
            );
            if let Ok(directory) = read(&text) {
                for person in directory.people() {
                    assert!(person.roles.keys().all(|id| directory.project(id).is_some()));
                }
            }
        }
    }
}
