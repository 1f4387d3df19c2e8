//! The way from one mount to the store: requests take time, fail, lose their responses, and go on
//! alone when the mount that sent them has crashed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::World;
use crate::store::{
    Expect, Headers, MemoryStore, ObjectName, Part, Result, Row, Stat, Store, StoreError, Usage,
    Why,
};

/// A mount's connection, which a crash cuts.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) world: Arc<World>,
    pub(super) mount: usize,
    is_cut: Arc<AtomicBool>,
}

/// The course of one request.
pub(super) struct Fate {
    pub(super) before: Delay,
    pub(super) after: Delay,
    /// It fails before it is carried out.
    pub(super) fails: Option<Why>,
    /// It is carried out, and the response is lost.
    pub(super) loses: Option<Why>,
    /// It is on its way when the mount crashes, and is carried out all the same.
    pub(super) outlives: bool,
}

/// A pause: turns of other tasks, or time.
#[derive(Clone, Copy)]
pub(super) enum Delay {
    Turns(u32),
    Time(Duration),
}

impl Delay {
    async fn pass(self) {
        match self {
            Delay::Turns(turns) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            Delay::Time(time) => tokio::time::sleep(time).await,
        }
    }
}

/// A condition that a request takes along.
enum Condition {
    Nothing,
    Version(String),
    Anything,
}

impl Condition {
    fn of(expect: Expect<'_>) -> Condition {
        match expect {
            Expect::Nothing => Condition::Nothing,
            Expect::Version(etag) => Condition::Version(etag.to_owned()),
            Expect::Anything => Condition::Anything,
        }
    }

    fn expect(&self) -> Expect<'_> {
        match self {
            Condition::Nothing => Expect::Nothing,
            Condition::Version(etag) => Expect::Version(etag),
            Condition::Anything => Expect::Anything,
        }
    }
}

/// A write with a transient failure may have taken place.
fn failure(verb: &str, name: &str, why: Why) -> StoreError {
    StoreError {
        is_in_doubt: matches!(verb, "PUT" | "POST" | "DELETE"),
        ..StoreError::new(why, format!("{verb} {name}: in bad weather"))
    }
}

impl Link {
    pub(super) fn new(world: &Arc<World>, mount: usize) -> Link {
        Link {
            world: world.clone(),
            mount,
            is_cut: Arc::default(),
        }
    }

    /// The mount crashes: no request of its own begins, and no response arrives.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    fn store(&self) -> MemoryStore {
        self.world.store.clone()
    }

    /// Sends a request, which is not called back when its caller is dropped.
    async fn call<T: Send + 'static>(
        &self,
        verb: &'static str,
        name: &str,
        run: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.call_with(verb, name, None, run).await
    }

    async fn call_with<T: Send + 'static>(
        &self,
        verb: &'static str,
        name: &str,
        source: Option<&str>,
        run: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.is_cut() {
            std::future::pending::<()>().await;
        }
        let (link, name) = (self.clone(), name.to_owned());
        let source = source.map(str::to_owned);
        let carried = async move { link.carry(verb, &name, source.as_deref(), run).await };
        let request = tokio::spawn(carried);
        match request.await {
            Ok(answer) => answer,
            Err(error) => panic!("a request: {error}"),
        }
    }

    async fn carry<T>(
        &self,
        verb: &'static str,
        name: &str,
        source: Option<&str>,
        run: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let fate = self.world.fate(verb, name);
        fate.before.pass().await;
        if self.is_cut() && !fate.outlives {
            std::future::pending::<()>().await;
        }
        if let Some(why) = fate.fails {
            self.world.failed(self.mount, verb, name, why);
            return Err(failure(verb, name, why));
        }
        let answer = run.await;
        let error = answer.as_ref().err().map(|error| error.why);
        self.world.carried(self.mount, verb, (name, source), error);
        fate.after.pass().await;
        if self.is_cut() {
            std::future::pending::<()>().await;
        }
        match fate.loses {
            Some(why) => {
                self.world.failed(self.mount, verb, name, why);
                Err(failure(verb, name, why))
            }
            None => answer,
        }
    }
}

impl Store for Link {
    fn container(&self) -> &str {
        "c"
    }

    fn decides(&self) -> bool {
        true
    }

    fn fits(&self, path: &str) -> bool {
        self.world.store.fits(path)
    }

    async fn head(&self, name: &str) -> Result<Stat> {
        let (store, world, object) = (self.store(), self.world.clone(), name.to_owned());
        let run = async move { world.seen(store.head(&object).await) };
        self.call("HEAD", name, run).await
    }

    async fn head_newest(&self, name: &str) -> Result<Stat> {
        self.head(name).await
    }

    fn has_links(&self) -> bool {
        true
    }

    async fn head_link(&self, name: &str) -> Result<Stat> {
        let (store, object) = (self.store(), name.to_owned());
        let run = async move { store.head_link(&object).await };
        self.call("HEAD", name, run).await
    }

    async fn put_link(
        &self,
        name: &str,
        content_type: &str,
        target: &str,
        expect: Expect<'_>,
    ) -> Result<String> {
        let (store, object, target) = (self.store(), name.to_owned(), target.to_owned());
        let (content_type, expect) = (content_type.to_owned(), Condition::of(expect));
        let run = async move {
            let put = store.put_link(&object, &content_type, &target, expect.expect());
            put.await
        };
        self.call("PUT", name, run).await
    }

    async fn read(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Bytes>> {
        let (store, name) = (self.store(), object.clone());
        let etag = etag.map(str::to_owned);
        let run = async move { store.read(&name, etag.as_deref(), offset, length).await };
        self.call("GET", &object.name, run).await
    }

    async fn manifest(&self, name: &str, etag: &str) -> Result<Option<Vec<Part>>> {
        let (store, object, etag) = (self.store(), name.to_owned(), etag.to_owned());
        let run = async move { store.manifest(&object, &etag).await };
        self.call("MANIFEST", name, run).await
    }

    async fn parts(&self, name: &str) -> Result<Option<Vec<Part>>> {
        let (store, object) = (self.store(), name.to_owned());
        let run = async move { store.parts(&object).await };
        self.call("MANIFEST", name, run).await
    }

    async fn references(&self, name: &str, etag: Option<&str>) -> Result<Vec<ObjectName>> {
        let (store, object) = (self.store(), name.to_owned());
        let etag = etag.map(str::to_owned);
        let run = async move { store.references(&object, etag.as_deref()).await };
        self.call("MANIFEST", name, run).await
    }

    async fn put(
        &self,
        name: &str,
        headers: &Headers,
        body: Vec<Bytes>,
        expect: Expect<'_>,
    ) -> Result<String> {
        let (store, object, headers) = (self.store(), name.to_owned(), headers.clone());
        let expect = Condition::of(expect);
        let run = async move { store.put(&object, &headers, body, expect.expect()).await };
        self.call("PUT", name, run).await
    }

    async fn put_manifest(
        &self,
        name: &str,
        headers: &Headers,
        parts: &[Part],
        expect: Expect<'_>,
    ) -> Result<String> {
        let (store, object, headers) = (self.store(), name.to_owned(), headers.clone());
        let (parts, expect) = (parts.to_vec(), Condition::of(expect));
        let run = async move {
            let put = store.put_manifest(&object, &headers, &parts, expect.expect());
            put.await
        };
        self.call("PUT", name, run).await
    }

    async fn post(&self, name: &str, headers: &Headers, expect: Expect<'_>) -> Result<()> {
        let (store, object, headers) = (self.store(), name.to_owned(), headers.clone());
        let expect = Condition::of(expect);
        let run = async move { store.post(&object, &headers, expect.expect()).await };
        self.call("POST", name, run).await
    }

    async fn copy(&self, source: &str, target: &str, etag: Option<&str>) -> Result<()> {
        let (store, from, to) = (self.store(), source.to_owned(), target.to_owned());
        let etag = etag.map(str::to_owned);
        let run = async move { store.copy(&from, &to, etag.as_deref()).await };
        self.call_with("COPY", target, Some(source), run).await
    }

    async fn delete(&self, name: &str, expect: Expect<'_>) -> Result<bool> {
        let (store, object) = (self.store(), name.to_owned());
        let expect = Condition::of(expect);
        let run = async move { store.delete(&object, expect.expect()).await };
        self.call("DELETE", name, run).await
    }

    async fn list(&self, prefix: &str, marker: &str, flat: bool, limit: u32) -> Result<Vec<Row>> {
        let (store, start, from) = (self.store(), prefix.to_owned(), marker.to_owned());
        let run = async move { store.list(&start, &from, flat, limit).await };
        self.call("LIST", prefix, run).await
    }

    async fn usage(&self) -> Result<Usage> {
        let store = self.store();
        let run = async move { store.usage().await };
        self.call("USAGE", "", run).await
    }
}
