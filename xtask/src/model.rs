//! A model of the store's acknowledged state: objects that know which states are possible, requests
//! that keep that knowledge exact, and a check of everything afterwards.

pub(crate) mod check;
pub(crate) mod keys;
pub(crate) mod load;
