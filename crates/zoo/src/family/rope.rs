//! Reads the rotary embedding from top-level keys and `rope_scaling`, or from `rope_parameters`.

use super::common::Base;
use crate::{
    Error, Result,
    fields::Fields,
    rope::{Rope, Scaling, longrope_amplitude, yarn_amplitude},
};

/// The rotary embedding of a model that has one.
pub(super) fn read(f: &Fields<'_>, base: &Base) -> Result<Rope> {
    of(f, description(f)?.as_ref(), base, base.defaults.theta, base.head_dim)
}

/// As [`read`], with the family's base and this scaling if the config does not describe the rotary
/// embedding.
pub(super) fn read_or(f: &Fields<'_>, base: &Base, scaling: Scaling) -> Result<Rope> {
    let rope = read(f, base)?;
    if description(f)?.is_some() {
        return Ok(rope);
    }
    Ok(Rope { theta: base.defaults.theta, scaling, ..rope })
}

/// The object that describes the rotary embedding, under either key.
pub(super) fn description<'a>(f: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    let parameters = f.child("rope_parameters")?;
    Ok(f.child("rope_scaling")?.filter(|child| !child.is_empty()).or(parameters))
}

/// The rotary embedding from `child`. Missing keys come from the config itself, and the base is
/// `theta` if neither states it.
pub(super) fn of(f: &Fields<'_>, child: Option<&Fields<'_>>, base: &Base, theta: f64, head_dim: usize) -> Result<Rope> {
    let kind = child.map(kind).transpose()?.unwrap_or("default");
    let key = "original_max_position_embeddings";
    let nested = child.map(|c| c.positive_opt(key)).transpose()?.flatten();
    let original = f.positive_opt(key)?.or(nested).unwrap_or(base.positions as f64);
    ruled(f, child, base, (theta, head_dim), (kind, original))
}

/// The rotary embedding by the rule `kind` for a model first trained on `original` positions.
pub(super) fn ruled(
    f: &Fields<'_>,
    child: Option<&Fields<'_>>,
    base: &Base,
    (theta, head_dim): (f64, usize),
    (kind, original): (&str, f64),
) -> Result<Rope> {
    let both = |key: &str| -> Result<Option<f64>> {
        let own = f.positive_opt(key)?;
        Ok(child.map(|c| c.positive_opt(key)).transpose()?.flatten().or(own))
    };
    let theta = both("rope_theta")?.unwrap_or(theta);
    if theta <= 1.0 {
        return Err(Error::key("rope_theta", "a number above 1", theta));
    }
    let part = both("partial_rotary_factor")?.unwrap_or(base.defaults.rotary_part);
    if kind == "proportional" {
        let factor = child.map(|c| c.positive_opt("factor")).transpose()?.flatten().unwrap_or(1.0);
        let pairs = (part * head_dim as f64 / 2.0) as usize;
        if !head_dim.is_multiple_of(2) || pairs > head_dim / 2 {
            return Err(Error::key("partial_rotary_factor", format!("a part of the {head_dim} elements of a head"), part));
        }
        return Ok(Rope {
            theta,
            dims: head_dim,
            interleaved: false,
            reversed: false,
            scaling: Scaling::Proportional { pairs, factor },
        });
    }
    let dims = (head_dim as f64 * part) as usize;
    if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
        return Err(Error::key("partial_rotary_factor", format!("an even part of the {head_dim} elements of a head"), part));
    }
    let scaling = match child {
        Some(child) => scaling(child, (kind, original), dims, base.positions)?,
        None => Scaling::None,
    };
    Ok(Rope { theta, dims, interleaved: false, reversed: false, scaling })
}

/// The rotary embeddings of full and of sliding layers, with default bases. `rope_scaling` applies
/// only to full layers.
pub(super) fn by_kind(f: &Fields<'_>, base: &Base, (full_theta, sliding_theta): (f64, f64)) -> Result<(Rope, Rope)> {
    let parameters = f.child("rope_parameters")?;
    let of_kind = |kind: &str| parameters.as_ref().map(|p| p.child(kind)).transpose().map(Option::flatten);
    let (full, sliding) = (of_kind("full_attention")?, of_kind("sliding_attention")?);
    let scaling = f.child("rope_scaling")?.filter(|child| !child.is_empty());
    let full = of(f, scaling.or(full).as_ref(), base, full_theta, base.head_dim)?;
    let local = f.positive_or("rope_local_base_freq", sliding_theta)?;
    // `rope_theta` at the top belongs to full layers.
    let theta = sliding.as_ref().map(|s| s.positive_opt("rope_theta")).transpose()?.flatten().unwrap_or(local);
    let sliding = of(f, sliding.as_ref(), base, local, base.head_dim)?;
    Ok((full, Rope { theta, ..sliding }))
}

/// The scaling rule of a description.
pub(super) fn kind<'a>(c: &Fields<'a>) -> Result<&'a str> {
    let old = c.text("type")?;
    Ok(c.text("rope_type")?.or(old).unwrap_or("default"))
}

fn scaling(c: &Fields<'_>, (kind, original): (&str, f64), dims: usize, positions: usize) -> Result<Scaling> {
    match kind {
        // Text has the same position on all image axes, so sections of positions have no effect.
        "default" | "mrope" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: c.positive("factor")? }),
        "dynamic" if dims > 2 => Ok(Scaling::Dynamic { factor: c.positive("factor")?, original: positions }),
        "llama3" => {
            let (low, high) = (c.positive("low_freq_factor")?, c.positive("high_freq_factor")?);
            if low > high {
                return Err(c.error("high_freq_factor", format!("a number from low_freq_factor {low} on")));
            }
            Ok(Scaling::Llama3 { factor: c.positive("factor")?, low, high, original })
        }
        "yarn" => yarn(c, original, positions),
        "longrope" | "su" => {
            let factor = c.positive_opt("factor")?.unwrap_or(positions as f64 / original);
            let amplitude = c.positive_opt("attention_factor")?.unwrap_or(longrope_amplitude(factor, original));
            let (short, long) = (c.positives("short_factor", dims / 2)?, c.positives("long_factor", dims / 2)?);
            let of = |key: &str| Ok::<_, Error>(c.positive_opt(key)?.unwrap_or(amplitude));
            let amplitudes = [of("short_mscale")?, of("long_mscale")?];
            Ok(Scaling::LongRope { short, long, original: original as usize, amplitudes })
        }
        _ => {
            let key = if c.get("rope_type").is_some() { "rope_type" } else { "type" };
            Err(c.error(key, "default, linear, dynamic, llama3, yarn, longrope or proportional"))
        }
    }
}

fn yarn(c: &Fields<'_>, original: f64, positions: usize) -> Result<Scaling> {
    let factor = c.positive_opt("factor")?.unwrap_or(positions as f64 / original);
    // Zero means absent.
    let number = |key: &str| Ok::<_, Error>(c.magnitude_opt(key)?.filter(|v| *v > 0.0));
    let (beta_fast, beta_slow) = (number("beta_fast")?.unwrap_or(32.0), number("beta_slow")?.unwrap_or(1.0));
    let amplitude = match (c.positive_opt("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
        (Some(stated), ..) => stated,
        (None, Some(own), Some(all)) => yarn_amplitude(factor, own) / yarn_amplitude(factor, all),
        (None, ..) => yarn_amplitude(factor, 1.0),
    };
    Ok(Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate: c.bool_or("truncate", true)?, amplitude })
}
