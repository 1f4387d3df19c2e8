//! State notifications to service managers in the protocol of systemd's `sd_notify`: one datagram
//! each to the socket named by `NOTIFY_SOCKET`, for units with `Type=notify`, and to an abstract
//! socket named after the process, for swift-reload. Both as in Swift's programs.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Environment variable with a service manager's socket: a path, or `@` and the name of an abstract
/// socket.
pub(crate) const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
pub(crate) const READY: &str = "READY=1";
pub(crate) const RELOADING: &str = "RELOADING=1";
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Sends the state to all listeners; usually there is none.
pub(crate) fn send_state(state: &str) {
    let manager = std::env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty());
    let manager = manager.map(|name| address(&name));
    let process = own_address(std::process::id());
    for address in std::iter::once(process).chain(manager) {
        let sent = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not block a server.
            socket.set_nonblocking(true)?;
            socket.connect_addr(&address)?;
            socket.send(state.as_bytes())
        });
        if let Err(error) = sent
            && error.kind() != io::ErrorKind::ConnectionRefused
        {
            tracing::debug!(state, %error, "a service manager was not told");
        }
    }
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

/// Address of a process's own notification socket.
pub(crate) fn own_address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("swift-notifications\0{pid}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn whoever_listens_is_told() {
        let socket = UnixDatagram::bind_addr(&own_address(std::process::id()).unwrap()).unwrap();
        send_state(READY);
        let mut said = [0; 64];
        let len = socket.recv(&mut said).unwrap();
        assert_eq!(&said[..len], READY.as_bytes());
        drop(socket);
        send_state(STOPPING);
        let abstract_one = address(OsStr::new("@x")).unwrap();
        assert_eq!(abstract_one.as_abstract_name(), Some(&b"x"[..]));
        assert!(
            address(OsStr::new("/run/x"))
                .unwrap()
                .as_pathname()
                .is_some()
        );
    }
}
