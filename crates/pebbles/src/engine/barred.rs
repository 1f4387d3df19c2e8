//! Files of objects beside the volumes: kept from being made, or told of.

use cairn_disk::barred::{self, Barred};
use cairn_disk::{Disk, DiskError};
use cairn_types::PolicyIndex;

/// The content of the file in the place of a policy's folder of files.
const ELSEWHERE: &str = "\
The objects of this policy are in volumes, in the folder pebbles beside this file. Replicators of other
nodes have to send them by SSYNC (sync_method = ssync): rsync would leave them here, where nobody reads
them, and is refused by this file. `cairn pebbles export` makes files of them again.
";

/// Nobody who knows of files only is to put objects beside the volumes.
pub(super) fn bar_files(disk: &Disk, policy: PolicyIndex) -> Result<(), DiskError> {
    if barred::bar(disk, policy, ELSEWHERE)? == Barred::HasFiles {
        tracing::warn!(
            device = disk.name(),
            %policy,
            "there are files of objects beside the volumes, which nobody reads: stop all that uses the \
             device, and run `cairn pebbles import`"
        );
    }
    Ok(())
}
