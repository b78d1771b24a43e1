//! Blobs: data with a source and an identity. Blobs with equal identity are written once.

use std::{
    collections::HashMap,
    fmt,
    io::{self, Write},
};

use flambeau_tensor::Bytes;
use sha2::{Digest, Sha256};

use crate::error::Error;

type Producer<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

enum Contents<'a> {
    Bytes(Bytes),
    Producer(Producer<'a>),
}

/// Data of a file under construction: bytes in memory, or a producer that runs when the data is
/// written.
///
/// Blobs with equal length and identity are stored once. Bytes are identified by their contents.
/// The caller states the identity of a producer, such as the name and packing of its weight.
pub struct Blob<'a> {
    len: u64,
    identity: [u8; 32],
    contents: Contents<'a>,
}

impl fmt::Debug for Blob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.contents {
            Contents::Bytes(_) => "bytes",
            Contents::Producer(_) => "producer",
        };
        write!(f, "Blob({} bytes from {kind})", self.len)
    }
}

impl<'a> Blob<'a> {
    /// Creates a blob from bytes.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Blob<'a> {
        let bytes = bytes.into();
        let digest = Sha256::new().chain_update(b"bytes").chain_update(&bytes).finalize();
        Blob { len: bytes.len() as u64, identity: digest.into(), contents: Contents::Bytes(bytes) }
    }

    /// Creates a blob of `len` bytes that `produce` writes. Two blobs with the same `identity` must
    /// have the same contents.
    pub fn lazy(len: u64, identity: &[u8], produce: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a) -> Blob<'a> {
        let digest = Sha256::new().chain_update(b"lazy").chain_update(identity).finalize();
        Blob { len, identity: digest.into(), contents: Contents::Producer(Box::new(produce)) }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, with `name` for error messages.
    ///
    /// # Errors
    /// A producer fails, or does not write exactly the announced number of bytes.
    pub fn into_bytes(self, name: &str) -> Result<Bytes, Error> {
        if let Contents::Bytes(bytes) = self.contents {
            return Ok(bytes);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.len).unwrap_or(0));
        self.write(name, &mut bytes)?;
        Ok(bytes.into())
    }

    /// Writes the bytes. A producer that does not write exactly the announced number of bytes is an
    /// error.
    pub(crate) fn write(self, name: &str, out: &mut dyn Write) -> Result<(), Error> {
        let produce = match self.contents {
            Contents::Bytes(bytes) => return Ok(out.write_all(&bytes)?),
            Contents::Producer(produce) => produce,
        };
        let mut counted = Counted { out, written: 0, limit: self.len };
        let done = produce(&mut counted);
        let written = counted.written;
        if written > self.len || (done.is_ok() && written < self.len) {
            return Err(Error::BlobLength { name: name.to_owned(), announced: self.len, written });
        }
        Ok(done?)
    }
}

/// Refuses bytes beyond a limit, so a wrong length cannot shift later data.
struct Counted<'w> {
    out: &'w mut dyn Write,
    written: u64,
    limit: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > self.limit {
            self.written += bytes.len() as u64;
            return Err(io::Error::other("more bytes than announced"));
        }
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Distinct blobs in the order of their addition.
#[derive(Debug, Default)]
pub(crate) struct Store<'a> {
    blobs: Vec<Blob<'a>>,
    index: HashMap<(u64, [u8; 32]), usize>,
}

impl<'a> Store<'a> {
    /// Adds the blob if it is new, and returns its position.
    pub(crate) fn add(&mut self, blob: Blob<'a>) -> usize {
        let next = self.blobs.len();
        let at = *self.index.entry((blob.len, blob.identity)).or_insert(next);
        if at == next {
            self.blobs.push(blob);
        }
        at
    }

    /// Whether the blob at `at` equals `blob`.
    pub(crate) fn holds(&self, at: usize, blob: &Blob<'_>) -> bool {
        self.index.get(&(blob.len, blob.identity)) == Some(&at)
    }

    /// The blobs, in order.
    pub(crate) fn blobs(&self) -> &[Blob<'a>] {
        &self.blobs
    }

    /// Number of blobs.
    pub(crate) fn count(&self) -> u32 {
        self.blobs.len() as u32
    }

    /// Consumes the store and returns the blobs.
    pub(crate) fn into_blobs(self) -> Vec<Blob<'a>> {
        self.blobs
    }

    /// Offset of each blob if they follow each other, aligned to multiples of `align` bytes.
    pub(crate) fn starts(&self, align: u64) -> Vec<u64> {
        let mut end = 0u64;
        let start = |blob: &Blob<'_>| {
            let start = end.next_multiple_of(align);
            end = start + blob.len;
            start
        };
        self.blobs.iter().map(start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_identities_are_stored_once() {
        let mut store = Store::default();
        let lazy = |id: &[u8]| Blob::lazy(3, id, |out| out.write_all(b"abc"));
        let blobs = [Blob::from_bytes(&b"abc"[..]), lazy(b"w"), Blob::from_bytes(&b"abc"[..]), lazy(b"w"), lazy(b"v")];
        let places: Vec<usize> = blobs.into_iter().map(|b| store.add(b)).collect();
        assert_eq!(places, [0, 1, 0, 1, 2]);
        assert_eq!(store.starts(16), [0, 16, 32]);
    }

    #[test]
    fn a_blob_shows_its_length_and_where_it_comes_from() {
        let lazy = Blob::lazy(7, b"w", |out| out.write_all(&[0; 7]));
        assert_eq!(
            format!("{:?}, {lazy:?}", Blob::from_bytes(vec![1, 2])),
            "Blob(2 bytes from bytes), Blob(7 bytes from producer)"
        );
    }

    #[test]
    fn producers_are_held_to_their_length() {
        for (announced, ok) in [(2, false), (3, true), (4, false)] {
            let mut out = Vec::new();
            let done = Blob::lazy(announced, b"", |out| out.write_all(b"abc")).write("w", &mut out);
            assert_eq!(done.is_ok(), ok, "{announced}");
            assert!(ok || matches!(done, Err(Error::BlobLength { written: 3, .. })), "{done:?}");
        }
    }
}
