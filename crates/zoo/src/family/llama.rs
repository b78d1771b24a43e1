//! Llama: the plain decoder.

use crate::{Config, Family, Result, config::Biases, fields::Fields};

pub(super) fn config(f: &Fields) -> Result<Config> {
    let attention = f.bool_or("attention_bias", false)?;
    let biases = Biases { qkv: attention, output: attention, mlp: f.bool_or("mlp_bias", false)? };
    Ok(Config { biases, ..Config::from_fields(Family::Llama, f, 1e-6)? })
}
