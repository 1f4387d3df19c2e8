//! Four notes about hot files, in four tables: they are of different things, end at different
//! times, and differ in size by a hundred.
//!
//! | note | is of | is no longer valid when | if it is wrong | bytes |
//! | --- | --- | --- | --- | --- |
//! | last use (`device_pool/touched.rs`) | a name's hash | a minute has passed | one slow read on the caller's thread | 8 |
//! | checksum of verified content ([`Verified`]) | a file | the file's [`FileIdentity`] differs, `etag_recheck_interval` has passed, a read differs, or the device is readmitted | the MD5 decides | 18 |
//! | start of a large read ([`EventTimes`], in `DeviceState`) | a file and an offset | the file's identity differs, or five minutes have passed | the page cache has too much or too little | 8 |
//! | metadata ([`KnownObjects`]) | a directory and its one file | the identity of the directory or of the file differs | an old object is served: so both are compared in full | some 1000, at most about 5000 |
//!
//! # Why they are not one entry for each object
//!
//! An entry with the name's hash as its key, in one table with one bound, would be sound: it can
//! have the identities that end its notes. But notes would be lost that are kept now.
//!
//! * **A bound in entries is none in bytes.** The checksums have room for 128 Ki files of a device.
//!   As many entries with metadata take up to half a gigabyte for each device, by uploads and
//!   reads that any client can make; as many entries as metadata has room for (16 Ki, for all devices) leave seven of
//!   eight checksums out, and each of those costs an MD5.
//! * **A bound in bytes lets one note drive out a hundred.** When what is hot exceeds it, each
//!   metadata that is noted drops the checksums and last uses of dozens of others, and these are worth
//!   more: metadata saves the listing of a directory in memory, a checksum an MD5, and without a last
//!   use the read goes to another thread. To drop metadata first is a second bound again.
//! * **Starts of reads are many for each object.** Whoever reads a large object in ranges, as the
//!   mount does, notes one for each range; as a list in an entry they are unbounded, or the second
//!   pass over the object finds none.
//! * **Files of one name are several at once**: fragments with their indexes, and one hash in two
//!   policies. Checksums by name would replace each other.
//! * **Every upload notes a checksum**, which would drive out what is read again within five minutes:
//!   now starts of large reads compete with each other alone.
//!
//! Only the last use concerns engines in which many objects share a file, and its key is the name
//! already. Their content has no [`FileIdentity`] (`StoredContent::in_file`), so that a file's notes
//! are never taken for an object's.

mod known;
mod recent;
mod verified;

pub(crate) use known::{KnownObject, KnownObjects};
pub(crate) use recent::{EventTimes, FileIdentity};
pub(crate) use verified::Verified;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn fragments_of_one_object_have_a_checksum_each() {
        let dir = tempfile::tempdir().unwrap();
        let identity = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            FileIdentity::of(&rustix::fs::stat(&path).unwrap())
        };
        let fragments = ["1#0#d.data", "1#3#d.data"].map(identity);
        let verified = Verified::new(100);
        verified.insert(&fragments[0], 7);
        verified.insert(&fragments[1], 8);
        let checksums = fragments.map(|file| verified.checksum(&file, HOUR));
        assert_eq!(checksums, [Some(7), Some(8)]);
    }

    #[test]
    fn ranges_of_one_object_are_noted_one_by_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = FileIdentity::of(&rustix::fs::stat(file.path()).unwrap());
        let reads = EventTimes::new(4 << 10);
        let starts = || (0..1000_u64).map(|range| (file, range << 22));
        starts().for_each(|read| reads.insert(&read));
        let found = starts().filter(|read| reads.is_fresh(read, HOUR));
        // A full place forgets one, here and there.
        assert!(found.count() > 950);
        assert!(!reads.is_fresh(&(file, 1), HOUR));
    }
}
