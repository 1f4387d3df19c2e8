//! The audit log: who did what from where, and what came of it, one JSON object a line. The filter
//! `audit` writes it for the store's API, the console for what is done there.
//!
//! Several may append to one file, each by a log of its own: a line is one write at the file's end.

mod file;

use std::io;

use serde_json::{Value, json};

use self::file::AuditFile;
use crate::clock::Clock;
use crate::context::Context;

pub struct AuditLog {
    clock: Clock,
    /// `None`: lines go to the process's log, under the target `audit`.
    file: Option<AuditFile>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditLog(..)")
    }
}

impl AuditLog {
    /// Appends to this file, which is made if need be; without one, to the process's log.
    pub fn open(path: Option<&str>, clock: Clock) -> io::Result<AuditLog> {
        Ok(AuditLog {
            clock,
            file: path.map(AuditFile::open).transpose()?,
        })
    }

    /// Adds time and address to `line`, and the request's transaction where it has one.
    pub fn tell(&self, context: &Context, line: &Value) {
        let mut whole = json!({
            "time": format!("{}Z", self.clock.now().isoformat()),
            "address": context.remote.map(|r| r.ip().to_canonical().to_string()),
        });
        if let (Some(whole), Some(line)) = (whole.as_object_mut(), line.as_object()) {
            if !context.trans_id.is_empty() {
                whole.insert("txid".into(), json!(&*context.trans_id));
            }
            whole.extend(line.clone());
        }
        match &self.file {
            Some(file) => file.append(format!("{whole}\n")),
            None => tracing::info!(target: "audit", "{whole}"),
        }
    }
}
