//! Qwen 3: queries and keys normalized per head, no biases as released.

use super::qwen2::window;
use crate::{Config, Family, Result, config::Biases, fields::Fields, keys::Keys};

/// Elements of a head where the config is silent: unlike elsewhere not a quotient.
const HEAD_DIM: usize = 128;

pub(super) fn config(f: &Fields) -> Result<Config> {
    let attention = f.bool_or("attention_bias", false)?;
    let biases = Biases { qkv: attention, output: attention, mlp: false };
    let config = Config::from_fields(Family::Qwen3, f, 1e-6)?;
    if f.get("head_dim").is_none() && config.head_dim != HEAD_DIM {
        return Err(f.error("head_dim", "an integer"));
    }
    Ok(Config { biases, qk_norm: true, window: window(f)?, ..config })
}
