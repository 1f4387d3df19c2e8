//! The hash that places a name on the ring and on disk:
//! `MD5(prefix + "/account[/container[/object]]" + suffix)`, prefix and suffix from swift.conf.

use std::fmt;

use md5::{Digest, Md5};

use crate::hex;

/// The cluster's secret prefix and suffix (`[swift-hash]` in swift.conf). Clusters with different
/// ones derive different partitions and file names from the same object name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HashPath {
    pub prefix: Vec<u8>,
    pub suffix: Vec<u8>,
}

/// The MD5 that identifies an account, container or object on the ring and on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectHash(pub [u8; 16]);

impl HashPath {
    pub fn new(prefix: impl Into<Vec<u8>>, suffix: impl Into<Vec<u8>>) -> Self {
        HashPath {
            prefix: prefix.into(),
            suffix: suffix.into(),
        }
    }

    /// The hash of `/account`, `/account/container` or `/account/container/object`.
    pub fn hash(&self, account: &str, container: Option<&str>, object: Option<&str>) -> ObjectHash {
        let mut md5 = Md5::new();
        md5.update(&self.prefix);
        for part in [Some(account), container, object].into_iter().flatten() {
            md5.update(b"/");
            md5.update(part.as_bytes());
        }
        md5.update(&self.suffix);
        ObjectHash(md5.finalize().into())
    }
}

impl ObjectHash {
    /// Ring partition: the top `32 - part_shift` bits.
    pub fn partition(self, part_shift: u32) -> u32 {
        let top = u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]);
        top.checked_shr(part_shift).unwrap_or(0)
    }

    /// Thirty-two lower-case hex digits: the name of the hash folder.
    pub fn hex(self) -> String {
        hex::encode(self.0)
    }

    /// The last three hex digits: the name of the suffix folder.
    pub fn suffix(self) -> String {
        self.hex()[29..].to_owned()
    }

    pub fn from_hex(hex: &str) -> Option<Self> {
        if hex.len() != 32 || !hex.is_ascii() {
            return None;
        }
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(ObjectHash(bytes))
    }
}

impl fmt::Debug for ObjectHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        // md5("/a"), md5("/a/c"), md5("/a/c/o") with suffix "endcap", as upstream's tests have them.
        let conf = HashPath::new("", "endcap");
        assert_eq!(
            conf.hash("a", None, None).hex(),
            "1c84525acb02107ea475dcd3d09c2c58"
        );
        assert_eq!(
            conf.hash("a", Some("c"), None).hex(),
            "33379ecb053aa5c9e356c68997cbb59e"
        );
        let object = conf.hash("a", Some("c"), Some("o"));
        assert_eq!(object.hex(), "06fbf0b514e5199dfc4e00f42eb5ea83");
        assert_eq!(object.suffix(), "a83");
        assert_eq!(object.partition(32 - 8), 0x06);
        assert_eq!(ObjectHash::from_hex(&object.hex()), Some(object));
    }
}
