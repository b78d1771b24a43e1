//! Compares an output with the expected one.

use anyhow::{Result, bail};
use flambeau::tensor::{DType, Tensor, Tolerance, cast, compare};

use super::description::{Compare, Output};

/// Maximum difference of an output from the expected one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) relative: f64,
    pub(super) absolute: f64,
    /// Bound on the root mean square of all differences.
    pub(super) rms: f64,
}

/// Accepts floats within the bounds, with the same largest entry if rounding cannot change it.
/// Accepts integers if they are equal, or if rounding can change them.
///
/// # Errors
/// The output differs, or the expected output does not match its description.
pub(super) fn output(actual: &Tensor, expected: &Tensor, described: &Output, kind: Compare, bounds: Bounds) -> Result<()> {
    if (expected.dtype(), expected.shape()) != (described.dtype, &described.shape[..]) {
        let (dtype, shape) = (expected.dtype(), expected.shape());
        bail!("the file holds {dtype} {shape:?}, the description says {} {:?}", described.dtype, described.shape);
    }
    if let Some(value) = &described.value
        && integers(expected)? != *value
    {
        bail!("the file holds {:?}, the description says {value:?}", integers(expected)?);
    }
    let (actual, expected) = match kind {
        Compare::Last => (last_entry(actual)?, last_entry(expected)?),
        Compare::All | Compare::Token => (actual.clone(), expected.clone()),
    };
    if !expected.dtype().is_float() {
        let any = Tolerance { relative: 0.0, absolute: f64::INFINITY };
        let equal = Tolerance { relative: 0.0, absolute: 0.0 };
        return Ok(compare(&actual, &expected, if described.certain { equal } else { any })?);
    }
    if kind == Compare::Token {
        bail!("a token is {}, expected an integer", expected.dtype());
    }
    compare(&actual, &expected, Tolerance { relative: bounds.relative, absolute: bounds.absolute })?;
    let (actual, expected) = (floats(&actual)?, floats(&expected)?);
    let rms = rms(&actual, &expected);
    if rms.is_nan() || rms > bounds.rms {
        bail!("the differences have a root mean square of {rms:.3e}, at most {:.3e} are allowed", bounds.rms);
    }
    let row = described.shape.last().copied().unwrap_or(1);
    let (found, best) = (best_of_last_row(&actual, row), best_of_last_row(&expected, row));
    if described.argmax_safe && found != best {
        bail!("the largest entry of the last row is {found:?}, expected {best:?}");
    }
    Ok(())
}

/// The last entry along the second-to-last axis, which is kept.
fn last_entry(x: &Tensor) -> Result<Tensor> {
    let &[.., count, row] = x.shape() else { bail!("shape {:?} has no rows", x.shape()) };
    if count == 0 {
        bail!("shape {:?} has no last row", x.shape());
    }
    let (bytes, stride) = (x.bytes(), row * x.dtype().size());
    let rows = bytes.chunks_exact((count * stride).max(1)).flat_map(|block| &block[(count - 1) * stride..]);
    let mut shape = x.shape().to_vec();
    shape[x.rank() - 2] = 1;
    Ok(Tensor::new(x.dtype(), &shape, rows.copied().collect::<Vec<u8>>().into())?.aligned())
}

fn floats(x: &Tensor) -> Result<Vec<f64>> {
    Ok(cast(x, DType::F64)?.as_slice::<f64>()?.to_vec())
}

fn integers(x: &Tensor) -> Result<Vec<i64>> {
    Ok(cast(x, DType::I64)?.as_slice::<i64>()?.to_vec())
}

/// The root mean square of the differences; elements that are alike, NaN and infinities too, differ
/// by 0.
fn rms(actual: &[f64], expected: &[f64]) -> f64 {
    let squared = |(a, e): (&f64, &f64)| if a == e || (a.is_nan() && e.is_nan()) { 0.0 } else { (a - e) * (a - e) };
    (actual.iter().zip(expected).map(squared).sum::<f64>() / actual.len().max(1) as f64).sqrt()
}

/// Index of the largest of the last `row` entries, counted from the first of these.
fn best_of_last_row(x: &[f64], row: usize) -> Option<usize> {
    let last = &x[x.len() - row.min(x.len())..];
    last.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(i, _)| i)
}
