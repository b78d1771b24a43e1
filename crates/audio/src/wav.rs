//! Repairs WAV files with irregular chunks: sizes that are zero, too large or unknown, and odd
//! chunks before the sound.

use std::io::{self, Cursor, Read, SeekFrom};

use symphonia::core::io::{MediaSource, ReadOnlySource};

use crate::{
    Error, Result,
    limits::{check_channels, check_rate},
};

/// Bytes of a format chunk, which is far shorter.
const MAX_FORMAT: u32 = 4096;

/// A stream with a corrected header.
pub(crate) struct Wave {
    pub(crate) source: Box<dyn MediaSource>,
    /// Whether the length of the sound was stated.
    pub(crate) has_length: bool,
    /// Whether there is more sound than stated.
    pub(crate) has_surplus: bool,
}

/// Whether a file begins as WAV files do.
pub(crate) fn is_wave(head: &[u8; 12]) -> bool {
    (head.starts_with(b"RIFF") || head.starts_with(b"RF64")) && head.ends_with(b"WAVE")
}

/// A WAV file behind its first 12 bytes, as a stream of format and sound alone.
///
/// # Errors
/// [`Error::Damaged`] without a format and sound after it.
pub(crate) fn repaired(mut source: Box<dyn MediaSource>) -> Result<Wave> {
    let length = source.byte_len();
    let mut format = Vec::new();
    let mut at = 12u64;
    loop {
        let mut head = [0; 8];
        let missing = || Error::Damaged(format!("the WAV file has no {}", if format.is_empty() { "format" } else { "sound" }));
        source.read_exact(&mut head).map_err(|_| missing())?;
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        at += 8;
        match &head[..4] {
            b"data" if format.is_empty() => return Err(missing()),
            b"data" => {
                let left = length.map(|length| length.saturating_sub(at));
                let has_surplus = left.is_some_and(|left| is_short(&mut source, at, size, left));
                // A size that is wrong says nothing.
                return Ok(Wave { has_surplus, ..canonical(source, &format, if has_surplus { 0 } else { size }, left) });
            }
            b"fmt " if size > MAX_FORMAT => return Err(Error::Damaged(format!("a format chunk of {size} bytes"))),
            b"fmt " => {
                format.resize(size as usize, 0);
                source.read_exact(&mut format).map_err(|_| Error::Damaged("its format chunk ends too early".into()))?;
                check(&format)?;
                skip(&mut source, u64::from(size % 2))?;
            }
            // Chunks fill whole pairs of bytes.
            _ => skip(&mut source, u64::from(size) + u64::from(size % 2))?,
        }
        at += u64::from(size) + u64::from(size % 2);
    }
}

/// Whether the sound from byte `at` continues past its chunk: no chunk header follows its `size`
/// bytes. The file has `left` more bytes.
fn is_short(source: &mut Box<dyn MediaSource>, at: u64, size: u32, left: u64) -> bool {
    let end = u64::from(size) + u64::from(size % 2);
    if size == 0 || left < end + 8 || !source.is_seekable() {
        return false;
    }
    let mut head = [0; 8];
    let is_read = source.seek(SeekFrom::Start(at + end)).and_then(|_| source.read_exact(&mut head)).is_ok();
    let is_back = source.seek(SeekFrom::Start(at)).is_ok();
    let is_name = head[..4].iter().all(|byte| (b' '..=b'~').contains(byte));
    is_read && is_back && !is_name && head != [0; 8]
}

/// Refuses impossible formats; the library would multiply their numbers unchecked.
fn check(format: &[u8]) -> Result<()> {
    let Some(&[_, _, c0, c1, r0, r1, r2, r3]) = format.first_chunk::<8>() else {
        return Err(Error::Damaged(format!("a format chunk of {} bytes", format.len())));
    };
    let (channels, rate) = (u16::from_le_bytes([c0, c1]), u32::from_le_bytes([r0, r1, r2, r3]));
    check_channels(channels.into())?;
    check_rate(rate)
}

fn skip(source: &mut Box<dyn MediaSource>, bytes: u64) -> io::Result<()> {
    io::copy(&mut source.take(bytes), &mut io::sink()).map(drop)
}

/// The file with the shortest header, for a sound of `size` bytes by its chunk and of `left` by the
/// file's length.
fn canonical(source: Box<dyn MediaSource>, format: &[u8], size: u32, left: Option<u64>) -> Wave {
    let is_known = size != 0 && size != u32::MAX;
    let most = u32::MAX - 64 - format.len() as u32;
    let bytes = if is_known { size.min(most) } else { left.map_or(most, |left| left.min(u64::from(most)) as u32) };
    let mut header = Vec::new();
    let whole = 4 + 8 + format.len() as u32 + 8 + bytes;
    for part in [b"RIFF", &whole.to_le_bytes(), b"WAVE", b"fmt ", &(format.len() as u32).to_le_bytes()] {
        header.extend_from_slice(part);
    }
    header.extend_from_slice(format);
    header.extend_from_slice(b"data");
    header.extend_from_slice(&bytes.to_le_bytes());
    let stream = Cursor::new(header).chain(source.take(bytes.into()));
    Wave { source: Box::new(ReadOnlySource::new(stream)), has_length: is_known || left.is_some(), has_surplus: false }
}
