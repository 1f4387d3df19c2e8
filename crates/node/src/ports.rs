//! The ports of one server while it serves: one, or with `servers_per_port` a changing set from the
//! rings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use cairn_http::Handler;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, serve};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info};

use crate::conf::ServerConf;
use crate::listen;
use crate::ring_ports::RingPorts;
use crate::settings::ServerSettings;

pub(crate) struct Ports {
    pub(crate) handler: Handler,
    pub(crate) options: ServeOptions,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stop: watch::Receiver<bool>,
    /// Stop signals of the open ports.
    pub(crate) open: BTreeMap<SocketAddr, watch::Sender<bool>>,
    pub(crate) serving: JoinSet<()>,
}

impl Ports {
    /// Serves these ports, and later those returned by `followed`, until stopped; then lets
    /// requests finish.
    pub(crate) async fn serve(
        mut self,
        conf: ServerConf,
        settings: ServerSettings,
        listeners: Vec<TcpListener>,
        mut followed: Option<RingPorts>,
    ) {
        for listener in listeners {
            self.open(listener);
        }
        let mut stop = self.stop.clone();
        while let Some(mut ports) = followed.take() {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = tokio::time::sleep(ports.check_interval()) => {}
            }
            let looked = tokio::task::spawn_blocking(move || (ports.wanted(), ports)).await;
            // Fails only after a panic, which is in the log.
            let Ok((wanted, ports)) = looked else { break };
            followed = Some(ports);
            if !wanted.is_empty() {
                self.follow(&conf, &settings, &wanted);
            }
        }
        // A dropped sender means the same.
        let _ = stop.wait_for(|stop| *stop).await;
        for close in self.open.values() {
            close.send_replace(true);
        }
        while let Some(ended) = self.serving.join_next().await {
            if let Err(error) = ended {
                error!(%error, "a port's serving ended badly");
            }
        }
    }

    fn open(&mut self, listener: TcpListener) {
        let opened = listener
            .local_addr()
            .and_then(|address| Ok((address, tokio::net::TcpListener::from_std(listener)?)));
        let (address, listener) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                error!(%error, "a port that is open cannot be served");
                return;
            }
        };
        let (close, closed) = watch::channel(false);
        let (handler, options) = (self.handler.clone(), self.options.clone());
        let metrics = self.metrics.clone();
        self.serving
            .spawn(serve(listener, handler, options, metrics, closed));
        self.open.insert(address, close);
    }

    /// Opens and closes ports as necessary. One that cannot be opened is retried next time.
    fn follow(
        &mut self,
        conf: &ServerConf,
        settings: &ServerSettings,
        wanted: &BTreeSet<SocketAddr>,
    ) {
        while self.serving.try_join_next().is_some() {}
        let gone: Vec<SocketAddr> = self.open.keys().copied().collect();
        for address in gone.into_iter().filter(|address| !wanted.contains(address)) {
            info!(%address, "no ring names this port any more; it is closed");
            if let Some(close) = self.open.remove(&address) {
                close.send_replace(true);
            }
        }
        for address in wanted {
            if self.open.contains_key(address) {
                continue;
            }
            let bind_timeout = std::time::Duration::ZERO;
            let once = ServerSettings {
                bind_timeout,
                ..settings.clone()
            };
            match listen::listen_at(conf, &once, *address) {
                Ok(listener) => {
                    info!(%address, "a ring names this port; it is opened");
                    self.open(listener);
                }
                Err(error) => error!(%error, "a port of the rings is not served"),
            }
        }
    }
}
