//! The text part of Gemma 3n: parallel residual streams, embeddings per layer and shared caches. In
//! some layers, only the largest values of gates pass.

use super::{
    common::{Base, Defaults, full_every, layer, window, window_of},
    gemma2, gemma4, rope,
};
use crate::{
    Error, Result,
    fields::Fields,
    spec::{Attention, DecoderConfig, Layer, LayerNorms, Mlp, Norm, QkNorm, Streams, Values},
};

/// Bases of the rotary frequencies of full and of sliding layers.
const THETA: (f64, f64) = (1_000_000.0, 10_000.0);

pub(super) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let base = gemma2::read(f, &Defaults { kv_heads: Some(2), positions: 32_768, ..gemma2::DEFAULTS })?;
    let base = Base { norm: Norm::rms(base.norm.eps), ..base };
    let kinds = base.layer_types(f, |i| full_every(5, i))?;
    let shared = f.count_or("num_kv_shared_layers", 15)?;
    let own = base.layers.checked_sub(shared).filter(|&own| own > 0);
    let own = own.ok_or_else(|| f.error("num_kv_shared_layers", format!("less than the {} layers", base.layers)))?;
    let (full, sliding) = rope::by_kind(f, &base, THETA)?;
    let attention = Attention { scale: 1.0, qk_norm: QkNorm::Heads, value_norm: true, ..gemma2::attention(f, &base, 1)? };
    let (window, mlps) = (window(f, Some(512))?, mlps(f, &base)?);
    let layers = kinds.iter().zip(mlps).enumerate().map(|(i, (kind, mlp))| {
        let values = if i < own { Values::Projected } else { Values::Layer(gemma4::donor(f, &kinds[..own], kind)?) };
        let rope = if *kind == "full_attention" { &full } else { &sliding };
        let attention = Attention { window: window_of(kind, window, f)?, rope: Some(rope.clone()), values, ..attention.clone() };
        Ok(Layer { norms: LayerNorms::SANDWICH, ..layer(attention, mlp) })
    });
    let layers = layers.collect::<Result<_>>()?;
    let config = gemma2::scaled(base.config(f, "gemma3n", layers)?);
    Ok(DecoderConfig {
        logits_cap: gemma2::cap(f, "final_logit_softcapping", Some(30.0))?,
        per_layer: gemma4::per_layer(f, &base, 256)?,
        streams: Some(streams(f)?),
        ..config
    })
}

fn streams(f: &Fields<'_>) -> Result<Streams> {
    // Bounds on weights and learning rates matter for training only.
    for key in ["altup_coef_clip", "altup_lr_multiplier"] {
        f.get(key);
    }
    let (count, active) = (f.size_or("altup_num_inputs", 4)?, f.count_or("altup_active_idx", 0)?);
    if count < 2 {
        return Err(f.error("altup_num_inputs", "at least 2"));
    }
    if active >= count {
        return Err(f.error("altup_active_idx", format!("less than altup_num_inputs {count}")));
    }
    Ok(Streams { count, active, scaled: f.bool_or("altup_correct_scale", true)?, low_rank: f.size_or("laurel_rank", 64)? })
}

/// The gated layer of each layer.
fn mlps(f: &Fields<'_>, base: &Base) -> Result<Vec<Mlp>> {
    const WIDTH: &str = "intermediate_size";
    const SHARES: &str = "activation_sparsity_pattern";
    let mut widths = f.ints(WIDTH)?;
    if let [one] = widths[..] {
        widths = vec![one; base.layers];
    }
    let widths: Vec<usize> = widths.iter().filter_map(|&n| usize::try_from(n).ok().filter(|&n| n > 0)).collect();
    let shares = match f.numbers(SHARES, base.layers)? {
        Some(shares) => shares,
        None => (0..base.layers).map(|i| if i < 10 && base.layers > 10 { 0.95 } else { 0.0 }).collect(),
    };
    if widths.len() != base.layers {
        return Err(f.error(WIDTH, format!("one size, or one for each of the {} layers", base.layers)));
    }
    let of = |(width, share): (usize, f64)| match share {
        0.0 => Ok(base.mlp_of(width, "mlp")),
        _ if share < 1.0 => Ok(Mlp { cutoff: Some(normal_quantile(share)), ..base.mlp_of(width, "mlp") }),
        _ => Err(Error::key(SHARES, "shares below 1", share)),
    };
    widths.into_iter().zip(shares).map(of).collect()
}

/// A bound in standard deviations above the mean: this share of a normal distribution is below it.
/// Newton's method approaches it from the mean, on one side.
fn normal_quantile(share: f64) -> f64 {
    let mut x = 0.0f64;
    for _ in 0..100 {
        let below = 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
        let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        x -= (below - share) / density;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (share, expected) in
            [(0.5, 0.0), (0.95, 1.644_853_626_951_472_2), (0.3, -0.524_400_512_708_041), (0.999, 3.090_232_306_167_813_5)]
        {
            assert!((normal_quantile(share) - expected).abs() < 1e-12, "{share}");
        }
    }
}
