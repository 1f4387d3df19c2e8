//! POSIX attributes of an object: in metadata headers that other tools use (`X-Object-Meta-Mtime`,
//! `-Mode`, `-Uid`, `-Gid`), and also in a parameter of the content type, which listings show.
//!
//! The parameter is `posix=MODE_UID_GID_MTIME`, mode in octal with the file type's bits, then
//! `_aATIME` if an access time was set, `_dNUMBER` for a device, and `_x` if there are extended
//! attributes: `application/octet-stream;posix=100644_1000_1000_1767323045.25`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;

use crate::store::Headers;
use crate::time::Time;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

const TYPE_MASK: u32 = 0o170_000;

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::File,
        Kind::Directory,
        Kind::Symlink,
        Kind::Fifo,
        Kind::Socket,
        Kind::CharDevice,
        Kind::BlockDevice,
    ];

    fn bits(self) -> u32 {
        match self {
            Kind::File => 0o100_000,
            Kind::Directory => 0o040_000,
            Kind::Symlink => 0o120_000,
            Kind::Fifo => 0o010_000,
            Kind::Socket => 0o140_000,
            Kind::CharDevice => 0o020_000,
            Kind::BlockDevice => 0o060_000,
        }
    }

    pub(crate) fn of_mode(mode: u32) -> Option<Kind> {
        let is_it = |kind: &Kind| kind.bits() == mode & TYPE_MASK;
        Kind::ALL.into_iter().find(is_it)
    }

    /// The content type of this file type; regular files may have any.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Kind::File => "application/octet-stream",
            Kind::Directory => "application/directory",
            Kind::Symlink => "inode/symlink",
            Kind::Fifo => "inode/fifo",
            Kind::Socket => "inode/socket",
            Kind::CharDevice => "inode/chardevice",
            Kind::BlockDevice => "inode/blockdevice",
        }
    }

    pub(crate) fn is_device(self) -> bool {
        matches!(self, Kind::CharDevice | Kind::BlockDevice)
    }

    pub(crate) fn of_content_type(content_type: &str) -> Kind {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let is_it = |kind: &Kind| *kind != Kind::File && kind.content_type() == essence;
        Kind::ALL.into_iter().find(is_it).unwrap_or(Kind::File)
    }
}

/// POSIX attributes of an object; missing ones take the mount's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) kind: Kind,
    /// Permission, set-id and sticky bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    /// Access time if it was set explicitly; otherwise it equals the modification time.
    pub(crate) atime: Option<Time>,
    /// Device number.
    pub(crate) rdev: u32,
}

/// Attributes of objects that have none stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Attributes {
    /// Do they differ in the access time at most?
    pub(crate) fn is_but_for_reading(&self, other: &Attributes) -> bool {
        let Attributes { atime, .. } = *other;
        Attributes {
            atime,
            ..self.clone()
        } == *other
    }

    pub(crate) fn default_of(kind: Kind, mtime: Time, defaults: Defaults) -> Attributes {
        let mode = match kind {
            Kind::Directory => 0o755,
            Kind::Symlink => 0o777,
            _ => 0o644,
        };
        Attributes {
            kind,
            mode,
            uid: defaults.uid,
            gid: defaults.gid,
            mtime,
            atime: None,
            rdev: 0,
        }
    }

    /// Parses the content type's parameter: attributes, and whether there are extended ones.
    pub(crate) fn of_content_type(content_type: &str) -> Option<(Attributes, bool)> {
        let parameter = content_type.split(';').skip(1);
        let mut parameters = parameter.filter_map(|text| text.trim().strip_prefix("posix="));
        let mut fields = parameters.next()?.split('_');
        let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
        let mut attributes = Attributes {
            kind: Kind::of_content_type(content_type),
            mode: mode & 0o7777,
            uid: fields.next()?.parse().ok()?,
            gid: fields.next()?.parse().ok()?,
            mtime: Time::parse(fields.next()?)?,
            atime: None,
            rdev: 0,
        };
        // An object that another tool gave a link's content type is a regular file.
        if Kind::of_mode(mode) != Some(attributes.kind) {
            return None;
        }
        let mut has_xattrs = false;
        for field in fields {
            match field.split_at_checked(1)? {
                ("a", time) => attributes.atime = Some(Time::parse(time)?),
                ("d", number) => attributes.rdev = number.parse().ok()?,
                ("x", "") => has_xattrs = true,
                _ => return None,
            }
        }
        Some((attributes, has_xattrs))
    }

    /// Reads the attributes from an object's headers. `changed` is the time when it was stored.
    pub(crate) fn of_headers(headers: &Headers, changed: Time, defaults: Defaults) -> Attributes {
        let kind = Kind::of_content_type(&headers.content_type);
        let parameter = Attributes::of_content_type(&headers.content_type);
        let mut attributes = match parameter {
            Some((attributes, _)) => attributes,
            None => Attributes::default_of(kind, changed, defaults),
        };
        let get = |name: &str| headers.meta.get(name).map(String::as_str);
        if let Some(mode) = get("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok()) {
            attributes.mode = mode & 0o7777;
        }
        let number = |name: &str| get(name).and_then(|id| id.parse().ok());
        attributes.uid = number("uid").unwrap_or(attributes.uid);
        attributes.gid = number("gid").unwrap_or(attributes.gid);
        attributes.mtime = get("mtime")
            .and_then(Time::parse)
            .unwrap_or(attributes.mtime);
        attributes.atime = get("atime").and_then(Time::parse).or(attributes.atime);
        attributes.rdev = number("rdev").unwrap_or(attributes.rdev);
        attributes
    }

    /// Writes the attributes, and the extended ones, into `headers`.
    pub(crate) fn put_into(&self, headers: &mut Headers, xattrs: &Xattrs) {
        let mode = self.mode | self.kind.bits();
        let meta = &mut headers.meta;
        meta.retain(|name, _| name != "atime" && name != "rdev" && !is_xattr(name));
        meta.insert("mode".into(), format!("{mode:o}"));
        meta.insert("uid".into(), self.uid.to_string());
        meta.insert("gid".into(), self.gid.to_string());
        meta.insert("mtime".into(), self.mtime.to_string());
        let mut parameter = format!("posix={mode:o}_{}_{}_{}", self.uid, self.gid, self.mtime);
        if let Some(atime) = self.atime {
            meta.insert("atime".into(), atime.to_string());
            parameter.push_str(&format!("_a{atime}"));
        }
        if self.kind.is_device() {
            meta.insert("rdev".into(), self.rdev.to_string());
            parameter.push_str(&format!("_d{}", self.rdev));
        }
        if !xattrs.0.is_empty() {
            parameter.push_str("_x");
            xattrs.put_into(meta);
        }
        let others = headers.content_type.split(';').map(str::trim);
        let others: Vec<&str> = others.filter(|part| !part.starts_with("posix=")).collect();
        headers.content_type = format!("{};{parameter}", others.join(";"));
    }
}

fn is_xattr(name: &str) -> bool {
    let number = name.strip_prefix("xattr-");
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Extended attributes. In headers they are encoded as `NAME NUL LENGTH NUL VALUE …` in base64,
/// split over values of `X-Object-Meta-Xattr-N`: a metadata value in Swift has at most 256 bytes,
/// all together 4,096.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xattrs(pub(crate) BTreeMap<String, Vec<u8>>);

const HEADER_BYTES: usize = 256;
/// Maximum size of extended attributes: an object's metadata has at most 4,096 bytes, of which 400
/// are reserved for the attributes and metadata of other clients.
pub(crate) const XATTRS_MAX_BYTES: usize = 2_700;

impl Xattrs {
    fn raw(&self) -> Vec<u8> {
        let mut raw = Vec::new();
        for (name, value) in &self.0 {
            raw.extend_from_slice(name.as_bytes());
            raw.push(0);
            raw.extend_from_slice(value.len().to_string().as_bytes());
            raw.push(0);
            raw.extend_from_slice(value);
        }
        raw
    }

    pub(crate) fn fits(&self) -> bool {
        self.raw().len() <= XATTRS_MAX_BYTES
    }

    fn put_into(&self, meta: &mut BTreeMap<String, String>) {
        let text = BASE64.encode(self.raw());
        let mut rest = text.as_str();
        for number in 0.. {
            let (value, more) = rest.split_at(rest.len().min(HEADER_BYTES));
            meta.insert(format!("xattr-{number}"), value.to_owned());
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
    }

    pub(crate) fn of_headers(headers: &Headers) -> Xattrs {
        let mut text = String::new();
        for number in 0.. {
            match headers.meta.get(&format!("xattr-{number}")) {
                Some(part) => text.push_str(part),
                None => break,
            }
        }
        let raw = BASE64.decode(text).unwrap_or_default();
        Xattrs(Xattrs::parse(&raw).unwrap_or_default())
    }

    fn parse(mut raw: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
        let mut all = BTreeMap::new();
        while !raw.is_empty() {
            let mut parts = raw.splitn(3, |byte| *byte == 0);
            let name = String::from_utf8(parts.next()?.to_vec()).ok()?;
            let length: usize = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
            let (value, rest) = parts.next()?.split_at_checked(length)?;
            all.insert(name, value.to_vec());
            raw = rest;
        }
        Some(all)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;

    const DEFAULTS: Defaults = Defaults { uid: 7, gid: 8 };

    fn any_attributes() -> impl Strategy<Value = Attributes> {
        let time = (
            -1_000_000_000_000i64..1_000_000_000_000,
            0..1_000_000_000u32,
        )
            .prop_map(|(seconds, nanos)| Time { seconds, nanos });
        let kind = prop_oneof![
            Just(Kind::File),
            Just(Kind::Directory),
            Just(Kind::Symlink),
            Just(Kind::Fifo),
            Just(Kind::BlockDevice)
        ];
        (
            kind,
            0..0o10000u32,
            any::<u32>(),
            any::<u32>(),
            time.clone(),
            proptest::option::of(time),
            any::<u32>(),
        )
            .prop_map(|(kind, mode, uid, gid, mtime, atime, rdev)| Attributes {
                kind,
                mode,
                uid,
                gid,
                mtime,
                atime,
                rdev: if kind.is_device() { rdev } else { 0 },
            })
    }

    proptest! {
        #[test]
        fn headers_and_type_say_the_same(
            attributes in any_attributes(),
            xattrs in proptest::collection::btree_map("[a-z.]{1,20}", proptest::collection::vec(any::<u8>(), 0..300), 0..5),
        ) {
            let xattrs = Xattrs(xattrs);
            let mut headers = Headers::new(attributes.kind.content_type());
            headers.content_type.push_str("; charset=utf-8");
            attributes.put_into(&mut headers, &xattrs);
            // Applying it twice changes nothing.
            attributes.put_into(&mut headers, &xattrs);
            let read = Attributes::of_headers(&headers, Time::default(), DEFAULTS);
            prop_assert_eq!(&read, &attributes);
            let (listed, has) = Attributes::of_content_type(&headers.content_type).unwrap();
            prop_assert_eq!(&listed, &attributes);
            prop_assert_eq!(has, !xattrs.0.is_empty());
            prop_assert_eq!(Xattrs::of_headers(&headers), xattrs);
            prop_assert!(headers.meta.values().all(|value| value.len() <= 256));
            prop_assert!(headers.content_type.contains("charset=utf-8"));
        }

        #[test]
        fn no_text_breaks_the_parsers(text in ".{0,60}", raw in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Attributes::of_content_type(&format!("a/b;posix={text}"));
            let _ = Attributes::of_content_type(&text);
            let _ = Time::parse(&text);
            let _ = Xattrs::parse(&raw);
        }

        #[test]
        fn times_are_read_as_they_are_written(seconds in -9_000_000_000i64..9_000_000_000, nanos in 0..1_000_000_000u32) {
            let time = Time { seconds, nanos };
            prop_assert_eq!(Time::parse(&time.to_string()), Some(time));
            prop_assert_eq!(Time::from(SystemTime::from(time)), time);
        }
    }

    #[test]
    fn what_other_tools_wrote_is_understood() {
        let mut headers = Headers::new("image/png");
        headers
            .meta
            .insert("mtime".into(), "1700000000.123456".into());
        let attributes = Attributes::of_headers(&headers, Time::default(), DEFAULTS);
        assert_eq!(
            attributes.mtime,
            Time {
                seconds: 1_700_000_000,
                nanos: 123_456_000
            }
        );
        assert_eq!(
            (attributes.mode, attributes.uid, attributes.gid),
            (0o644, 7, 8)
        );
        let mut headers = Headers::new("application/directory");
        headers.meta.insert("mtime".into(), "yesterday".into());
        let attributes = Attributes::of_headers(&headers, Time::default(), DEFAULTS);
        assert_eq!((attributes.kind, attributes.mode), (Kind::Directory, 0o755));
        assert_eq!(
            Time::parse("-1.25").unwrap(),
            Time {
                seconds: -2,
                nanos: 750_000_000
            }
        );
    }

    #[test]
    fn a_type_that_contradicts_its_mode_is_not_believed() {
        assert!(Attributes::of_content_type("text/plain;posix=120777_0_0_1").is_none());
        assert!(
            Attributes::of_content_type("text/plain;posix=100644_0_0_1_x")
                .unwrap()
                .1
        );
    }
}
