//! Hard links in a sweep: entries without a name, which a kill leaves, and objects without names.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Inventory, Swept};
use crate::commit::Committer;
use crate::links::HardLink;
use crate::store::{Result, Store, Why};

/// The files that names lead to, as a listing shows them.
#[derive(Default)]
pub(super) struct Homes {
    /// Objects, with their sizes.
    objects: BTreeMap<String, u64>,
    tables: BTreeSet<String>,
}

/// The hard links in the container.
#[derive(Default)]
pub(super) struct Links {
    entries: HashSet<String>,
    homes: HashSet<String>,
}

impl Homes {
    /// Takes an object below `.segments/` if it is one of a file with several names.
    pub(super) fn take(&mut self, name: &str, bytes: u64) {
        if crate::store::is_home(name) {
            self.objects.insert(name.to_owned(), bytes);
        } else if let Some(home) = crate::links::home_of_table(name) {
            self.tables.insert(home.to_owned());
        }
    }

    fn all(&self) -> BTreeSet<&String> {
        self.objects.keys().chain(&self.tables).collect()
    }
}

impl Links {
    pub(super) fn take(&mut self, content_type: &str) {
        if let Some(link) = HardLink::of_content_type(content_type) {
            self.entries.insert(link.entry());
            self.homes.insert(link.home());
        }
    }
}

impl<S: Store> Committer<S> {
    /// Removes entries and objects that have been without a name since `grace` seconds before `now`;
    /// adds the others to those that wait.
    pub(super) async fn sweep_links(
        &self,
        inventory: &Inventory,
        links: &Links,
        (now, grace): (i64, i64),
        waiting: &mut BTreeMap<String, i64>,
        swept: &mut Swept,
    ) -> Result<()> {
        for home in inventory.homes.all() {
            let swept_home = self.sweep_home(home, inventory, links, (now, grace), waiting);
            match swept_home.await {
                Ok(false) => {}
                Ok(true) => {
                    swept.segments += 1;
                    swept.removed += 1;
                    swept.removed_bytes += inventory.homes.objects.get(home).copied().unwrap_or(0);
                }
                Err(error) => swept.failed(home, error)?,
            }
        }
        Ok(())
    }

    /// Sweeps one object to which names lead; returns whether it was removed.
    async fn sweep_home(
        &self,
        home: &String,
        inventory: &Inventory,
        links: &Links,
        (now, grace): (i64, i64),
        waiting: &mut BTreeMap<String, i64>,
    ) -> Result<bool> {
        let since = |name: &String| inventory.found.get(name).copied().unwrap_or(now);
        let names = match self.names_of(home).await {
            Ok((names, _)) => names,
            Err(error) if error.why == Why::NotFound => Default::default(),
            Err(error) => return Err(error),
        };
        let mut gone = Vec::new();
        for id in names.ids() {
            let entry = format!("{home}/{id}");
            match since(&entry) {
                _ if links.entries.contains(&entry) => {}
                at if now - at >= grace => gone.push(id.to_owned()),
                at => _ = waiting.insert(entry, at),
            }
        }
        let left = match gone.is_empty() {
            true => names.len(),
            false => self.leave_names(home, &gone).await?,
        };
        if left > 0 || links.homes.contains(home) {
            return Ok(false);
        }
        match since(home) {
            at if !gone.is_empty() || now - at >= grace => {
                self.remove_home(home).await?;
                Ok(true)
            }
            at => {
                waiting.insert(home.clone(), at);
                Ok(false)
            }
        }
    }
}
