//! The databases of this process that take rows of objects by a call, in place of a request to their
//! container server: by the addresses that requests name.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use cairn_index::TakesRows;
use parking_lot::RwLock;

#[derive(Default)]
pub struct LocalRows(RwLock<HashMap<SocketAddr, Arc<dyn TakesRows>>>);

impl LocalRows {
    pub fn register(&self, address: SocketAddr, databases: Arc<dyn TakesRows>) {
        self.0.write().insert(address, databases);
    }

    pub(crate) fn at(&self, address: SocketAddr) -> Option<Arc<dyn TakesRows>> {
        self.0.read().get(&address).cloned()
    }
}

impl std::fmt::Debug for LocalRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.read().keys()).finish()
    }
}
