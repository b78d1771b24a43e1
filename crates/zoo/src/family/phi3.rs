//! Phi-3 and Phi-4 mini: joined projections, partial rotary embedding.

use crate::{Config, Family, Result, fields::Fields, keys::Keys};

pub(super) fn config(f: &Fields) -> Result<Config> {
    Ok(Config { fused: true, window: f.size_opt("sliding_window")?, ..Config::from_fields(Family::Phi3, f, 1e-5)? })
}
