//! A small file that is re-read when it has changed, checked at most once per interval.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tracing::error;

/// A file and the value last parsed from it.
pub struct Followed<T> {
    path: PathBuf,
    every: Duration,
    parse: fn(&str, &str) -> Result<T, String>,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Modification time of the parsed version; `None`: the file did not exist.
    modified: Option<SystemTime>,
    looked: Option<Instant>,
    known: Arc<T>,
}

impl<T: Default + Send + Sync + 'static> Followed<T> {
    /// `parse` gets the file's name and text. A missing file stands for `T`'s default; one that
    /// cannot be read is logged, and the last value stays.
    pub fn new(
        path: PathBuf,
        every: Duration,
        parse: fn(&str, &str) -> Result<T, String>,
    ) -> Arc<Followed<T>> {
        Arc::new(Followed {
            path,
            every,
            parse,
            state: Mutex::new(State {
                modified: None,
                looked: None,
                known: Arc::default(),
            }),
        })
    }

    /// The file's value, checked now if the last check is older than the interval.
    pub async fn get(self: &Arc<Self>) -> Arc<T> {
        {
            let state = self.state.lock();
            if state.looked.is_some_and(|at| at.elapsed() < self.every) {
                return state.known.clone();
            }
        }
        let followed = self.clone();
        let looked = tokio::task::spawn_blocking(move || followed.look()).await;
        looked.unwrap_or_else(|_| {
            let state = self.state.lock();
            state.known.clone()
        })
    }

    /// Checks the file and returns its value. Blocks on the disk.
    pub fn look(&self) -> Arc<T> {
        let modified = std::fs::metadata(&self.path)
            .and_then(|m| m.modified())
            .ok();
        let mut state = self.state.lock();
        state.looked = Some(Instant::now());
        if modified == state.modified {
            return state.known.clone();
        }
        let name = self.path.display().to_string();
        let read = match modified {
            None => Ok(T::default()),
            Some(_) => std::fs::read_to_string(&self.path)
                .map_err(|error| error.to_string())
                .and_then(|text| (self.parse)(&name, &text)),
        };
        match read {
            Ok(known) => {
                state.known = Arc::new(known);
                state.modified = modified;
            }
            Err(error) => error!(file = name, error, "not read; what it said before is used"),
        }
        state.known.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_seen_and_mistakes_are_not() {
        let path = std::env::temp_dir().join(format!("followed-{}", std::process::id()));
        let parse = |_: &str, text: &str| text.trim().parse::<u32>().map_err(|e| e.to_string());
        let followed = Followed::new(path.clone(), Duration::ZERO, parse);
        assert_eq!(*followed.get().await, 0);
        for (text, time, seen) in [("5", 1, 5), ("x", 2, 5), ("6", 3, 6)] {
            std::fs::write(&path, text).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(time))
                .unwrap();
            assert_eq!(*followed.get().await, seen);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(*followed.get().await, 0);
    }
}
