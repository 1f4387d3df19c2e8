//! (being written)
pub mod account;
pub mod container;
mod index_server;
pub mod object;
