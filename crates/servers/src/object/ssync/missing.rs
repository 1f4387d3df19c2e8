//! First half of SSYNC: finds the sender's objects that are missing here.

use cairn_disk::Disk;
use cairn_formats::ssync::{MISSING_CHECK_END, MISSING_CHECK_START, Offer, Wanted};
use cairn_types::ObjectHash;

use super::input::Input;
use super::{Receiver, SessionError};

/// Offers looked up in one job of the device.
const OFFERS_PER_LOOKUP: usize = 64;
/// Maximum objects wanted at once. A partition with more is not replicated in one session; a
/// truncated list would claim that the rest is here.
const WANTED_OBJECTS_MAX: usize = 4 << 20;

impl Receiver {
    /// Reads all offers, then responds: the sender does not read while it writes.
    pub(super) async fn missing_check(&self, input: &mut Input) -> Result<(), SessionError> {
        expect(input, "missing_check start", MISSING_CHECK_START).await?;
        let mut wanted = Vec::new();
        let mut batch = Vec::with_capacity(OFFERS_PER_LOOKUP);
        loop {
            let line = input.line("missing_check line").await?;
            let line = line.filter(|line| **line != *MISSING_CHECK_END.as_bytes());
            let is_end = line.is_none();
            if let Some(line) = line {
                batch.push(Offer::decode(&String::from_utf8_lossy(&line))?);
            }
            if batch.len() == OFFERS_PER_LOOKUP || (is_end && !batch.is_empty()) {
                self.look_up(std::mem::take(&mut batch), &mut wanted)
                    .await?;
            }
            if wanted.len() > WANTED_OBJECTS_MAX {
                return Err(SessionError::Protocol(
                    "too many objects are missing".into(),
                ));
            }
            if is_end {
                break;
            }
        }
        self.send_line(MISSING_CHECK_START).await?;
        for chunk in wanted.chunks(256) {
            let lines: Vec<String> = chunk.iter().map(|(hash, w)| w.encode(*hash)).collect();
            self.send_line(&lines.join("\r\n")).await?;
        }
        self.send_line(MISSING_CHECK_END).await
    }

    /// Adds the objects wanted of these offers.
    async fn look_up(
        &self,
        offers: Vec<Offer>,
        wanted: &mut Vec<(ObjectHash, Wanted)>,
    ) -> Result<(), SessionError> {
        let (engine, at) = (self.engine.clone(), self.at());
        let policies = &self.inner.config.policies;
        let policy_kind = policies.by_index(self.policy);
        let is_coded = policy_kind.is_some_and(|policy| policy.erasure().is_some());
        let index = self.frag_index;
        let look = move |disk: &Disk| {
            let mut found = Vec::new();
            for offer in offers {
                let held = engine.held(disk, at, &offer, index)?;
                if let Some(wanted) = offer.wanted(held.as_ref()) {
                    found.push((offer.hash, wanted));
                }
            }
            Ok(found)
        };
        // Fragments may become durable in this step.
        let found = match is_coded {
            true => self.device.write(look),
            false => self.device.read(look),
        };
        wanted.extend(found.await?);
        Ok(())
    }
}

/// Reads the line that starts a half.
pub(super) async fn expect(
    input: &mut Input,
    reading: &'static str,
    expected: &'static str,
) -> Result<(), SessionError> {
    match input.line(reading).await? {
        Some(line) if line == expected.as_bytes() => Ok(()),
        Some(line) => {
            let line: String = String::from_utf8_lossy(&line).chars().take(1024).collect();
            Err(SessionError::Protocol(format!(
                "Looking for {expected} got {line:?}"
            )))
        }
        None => Err(SessionError::Disconnected(reading.into())),
    }
}
