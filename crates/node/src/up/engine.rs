//! The engine of `cairn up`'s policy: chosen by the first start, and set in swift.conf in the ordinary
//! way.

use std::str::FromStr;

use anyhow::{Result, bail};

use super::layout::Layout;
use crate::cluster::Clusters;
use crate::engines::{FILES, PEBBLES, full_name};

/// The engine of a new store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// A file an object, as OpenStack Swift keeps them.
    Files,
    /// Small objects as records in volumes.
    #[default]
    Pebbles,
}

impl EngineChoice {
    const ALL: [EngineChoice; 2] = [EngineChoice::Files, EngineChoice::Pebbles];

    /// As it is given on the command line.
    fn name(self) -> &'static str {
        match self {
            EngineChoice::Files => "files",
            EngineChoice::Pebbles => "pebbles",
        }
    }

    fn module(self) -> &'static str {
        match self {
            EngineChoice::Files => FILES,
            EngineChoice::Pebbles => PEBBLES,
        }
    }

    /// The line of swift.conf that chooses it.
    pub(super) fn conf_line(self) -> String {
        match self {
            EngineChoice::Files => String::new(),
            other => format!("diskfile_module = {}\n", other.module()),
        }
    }

    /// Refuses an engine that is not the store's: nobody would find what is there.
    pub(super) fn check(self, layout: &Layout) -> Result<()> {
        let cluster = Clusters::default().get(&layout.etc)?;
        let first = cluster.policies.iter().next().map(|policy| policy.index);
        let module = first.and_then(|index| cluster.diskfile_modules.get(&index));
        let module = module.map_or_else(|| FILES.to_owned(), |module| full_name(module));
        if module != self.module() {
            bail!(
                "--engine {}: swift.conf in {} says diskfile_module = {module}: leave --engine away, or \
                 stop the store, change that line to {} and move its objects by `cairn pebbles import` \
                 or `export` (docs/pebbles.md)",
                self.name(),
                layout.etc.display(),
                self.module()
            );
        }
        Ok(())
    }
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = EngineChoice::ALL.into_iter();
        all.find(|choice| choice.name() == text).ok_or_else(|| {
            let names = EngineChoice::ALL.map(EngineChoice::name);
            format!("expected {}", names.join(" or "))
        })
    }
}
