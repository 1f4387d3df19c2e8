//! Streaming decompression of gzip and bzip2 in steps of bounded size: a few bytes that expand to
//! gigabytes are decompressed only as fast as the output is consumed.

use std::io::Write;

use bytes::{Buf, Bytes};
use bzip2::{Decompress, Status};
use flate2::write::MultiGzDecoder;

/// Approximate output of one step, in bytes.
const STEP_BYTES: usize = 64 << 10;
/// Input bytes per step of gzip: one byte expands to at most 1,032, so the output stays near a
/// step.
const GZIP_STEP_BYTES: usize = 64;
/// Output bytes that are allowed regardless of the ratio.
const UNRATED_BYTES: u64 = 64 << 20;

/// Compression of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Gzip,
    Bzip2,
}

impl Packing {
    /// The compression for a value of `extract-archive`.
    pub(super) fn of(name: &str) -> Option<Packing> {
        match name.to_ascii_lowercase().trim_matches('.') {
            "tar" => Some(Packing::None),
            "tar.gz" => Some(Packing::Gzip),
            "tar.bz2" => Some(Packing::Bzip2),
            _ => None,
        }
    }
}

enum Decoder {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Bzip2(Option<Decompress>),
}

/// State of a compressed stream.
pub(super) struct Unpacker {
    decoder: Decoder,
    input: Bytes,
    began: bool,
    ended: bool,
    taken: u64,
    made: u64,
    /// Maximum output bytes per input byte; 0: unlimited.
    max_ratio: u64,
    /// An error found after bytes that are still to be returned.
    failed: Option<String>,
}

impl Unpacker {
    /// `None` if the archive is not compressed.
    pub(super) fn new(packing: Packing, max_ratio: u64) -> Option<Self> {
        let decoder = match packing {
            Packing::None => return None,
            Packing::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            Packing::Bzip2 => Decoder::Bzip2(Some(Decompress::new(false))),
        };
        Some(Unpacker {
            decoder,
            input: Bytes::new(),
            began: false,
            ended: false,
            taken: 0,
            made: 0,
            max_ratio,
            failed: None,
        })
    }

    /// Has all input been used?
    pub(super) fn is_hungry(&self) -> bool {
        self.input.is_empty() && self.failed.is_none() && !self.ended
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended && self.failed.is_none()
    }

    pub(super) fn feed(&mut self, input: Bytes) {
        self.taken += input.len() as u64;
        self.input = input;
    }

    /// Decompresses some input; the result may be empty. Takes milliseconds of CPU.
    pub(super) fn step(&mut self) -> Result<Vec<u8>, String> {
        if let Some(failed) = self.failed.take() {
            self.ended = true;
            return Err(failed);
        }
        let out = match self.unpack() {
            Ok(out) => out,
            Err((out, failed)) => {
                self.failed = Some(failed);
                out
            }
        };
        self.account_for(out)
    }

    /// Signals the end of the input: returns the remaining output, if the stream is complete.
    pub(super) fn finish(&mut self) -> Result<Vec<u8>, String> {
        let truncated = || Err("unexpected end of data".to_owned());
        self.ended = true;
        if !self.began {
            return Err("empty file".into());
        }
        match &mut self.decoder {
            Decoder::Gzip(decoder) => match decoder.try_finish() {
                Ok(()) => {
                    let out = std::mem::take(decoder.get_mut());
                    self.account_for(out)
                }
                Err(_) => truncated(),
            },
            Decoder::Bzip2(None) => Ok(Vec::new()),
            Decoder::Bzip2(Some(_)) => truncated(),
        }
    }

    fn account_for(&mut self, out: Vec<u8>) -> Result<Vec<u8>, String> {
        self.made += out.len() as u64;
        let most = UNRATED_BYTES.saturating_add(self.taken.saturating_mul(self.max_ratio));
        if self.max_ratio > 0 && self.made > most {
            self.ended = true;
            return Err(format!(
                "it unpacks to more than {} times its size",
                self.max_ratio
            ));
        }
        Ok(out)
    }

    /// Decompresses one step; an error comes with the output before it.
    fn unpack(&mut self) -> Result<Vec<u8>, (Vec<u8>, String)> {
        if !self.began && !self.input.is_empty() {
            self.began = true;
            let (magic, name) = match self.decoder {
                Decoder::Gzip(_) => (0x1f, "gzip"),
                Decoder::Bzip2(_) => (b'B', "bzip2"),
            };
            if self.input[0] != magic {
                return Err((Vec::new(), format!("not a {name} file")));
            }
        }
        match &mut self.decoder {
            Decoder::Gzip(decoder) => ungzip(decoder, &mut self.input),
            Decoder::Bzip2(state) => unbzip2(state, &mut self.input),
        }
    }
}

fn ungzip(
    decoder: &mut MultiGzDecoder<Vec<u8>>,
    input: &mut Bytes,
) -> Result<Vec<u8>, (Vec<u8>, String)> {
    while !input.is_empty() && decoder.get_ref().len() < STEP_BYTES {
        let bite = input.len().min(GZIP_STEP_BYTES);
        match decoder.write(&input[..bite]) {
            Ok(0) => {
                let out = std::mem::take(decoder.get_mut());
                return Err((out, "invalid compressed data".into()));
            }
            Ok(taken) => input.advance(taken),
            Err(error) => {
                let out = std::mem::take(decoder.get_mut());
                return Err((out, error.to_string()));
            }
        }
    }
    Ok(std::mem::take(decoder.get_mut()))
}

fn unbzip2(
    state: &mut Option<Decompress>,
    input: &mut Bytes,
) -> Result<Vec<u8>, (Vec<u8>, String)> {
    let mut out = Vec::with_capacity(STEP_BYTES);
    loop {
        // Another stream may follow the first.
        if state.is_none() {
            if input.is_empty() {
                return Ok(out);
            }
            *state = Some(Decompress::new(false));
        }
        let Some(decompress) = state else {
            return Ok(out);
        };
        let (in_before, out_before) = (decompress.total_in(), out.len());
        let status = decompress.decompress_vec(input, &mut out);
        let taken = decompress.total_in() - in_before;
        input.advance((taken as usize).min(input.len()));
        match status {
            Err(error) => return Err((out, error.to_string())),
            Ok(Status::StreamEnd) => *state = None,
            Ok(_) => {
                let idle = taken == 0 && out.len() == out_before;
                if out.len() == out.capacity() || input.is_empty() || idle {
                    return Ok(out);
                }
            }
        }
        if out.len() == out.capacity() {
            return Ok(out);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn bzip2(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// The whole output for input in pieces, and the largest step.
    fn unpack(
        packing: Packing,
        packed: &[u8],
        piece: usize,
        max_ratio: u64,
    ) -> (Result<Vec<u8>, String>, usize) {
        let mut unpacker = Unpacker::new(packing, max_ratio).unwrap();
        let (mut out, mut largest) = (Vec::new(), 0);
        let mut pieces = packed.chunks(piece);
        loop {
            let step = if unpacker.is_hungry() {
                match pieces.next() {
                    Some(piece) => {
                        unpacker.feed(Bytes::copy_from_slice(piece));
                        unpacker.step()
                    }
                    None => unpacker.finish(),
                }
            } else if unpacker.is_over() {
                return (Ok(out), largest);
            } else {
                unpacker.step()
            };
            match step {
                Ok(made) => {
                    largest = largest.max(made.len());
                    out.extend(made);
                }
                Err(error) => return (Err(error), largest),
            }
        }
    }

    #[test]
    fn whatever_the_pieces() {
        let bytes: Vec<u8> = (0..300_000u32)
            .flat_map(|i| i.wrapping_mul(i).to_le_bytes())
            .collect();
        for (packing, packed) in [
            (Packing::Gzip, gzip(&bytes)),
            (Packing::Bzip2, bzip2(&bytes)),
        ] {
            for piece in [1000, 1 << 30] {
                let (out, _) = unpack(packing, &packed, piece, 1000);
                assert!(out.unwrap() == bytes, "{packing:?} in pieces of {piece}");
            }
            let twice = [packed.clone(), packed.clone()].concat();
            let (out, _) = unpack(packing, &twice, 1 << 30, 1000);
            assert!(
                out.unwrap() == [bytes.clone(), bytes.clone()].concat(),
                "{packing:?}"
            );
            let (out, _) = unpack(packing, &packed[..packed.len() / 2], 1 << 30, 1000);
            assert_eq!(out.unwrap_err(), "unexpected end of data", "{packing:?}");
            let mut broken = packed;
            let middle = broken.len() / 2;
            broken[middle..middle + 20].fill(0);
            let (out, _) = unpack(packing, &broken, 1 << 30, 1000);
            assert!(out.is_err(), "{packing:?}");
        }
    }

    #[test]
    fn bombs_come_in_small_steps_and_end() {
        let zeros = vec![0; 256 << 20];
        for (packing, packed) in [
            (Packing::Gzip, gzip(&zeros)),
            (Packing::Bzip2, bzip2(&zeros)),
        ] {
            let (out, largest) = unpack(packing, &packed, 1 << 30, 100);
            let error = out.unwrap_err();
            assert_eq!(
                error, "it unpacks to more than 100 times its size",
                "{packing:?}"
            );
            assert!(
                largest <= 4 * STEP_BYTES,
                "{packing:?} made {largest} at once"
            );
        }
        let (out, _) = unpack(Packing::Bzip2, &bzip2(&zeros), 1 << 30, 0);
        assert_eq!(out.unwrap().len(), zeros.len());
    }

    #[test]
    fn what_is_not_packed() {
        for (packing, told) in [
            (Packing::Gzip, "not a gzip file"),
            (Packing::Bzip2, "not a bzip2 file"),
        ] {
            assert_eq!(unpack(packing, b"hello", 9, 0).0.unwrap_err(), told);
            assert_eq!(unpack(packing, b"", 9, 0).0.unwrap_err(), "empty file");
        }
    }
}
