//! The audit log: one JSON object per line for each security-relevant event, with user, address and
//! outcome. The filter `audit` writes it for the store's API, the console for its own actions.
//!
//! Several processes may append to one file: a line is a single write at the end of the file.

mod file;

use std::io;

use serde_json::{Value, json};

use self::file::AuditFile;
use crate::clock::Clock;
use crate::context::Context;

pub struct AuditLog {
    clock: Clock,
    /// The log file; `None`: lines go to the process's log, under the target `audit`.
    file: Option<AuditFile>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditLog(..)")
    }
}

impl AuditLog {
    /// Opens the log on this file, which is created if it does not exist; without a path, on the
    /// process's log.
    ///
    /// # Errors
    /// The file cannot be opened, or its thread not started; without a path there is none.
    pub fn open(path: Option<&str>, clock: Clock) -> io::Result<AuditLog> {
        Ok(AuditLog {
            clock,
            file: path.map(AuditFile::open).transpose()?,
        })
    }

    /// Writes `line`, with the time, the client's address and the request's transaction id (if it
    /// has one) added.
    pub fn tell(&self, context: &Context, line: &Value) {
        let mut whole = json!({
            "time": format!("{}Z", self.clock.now().isoformat()),
            "address": context.client().map(|client| client.to_string()),
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
