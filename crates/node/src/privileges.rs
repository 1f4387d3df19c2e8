//! `user = NAME`: a program started as root switches to that user once its ports are bound, drops
//! all capabilities, and prevents itself and its children from gaining any by set-user-id programs.
//!
//! Credentials are properties of a thread on Linux, inherited by new threads: this must run on the
//! main thread before any other is started.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_gid,
    set_thread_groups, set_thread_uid,
};
use tracing::{info, warn};

/// A user's ids in /etc/passwd and /etc/group.
#[derive(Debug, PartialEq, Eq)]
struct Account {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Switches to `user` if this process is root's; otherwise logs that nothing changed.
///
/// # Errors
/// As root: /etc/passwd or /etc/group cannot be read, the user is not in it, or the kernel refuses.
pub fn become_user(user: &str) -> Result<()> {
    if !geteuid().is_root() {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        // After a restart the program already runs as that user.
        if find(user, &passwd, "").is_none_or(|account| account.uid != geteuid().as_raw()) {
            info!(
                user,
                "the option user is ignored: only root can become another user"
            );
        }
        return Ok(());
    }
    let passwd = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let group = fs::read_to_string("/etc/group").context("cannot read /etc/group")?;
    let Some(account) = find(user, &passwd, &group) else {
        bail!("user = {user}: there is no such user in /etc/passwd; remove the option or add them");
    };
    if account.uid == 0 {
        return Ok(());
    }
    let groups: Vec<Gid> = account
        .groups
        .iter()
        .map(|gid| Gid::from_raw(*gid))
        .collect();
    // In this order: without root's uid the other two are not permitted.
    set_thread_groups(&groups)
        .and_then(|()| set_thread_gid(Gid::from_raw(account.gid)))
        .and_then(|()| set_thread_uid(Uid::from_raw(account.uid)))
        .with_context(|| format!("user = {user}: cannot become this user"))?;
    // The kernel has dropped them, unless the parent process had it keep them.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)
        .and_then(|()| set_no_new_privs(true))
        .with_context(|| format!("user = {user}: cannot give up root's capabilities"))?;
    info!(user, "running as this user from now on");
    Ok(())
}

/// Changes a file's owner to `user`, if this process is root's and the user exists.
pub fn give_to(user: &str, file: &Path) {
    if !geteuid().is_root() {
        return;
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let Some(account) = find(user, &read("/etc/passwd"), &read("/etc/group")) else {
        return info!(user, "there is no such user: what is written stays root's");
    };
    if let Err(error) = std::os::unix::fs::chown(file, Some(account.uid), Some(account.gid)) {
        warn!(user, file = %file.display(), %error, "not given to the user");
    }
}

fn find(user: &str, passwd: &str, group: &str) -> Option<Account> {
    let fields: Vec<&str> = passwd
        .lines()
        .map(|l| l.split(':').collect::<Vec<_>>())
        .find(|f| f[0] == user)?;
    let (uid, gid) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
    let mut groups = vec![gid];
    for line in group.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [_, _, number, members] = fields[..]
            && members.split(',').any(|member| member == user)
            && let Ok(number) = number.parse()
            && !groups.contains(&number)
        {
            groups.push(number);
        }
    }
    Some(Account { uid, gid, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_user() {
        let passwd = "root:x:0:0::/root:/bin/sh\nswift:x:150:160::/var:/bin/false\n";
        let group = "root:x:0:\ndisk:x:6:joe,swift\nswift:x:160:swift\nx:x:7:swifty\n";
        let expected = Account {
            uid: 150,
            gid: 160,
            groups: vec![160, 6],
        };
        assert_eq!(find("swift", passwd, group), Some(expected));
        assert_eq!(find("nobody", passwd, group), None);
    }
}
