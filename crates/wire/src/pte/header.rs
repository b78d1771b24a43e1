//! The start of a file: the identifier, and the extended header inserted into the FlatBuffer after
//! its first eight bytes.

use crate::{error::Error, segment::Area};

/// Name of the format in messages.
pub(super) const FORMAT: &str = "an ExecuTorch program";

/// The only identifier that ExecuTorch writes.
pub(super) const IDENTIFIER: &str = "ET12";
const MAGIC: &[u8; 4] = b"eh00";
const START: usize = 8;
/// Length of the current header, in bytes. It keeps later data aligned.
const SIZE: usize = 32;
/// Length of the header in files older than 1.0, in bytes. It lacks the size of the segment area.
const OLD_SIZE: u32 = 24;

/// Sizes and offsets from the start of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// Length of the FlatBuffer, which starts at byte 0 and includes the header.
    pub(super) program_size: usize,
    /// Area of the segments.
    pub(super) area: Area,
}

impl Header {
    pub(super) fn read(file: &[u8]) -> Result<Header, Error> {
        check_identifier(file)?;
        let present = file.len() as u64;
        if file.get(START..START + 4) != Some(MAGIC) {
            return Ok(Header { program_size: file.len(), area: Area { base: 0, end: 0 } });
        }
        let truncated = |what, expected| Error::Truncated { format: FORMAT, what, expected, present };
        let in_header = || truncated("the extended header", (START + SIZE) as u64);
        let length = u32_at(file, START + 4).ok_or_else(in_header)?;
        if length < OLD_SIZE {
            return Err(bad(START + 4, "length", format!("{length} bytes, at least {OLD_SIZE} are needed")));
        }
        let program_size = u64_at(file, START + 8).ok_or_else(in_header)?;
        let base = u64_at(file, START + 16).ok_or_else(in_header)?;
        let data_size = match length as usize {
            SIZE.. => u64_at(file, START + 24).ok_or_else(in_header)?,
            _ => 0,
        };
        if program_size > present {
            return Err(truncated("the program", program_size));
        }
        if program_size < START as u64 + u64::from(length) {
            return Err(bad(START + 8, "program_size", format!("{program_size} bytes do not even hold the header")));
        }
        if base != 0 && base < program_size {
            return Err(bad(
                START + 16,
                "segment_base_offset",
                format!("segments at {base} overlap the program of {program_size} bytes"),
            ));
        }
        let end = match (base, data_size) {
            (0, 0) => 0,
            (0, _) => return Err(bad(START + 24, "segment_data_size", format!("{data_size} bytes of segments without a base"))),
            (_, 0) => present,
            _ => base
                .checked_add(data_size)
                .ok_or_else(|| bad(START + 24, "segment_data_size", format!("{base} + {data_size} overflows")))?,
        };
        if end > present {
            return Err(truncated("the segment area", end));
        }
        if base > present {
            return Err(truncated("the segment area", base));
        }
        Ok(Header { program_size: program_size as usize, area: Area { base, end } })
    }

    /// Returns the header's bytes and the segment base. `program_size` is the size of the
    /// FlatBuffer without the header.
    pub(super) fn bytes(program_size: u64, segment_data_size: u64) -> ([u8; SIZE], u64) {
        let program_size = program_size + SIZE as u64;
        let base = program_size.next_multiple_of(crate::segment::ALIGNMENT);
        let mut bytes = [0; SIZE];
        let fields = [u64::from_le_bytes(*b"eh00\x20\0\0\0"), program_size, base, segment_data_size];
        for (chunk, field) in bytes.chunks_exact_mut(8).zip(fields) {
            chunk.copy_from_slice(&field.to_le_bytes());
        }
        (bytes, base)
    }
}

fn check_identifier(file: &[u8]) -> Result<(), Error> {
    let Some([_, _, _, _, id @ ..]) = file.first_chunk::<START>() else {
        return Err(Error::Truncated {
            format: FORMAT,
            what: "the identifier",
            expected: START as u64,
            present: file.len() as u64,
        });
    };
    if id == IDENTIFIER.as_bytes() {
        return Ok(());
    }
    let found = id.escape_ascii().to_string();
    match id {
        [b'E', b'T', a, b] if a.is_ascii_digit() && b.is_ascii_digit() => {
            Err(Error::Version { format: FORMAT, found, known: IDENTIFIER.into() })
        }
        _ => Err(Error::Unrecognized { format: FORMAT, found: format!("`{found}`"), expected: IDENTIFIER }),
    }
}

fn bad(at: usize, field: &str, problem: String) -> Error {
    Error::Malformed { format: FORMAT, offset: at as u64, path: format!("header.{field}"), problem }
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    file.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    file.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of 100 bytes with this identifier and header.
    fn file(identifier: &[u8; 4], length: u32, words: [u64; 3]) -> Vec<u8> {
        let words = words.map(u64::to_le_bytes).concat();
        let mut file = [&[0; 4], &identifier[..], MAGIC, &length.to_le_bytes(), &words].concat();
        file.resize(100, 0);
        file
    }

    #[test]
    fn headers_say_where_program_and_segments_lie() {
        for (length, words, want) in [
            (32, [64, 0, 0], (64, 0, 0)),
            (32, [64, 64, 36], (64, 64, 100)),
            (32, [40, 0, 0], (40, 0, 0)),
            // Without a size, the segment area extends to the end of the file.
            (32, [64, 80, 0], (64, 80, 100)),
            (24, [64, 80, 7], (64, 80, 100)),
        ] {
            let Header { program_size, area } = Header::read(&file(b"ET12", length, words)).unwrap();
            assert_eq!((program_size, area.base, area.end), want, "{length} {words:?}");
        }
        let bare = Header::read(b"\0\0\0\0ET12 no extended header").unwrap();
        assert_eq!((bare.program_size, bare.area.base, bare.area.end), (27, 0, 0));
    }

    #[test]
    fn headers_are_held_to_the_file() {
        let long = u64::MAX;
        for (identifier, length, words, message) in [
            (b"ET13", 32, [64, 0, 0], "has version `ET13`"),
            (b"ET1x", 32, [64, 0, 0], "bytes 4..8 are `ET1x`"),
            (b"ETx1", 32, [64, 0, 0], "bytes 4..8 are `ETx1`"),
            (b"ET12", 23, [64, 0, 0], "byte 12, `header.length`: 23 bytes, at least 24"),
            (b"ET12", 32, [101, 0, 0], "the program ends at byte 101, but only 100"),
            (b"ET12", 32, [39, 0, 0], "byte 16, `header.program_size`: 39 bytes"),
            (b"ET12", 32, [64, 63, 1], "byte 24, `header.segment_base_offset`: segments at 63"),
            (b"ET12", 32, [64, 0, 1], "byte 32, `header.segment_data_size`: 1 bytes"),
            (b"ET12", 32, [64, 64, long], "byte 32, `header.segment_data_size`: 64 + "),
            (b"ET12", 32, [64, 64, 37], "the segment area ends at byte 101, but only 100"),
            (b"ET12", 32, [64, 101, 0], "the segment area ends at byte 101, but only 100"),
        ] {
            let refusal = Header::read(&file(identifier, length, words)).unwrap_err().to_string();
            assert!(refusal.contains(message), "{refusal}, expected {message}");
        }
    }
}
