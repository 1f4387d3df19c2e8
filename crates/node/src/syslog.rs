//! The log in the way of Swift's programs: datagrams to the local syslog (RFC 3164), to the socket
//! `log_address`, or to `log_udp_host`. A message that cannot be sent at once is lost; no request
//! waits for a log.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use cairn_formats::ini::Section;
use parking_lot::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Target of access-log lines, one per request.
pub(crate) const ACCESS: &str = "access";

/// Facilities by their names in `log_facility`, and their numbers.
const FACILITIES: [(&str, u8); 20] = [
    ("LOG_KERN", 0),
    ("LOG_USER", 1),
    ("LOG_MAIL", 2),
    ("LOG_DAEMON", 3),
    ("LOG_AUTH", 4),
    ("LOG_SYSLOG", 5),
    ("LOG_LPR", 6),
    ("LOG_NEWS", 7),
    ("LOG_UUCP", 8),
    ("LOG_CRON", 9),
    ("LOG_AUTHPRIV", 10),
    ("LOG_FTP", 11),
    ("LOG_LOCAL0", 16),
    ("LOG_LOCAL1", 17),
    ("LOG_LOCAL2", 18),
    ("LOG_LOCAL3", 19),
    ("LOG_LOCAL4", 20),
    ("LOG_LOCAL5", 21),
    ("LOG_LOCAL6", 22),
    ("LOG_LOCAL7", 23),
];
/// Maximum message in bytes; longer ones are truncated to fit a datagram.
const MESSAGE_MAX_BYTES: usize = 32 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Local(PathBuf),
    Udp(SocketAddr),
}

/// Destination, facility and name of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogOptions {
    address: Address,
    facility: u8,
    name: String,
}

impl SyslogOptions {
    /// Reads `log_address` (/dev/log), `log_udp_host`, `log_udp_port` (514), `log_facility`
    /// (LOG_LOCAL0) and `log_name` (the program's) of a section.
    ///
    /// # Errors
    /// `log_facility` is no facility, `log_udp_port` is no port, or `log_udp_host` cannot be
    /// resolved.
    pub fn read(section: &Section, program: &str) -> Result<SyslogOptions> {
        SyslogOptions::read_prefixed(section, "", program)
    }

    /// The access log's options: `access_log_address` and so on, each overriding `log_address` and
    /// so on.
    ///
    /// # Errors
    /// See [`SyslogOptions::read`].
    pub fn read_access(section: &Section, program: &str) -> Result<SyslogOptions> {
        SyslogOptions::read_prefixed(section, "access_", program)
    }

    fn read_prefixed(section: &Section, prefix: &str, program: &str) -> Result<SyslogOptions> {
        // The prefixed option if present, else the plain one.
        let option = |plain: &str| {
            let own = format!("{prefix}{plain}");
            match section.get(&own) {
                Some(_) => own,
                None => plain.to_owned(),
            }
        };
        let named = option("log_facility");
        let wanted = section.str_or(&named, "LOG_LOCAL0").trim();
        let facility = FACILITIES.iter().find(|(name, _)| *name == wanted);
        let Some((_, facility)) = facility else {
            return Err(section.bad(&named, "expected such as LOG_LOCAL2").into());
        };
        let host_option = option("log_udp_host");
        let host = section.str_or(&host_option, "").trim();
        let address = if host.is_empty() {
            Address::Local(section.str_or(&option("log_address"), "/dev/log").into())
        } else {
            let port_option = option("log_udp_port");
            let port = u16::try_from(section.u64_or(&port_option, 514)?)
                .map_err(|_| section.bad(&port_option, "expected 1 to 65535"))?;
            let found = (host, port)
                .to_socket_addrs()
                .ok()
                .and_then(|mut all| all.next());
            Address::Udp(found.ok_or_else(|| section.bad(&host_option, "no such host"))?)
        };
        Ok(SyslogOptions {
            address,
            facility: *facility,
            name: section.str_or(&option("log_name"), program).to_owned(),
        })
    }
}

enum Socket {
    Local(UnixDatagram),
    Udp(UdpSocket),
}

impl Socket {
    fn connect(address: &Address) -> io::Result<Socket> {
        match address {
            Address::Local(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Ok(Socket::Local(socket))
            }
            Address::Udp(to) => {
                let any: SocketAddr = match to {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket.connect(to)?;
                Ok(Socket::Udp(socket))
            }
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Local(socket) => socket.send(message).map(drop),
            Socket::Udp(socket) => socket.send(message).map(drop),
        }
    }
}

/// The log's writer, with separate senders for access lines and the rest.
pub(crate) struct Syslog {
    all: Sender,
    access: Sender,
}

impl Syslog {
    pub(crate) fn new(all: SyslogOptions, access: SyslogOptions) -> Syslog {
        Syslog {
            all: Sender::new(all),
            access: Sender::new(access),
        }
    }
}

/// A sender to one syslog daemon.
#[derive(Clone)]
struct Sender {
    options: Arc<SyslogOptions>,
    socket: Arc<Mutex<Option<Socket>>>,
}

impl Sender {
    fn new(options: SyslogOptions) -> Sender {
        Sender {
            options: Arc::new(options),
            socket: Arc::default(),
        }
    }

    fn send(&self, severity: u8, text: &[u8]) {
        let text = text.trim_ascii_end();
        let text = &text[..text.len().min(MESSAGE_MAX_BYTES)];
        let priority = self.options.facility * 8 + severity;
        let mut message = format!("<{priority}>{}: ", self.options.name).into_bytes();
        message.extend_from_slice(text);
        let mut socket = self.socket.lock();
        // A restarted daemon has a new socket: reconnects once.
        for _ in 0..2 {
            if socket.is_none() {
                *socket = Socket::connect(&self.options.address).ok();
            }
            match socket.as_ref().map(|socket| socket.send(&message)) {
                Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => *socket = None,
                _ => return,
            }
        }
    }
}

/// Writer of one event.
pub(crate) struct Message {
    sender: Sender,
    severity: u8,
}

impl io::Write for Message {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.sender.send(self.severity, text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        Message {
            sender: self.all.clone(),
            severity: 6,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Message {
        let severity = match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let sender = match meta.target() {
            ACCESS => &self.access,
            _ => &self.all,
        };
        Message {
            sender: sender.clone(),
            severity,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn messages_reach_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let here = UnixDatagram::bind(&path).unwrap();
        let pairs = [
            ("log_address", path.to_str().unwrap()),
            ("log_facility", "LOG_LOCAL2"),
        ];
        let section = Section::from_pairs("DEFAULT", &pairs);
        let options = SyslogOptions::read(&section, "object-server").unwrap();
        let syslog = Syslog::new(options.clone(), options);
        syslog.make_writer().write_all(b"two words\n").unwrap();
        let mut buffer = [0; 100];
        let length = here.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<150>object-server: two words");
        // Another daemon at the same path.
        drop(here);
        std::fs::remove_file(&path).unwrap();
        syslog.make_writer().write_all(b"lost\n").unwrap();
        let here = UnixDatagram::bind(&path).unwrap();
        syslog.make_writer().write_all(b"again\n").unwrap();
        let length = here.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<150>object-server: again");
    }

    #[test]
    fn the_access_log_has_options_of_its_own() {
        let pairs = [
            ("log_name", "swift"),
            ("log_facility", "LOG_LOCAL2"),
            ("access_log_name", "access"),
            ("access_log_facility", "LOG_LOCAL5"),
        ];
        let section = Section::from_pairs("filter:proxy-logging", &pairs);
        let access = SyslogOptions::read_access(&section, "proxy-server").unwrap();
        assert_eq!((access.name.as_str(), access.facility), ("access", 21));
        let all = SyslogOptions::read(&section, "proxy-server").unwrap();
        assert_eq!((all.name.as_str(), all.facility), ("swift", 18));
        let plain = Section::from_pairs("filter:proxy-logging", &pairs[..2]);
        let access = SyslogOptions::read_access(&plain, "proxy-server").unwrap();
        assert_eq!(access, all);
    }

    #[test]
    fn a_facility_that_is_none_is_named() {
        let section = Section::from_pairs("DEFAULT", &[("log_facility", "LOCAL2")]);
        let error = SyslogOptions::read(&section, "x").unwrap_err().to_string();
        assert!(error.contains("log_facility"), "{error}");
    }
}
