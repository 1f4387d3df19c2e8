//! Ports for servers that start later, in this process or another.

use tokio::net::TcpSocket;

/// A port of 127.0.0.1. While this lives the kernel gives it to nobody who asks for any port, nor to
/// a client's connection; a server that sets `SO_REUSEADDR`, as all of them do, may listen on it.
pub(crate) struct Reserved(TcpSocket);

impl Reserved {
    pub(crate) fn new() -> Reserved {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        socket.set_reuseaddr(true).unwrap();
        Reserved(socket)
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }
}
