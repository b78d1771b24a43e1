//! Qwen 2: biases on queries, keys and values.

use crate::{Config, Family, Result, config::Biases, fields::Fields, keys::Keys};

pub(super) fn config(f: &Fields) -> Result<Config> {
    let biases = Biases { qkv: true, output: false, mlp: false };
    Ok(Config { biases, window: window(f)?, ..Config::from_fields(Family::Qwen2, f, 1e-6)? })
}

/// Configs carry a window even where it is switched off.
pub(super) fn window(f: &Fields) -> Result<Option<usize>> {
    if f.bool_or("use_sliding_window", false)? { f.size_opt("sliding_window") } else { Ok(None) }
}
