//! Sizes under the names that a file gives them: the keys of `config.json` and of GGUF metadata are read in one way.

use crate::{
    Error, Result,
    limits::{MAX_HEAD_DIM, MAX_LAYERS},
};

/// Keys with values, so that every complaint names its key.
pub(crate) trait Keys {
    /// A size from 1 to [`MAX_SIZE`](crate::limits::MAX_SIZE).
    fn size_opt(&self, key: &str) -> Result<Option<usize>>;

    /// A finite number above zero.
    fn positive_opt(&self, key: &str) -> Result<Option<f64>>;

    /// A complaint about a key, with what it holds.
    fn error(&self, key: &str, expected: impl Into<String>) -> Error;

    fn size(&self, key: &str) -> Result<usize> {
        self.size_opt(key)?.ok_or_else(|| self.error(key, "an integer"))
    }

    fn positive(&self, key: &str) -> Result<f64> {
        self.positive_opt(key)?.ok_or_else(|| self.error(key, "a number above 0"))
    }
}

/// What a format calls the sizes of a decoder.
pub(crate) struct SizeNames {
    pub(crate) hidden: &'static str,
    pub(crate) intermediate: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) heads: &'static str,
    pub(crate) kv_heads: &'static str,
    pub(crate) head_dim: &'static str,
}

/// The sizes of a decoder, which go together.
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Sizes {
    /// Reads all sizes and checks what single keys cannot tell.
    pub(crate) fn read(keys: &impl Keys, names: &SizeNames) -> Result<Sizes> {
        let (hidden, heads) = (keys.size(names.hidden)?, keys.size(names.heads)?);
        let even = || hidden.is_multiple_of(heads).then(|| hidden / heads);
        let head_dim = keys.size_opt(names.head_dim)?.or_else(even);
        let head_dim = head_dim.ok_or_else(|| keys.error(names.heads, format!("a divisor of {} {hidden}", names.hidden)))?;
        let (layers, kv_heads) = (keys.size(names.layers)?, keys.size_opt(names.kv_heads)?.unwrap_or(heads));
        if layers > MAX_LAYERS {
            return Err(keys.error(names.layers, format!("at most {MAX_LAYERS}")));
        }
        if head_dim > MAX_HEAD_DIM {
            return Err(Error::limit("elements of an attention head", head_dim as u64, MAX_HEAD_DIM as u64));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.error(names.kv_heads, format!("a divisor of the {heads} attention heads")));
        }
        Ok(Sizes { hidden, intermediate: keys.size(names.intermediate)?, layers, heads, kv_heads, head_dim })
    }
}
