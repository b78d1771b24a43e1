//! Reads members of a ZIP file as slices of its bytes.

use std::{
    fmt,
    io::{self, Cursor, Read},
    sync::Arc,
};

use flambeau_tensor::Bytes;
use zip::{
    CompressionMethod, ZipArchive,
    read::{ArchiveOffset, Config},
};

use crate::{
    Error, Limited, MemberFault, Result,
    limits::{FREE_INFLATION, MAX_INFLATION_RATIO, MAX_TOTAL_RATIO},
};

/// A ZIP file. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Container {
    bytes: Bytes,
    zip: ZipArchive<Cursor<Bytes>>,
    /// Common prefix of all names up to and including the first `/`, or empty.
    root: Arc<str>,
}

/// Location of a member's data.
pub(crate) enum Member {
    /// Uncompressed: a slice of the archive.
    Stored(Bytes),
    /// Compressed: [`Container::inflate`] inflates it to `len` bytes.
    Deflated { index: usize, len: usize },
}

/// Refuses members whose total size exceeds the capacity of an archive of `len` bytes.
fn check_total(zip: &ZipArchive<Cursor<Bytes>>, len: usize) -> Result<()> {
    let mut total = 0u64;
    for index in 0..zip.len() {
        let entry = zip.by_index_data(index).map_err(|e| Error::Zip(e.into()))?;
        total = total.saturating_add(entry.size());
    }
    let limit = (len as u64).saturating_mul(MAX_TOTAL_RATIO);
    if total > limit { Err(Error::limit(Limited::ArchiveBytes, total, limit)) } else { Ok(()) }
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Container({} members under {:?})", self.zip.len(), self.root)
    }
}

impl Container {
    pub(crate) fn open(bytes: Bytes) -> Result<Container> {
        // The archive starts at byte 0. A search for the start could find an archive inside a
        // member.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let zip = ZipArchive::with_config(config, Cursor::new(bytes.clone())).map_err(|e| Error::Zip(e.into()))?;
        check_total(&zip, bytes.len())?;
        let first = zip.name_for_index(0).and_then(|n| n.ok()).unwrap_or_default();
        let root = first.split_once('/').map_or(String::new(), |(root, _)| format!("{root}/"));
        Ok(Container { bytes, root: root.into(), zip })
    }

    /// Keeps the same members, but names them without a common root.
    pub(crate) fn without_root(mut self) -> Container {
        self.root = "".into();
        self
    }

    /// Names of all members under the root, without the root.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.zip.file_names_raw().filter_map(|raw| std::str::from_utf8(raw).ok()?.strip_prefix(&*self.root))
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.index(name).is_some()
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.zip.index_for_name_raw(format!("{}{name}", self.root).as_bytes())
    }

    /// The member with this name under the root.
    pub(crate) fn member(&self, name: &str) -> Result<Member> {
        let index = self.index(name).ok_or_else(|| Error::MissingMember(format!("{}{name}", self.root)))?;
        let unreadable = |e: io::Error| Error::member(name, e.into());
        let entry = self.zip.by_index_data(index).map_err(|e| unreadable(e.into()))?;
        if entry.encrypted() {
            return Err(Error::member(name, MemberFault::Encrypted));
        }
        let too_large = |_| Error::member(name, MemberFault::TooLarge(entry.size()));
        let len = usize::try_from(entry.size()).map_err(too_large)?;
        match entry.compression() {
            CompressionMethod::Stored => self.stored(name, entry.header_start(), len).map(Member::Stored),
            CompressionMethod::Deflated => {
                let limit = (self.bytes.len() as u64).saturating_mul(MAX_INFLATION_RATIO).saturating_add(FREE_INFLATION);
                if entry.size() > limit {
                    return Err(Error::limit(Limited::InflatedBytes(name.into()), entry.size(), limit));
                }
                Ok(Member::Deflated { index, len })
            }
            other => Err(Error::member(name, MemberFault::Compression(other.to_string()))),
        }
    }

    /// Locates stored data. The central directory states the size, and the local header determines
    /// the start.
    fn stored(&self, name: &str, header: u64, len: usize) -> Result<Bytes> {
        const HEADER_LEN: usize = 30;
        let local = usize::try_from(header).ok().and_then(|at| Some((at, self.bytes.get(at..at.checked_add(HEADER_LEN)?)?)));
        let (at, local) = local.ok_or_else(|| Error::member(name, MemberFault::HeaderOutside(header)))?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(Error::member(name, MemberFault::NoHeader(header)));
        }
        let (name_len, extra_len) = (u16::from_le_bytes([local[26], local[27]]), u16::from_le_bytes([local[28], local[29]]));
        let start = at + HEADER_LEN + usize::from(name_len) + usize::from(extra_len);
        match start.checked_add(len) {
            Some(end) if end <= self.bytes.len() => Ok(self.bytes.slice(start..end)),
            _ => Err(Error::member(name, MemberFault::Outside { start, len, end: self.bytes.len() })),
        }
    }

    /// Inflates the data of a compressed member.
    pub(crate) fn inflate(&self, name: &str, index: usize, len: usize) -> Result<Bytes> {
        let mut zip = self.zip.clone();
        let unreadable = |e: io::Error| Error::member(name, e.into());
        let file = zip.by_index(index).map_err(|e| unreadable(e.into()))?;
        let mut out = Vec::new();
        file.take(len as u64).read_to_end(&mut out).map_err(unreadable)?;
        if out.len() != len {
            return Err(Error::member(name, MemberFault::Length { expected: len, found: out.len() }));
        }
        Ok(out.into())
    }

    /// Reads the data of a member, inflated if it is compressed.
    pub(crate) fn read(&self, name: &str) -> Result<Bytes> {
        match self.member(name)? {
            Member::Stored(bytes) => Ok(bytes),
            Member::Deflated { index, len } => self.inflate(name, index, len),
        }
    }

    /// Reads the first 64 bytes of a member as text, without surrounding space.
    pub(crate) fn read_text(&self, name: &str) -> Result<String> {
        let bytes = self.read(name)?;
        Ok(String::from_utf8_lossy(bytes.get(..64).unwrap_or(&bytes)).trim().to_owned())
    }
}
