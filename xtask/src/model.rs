//! What a store has acknowledged, and whether it still has it: objects that know which states
//! they may be in, requests that keep that knowledge, and a look at everything afterwards.

pub(crate) mod check;
pub(crate) mod keys;
pub(crate) mod load;
