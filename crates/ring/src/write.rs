//! Writer of `.ring.gz` in both formats, which `read.rs` describes.
//!
//! The same ring always gives the same bytes (fixed time in the gzip header), so comparing files
//! tells whether two nodes have the same ring.
//!
//! Swift seeks inside version 2 files: every section starts after a full flush, and the tail is
//! written as stored blocks whose size is known, so that a reader finds the index's offset exactly
//! 31 bytes before the end: 13 (block of eight bytes) + 5 (flush) + 5 (final block) + 8 (gzip
//! trailer).

use std::io::Write;

use cairn_types::hex;
use flate2::{Compress, Compression, FlushCompress, GzBuilder, Status};
use sha2::{Digest, Sha256};

use crate::data::{FormatVersion, RingData, Row};
use crate::error::RingError;

/// The timestamp that Swift writes into every ring's gzip header.
const GZIP_MTIME: u32 = 1_300_507_380;

pub(crate) fn ring_bytes(data: &RingData, version: FormatVersion) -> Result<Vec<u8>, RingError> {
    match version {
        FormatVersion::V1 => version_1(data),
        FormatVersion::V2 => Ok(version_2(data)),
    }
}

fn version_1(data: &RingData) -> Result<Vec<u8>, RingError> {
    if data.dev_id_bytes > 2 {
        return Err(RingError::DeviceIdsTooWide);
    }
    let mut text = String::from("{\"byteorder\": \"little\", \"devs\": ");
    push_devices(&mut text, data);
    if let Some(power) = data.next_part_power {
        text.push_str(&format!(", \"next_part_power\": {power}"));
    }
    text.push_str(&format!(
        ", \"part_shift\": {}, \"replica_count\": {}",
        data.part_shift(),
        data.rows.len()
    ));
    if let Some(version) = data.version {
        text.push_str(&format!(", \"version\": {version}"));
    }
    text.push('}');

    let mut gzip = GzBuilder::new()
        .mtime(GZIP_MTIME)
        .write(Vec::new(), Compression::best());
    let mut write = |bytes: &[u8]| gzip.write_all(bytes).map_err(RingError::Gzip);
    write(b"R1NG\0\x01")?;
    write(&(text.len() as u32).to_be_bytes())?;
    write(text.as_bytes())?;
    for row in &data.rows {
        let bytes: Vec<u8> = row
            .iter()
            .flat_map(|id| (id as u16).to_le_bytes())
            .collect();
        write(&bytes)?;
    }
    gzip.finish().map_err(RingError::Gzip)
}

fn push_devices(text: &mut String, data: &RingData) {
    text.push('[');
    for (position, device) in data.devs.iter().enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        match device {
            Some(device) => device.write_json(text),
            None => text.push_str("null"),
        }
    }
    text.push(']');
}

fn version_2(data: &RingData) -> Vec<u8> {
    let mut file = SectionWriter::new();
    file.stored(b"R1NG\0\x02");

    let mut metadata = format!("{{\"dev_id_bytes\": {}", data.dev_id_bytes);
    if let Some(power) = data.next_part_power {
        metadata.push_str(&format!(", \"next_part_power\": {power}"));
    }
    let version = data.version.map_or("null".to_owned(), |v| v.to_string());
    metadata.push_str(&format!(
        ", \"part_shift\": {}, \"replica_count\": {:?}, \"version\": {version}}}",
        data.part_shift(),
        data.replica_count(),
    ));
    file.section("swift/ring/metadata", metadata.as_bytes());

    let mut devices = String::new();
    push_devices(&mut devices, data);
    file.section("swift/ring/devices", devices.as_bytes());

    file.section("swift/ring/assignments", &table_bytes(data));
    file.finish()
}

fn table_bytes(data: &RingData) -> Vec<u8> {
    let mut table = Vec::new();
    for row in &data.rows {
        match (row, data.dev_id_bytes) {
            (Row::Narrow(ids), 0..=2) => {
                table.extend(ids.iter().flat_map(|id| id.to_be_bytes()));
            }
            (Row::Wide(ids), 0..=2) => {
                table.extend(ids.iter().flat_map(|id| (*id as u16).to_be_bytes()));
            }
            (row, _) => table.extend(row.iter().flat_map(u32::to_be_bytes)),
        }
    }
    table
}

/// Writer of a gzip file with explicit blocks, because these must start at the offsets in the
/// index.
struct SectionWriter {
    file: Vec<u8>,
    crc: crc32fast::Hasher,
    uncompressed: u64,
    index: Vec<String>,
}

/// An empty stored block, which a full flush writes.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];
const FINAL_BLOCK: [u8; 5] = [1, 0, 0, 0xff, 0xff];

impl SectionWriter {
    fn new() -> Self {
        // ID1 ID2, deflate, no flags, mtime, best compression, unknown system.
        let mut file = vec![0x1f, 0x8b, 8, 0];
        file.extend(GZIP_MTIME.to_le_bytes());
        file.extend([2, 255]);
        SectionWriter {
            file,
            crc: crc32fast::Hasher::new(),
            uncompressed: 0,
            index: Vec::new(),
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        self.uncompressed += bytes.len() as u64;
    }

    /// Writes a few bytes uncompressed, then a full flush.
    fn stored(&mut self, bytes: &[u8]) {
        self.count(bytes);
        let length = bytes.len() as u16;
        self.file.push(0);
        self.file.extend(length.to_le_bytes());
        self.file.extend((!length).to_le_bytes());
        self.file.extend(bytes);
        self.file.extend(FLUSH);
    }

    /// Writes a length-prefixed blob, compressed on its own and ended by a full flush. Returns the
    /// SHA-256 over prefix and data.
    fn blob(&mut self, data: &[u8]) -> String {
        let mut blob = (data.len() as u64).to_be_bytes().to_vec();
        blob.extend(data);
        self.count(&blob);
        deflate_flushed(&blob, &mut self.file);
        hex::encode(Sha256::digest(&blob))
    }

    fn section(&mut self, name: &str, data: &[u8]) {
        let (compressed_start, start) = (self.file.len(), self.uncompressed);
        let checksum = self.blob(data);
        self.index.push(format!(
            "\"{name}\": [{compressed_start}, {start}, {}, {}, \"sha256\", \"{checksum}\"]",
            self.file.len(),
            self.uncompressed
        ));
    }

    fn finish(mut self) -> Vec<u8> {
        let (compressed_start, start) = (self.file.len() as u64, self.uncompressed);
        self.index.sort();
        let mut index = String::from("{");
        index.push_str(&self.index.join(", "));
        index.push('}');
        self.blob(index.as_bytes());
        self.stored(&start.to_be_bytes());
        self.stored(&compressed_start.to_be_bytes());
        self.file.extend(FINAL_BLOCK);
        self.file.extend(self.crc.finalize().to_le_bytes());
        self.file.extend((self.uncompressed as u32).to_le_bytes());
        self.file
    }
}

/// Appends `bytes` as raw deflate blocks, byte-aligned at the end, none of them final.
fn deflate_flushed(bytes: &[u8], out: &mut Vec<u8>) {
    let mut deflate = Compress::new(Compression::best(), false);
    loop {
        out.reserve(32 << 10);
        let done = deflate.total_in() as usize;
        let before = deflate.total_out();
        let status = deflate.compress_vec(&bytes[done..], out, FlushCompress::Full);
        let spare = out.capacity() - out.len();
        let stuck = deflate.total_out() == before && deflate.total_in() as usize == done;
        match status {
            Ok(Status::Ok)
                if !stuck && (spare == 0 || (deflate.total_in() as usize) < bytes.len()) => {}
            _ => break,
        }
    }
}
