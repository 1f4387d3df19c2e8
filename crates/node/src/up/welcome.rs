//! What `cairn up` prints once it serves: where, who, and what to try first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::up::Store;

/// `console`: its address and password.
pub(crate) fn text(store: &Store, console: Option<(SocketAddr, &str)>) -> String {
    let url = format!("http://{}", reachable(store.bind));
    let state = if store.first_start { "new" } else { "existing" };
    let mut text = format!(
        "\nCairn serves {url}\n\n  data     {} ({state}: {} devices, {} replicas)\n",
        store.layout.data.display(),
        store.shape.devices,
        store.shape.replicas,
    );
    for user in &store.users {
        let groups = user.groups.join(" ");
        let name = format!("{}:{}", user.account, user.user);
        text.push_str(&format!(
            "  user     {name}   key {}   {groups}\n",
            user.key
        ));
    }
    if let Some((address, password)) = console {
        text.push_str(&format!(
            "  console  http://{}   password {password}\n",
            reachable(address)
        ));
    }
    let Some(user) = store.users.first() else {
        return text;
    };
    let name = format!("{}:{}", user.account, user.user);
    let (name, key) = (shell_quoted(&name), shell_quoted(&user.key));
    let (os_user, account) = (shell_quoted(&user.user), shell_quoted(&user.account));
    text.push_str(&format!(
        "
First commands to try, with the swift client (pip install python-swiftclient):

  export ST_AUTH={url}/auth/v1.0 ST_USER={name} ST_KEY={key}
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
    OS_USER_DOMAIN_NAME=Default OS_PROJECT_DOMAIN_NAME=Default
  openstack container list

Ctrl-C ends it; the same command starts it again with everything kept.
"
    ));
    text
}

/// An address one can connect to, where the server listens on all.
pub(crate) fn reachable(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bind.port())
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
        assert_eq!(
            reachable(SocketAddr::from(([0, 0, 0, 0], 5))),
            SocketAddr::from(([127, 0, 0, 1], 5))
        );
    }
}
