//! The text forms of a cache's configuration: `capacity,layers,heads,head_dim[,dtype]`, or JSON.

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::{KvCacheConfig, KvLayer},
    tensor::DType,
};
use serde::{Deserialize, Deserializer, de::Error as _};

/// Layers that a specification may ask for.
const MAX_LAYERS: usize = 4096;

/// Configuration of a cache that the host provides. Lists have one entry per layer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostCache {
    capacity: usize,
    kv_heads: Vec<usize>,
    head_dims: Vec<usize>,
    /// 0 keeps every position.
    windows: Vec<usize>,
    max_write: usize,
    #[serde(deserialize_with = "dtype")]
    dtype: DType,
}

impl HostCache {
    /// The configuration that engines take.
    pub(crate) fn config(&self) -> Result<KvCacheConfig> {
        let (heads, sizes, windows) = (self.kv_heads.len(), self.head_dims.len(), self.windows.len());
        if sizes != heads || windows != heads {
            bail!("kv_cache lists {heads} kv_heads, {sizes} head_dims and {windows} windows");
        }
        if heads > MAX_LAYERS {
            bail!("kv_cache lists {heads} layers, at most {MAX_LAYERS} are taken");
        }
        let layer = |((&n_kv_heads, &head_dim), &window): ((&usize, &usize), &usize)| KvLayer {
            window: (window > 0).then_some(window),
            n_kv_heads,
            head_dim,
        };
        let layers = self.kv_heads.iter().zip(&self.head_dims).zip(&self.windows).map(layer).collect();
        Ok(KvCacheConfig { capacity: self.capacity, layers, dtype: self.dtype, max_write: Some(self.max_write) })
    }
}

/// An element type by its short name.
fn dtype<'de, D: Deserializer<'de>>(json: D) -> Result<DType, D::Error> {
    let name = String::deserialize(json)?;
    DType::from_name(&name).ok_or_else(|| D::Error::custom(format!("unknown dtype `{name}`")))
}

/// Reads a specification: the short form, or a [`HostCache`] as JSON. The dtype of the short form
/// is ExecuTorch's number, and 32-bit floats if it is left out.
pub(crate) fn parse(text: &str) -> Result<KvCacheConfig> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str::<HostCache>(text).with_context(|| format!("cache `{text}`"))?.config();
    }
    let expected = "expected capacity,layers,kv_heads,head_dim[,dtype]";
    let numbers: Vec<usize> = match text.split(',').map(|part| part.trim().parse()).collect() {
        Ok(numbers) => numbers,
        Err(_) => bail!("cache `{text}`: {expected}"),
    };
    let (capacity, layers, n_kv_heads, head_dim, code) = match numbers[..] {
        [a, b, c, d] => (a, b, c, d, 6),
        [a, b, c, d, e] => (a, b, c, d, e),
        _ => bail!("cache `{text}`: {expected}, found {} numbers", numbers.len()),
    };
    if layers > MAX_LAYERS {
        bail!("cache `{text}`: {layers} layers, at most {MAX_LAYERS} are taken");
    }
    let Some(dtype) = i8::try_from(code).ok().and_then(DType::from_code) else {
        bail!("cache `{text}`: there is no dtype {code}");
    };
    Ok(KvCacheConfig { capacity, layers: vec![KvLayer { window: None, n_kv_heads, head_dim }; layers], dtype, max_write: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_have_four_or_five_numbers() {
        let config = parse("16,2,2,8,5").unwrap();
        assert_eq!((config.capacity, config.layers.len(), config.dtype), (16, 2, DType::F16));
        assert_eq!(parse("16, 2, 2, 8").unwrap().dtype, DType::F32);
        let json =
            r#"{"capacity": 64, "kv_heads": [1, 2], "head_dims": [32, 8], "windows": [16, 0], "max_write": 8, "dtype": "bf16"}"#;
        let config = parse(json).unwrap();
        assert_eq!((config.layers[0].window, config.layers[1].window, config.max_write), (Some(16), None, Some(8)));
        for bad in ["{", r#"{"capacity": 64}"#, "", "16", "1,2,3,x", "1,2,3,4,99", "1,5000,3,4", "1,2,3,4,6,7"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
