//! Login steps shared by both API versions: authentication by password or by an earlier token, and
//! the choice of the project that the new token is for.

use std::sync::Arc;

use cairn_http::context::{Audited, Notes, Outcome};
use cairn_middleware::logins::{Address, NotNow, seconds};
use cairn_middleware::secret::Secret;

use super::directory::{Naming, Person};
use super::status::Refusal;
use super::token::Token;
use super::{Core, Valid};

pub(super) const WRONG: Refusal = Refusal::Unauthorized(
    "Wrong user name, password or project: the request you have made requires authentication.",
);
const TOO_LONG: Refusal = Refusal::Forbidden(
    "Too many tokens have been made one with another: log in with the password.",
);
const BUSY: Refusal = Refusal::Busy("Too many logins wait: try again.");

/// A client's credentials.
pub(super) enum Proof {
    Password { user: Naming, password: String },
    Token(String),
}

/// The requested scope of a token.
pub(super) enum Scope {
    Project(Naming),
    /// Not given: the user's default project, or the earlier token's.
    Unsaid,
    /// Explicitly no project.
    None,
}

/// A new token, as text and as fields, with the methods by which it was obtained.
pub(super) struct Granted {
    pub(super) text: String,
    pub(super) valid: Valid,
    pub(super) methods: Vec<&'static str>,
}

pub(super) async fn log_in(
    core: &Arc<Core>,
    address: Address,
    proof: Proof,
    scope: Scope,
) -> Result<Granted, Refusal> {
    match proof {
        Proof::Password { user, password } => {
            let (person, project) = by_password(core, address, &user, &password, &scope).await?;
            grant(core, &person, project.as_deref(), None)
        }
        Proof::Token(text) => {
            let parent = core.open(&text).ok_or(WRONG)?;
            let person = core.person(&parent).ok_or(WRONG)?;
            let project = match &scope {
                Scope::Unsaid => parent.token.project_id.clone(),
                scope => project_of(core, person, scope)?,
            };
            grant(core, &person.id, project.as_deref(), Some(&parent.token))
        }
    }
}

/// The only user of that name or id with that password, and their project.
async fn by_password(
    core: &Arc<Core>,
    address: Address,
    user: &Naming,
    password: &str,
    scope: &Scope,
) -> Result<(String, Option<String>), Refusal> {
    // Names are not unique: TempAuth may have the same user name in several accounts. Users without
    // a role on the requested project are ignored.
    let meant: Vec<(&Person, Option<String>)> = core
        .directory()
        .find_people(user)
        .into_iter()
        .filter_map(|person| Some((person, project_of(core, person, scope).ok()?)))
        .collect();
    if !meant.iter().any(|(person, _)| person.secret.is_slow()) {
        // The hashing takes as long as for the user with the slowest hash, so that the response
        // time does not reveal which users exist.
        let secrets = core.directory().people().map(|person| &person.secret);
        let slowest = secrets.filter(|s| s.is_slow()).max_by_key(|s| s.rounds());
        if let Some(secret) = slowest {
            has_password(core, address, user, secret, password).await?;
        }
    }
    let mut found = None;
    for (person, project) in meant {
        if !has_password(core, address, user, &person.secret, password).await? {
            continue;
        }
        if found.is_some() {
            // Two users with the same name and password: only a project distinguishes them.
            return Err(WRONG);
        }
        found = Some((person.id.clone(), project));
    }
    found.ok_or(WRONG)
}

async fn has_password(
    core: &Core,
    address: Address,
    user: &Naming,
    secret: &Secret,
    password: &str,
) -> Result<bool, Refusal> {
    let matching = core.logins.matches(address, user.text(), secret, password);
    matching.await.map_err(not_now)
}

fn not_now(why: NotNow) -> Refusal {
    match why {
        NotNow::HeldBack(wait) => Refusal::HeldBack(seconds(wait)),
        NotNow::Busy => BUSY,
    }
}

/// Runs a password login, with all its interpretations, as a single attempt of this address at this
/// name.
pub(super) async fn tried<T>(
    core: &Core,
    address: Address,
    user: &str,
    login: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    core.logins.may_try(address, user).map_err(not_now)?;
    let result = login.await;
    match &result {
        Ok(_) => core.logins.ended(address, user, true),
        Err(Refusal::Unauthorized(_)) => core.logins.ended(address, user, false),
        Err(_) => {}
    }
    result
}

fn project_of(core: &Core, person: &Person, scope: &Scope) -> Result<Option<String>, Refusal> {
    match scope {
        Scope::None => Ok(None),
        Scope::Unsaid => Ok(person.default_project.clone()),
        Scope::Project(naming) => {
            let project = core.directory().find_project(naming).ok_or(WRONG)?;
            if !person.roles.contains_key(&project.id) {
                return Err(WRONG);
            }
            Ok(Some(project.id.clone()))
        }
    }
}

fn grant(
    core: &Core,
    person_id: &str,
    project: Option<&str>,
    parent: Option<&Token>,
) -> Result<Granted, Refusal> {
    let person = core.directory().person(person_id).ok_or(WRONG)?;
    let made = core.tokens.make(person, project, parent, core.now());
    let (text, _) = made.ok_or(TOO_LONG)?;
    let valid = core.open(&text).ok_or(WRONG)?;
    let methods = match parent {
        None => vec!["password"],
        Some(_) => vec!["token", "password"],
    };
    Ok(Granted {
        text,
        valid,
        methods,
    })
}

/// Revokes a token, and those derived from it, permanently.
pub(super) async fn end(core: &Arc<Core>, token: &Arc<Token>) -> Result<(), Refusal> {
    let turn = core.revoking.clone().acquire_owned().await;
    let ended = {
        let (core, token) = (core.clone(), token.clone());
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            core.tokens.revoked.add(&token, core.now())
        })
        .await
    };
    if ended.unwrap_or(false) {
        Ok(())
    } else {
        Err(Refusal::Busy(
            "The token's end could not be written down: try again.",
        ))
    }
}

/// Adds an event for the audit log.
pub(super) fn audit<T>(notes: &Notes, action: &'static str, user: &str, done: &Result<T, Refusal>) {
    let outcome = match done {
        Ok(_) => Outcome::Accepted,
        Err(Refusal::Unauthorized(_)) => Outcome::Wrong,
        Err(Refusal::HeldBack(_) | Refusal::Busy(_)) => Outcome::HeldBack,
        Err(_) => Outcome::Refused,
    };
    notes.audit(Audited {
        action,
        user: user.to_owned(),
        outcome,
    });
}

/// The name of the user that a token is for; empty for an invalid token.
pub(super) fn name_of(core: &Core, token: &str) -> String {
    let valid = core.open(token);
    let person = valid.as_ref().and_then(|valid| core.person(valid));
    person.map_or_else(String::new, |person| person.name.clone())
}
