//! A cursor over untrusted bytes.

use flambeau_tensor::Bytes;

use crate::{Error, Result};

pub(super) struct GgufReader {
    bytes: Bytes,
    at: usize,
}

impl GgufReader {
    pub(super) fn new(bytes: Bytes) -> GgufReader {
        GgufReader { bytes, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn error(&self, what: impl Into<String>) -> Error {
        Error::Gguf { offset: self.at, what: what.into() }
    }

    /// The next `n` bytes, shared.
    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<Bytes> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.error(format!("expected {n} bytes of {what}, found {}", self.remaining())))?;
        let out = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(out)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let found = self.remaining();
        let slice = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let out = *slice.ok_or_else(|| self.error(format!("expected {N} bytes of {what}, found {found}")))?;
        self.at += N;
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a count of items, each with at least `least` bytes.
    pub(super) fn count(&mut self, what: &'static str, limit: u64, least: usize) -> Result<usize> {
        let n = self.u64(what)?;
        if n > limit {
            return Err(Error::limit(what, n, limit));
        }
        let n = n as usize;
        if n.saturating_mul(least) > self.remaining() {
            return Err(self.error(format!("{n} {what} do not fit the {} bytes that are left", self.remaining())));
        }
        Ok(n)
    }

    /// Reads a string, and replaces invalid UTF-8 by U+FFFD.
    pub(super) fn lossy_text(&mut self, what: &'static str, limit: u64) -> Result<String> {
        let n = self.count(what, limit, 1)?;
        Ok(String::from_utf8_lossy(&self.take(n, what)?).into_owned())
    }

    pub(super) fn text(&mut self, what: &'static str, limit: u64) -> Result<String> {
        let n = self.count(what, limit, 1)?;
        let start = self.at;
        let bytes = self.take(n, what)?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|e| Error::Gguf { offset: start + e.valid_up_to(), what: format!("{what} is not UTF-8") })?;
        Ok(text.to_owned())
    }
}
