//! Runs the calls of the kernel.

use std::future::Future;
use std::sync::Arc;

use fuser::Errno;

use super::errno::told;
use super::{Fuse, tasks};
use crate::error::FsResult;
use crate::store::Store;
use crate::vfs::Vfs;

impl<S: Store> Fuse<S> {
    /// Runs a call, and passes its result to `reply`.
    pub(super) fn call<T, F, R>(&self, call: impl FnOnce(Arc<Vfs<S>>) -> F, reply: R)
    where
        F: Future<Output = FsResult<T>> + Send + 'static,
        R: FnOnce(Result<T, Errno>) + Send + 'static,
    {
        let running = call(self.vfs.clone());
        self.run(async move { reply(running.await.map_err(|error| told(&error))) });
    }

    /// Runs a call that replies by itself. One that need not wait ends in the thread that received it.
    pub(super) fn run(&self, running: impl Future<Output = ()> + Send + 'static) {
        tasks::run(&self.runtime, running);
    }
}
