//! Owned bytes whose address is a multiple of 64: a whole cache line, and the widest vector
//! register.

use std::fmt;

use bytes::Bytes;

/// One cache line, and the widest vector register.
const LINE: usize = 64;

/// A zero-initialised byte buffer aligned to 64 bytes.
#[derive(Default)]
pub struct AlignedBytes {
    /// The bytes after padding up to the first multiple of a cache line.
    raw: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes. A large allocation comes zeroed from the operating system, page by page as
    /// it is touched.
    pub fn zeroed(len: usize) -> AlignedBytes {
        let raw = vec![0; len + LINE - 1];
        // A vector that never grows keeps its address when its owner moves.
        let start = raw.as_ptr().addr().wrapping_neg() % LINE;
        AlignedBytes { raw, start, len }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBytes {
        let mut out = AlignedBytes::zeroed(bytes.len());
        out.as_mut_slice().copy_from_slice(bytes);
        out
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.raw[self.start..self.start + self.len]
    }

    /// The bytes, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.raw[self.start..self.start + self.len]
    }

    /// The same storage as shared bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Clone for AlignedBytes {
    fn clone(&self) -> AlignedBytes {
        AlignedBytes::copy_of(self.as_slice())
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_aligned_and_zeroed() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let mut b = AlignedBytes::zeroed(len);
            assert_eq!(b.as_slice().len(), len);
            assert!(b.as_slice().iter().all(|&x| x == 0));
            b.as_mut_slice().fill(7);
            assert!(len == 0 || (b.as_slice().as_ptr() as usize).is_multiple_of(64));
            assert_eq!(b.into_bytes().len(), len);
        }
    }
}
