//! Comparison of an object's replicas or fragments: their existence, and their ETag with the
//! listing's.

use anyhow::{Result, bail};
use cairn_ring::Device;
use cairn_types::PolicyIndex;
use http::{HeaderMap, Method};
use md5::{Digest, Md5};

use super::Auditor;

/// Metadata with the ETag for listings, if that is not the object's own; the first one present
/// counts.
const LISTED_ETAGS: [&str; 3] = [
    "x-object-sysmeta-container-update-override-etag",
    "x-object-sysmeta-ec-etag",
    "etag",
];

/// State of one server's copy.
enum Replica {
    /// The ETag expected in the listing, and whether the content matches.
    Found {
        etag: String,
        is_whole: bool,
    },
    Bad(http::StatusCode),
}

impl Auditor {
    pub(super) async fn audit_object(&self, account: &str, container: &str, name: &str) {
        let path = format!("/{account}/{container}/{name}");
        let listing = self.container(account, container).await;
        let listed = listing.objects.get(name);
        let mut is_consistent = listed.is_some();
        if listed.is_none() {
            self.tell(format!("  Object {path} missing in container listing!"))
                .await;
        }
        let policy = listing.policy.unwrap_or(PolicyIndex(0));
        let hash = self.hash_path.hash(account, Some(container), Some(name));
        let mut is_anywhere = false;
        if let Some(ring) = self.object_rings.get(&policy) {
            let partition = ring.partition(hash);
            for node in ring.primaries(partition) {
                let etag = self.look(&node.device, partition, &path, policy).await;
                is_consistent &= etag.as_ref().is_some_and(|(_, is_whole)| *is_whole);
                let Some((etag, _)) = etag else { continue };
                is_anywhere = true;
                if listed.is_some_and(|listed| listed.hash != etag) {
                    is_consistent = false;
                    self.count(|stats| stats.objects.objects_differ += 1);
                    let (ip, device) = (&node.device.ip, &node.device.device);
                    self.tell(format!("  ETag mismatch for \"{path}\" on {ip}/{device}"))
                        .await;
                }
            }
        }
        if !is_anywhere {
            is_consistent = false;
            self.tell(format!("  Failed fo fetch object {path} at all!"))
                .await;
        }
        if !is_consistent {
            self.note(&path).await;
        }
        self.count(|stats| stats.objects.checked += 1);
    }

    /// Reads the ETag from one server, and checks whether its content is complete; errors are
    /// reported.
    async fn look(
        &self,
        device: &Device,
        partition: u32,
        path: &str,
        policy: PolicyIndex,
    ) -> Option<(String, bool)> {
        let place = format!("{}/{}", device.ip, device.device);
        match self.read(device, partition, path, policy).await {
            Ok(Replica::Found { etag, is_whole }) => {
                if !is_whole {
                    self.count(|stats| stats.objects.objects_differ += 1);
                    self.tell(format!(
                        "  MD5 does not match etag for \"{path}\" on {place}"
                    ))
                    .await;
                }
                Some((etag, is_whole))
            }
            Ok(Replica::Bad(status)) => {
                self.count(|stats| stats.objects.missing += 1);
                let (status, asking) = match self.deep {
                    true => (status.as_u16(), "GETting"),
                    false => (status.as_u16(), "HEADing"),
                };
                self.tell(format!(
                    "  Bad status {status} {asking} object \"{path}\" on {place}"
                ))
                .await;
                None
            }
            Err(_) => {
                self.count(|stats| stats.objects.exceptions += 1);
                self.tell(format!("  Exception fetching object \"{path}\" on {place}"))
                    .await;
                None
            }
        }
    }

    async fn read(
        &self,
        device: &Device,
        partition: u32,
        path: &str,
        policy: PolicyIndex,
    ) -> Result<Replica> {
        let _turn = self.requests.acquire().await?;
        let method = match self.deep {
            true => Method::GET,
            false => Method::HEAD,
        };
        let answer = self.ask(method, device, partition, path, "", Some(policy.0));
        let (head, mut body) = answer.await?.into_parts();
        if !head.status.is_success() {
            return Ok(Replica::Bad(head.status));
        }
        let mut is_whole = true;
        if self.deep {
            let mut md5 = Md5::new();
            while let Some(chunk) = body.next_chunk().await {
                md5.update(chunk?);
            }
            let hex = cairn_types::hex::encode(md5.finalize());
            is_whole = etag(&head.headers, "etag").as_deref() == Some(hex.as_str());
        }
        match LISTED_ETAGS
            .iter()
            .find_map(|name| etag(&head.headers, name))
        {
            Some(etag) => Ok(Replica::Found { etag, is_whole }),
            None => bail!("an object without ETag"),
        }
    }
}

fn etag(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.trim_matches('"').to_owned())
}
