//! Hard links: a file with several names is one object, `.segments/links/ID`, and each of its names
//! is a Swift symlink to it, which any client reads through.
//!
//! A name's content type has the parameter `hard-link=ID.NAME-ID`. The ids of all names are in the
//! table `.segments/links/ID/names`, one line of 33 bytes each, which is replaced on condition of its
//! version: a listing may be late, and the object must go with the last name and not before. A name's
//! id is entered before the name is made, and removed after it: what a kill leaves is an entry too
//! many, which a sweep removes, and never one too few.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::attributes::Kind;
use crate::commit::{Committer, random_id};
use crate::store::{
    Expect, Headers, ID_CHARS, ObjectName, Result, Store, StoreError, Why, is_home, is_id,
    links_folder as folder,
};

const LINE_BYTES: u64 = ID_CHARS as u64 + 1;
const PARAMETER: &str = "hard-link=";
/// Maximum swaps of a table lost to other mounts.
const SWAPS_MAX: u32 = 50;
/// Maximum number of names of a file.
pub(crate) const NAMES_MAX: usize = 65_000;

/// Is it the entry of a name, as a sweep writes it down?
pub(crate) fn is_entry(text: &str) -> bool {
    let entry = text.rsplit_once('/');
    entry.is_some_and(|(home, id)| is_home(home) && is_id(id))
}

/// The object whose table has this name, if it is a table's.
pub(crate) fn home_of_table(name: &str) -> Option<&str> {
    name.strip_suffix("/names").filter(|home| is_home(home))
}

/// One of several names of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HardLink {
    file: String,
    id: String,
}

impl HardLink {
    /// A name of a file that gets its first further one.
    pub(crate) fn of_new_file() -> HardLink {
        HardLink {
            file: random_id(),
            id: random_id(),
        }
    }

    /// Another name of the file.
    pub(crate) fn another(&self) -> HardLink {
        HardLink {
            file: self.file.clone(),
            id: random_id(),
        }
    }

    /// A new name of the file whose object is `home`.
    pub(crate) fn to(home: &str) -> Option<HardLink> {
        let file = home.strip_prefix(&folder()).filter(|id| is_id(id))?;
        Some(HardLink {
            file: file.to_owned(),
            id: random_id(),
        })
    }

    pub(crate) fn of_content_type(content_type: &str) -> Option<HardLink> {
        let mut parameters = content_type.split(';').skip(1).map(str::trim);
        let ids = parameters.find_map(|text| text.strip_prefix(PARAMETER))?;
        let (file, id) = ids.split_once('.')?;
        (is_id(file) && is_id(id)).then(|| HardLink {
            file: file.to_owned(),
            id: id.to_owned(),
        })
    }

    pub(crate) fn content_type(&self, kind: Kind) -> String {
        format!(
            "{};{PARAMETER}{}.{}",
            kind.content_type(),
            self.file,
            self.id
        )
    }

    /// The name's entry, as a sweep writes it down.
    pub(crate) fn entry(&self) -> String {
        format!("{}/{}", self.home(), self.id)
    }

    /// The object that the name leads to.
    pub(crate) fn home(&self) -> String {
        format!("{}{}", folder(), self.file)
    }
}

/// The ids of a file's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    pub(crate) fn parse(text: &[u8]) -> Names {
        let text = String::from_utf8_lossy(text);
        Names(
            text.lines()
                .filter(|id| is_id(id))
                .map(str::to_owned)
                .collect(),
        )
    }

    fn body(&self) -> Bytes {
        self.0
            .iter()
            .map(|id| format!("{id}\n"))
            .collect::<String>()
            .into()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// A change of a table; false if there is nothing to change.
type Change<'a> = &'a (dyn Fn(&mut BTreeSet<String>) -> bool + Sync);

impl<S: Store> Committer<S> {
    /// Makes the table of a new file with its first two names.
    pub(crate) async fn make_names(&self, links: [&HardLink; 2]) -> Result<()> {
        let [first, _] = links;
        let names = Names(links.iter().map(|link| link.id.clone()).collect());
        let (table, headers) = (table_of(&first.home()), Headers::new("text/plain"));
        let put = self
            .store
            .put(&table, &headers, vec![names.body()], Expect::Anything);
        put.await.map(drop)
    }

    /// Enters a name into the table of its file; [`Why::NotFound`] if the file is gone.
    pub(crate) async fn enter_name(&self, link: &HardLink) -> Result<usize> {
        let enter = |ids: &mut BTreeSet<String>| !ids.is_empty() && ids.insert(link.id.clone());
        let (names, _) = self.change_names(&link.home(), &enter).await?;
        match names.0.contains(&link.id) {
            true => Ok(names.len()),
            false => Err(StoreError::new(
                Why::NotFound,
                format!("no {}", link.home()),
            )),
        }
    }

    /// Removes a name from the table of its file; returns the number of those left.
    pub(crate) async fn leave_name(&self, link: &HardLink) -> Result<usize> {
        let leave = |ids: &mut BTreeSet<String>| ids.remove(&link.id);
        self.leave(&link.home(), &leave).await
    }

    /// Removes names by their ids; returns the number of those left.
    pub(crate) async fn leave_names(&self, home: &str, gone: &[String]) -> Result<usize> {
        let leave = |ids: &mut BTreeSet<String>| {
            let before = ids.len();
            ids.retain(|id| !gone.contains(id));
            ids.len() < before
        };
        self.leave(home, &leave).await
    }

    async fn leave(&self, home: &str, leave: Change<'_>) -> Result<usize> {
        match self.change_names(home, leave).await {
            Ok((names, _)) => Ok(names.len()),
            Err(error) if error.why == Why::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Removes an object without names, and its table.
    pub(crate) async fn remove_home(&self, home: &str) -> Result<()> {
        self.store.delete(home, Expect::Anything).await?;
        self.store
            .delete(&table_of(home), Expect::Anything)
            .await
            .map(drop)
    }

    /// The number of a file's names.
    pub(crate) async fn count_names(&self, home: &str) -> Result<usize> {
        let stat = self.store.head_newest(&table_of(home)).await?;
        Ok((stat.bytes / LINE_BYTES) as usize)
    }

    pub(crate) async fn names_of(&self, home: &str) -> Result<(Names, String)> {
        let table = table_of(home);
        loop {
            let stat = self.store.head_newest(&table).await?;
            if stat.bytes == 0 {
                return Ok((Names::default(), stat.etag));
            }
            let object = ObjectName::new(self.store.container(), &table);
            let read = self.store.read(&object, Some(&stat.etag), 0, stat.bytes);
            match read.await {
                Ok(pieces) => return Ok((Names::parse(&pieces.concat()), stat.etag)),
                Err(error) if error.why == Why::Changed => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes a table on condition of its version, again if another mount was first. Returns it as
    /// it is then, and whether it was changed here.
    async fn change_names(&self, home: &str, change: Change<'_>) -> Result<(Names, bool)> {
        let (table, headers) = (table_of(home), Headers::new("text/plain"));
        let mut tries = 0;
        loop {
            let (mut names, etag) = self.names_of(home).await?;
            if !change(&mut names.0) {
                return Ok((names, false));
            }
            let body = vec![names.body()];
            let put = self
                .store
                .put(&table, &headers, body, Expect::Version(&etag));
            match put.await {
                Ok(_) => return Ok((names, true)),
                // Ids are random: whether a lost answer was success is seen in the table.
                Err(error)
                    if tries < SWAPS_MAX && (error.why == Why::Changed || error.is_in_doubt) =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn table_of(home: &str) -> String {
    format!("{home}/names")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_parsers(text in ".{0,80}", raw in proptest::collection::vec(0u8..=255, 0..80)) {
            let _ = HardLink::of_content_type(&text);
            let _ = HardLink::of_content_type(&format!("a/b;hard-link={text}"));
            let _ = Names::parse(&raw);
        }

        #[test]
        fn a_table_is_read_as_it_was_written(ids in proptest::collection::btree_set("[0-9a-f]{32}", 0..5)) {
            let names = Names(ids);
            proptest::prop_assert_eq!(Names::parse(&names.body()), names.clone());
            proptest::prop_assert_eq!(names.body().len() as u64, names.len() as u64 * LINE_BYTES);
        }
    }

    #[test]
    fn a_content_type_says_where_a_name_leads() {
        let link = HardLink::of_new_file();
        let content_type = link.content_type(Kind::Fifo);
        assert_eq!(HardLink::of_content_type(&content_type), Some(link.clone()));
        assert_eq!(Kind::of_content_type(&content_type), Kind::Fifo);
        assert!(is_home(&link.home()));
        assert_eq!(home_of_table(&table_of(&link.home())), Some(&*link.home()));
        let (same, other) = (HardLink::to(&link.home()).unwrap(), link.another());
        assert_eq!((same.home(), other.home()), (link.home(), link.home()));
        assert!(same != link && other != link && same != other);
        assert!(HardLink::to("f").is_none());
        assert!(!is_home(".segments/links/names"));
    }
}
