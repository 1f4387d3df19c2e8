//! An embedded proxy: programs that are no servers send requests through a pipeline of their own,
//! which is called and never listens.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_peer::Backends;

use crate::backend_tls;
use crate::cluster::{Cluster, Clusters};
use crate::conf::{Filter, ServerConf};
use crate::daemons;
use crate::pipeline;
use crate::services;
use crate::settings::Folders;

/// A cluster as one conf knows it, with connections to its servers.
pub struct Embedded {
    cluster: Cluster,
    backends: Arc<Backends>,
    clock: Clock,
}

/// A proxy, and the same behind filters.
pub struct Filtered {
    pub proxy: Handler,
    pub filtered: Handler,
}

impl Embedded {
    /// Reads `swift_dir`, `conn_timeout` and the TLS of calls from the section of an application.
    ///
    /// # Errors
    /// swift.conf cannot be read or is invalid, or an option of the section is.
    pub fn open(section: &Section) -> Result<Embedded> {
        let cluster = Clusters::default().get(&Folders::read(section).swift_dir)?;
        let timeout = section.seconds_or("conn_timeout", 0.5)?;
        Ok(Embedded {
            cluster: cluster.apart(),
            backends: Backends::with_tls(timeout, backend_tls::of(section)?),
            clock: Clock::system(),
        })
    }

    /// The whole pipeline of an internal client's conf.
    ///
    /// # Errors
    /// The conf is not of a proxy, or its pipeline has filters that are for clients.
    pub fn internal_client(&self, conf: &Path) -> Result<Handler> {
        daemons::read_pipeline(conf, &self.cluster, &self.backends, &self.clock)
    }

    /// The proxy of a conf, alone and behind `filters`, outermost first.
    ///
    /// # Errors
    /// An option of the conf or of a filter is invalid, or a ring cannot be loaded.
    pub fn proxy(&self, conf: &ServerConf, filters: &[Filter]) -> Result<Filtered> {
        let proxy = services::proxy(conf, &self.cluster, &self.backends, &self.clock)?;
        let env = pipeline::filter_env(&self.cluster, Some(proxy.clone()), self.clock.clone());
        Ok(Filtered {
            filtered: pipeline::around(filters, proxy.clone(), &env)?,
            proxy,
        })
    }
}
