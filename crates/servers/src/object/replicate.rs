//! REPLICATE: returns a partition's suffix hashes, pickled, for comparison by replicators; with
//! suffixes in the path, invalidates those.

use std::sync::Arc;

use cairn_disk::PartitionKey;
use cairn_formats::pickle::{Value, dumps};
use cairn_http::Response;
use cairn_http::params::{split_path, unquote};
use http::request::Parts;

use super::Inner;
use super::status::{self, Refusal};
use super::target::parse_partition;

impl Inner {
    pub(super) async fn replicate(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        let policy = self.policy(parts)?;
        let invalid = || Refusal::BadRequest(format!("Invalid path: {}", parts.uri.path()));
        let path = unquote(parts.uri.path()).map_err(|_| invalid())?;
        let segments = split_path(&path, 2, 3, true).ok_or_else(invalid)?;
        let [Some(device), Some(partition), suffixes] = segments[..] else {
            return Err(invalid());
        };
        let partition = parse_partition(partition)?;
        let suffixes: Vec<String> = suffixes
            .unwrap_or("")
            .split('-')
            .filter(|s| s.len() == 3 && s.bytes().all(|b| b"0123456789abcdef".contains(&b)))
            .map(str::to_owned)
            .collect();
        let engine = self.engine(policy)?;
        let at = PartitionKey::new(policy, partition);
        let device = self.background_device(device)?;
        let pickle = device.write(move |disk| {
            if suffixes.is_empty() {
                let found = engine.suffix_hashes(disk, at, &[], false)?;
                let pairs = found
                    .hashes
                    .into_iter()
                    .map(|(suffix, hash)| (Value::Str(suffix), hash.to_value()));
                return Ok(dumps(&Value::Dict(pairs.collect())));
            }
            // The sender has finished replicating these, and may remove its copies.
            engine.invalidate(disk, at, &suffixes)?;
            Ok(dumps(&Value::None))
        });
        let pickle = pickle.await?;
        Ok(status::for_daemons(pickle))
    }
}
