//! Greeting of `cairn up` once it serves: addresses, users, and first commands.

use std::net::SocketAddr;

use crate::listen::reachable;
use crate::store_tls::StoreTls;
use crate::up::console::Shown;
use crate::up::{Store, User};

/// The text; `console` has its address and password. Keys are not shown, except the well-known one.
pub(crate) fn text(store: &Store, console: Option<(SocketAddr, &Shown)>) -> String {
    let scheme = match store.tls {
        Some(_) => "https",
        None => "http",
    };
    let url = format!("{scheme}://{}", reachable(store.bind));
    let state = if store.first_start { "new" } else { "existing" };
    let mut text = format!(
        "\nCairn serves {url}\n\n  data     {} ({state}: {} devices, {} replicas)\n  region   {}\n",
        store.layout.data.display(),
        store.shape.devices,
        store.shape.replicas,
        store.region,
    );
    for user in &store.users {
        let groups = user.groups.join(" ");
        let name = format!("{}:{}", user.account, user.user);
        let key = match user.is_default() {
            true => format!("key {}   ", user.key),
            false => String::new(),
        };
        text.push_str(&format!("  user     {name}   {key}{groups}\n"));
    }
    if let Some(tls) = &store.tls {
        let (cert, fingerprint) = (tls.cert.display(), &tls.fingerprint);
        text.push_str(&format!(
            "  tls      {cert}\n           SHA-256 {fingerprint}\n"
        ));
    }
    if let Some((address, password)) = console {
        let password = match password {
            Shown::New(password) => password.clone(),
            Shown::In(file) => format!("in {}", file.display()),
        };
        text.push_str(&format!(
            "  console  {scheme}://{}   password {password}\n",
            reachable(address)
        ));
    }
    if let Some(user) = store.users.first() {
        let own = store.tls.as_ref().filter(|tls| tls.is_own);
        text.push_str(&first_commands(&url, user, &store.region, own));
    }
    text
}

fn first_commands(url: &str, user: &User, region: &str, own: Option<&StoreTls>) -> String {
    let name = format!("{}:{}", user.account, user.user);
    let name = shell_quoted(&name);
    let (key, asked) = match user.is_default() {
        true => (shell_quoted(&user.key), ""),
        false => ("\"$KEY\"".to_owned(), "  read -rsp 'Key: ' KEY\n"),
    };
    let (os_user, account) = (shell_quoted(&user.user), shell_quoted(&user.account));
    let region = shell_quoted(region);
    // These make clients trust a certificate generated here.
    let trusts = own.map_or(String::new(), |tls| {
        let file = shell_quoted(&tls.cert.display().to_string());
        format!("  export OS_CACERT={file} CURL_CA_BUNDLE={file}\n")
    });
    format!(
        "
First commands to try, with the swift client (pip install python-swiftclient):

{trusts}{asked}  export ST_AUTH={url}/auth/v1.0 ST_USER={name} ST_KEY={key}
  swift upload photos /etc/hostname
  swift list photos
  swift stat

or with curl:

  eval $(curl -s -D - -o /dev/null -H X-Auth-User:{name} -H X-Auth-Key:{key} \\
    {url}/auth/v1.0 | tr -d '\\r' |
    sed -n 's/^X-Storage-Url: /URL=/pI; s/^X-Auth-Token: /TOKEN=/pI')
  curl -i -X PUT -H \"X-Auth-Token: $TOKEN\" $URL/photos
  curl -i -T /etc/hostname -H \"X-Auth-Token: $TOKEN\" $URL/photos/first
  curl -i -H \"X-Auth-Token: $TOKEN\" $URL/photos/first

or, for clients that speak Keystone, v3 or v2.0 (pip install python-openstackclient):

  export OS_AUTH_URL={url}/v3 OS_IDENTITY_API_VERSION=3 OS_USERNAME={os_user} \\
    OS_PASSWORD={key} OS_PROJECT_NAME={account} \\
    OS_USER_DOMAIN_NAME=Default OS_PROJECT_DOMAIN_NAME=Default OS_REGION_NAME={region}
  openstack container list

Ctrl-C ends it; the same command starts it again with everything kept.
"
    )
}

fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":._-@%+=,/".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        assert_eq!(shell_quoted("test:tester"), "test:tester");
        assert_eq!(shell_quoted("it's"), "'it'\\''s'");
    }
}
