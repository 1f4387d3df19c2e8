//! A model of the store's acknowledged state: objects that know which states are possible, requests
//! that keep that knowledge exact, and a check of everything afterwards.

pub mod check;
pub mod keys;
pub mod load;

/// Number of containers over which the keys are spread.
pub const CONTAINERS: usize = 4;

/// The path of one of them below the account.
pub fn container(number: usize) -> String {
    format!("/crash-{number}")
}
