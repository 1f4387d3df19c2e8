//! Sources of users for `cairn up`: `--user`, a file, the environment, or the terminal. Every local
//! user can read a process's command line (`ps`), so keys may come from the others.

use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::up::users::User;

/// Environment variable of users, separated by white space, used without both options.
pub const USERS_VARIABLE: &str = "CAIRN_USERS";
/// Maximum size of a file of users, in bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// A `--user` with its key, or without, to be asked for on the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserOption {
    Complete(User),
    /// The user, its key still empty.
    WithoutKey(User),
}

impl std::str::FromStr for UserOption {
    type Err = String;

    fn from_str(text: &str) -> Result<UserOption, String> {
        if text.contains('=') || !text.contains(':') {
            return text.parse().map(UserOption::Complete);
        }
        let (name, groups) = match text.split_once(',') {
            Some((name, groups)) => (name, format!(",{groups}")),
            None => (text, String::new()),
        };
        let mut user: User = format!("{name}=-{groups}").parse()?;
        user.key = String::new();
        Ok(UserOption::WithoutKey(user))
    }
}

/// Users from the options, or else from the environment; may be empty.
///
/// # Errors
/// The file cannot be read or names no user, a user is malformed, or a key is missing and there is
/// no terminal to ask for it.
pub fn read(options: Vec<UserOption>, file: Option<&Path>) -> Result<Vec<User>> {
    let mut users = Vec::new();
    for option in options {
        users.push(match option {
            UserOption::Complete(user) => user,
            UserOption::WithoutKey(user) => ask_for_key(user)?,
        });
    }
    if let Some(path) = file {
        users.extend(of_file(path)?);
    } else if users.is_empty() {
        match std::env::var(USERS_VARIABLE) {
            Ok(text) => users.extend(of_text(&text, USERS_VARIABLE)?),
            Err(std::env::VarError::NotPresent) => {}
            Err(std::env::VarError::NotUnicode(_)) => bail!("{USERS_VARIABLE}: expected UTF-8"),
        }
    }
    Ok(users)
}

/// Users of a file; `-` is standard input.
fn of_file(path: &Path) -> Result<Vec<User>> {
    let source = format!("--user-file {}", path.display());
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        match path == Path::new("-") {
            true => std::io::stdin()
                .take(FILE_MAX_BYTES)
                .read_to_string(&mut text)?,
            false => File::open(path)?
                .take(FILE_MAX_BYTES)
                .read_to_string(&mut text)?,
        };
        Ok(text)
    };
    let text = read().with_context(|| format!("{source}: cannot read it"))?;
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect();
    let users = of_text(&lines.join("\n"), &source)?;
    if users.is_empty() {
        bail!("{source}: it names no user; expected lines ACCOUNT:USER=KEY[,GROUP...]");
    }
    Ok(users)
}

/// Parses users; errors never include the text, which has keys.
fn of_text(text: &str, source: &str) -> Result<Vec<User>> {
    let read = |(at, word): (usize, &str)| match word.parse::<User>() {
        Ok(user) => Ok(user),
        Err(why) => bail!("{source}: user {}: {why}", at + 1),
    };
    text.split_whitespace().enumerate().map(read).collect()
}

fn ask_for_key(mut user: User) -> Result<User> {
    let name = format!("{}:{}", user.account, user.user);
    let terminal = PathBuf::from("/dev/tty");
    let opened = File::options().read(true).write(true).open(&terminal);
    let terminal = match opened {
        Ok(terminal) if terminal.is_terminal() => terminal,
        _ => bail!(
            "--user {name}: it has no key, and there is no terminal to ask for one: use \
             --user-file or {USERS_VARIABLE}"
        ),
    };
    let prompt = format!("Key of {name}: ");
    let key = read_unseen(&terminal, &prompt).with_context(|| format!("--user {name}: its key"))?;
    let _ = writeln!(&terminal);
    let groups: String = user.groups.iter().map(|g| format!(",{g}")).collect();
    let complete: Result<User, String> = format!("{name}={key}{groups}").parse();
    match complete {
        Ok(complete) if complete.key == key => {
            user.key = key;
            Ok(user)
        }
        Ok(_) => bail!("--user {name}: a key may not contain ','"),
        Err(why) => bail!("--user {name}: {why}"),
    }
}

/// Reads a line without echo, even if typed right after the prompt.
fn read_unseen(mut terminal: &File, prompt: &str) -> Result<String> {
    let before = tcgetattr(terminal)?;
    let mut unseen = before.clone();
    unseen.local_modes.remove(LocalModes::ECHO);
    tcsetattr(terminal, OptionalActions::Flush, &unseen)?;
    let _ = write!(terminal, "{prompt}");
    let mut line = String::new();
    let read = std::io::BufReader::new(terminal.take(4096)).read_line(&mut line);
    tcsetattr(terminal, OptionalActions::Flush, &before)?;
    read?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_with_and_without_a_key() {
        let with = "a:b=k,.admin".parse::<UserOption>();
        assert_eq!(
            with,
            Ok(UserOption::Complete("a:b=k,.admin".parse().unwrap()))
        );
        let Ok(UserOption::WithoutKey(user)) = "a:b,.admin,g".parse() else {
            panic!("it has no key");
        };
        assert_eq!((user.key.as_str(), user.groups.len()), ("", 2));
        for bad in ["joe", "", ":b", "a:", "a:b,", "a:b="] {
            let error = bad.parse::<UserOption>().unwrap_err();
            assert!(error.contains("ACCOUNT:USER=KEY"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_file_of_users() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, "# who\na:b=secret,.admin\n\n  # c:d=old\nc:d=e\n").unwrap();
        let users = read(Vec::new(), Some(&path)).unwrap();
        assert_eq!(users.len(), 2);
        assert_eq!(users[0], "a:b=secret,.admin".parse().unwrap());
        for (text, part) in [("a:b=secret\nc=d\n", "user 2"), ("# none\n", "no user")] {
            std::fs::write(&path, text).unwrap();
            let error = read(Vec::new(), Some(&path)).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
        let missing = folder.path().join("missing");
        assert!(read(Vec::new(), Some(&missing)).is_err());
    }

    /// Runs this test again in a process of its own, as the environment is global.
    #[test]
    fn users_of_the_environment() {
        const ROLE: &str = "CAIRN_TEST_USERS_ROLE";
        if let Ok(role) = std::env::var(ROLE) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("users");
            std::fs::write(&path, "e:f=g\n").unwrap();
            let (options, file) = match role.as_str() {
                "option" => (vec!["e:f=g".parse().unwrap()], None),
                "file" => (Vec::new(), Some(path.as_path())),
                _ => (Vec::new(), None),
            };
            match read(options, file) {
                Ok(users) => println!("read: {users:?}"),
                Err(error) => println!("refused: {error:#}"),
            }
            return;
        }
        let name = "up::user_sources::tests::users_of_the_environment";
        let run = |role: &str, users: Option<&std::ffi::OsStr>| {
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", name, "--nocapture"]).env(ROLE, role);
            match users {
                Some(users) => test.env(USERS_VARIABLE, users),
                None => test.env_remove(USERS_VARIABLE),
            };
            let output = String::from_utf8(test.output().unwrap().stdout).unwrap();
            let said = |line: &str| ["read: ", "refused: "].iter().any(|w| line.contains(w));
            output.lines().find(|line| said(line)).unwrap().to_owned()
        };
        let of = |text: &str| -> Vec<User> {
            text.split(' ').map(|user| user.parse().unwrap()).collect()
        };
        let (some, bad) = ("a:b=secret,.admin\n c:d=e", "a:b=secret c=d");
        for (role, users, expected) in [
            ("none", Some(some), of("a:b=secret,.admin c:d=e")),
            ("none", Some(""), Vec::new()),
            ("none", None, Vec::new()),
            // With an option these alone are used.
            ("option", Some(some), of("e:f=g")),
            ("file", Some(bad), of("e:f=g")),
        ] {
            let read = run(role, users.map(std::ffi::OsStr::new));
            assert!(
                read.ends_with(&format!("read: {expected:?}")),
                "{role}: {read}"
            );
        }
        let refused = run("none", Some(bad.as_ref()));
        assert!(
            refused.contains("refused: CAIRN_USERS: user 2"),
            "{refused}"
        );
        assert!(!refused.contains("secret"), "{refused}");
        let bytes = std::os::unix::ffi::OsStrExt::from_bytes(b"a:b=\xff");
        let refused = run("none", Some(bytes));
        assert!(refused.contains("expected UTF-8"), "{refused}");
    }

    /// On a terminal created by `script`.
    #[test]
    fn a_key_is_asked_for_and_not_shown() {
        const ROLE: &str = "CAIRN_TEST_PROMPT";
        if std::env::var(ROLE).is_ok() {
            let users = read(vec!["e:f,.admin".parse().unwrap()], None);
            println!("read: {:?}", users.unwrap());
            return;
        }
        let name = "up::user_sources::tests::a_key_is_asked_for_and_not_shown";
        let test = std::env::current_exe().unwrap();
        let line = format!("'{}' --exact {name} --nocapture", test.display());
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env(ROLE, "child");
        let pipe = std::process::Stdio::piped;
        let Ok(mut child) = script.stdin(pipe()).stdout(pipe()).spawn() else {
            println!("skipped: there is no script, which makes a terminal");
            return;
        };
        let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shown = Vec::new();
        while !shown.ends_with(b"Key of e:f: ") {
            let mut byte = [0];
            screen.read_exact(&mut byte).unwrap();
            shown.extend(byte);
        }
        keys.write_all(b"never-shown\n").unwrap();
        screen.read_to_end(&mut shown).unwrap();
        drop(keys);
        assert!(child.wait().unwrap().success());
        let shown = String::from_utf8(shown).unwrap();
        let (before, read) = shown.split_once("read: ").unwrap();
        let expected: Vec<User> = vec!["e:f=never-shown,.admin".parse().unwrap()];
        assert!(read.starts_with(&format!("{expected:?}")), "{shown}");
        assert!(!before.contains("never-shown"), "{shown}");
    }
}
