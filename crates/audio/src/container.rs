//! File formats by their first bytes: formats to preprocess before the library reads them, and
//! formats it would misdetect.

use std::io::{Cursor, Read};

use symphonia::core::io::{MediaSource, ReadOnlySource};

use crate::{Error, Result};

/// The supported formats, for messages.
pub(crate) const SUPPORTED: &str = "WAV, AIFF, CAF, FLAC, MP3, Ogg (Vorbis, Opus), MP4 (AAC, ALAC) and WebM (Vorbis, Opus)";

/// Number of leading bytes needed to recognise a file format.
pub(crate) const HEAD: usize = 189;

/// Maximum number of bytes of an MP4 stream buffered because its index follows its sound.
const MOST: u64 = 4 << 30;

/// Unsupported formats by their first bytes.
const OTHERS: [(&[u8], &str); 10] = [
    (b".snd", "Sun audio (.au)"),
    (b"riff\x2e\x91\xcf\x11", "Wave64 (.w64)"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media (.wma)"),
    (b"#!AMR", "AMR"),
    (b"#!SILK", "SILK"),
    (b"\x02#!SILK", "SILK"),
    (b"MThd", "MIDI"),
    (b"MAC ", "Monkey's Audio (.ape)"),
    (b"wvpk", "WavPack (.wv)"),
    (b"FLV\x01", "Flash video (.flv)"),
];

/// Refuses files of a known kind that is not supported.
pub(crate) fn check(head: &[u8]) -> Result<()> {
    // MPEG transport stream: packets of 188 bytes, each with the sync byte first.
    let is_stream = head.len() >= HEAD && head[0] == 0x47 && head[188] == 0x47;
    let other = OTHERS.iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, name)| *name);
    match other.or(is_stream.then_some("an MPEG transport stream (.ts)")) {
        Some(name) => Err(unsupported(format!("it is {name}"))),
        None => Ok(()),
    }
}

/// The error for a file of an unsupported kind.
pub(crate) fn unsupported(what: String) -> Error {
    Error::Unsupported(format!(
        "no recording that can be decoded: {what}; expected {SUPPORTED}. `ffmpeg -i IN OUT.wav` converts others"
    ))
}

/// Whether a file begins as MP4 files do.
pub(crate) fn is_mp4(head: &[u8]) -> bool {
    head.get(4..8).is_some_and(|kind| kind == b"ftyp")
}

/// An MP4 file from a stream that begins with `head`. If its index follows its sound, all of it is
/// read first.
///
/// # Errors
/// [`Error::Unsupported`] if the stream is too long for that, or an error if it cannot be read.
pub(crate) fn mp4(head: Vec<u8>, stream: Box<dyn MediaSource>) -> Result<Box<dyn MediaSource>> {
    let mut source = Cursor::new(head).chain(stream);
    let (mut read, mut needs_all) = (Vec::new(), false);
    loop {
        let at = read.len();
        if source.by_ref().take(8).read_to_end(&mut read)? < 8 {
            break;
        }
        let size = u64::from(u32::from_be_bytes([read[at], read[at + 1], read[at + 2], read[at + 3]]));
        match &read[at + 4..at + 8] {
            b"moov" | b"moof" => break,
            b"mdat" => {
                needs_all = true;
                break;
            }
            // Boxes before both are short, unless the file is damaged.
            _ if (8..1 << 24).contains(&size) => {
                source.by_ref().take(size - 8).read_to_end(&mut read)?;
            }
            _ => break,
        }
    }
    if !needs_all {
        return Ok(Box::new(ReadOnlySource::new(Cursor::new(read).chain(source))));
    }
    if source.take(MOST).read_to_end(&mut read)? as u64 == MOST {
        return Err(Error::Unsupported(
            "the index of this MP4 stream follows more than 4 GiB of sound: read it from a file".into(),
        ));
    }
    Ok(Box::new(Cursor::new(read)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_kinds_are_named_with_what_is_decoded() {
        let stream = [[0x47].as_slice(), &[0; 187], &[0x47]].concat();
        for (head, name) in [(b".snd\0\0\0\x20".as_slice(), ".au"), (b"riff\x2e\x91\xcf\x11\xa5\xd6", ".w64"), (&stream, ".ts")] {
            let error = check(head).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("FLAC") && error.contains("Opus"), "{error}");
        }
        assert!(check(b"RIFF\0\0\0\0WAVE").is_ok() && check(b"").is_ok());
    }

    #[test]
    fn an_index_at_the_end_has_a_stream_read_first() {
        let a_box = |kind: &[u8; 4], body: &[u8]| [&(body.len() as u32 + 8).to_be_bytes(), kind.as_slice(), body].concat();
        let whole = |source: Vec<u8>| {
            let (head, rest) = source.split_at(12);
            let mut found = mp4(head.to_vec(), Box::new(ReadOnlySource::new(Cursor::new(rest.to_vec())))).unwrap();
            let mut bytes = Vec::new();
            found.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, source);
            found.is_seekable()
        };
        let [kind, index, sound] = [a_box(b"ftyp", b"M4A \0\0\0\0"), a_box(b"moov", &[1; 100]), a_box(b"mdat", &[2; 1000])];
        assert!(whole([kind.clone(), sound.clone(), index.clone()].concat()));
        assert!(!whole([kind.clone(), index, sound].concat()));
        assert!(!whole(kind));
    }
}
