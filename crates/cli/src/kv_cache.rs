//! The text form of a cache's configuration: `capacity,layers,heads,head_dim[,dtype]`.

use anyhow::{Result, bail};
use flambeau::{
    engine::{KvCacheConfig, KvLayer},
    tensor::DType,
};

/// Layers that a specification may ask for.
const MAX_LAYERS: usize = 4096;

/// Reads a specification; the dtype is ExecuTorch's number, and 32-bit floats if it is left out.
pub(crate) fn parse(text: &str) -> Result<KvCacheConfig> {
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
        for bad in ["", "16", "1,2,3,x", "1,2,3,4,99", "1,5000,3,4", "1,2,3,4,6,7"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
