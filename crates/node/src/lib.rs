//! A node: the programs that serve. From conf files to running servers ([`serve`]), and the
//! all-in-one store that writes its own conf files ([`up`]).
//!
//! The layer that joins all others: it may depend on every crate of the store; only the binary and
//! operators' programs (`tools`) depend on it. Requests are handled elsewhere; this crate manages
//! files, ports, locks, signals, threads, and their order.

mod backend_tls;
mod background;
pub mod cluster;
pub mod conf;
pub mod console;
pub mod daemon;
pub mod daemons;
pub mod embedded;
pub mod engines;
mod for_clients;
mod head_limits;
mod known_keys;
mod limits;
mod listen;
pub mod lock;
pub mod logging;
pub mod memory;
mod notify;
mod options;
mod parts;
mod per_port;
mod pid_file;
mod pipeline;
mod ports;
mod priority;
pub mod privileges;
mod progress_bar;
pub mod reload;
mod ring_ports;
pub mod role;
pub mod serve;
mod services;
pub mod settings;
pub mod signals;
pub mod similar;
mod status;
mod stdio;
mod storage;
pub mod store_tls;
pub mod supervisor;
pub mod syslog;
pub mod up;
mod upkeep;
