//! Errors of a layer's results, from a sample of its rows.

use flambeau_lower::Scheme;
use flambeau_tensor::Tensor;

use super::{Fitted, Group, Importance, feedback, widen};
use crate::InputStatistics;

/// Number of rows that stand for all.
const SAMPLE: usize = 32;

/// The squared error of a layer's results relative to their squares, for a scheme of affine codes
/// of its weight `[.., N, K]`. `None` if the scheme cannot pack the rows.
pub(crate) fn relative_error(weight: &Tensor, scheme: Scheme, inputs: Option<&InputStatistics>) -> Option<f32> {
    let columns = *weight.shape().last()?;
    let (group, bits) = (scheme.group_size as usize, usize::from(scheme.bits));
    if columns == 0 || !columns.is_multiple_of(group) || !(columns * bits).is_multiple_of(32) {
        return None;
    }
    let rows = weight.numel() / columns;
    let importance = Importance::new(weight.shape(), inputs);
    let row_bytes = columns * weight.dtype().size();
    let (mut values, mut codes) = (vec![0.0; columns], vec![0; columns]);
    let (mut error, mut whole) = (0.0, 0.0);
    let count = SAMPLE.min(rows);
    for first in (0..count).map(|i| i * rows / count) {
        widen(&weight.bytes()[first * row_bytes..][..row_bytes], weight.dtype(), &mut values);
        let energy = |values: &[f32]| match importance.factors {
            Some(factors) => feedback::energy(values, factors),
            None => values.iter().zip(importance.of_row(first)).map(|(value, weight)| value * value * weight).sum::<f32>(),
        };
        let fitted = Fitted { values: &values, scheme, dtype: weight.dtype(), importance: &importance, first };
        let groups: Vec<Group> = fitted.groups().collect();
        fitted.codes(&groups, &mut codes);
        let lost = values.iter().zip(&codes).enumerate().map(|(k, (value, &code))| {
            let Group { scale, bias, .. } = groups[k / group];
            value - (f32::from(code) * scale + bias)
        });
        error += energy(&lost.collect::<Vec<f32>>());
        whole += energy(&values);
    }
    Some(if whole > 0.0 { error / whole } else { 0.0 })
}
