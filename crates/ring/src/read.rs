//! Reader of `.ring.gz`: gzip around one of two formats, with big-endian integers unless stated
//! otherwise.
//!
//! Version 1: `"R1NG"`, u16 1, u32 length, JSON `{devs, part_shift, replica_count, byteorder?,
//! version?, next_part_power?}`, then the rows of u16 ids in `byteorder`, the last possibly short.
//!
//! Version 2: `"R1NG"`, u16 2, then blobs (u64 length, data): the sections `swift/ring/metadata`,
//! `swift/ring/devices` and `swift/ring/assignments`, and last the index, a JSON object `section:
//! [compressed start, start, compressed end, end, checksum method, checksum]`. The final sixteen
//! bytes are the index's start and its start in the compressed file. Only uncompressed offsets are
//! used here, so a recompressed file still loads.
//!
//! Lengths come from the file and are never trusted: each is checked against a limit, and memory
//! grows only with bytes that were actually read.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use cairn_types::hex;
use flate2::read::GzDecoder;
use md5::Md5;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use crate::data::{FormatVersion, PART_POWER_MAX, RingData, Row};
use crate::device::Device;
use crate::error::RingError;

/// Maximum size of devices and metadata: a quarter of a million devices fit.
const JSON_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of the assignment table: partition power 26 with four replicas fits.
pub(crate) const TABLE_BYTES_MAX: u64 = 512 << 20;
/// Maximum uncompressed size of a version 2 file: table, devices and room for other sections.
const FILE_BYTES_MAX: u64 = TABLE_BYTES_MAX + 2 * JSON_BYTES_MAX;
const CHUNK_BYTES: u64 = 64 << 10;

/// Boxed, so that a hostile list of a million nulls stays a million pointers.
type RawDevices = Vec<Option<Box<Device>>>;

#[derive(Deserialize)]
struct MetadataV1 {
    devs: RawDevices,
    part_shift: i64,
    replica_count: u32,
    byteorder: Option<String>,
    version: Option<u64>,
    next_part_power: Option<u32>,
}

#[derive(Deserialize)]
struct MetadataV2 {
    part_shift: i64,
    dev_id_bytes: u8,
    version: Option<u64>,
    next_part_power: Option<u32>,
}

type IndexEntry = (
    Option<u64>,
    u64,
    Option<u64>,
    Option<u64>,
    Option<String>,
    Option<String>,
);

/// Parses a whole ring file.
pub(crate) fn ring_data(bytes: &[u8]) -> Result<RingData, RingError> {
    let mut inflate = Inflate(GzDecoder::new(bytes));
    let magic = inflate.exactly(6, "the magic")?;
    if &magic[..4] != b"R1NG" {
        return Err(RingError::Magic { found: magic });
    }
    let data = match u16::from_be_bytes([magic[4], magic[5]]) {
        1 => version_1(&mut inflate)?,
        2 => version_2(&mut inflate)?,
        found => return Err(RingError::Version { found }),
    };
    data.check()?;
    Ok(data)
}

fn version_1(inflate: &mut Inflate<'_>) -> Result<RingData, RingError> {
    let length = inflate.exactly(4, "the length of the metadata")?;
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    let text = inflate.limited(u64::from(length), JSON_BYTES_MAX, "the metadata")?;
    let metadata: MetadataV1 = json(&text, "the metadata")?;
    let part_power = part_power(metadata.part_shift)?;
    let little = match metadata.byteorder.as_deref() {
        Some("little") => true,
        Some("big") => false,
        None => cfg!(target_endian = "little"),
        Some(other) => {
            return Err(RingError::Field {
                field: "byteorder",
                found: format!("{other:?}"),
                expected: "\"little\" or \"big\"",
            });
        }
    };
    let row_bytes = 2_u64 << part_power;
    check_size(
        "the assignment table",
        row_bytes.saturating_mul(u64::from(metadata.replica_count)),
        TABLE_BYTES_MAX,
    )?;
    let mut rows = Vec::new();
    for _ in 0..metadata.replica_count {
        let row = inflate.up_to(row_bytes)?;
        if row.len() % 2 != 0 {
            return Err(RingError::Truncated {
                what: "the assignment table",
                expected: row.len() as u64 + 1,
                found: row.len() as u64,
            });
        }
        let ids = row.chunks_exact(2).map(|id| [id[0], id[1]]);
        rows.push(Row::Narrow(if little {
            ids.map(u16::from_le_bytes).collect()
        } else {
            ids.map(u16::from_be_bytes).collect()
        }));
    }
    inflate.drain()?;
    Ok(RingData {
        devs: devices(metadata.devs),
        part_power,
        next_part_power: metadata.next_part_power,
        version: metadata.version,
        dev_id_bytes: 2,
        rows,
        format_version: FormatVersion::V1,
    })
}

fn version_2(inflate: &mut Inflate<'_>) -> Result<RingData, RingError> {
    // Offsets in the index count from the magic, which has been read already.
    let body = inflate.up_to(FILE_BYTES_MAX + 1)?;
    check_size("the uncompressed ring", body.len() as u64, FILE_BYTES_MAX)?;
    let file = SectionedFile::open(&body)?;
    let metadata: MetadataV2 = json(
        file.section("swift/ring/metadata", JSON_BYTES_MAX)?,
        "swift/ring/metadata",
    )?;
    let devs: RawDevices = json(
        file.section("swift/ring/devices", JSON_BYTES_MAX)?,
        "swift/ring/devices",
    )?;
    let part_power = part_power(metadata.part_shift)?;
    let table = file.section("swift/ring/assignments", TABLE_BYTES_MAX)?;
    Ok(RingData {
        devs: devices(devs),
        part_power,
        next_part_power: metadata.next_part_power,
        version: metadata.version,
        dev_id_bytes: metadata.dev_id_bytes,
        rows: network_order_rows(table, metadata.dev_id_bytes, part_power)?,
        format_version: FormatVersion::V2,
    })
}

fn network_order_rows(
    table: &[u8],
    dev_id_bytes: u8,
    part_power: u32,
) -> Result<Vec<Row>, RingError> {
    if dev_id_bytes != 2 && dev_id_bytes != 4 {
        return Err(RingError::Field {
            field: "dev_id_bytes",
            found: dev_id_bytes.to_string(),
            expected: "2 or 4",
        });
    }
    let width = usize::from(dev_id_bytes);
    if !table.len().is_multiple_of(width) {
        return Err(RingError::SectionBounds {
            section: "swift/ring/assignments".to_owned(),
        });
    }
    let rows = table.chunks(width << part_power).map(|row| {
        let ids = row.chunks_exact(width);
        if width == 2 {
            Row::Narrow(ids.map(|id| u16::from_be_bytes([id[0], id[1]])).collect())
        } else {
            Row::Wide(
                ids.map(|id| u32::from_be_bytes([id[0], id[1], id[2], id[3]]))
                    .collect(),
            )
        }
    });
    Ok(rows.collect())
}

/// A version 2 body (without the magic) and its index.
struct SectionedFile<'b> {
    body: &'b [u8],
    index: BTreeMap<String, IndexEntry>,
}

const MAGIC_BYTES: u64 = 6;

impl<'b> SectionedFile<'b> {
    fn open(body: &'b [u8]) -> Result<Self, RingError> {
        let tail_start = body.len().checked_sub(16).ok_or(RingError::Truncated {
            what: "the index offset",
            expected: 16,
            found: body.len() as u64,
        })?;
        let start = be_u64(&body[tail_start..]).unwrap_or(0);
        let blob = blob_at(&body[..tail_start], start).ok_or_else(|| RingError::SectionBounds {
            section: "index".to_owned(),
        })?;
        check_size("the index", blob.data.len() as u64, JSON_BYTES_MAX)?;
        Ok(SectionedFile {
            body: &body[..tail_start],
            index: json(blob.data, "the index")?,
        })
    }

    fn section(&self, section: &'static str, limit: u64) -> Result<&'b [u8], RingError> {
        let (_, start, _, end, method, expected) = self
            .index
            .get(section)
            .ok_or(RingError::SectionMissing { section })?;
        let outside = || RingError::SectionBounds {
            section: section.to_owned(),
        };
        let blob = blob_at(self.body, *start).ok_or_else(outside)?;
        if let Some(end) = end
            && start.checked_add(blob.whole.len() as u64) != Some(*end)
        {
            return Err(outside());
        }
        check_size(section, blob.data.len() as u64, limit)?;
        if let (Some(method), Some(expected)) = (method, expected) {
            check_sum(section, method, expected, blob.whole)?;
        }
        Ok(blob.data)
    }
}

/// A blob with and without its length prefix, which checksums include.
struct Blob<'b> {
    whole: &'b [u8],
    data: &'b [u8],
}

fn blob_at(body: &[u8], file_offset: u64) -> Option<Blob<'_>> {
    let start = usize::try_from(file_offset.checked_sub(MAGIC_BYTES)?).ok()?;
    let rest = body.get(start..)?;
    let length = usize::try_from(be_u64(rest)?).ok()?;
    let whole = rest.get(..length.checked_add(8)?)?;
    Some(Blob {
        whole,
        data: &whole[8..],
    })
}

fn be_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.first_chunk::<8>()?))
}

fn check_sum(section: &str, method: &str, expected: &str, bytes: &[u8]) -> Result<(), RingError> {
    let found = match method {
        "md5" => hex::encode(Md5::digest(bytes)),
        "sha1" => hex::encode(Sha1::digest(bytes)),
        "sha256" => hex::encode(Sha256::digest(bytes)),
        "sha512" => hex::encode(Sha512::digest(bytes)),
        // The format allows new checksum methods; readers skip unknown ones.
        _ => return Ok(()),
    };
    if found == expected {
        return Ok(());
    }
    Err(RingError::Checksum {
        section: section.to_owned(),
        method: method.to_owned(),
        expected: expected.to_owned(),
        found,
    })
}

fn devices(raw: RawDevices) -> Vec<Option<Arc<Device>>> {
    raw.into_iter()
        .map(|device| device.map(|device| Arc::new(*device)))
        .collect()
}

fn part_power(part_shift: i64) -> Result<u32, RingError> {
    u32::try_from(part_shift)
        .ok()
        .and_then(|shift| PART_POWER_MAX.checked_sub(shift))
        .ok_or_else(|| RingError::Field {
            field: "part_shift",
            found: part_shift.to_string(),
            expected: "0 to 32",
        })
}

fn json<T: DeserializeOwned>(text: &[u8], what: &'static str) -> Result<T, RingError> {
    serde_json::from_slice(text).map_err(|source| RingError::Json { what, source })
}

fn check_size(what: &'static str, found: u64, limit: u64) -> Result<(), RingError> {
    if found > limit {
        return Err(RingError::TooLarge { what, found, limit });
    }
    Ok(())
}

/// The decompressed stream, read in steps no larger than the limits checked.
struct Inflate<'b>(GzDecoder<&'b [u8]>);

impl Inflate<'_> {
    /// Reads up to `length` bytes, fewer if the stream ends. The buffer grows as bytes arrive.
    fn up_to(&mut self, length: u64) -> Result<Vec<u8>, RingError> {
        let mut bytes = Vec::with_capacity(length.min(CHUNK_BYTES) as usize);
        (&mut self.0)
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(RingError::Gzip)?;
        Ok(bytes)
    }

    fn exactly(&mut self, length: u64, what: &'static str) -> Result<Vec<u8>, RingError> {
        let bytes = self.up_to(length)?;
        if bytes.len() as u64 == length {
            return Ok(bytes);
        }
        Err(RingError::Truncated {
            what,
            expected: length,
            found: bytes.len() as u64,
        })
    }

    fn limited(
        &mut self,
        length: u64,
        limit: u64,
        what: &'static str,
    ) -> Result<Vec<u8>, RingError> {
        check_size(what, length, limit)?;
        self.exactly(length, what)
    }

    /// Reads and drops the rest, so that gzip's checksum is verified.
    fn drain(&mut self) -> Result<(), RingError> {
        let mut rest = (&mut self.0).take(CHUNK_BYTES);
        std::io::copy(&mut rest, &mut std::io::sink()).map_err(RingError::Gzip)?;
        Ok(())
    }
}
