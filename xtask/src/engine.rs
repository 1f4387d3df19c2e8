//! Engines of the stores that suites start (`--engine`), set in swift.conf as an operator would.

use anyhow::{Context, Result};
use cairn_testkit::cairn::Cairn;
use cairn_testkit::conf::with_option;
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// A file an object, as OpenStack Swift keeps them
    Files,
    /// Small objects as records in volumes
    Pebbles,
}

impl EngineName {
    /// Sets the engine of all policies of a store that was not started yet; without a name they
    /// stay as they are.
    pub(crate) fn set(engine: Option<EngineName>, store: &Cairn) -> Result<()> {
        let conf = store.conf("object").context("there is no object conf")?;
        let conf = conf.with_file_name("swift.conf");
        let text = std::fs::read_to_string(&conf)
            .with_context(|| format!("reading {}", conf.display()))?;
        Ok(std::fs::write(conf, EngineName::in_conf(engine, &text))?)
    }

    /// swift.conf with this engine in all policies; without a name they stay as they are.
    pub(crate) fn in_conf(engine: Option<EngineName>, text: &str) -> String {
        match engine {
            // The defaults differ by the type of a policy.
            None | Some(EngineName::Files) => text.to_owned(),
            Some(EngineName::Pebbles) => with_module(text, "egg:cairn#pebbles"),
        }
    }
}

/// swift.conf with this `diskfile_module` in each policy.
fn with_module(text: &str, module: &str) -> String {
    let policies = text.lines().filter_map(|line| {
        let section = line.trim().strip_prefix('[')?.strip_suffix(']')?;
        section.starts_with("storage-policy:").then_some(section)
    });
    policies.fold(text.to_owned(), |text, policy| {
        with_option(&text, policy, "diskfile_module", module)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_policies_get_the_engine() {
        let text = "[swift-hash]\nx = 1\n[storage-policy:0]\nname = a\ndiskfile_module = old\n\n\
                    [storage-policy:1]\nname = b\n";
        assert_eq!(
            with_module(text, "new"),
            "[swift-hash]\nx = 1\n[storage-policy:0]\ndiskfile_module = new\nname = a\n\n\
             [storage-policy:1]\ndiskfile_module = new\nname = b\n"
        );
    }
}
