//! Reading of logits `[1, S, V]`, `[1, V]` or `[V]` in a float type.

use flambeau_runtime::Value;
use flambeau_tensor::{DType, Tensor, bf16, cast};
use flambeau_text::argmax;

use crate::{Error, Result};

/// Replaces the contents of `to` by the last row `[V]`.
///
/// # Errors
/// Returns [`Error::Logits`]; the contents of `to` are then unspecified.
pub(crate) fn last(method: &str, output: Option<&Value>, to: &mut Vec<f32>) -> Result<()> {
    let bad = |_| unfit(method, output);
    let rows = rows(method, output)?;
    let vocab = rows.shape()[1];
    let last = rows.bytes().slice(rows.bytes().len() - vocab * rows.dtype().size()..);
    let row = Tensor::new(rows.dtype(), &[vocab], last).map_err(bad)?.aligned();
    to.clear();
    let read = match row.dtype() {
        DType::F32 => row.as_slice::<f32>().map(|row| to.extend_from_slice(row)),
        DType::BF16 => row.as_slice::<bf16>().map(|row| to.extend(row.iter().map(|x| x.to_f32()))),
        _ => cast(&row, DType::F32).and_then(|row| row.as_slice::<f32>().map(|row| to.extend_from_slice(row))),
    };
    read.map_err(bad)
}

/// Reads all rows `[S, V]`.
///
/// # Errors
/// Returns [`Error::Logits`].
pub(crate) fn all_rows(method: &str, output: Option<&Value>) -> Result<Vec<f32>> {
    let all = cast(&rows(method, output)?, DType::F32).and_then(|rows| Ok(rows.as_slice::<f32>()?.to_vec()));
    all.map_err(|_| unfit(method, output))
}

/// The best token of each row of `[1, count, V]`.
///
/// # Errors
/// Returns [`Error::Logits`] for another shape, or for rows without a number.
pub(crate) fn best_tokens(method: &str, output: Option<&Value>, count: usize) -> Result<Vec<u32>> {
    match output.and_then(Value::as_tensor).map(Tensor::shape) {
        Some(&[1, rows, vocab]) if rows == count => {
            let all = all_rows(method, output)?;
            all.chunks_exact(vocab).map(|row| Ok(argmax(row).ok_or_else(|| unfit(method, output))?.0)).collect()
        }
        _ => Err(unfit(method, output)),
    }
}

/// The rows `[n, V]` in their own type.
fn rows(method: &str, output: Option<&Value>) -> Result<Tensor> {
    let bad = || unfit(method, output);
    let tensor = output.and_then(Value::as_tensor).filter(|t| t.dtype().is_float()).ok_or_else(bad)?;
    let vocab = tensor.shape().last().copied().filter(|&v| v > 0 && tensor.numel() >= v).ok_or_else(bad)?;
    tensor.reshape(&[tensor.numel() / vocab, vocab]).map_err(|_| bad())
}

fn unfit(method: &str, output: Option<&Value>) -> Error {
    let found = output.map_or_else(|| "nothing".into(), Value::describe);
    Error::Logits { method: method.to_owned(), found }
}
