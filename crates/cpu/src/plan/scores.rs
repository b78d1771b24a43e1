//! Attention that a program writes as products and a softmax, because its scores have a bound or a
//! sink. One call of the attention kernel computes it.
//!
//! The program multiplies queries by keys, scales and bounds the scores, hides some of them, and
//! multiplies their softmax by the values. A sink is a further score of each head without a value.
//! The program scales the shares of all keys by the logistic function of the total over the sink.

use std::{iter::zip, sync::Arc};

use flambeau_ir::{Addmm, AsType, In, LogSumExp, Node, Out, Softmax, Where};
use flambeau_kernels::Float as _;
use flambeau_tensor::{DType, normalize_axis};
use smallvec::{SmallVec, smallvec};

use super::{
    implied::{Implied, Spans},
    memref::MemRef,
    planner::{Cost, Planner},
};
use crate::{
    dtypes::float_dtype,
    obstacle::Prepared,
    ops::attention::{Scored, attend_scored},
};

/// A view of keys or values. Their number is known only at run time.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// [B, Hk, Tk, D]
    array: MemRef,
    /// The array's axis that each axis of the view shows; `None` for an axis of one entry.
    axes: SmallVec<[Option<usize>; 5]>,
}

/// Scores of queries and keys, `[B, H, T, Tk]` or `[B, Hk, H / Hk, T, Tk]`.
#[derive(Clone, Debug)]
pub(super) struct Scores {
    /// The node that made them.
    at: usize,
    /// `[B, H, T, D]` or `[B, Hk, H / Hk, T, D]`
    q: MemRef,
    k: MemRef,
    scale: f32,
    /// The factor of the hyperbolic tangent, after one was taken.
    cap: Option<f32>,
    spans: Option<Spans>,
    dtype: DType,
}

/// The softmax of scores, and the sinks that share it.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    scores: Scores,
    sinks: Option<MemRef>,
    dtype: DType,
}

/// The logarithm of the sum of exponentials of scores, less sinks.
#[derive(Clone, Debug)]
pub(super) struct Total {
    /// The node that made the scores.
    of: usize,
    sinks: Option<MemRef>,
    dtype: DType,
    /// Whether the logistic function was taken.
    is_share: bool,
}

impl Rows {
    pub(super) fn dtype(&self) -> DType {
        self.array.array.dtype
    }

    pub(super) fn operands(&self) -> SmallVec<[&MemRef; 4]> {
        smallvec![&self.array]
    }

    pub(super) fn operands_mut(&mut self) -> SmallVec<[&mut MemRef; 4]> {
        smallvec![&mut self.array]
    }

    /// Whether the rows match queries of this shape, with axes `last` at the end.
    fn fits(&self, q: &MemRef, last: [usize; 2]) -> bool {
        let (q, rows) = (&q.array, &self.array.array);
        let heads: &[Option<usize>] = if q.rank() == 5 { &[Some(0), Some(1), None] } else { &[Some(0), Some(1)] };
        let axes = heads.iter().copied().chain(last.map(Some));
        // The open number of rows is written as 0.
        let fits = matches!(q.rank(), 4 | 5) && rows.rank() == 4 && rows.shape[2] == 0 && rows.shape[..2] == q.shape[..2];
        fits && self.axes.iter().copied().eq(axes) && rows.dtype == q.dtype && q.dtype.is_float()
    }
}

impl Scores {
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn operands(&self) -> SmallVec<[&MemRef; 4]> {
        [&self.q, &self.k].into_iter().chain(self.spans.as_ref().map(|spans| &spans.bounds)).collect()
    }

    pub(super) fn operands_mut(&mut self) -> SmallVec<[&mut MemRef; 4]> {
        [&mut self.q, &mut self.k].into_iter().chain(self.spans.as_mut().map(|spans| &mut spans.bounds)).collect()
    }

    fn queries(&self) -> usize {
        self.q.array.shape[self.q.array.rank() - 2]
    }

    fn scaled(mut self, factor: f32) -> Option<Scores> {
        let to = self.cap.as_mut().unwrap_or(&mut self.scale);
        *to *= factor;
        self.spans.is_none().then_some(self)
    }
}

impl Weights {
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn operands(&self) -> SmallVec<[&MemRef; 4]> {
        self.scores.operands().into_iter().chain(&self.sinks).collect()
    }

    pub(super) fn operands_mut(&mut self) -> SmallVec<[&mut MemRef; 4]> {
        self.scores.operands_mut().into_iter().chain(&mut self.sinks).collect()
    }
}

impl Total {
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn operands(&self) -> SmallVec<[&MemRef; 4]> {
        self.sinks.iter().collect()
    }

    pub(super) fn operands_mut(&mut self) -> SmallVec<[&mut MemRef; 4]> {
        self.sinks.iter_mut().collect()
    }
}

impl Planner<'_> {
    /// The result of a node of such an attention, if no step writes it.
    pub(super) fn part_of_attention(&mut self, node: &Node) -> Prepared<Option<(Out, Implied)>> {
        Ok(match node {
            Node::ExpandDims(n) => self.with_axis(n.x, n.axis).map(|rows| (n.out, Implied::Rows(rows))),
            Node::Transpose(n) => self.with_order(n.x, &n.perm).map(|rows| (n.out, Implied::Rows(rows))),
            Node::Addmm(n) => self.scores(n)?.map(|scores| (n.out, Implied::Scores(scores))),
            Node::AsType(n) => self.scores_in_type(n).map(|implied| (n.out, implied)),
            Node::Multiply(n) => self.scaled_part(n.a, n.b).map(|implied| (n.out, implied)),
            Node::Divide(n) => self.divided(n.a, n.b).map(|scores| (n.out, Implied::Scores(scores))),
            Node::Tanh(n) => self.bounded(n.x).map(|scores| (n.out, Implied::Scores(scores))),
            Node::Where(n) => self.hidden(n).map(|scores| (n.out, Implied::Scores(scores))),
            Node::Softmax(n) => self.weights(n).map(|weights| (n.out, Implied::Weights(weights))),
            Node::LogSumExp(n) => self.total(n).map(|total| (n.out, Implied::Total(total))),
            Node::Subtract(n) => self.less_sinks(n.a, n.b)?.map(|total| (n.out, Implied::Total(total))),
            Node::Sigmoid(n) => self.share(n.x).map(|total| (n.out, Implied::Total(total))),
            _ => None,
        })
    }

    fn rows(&mut self, slot: In) -> Option<Rows> {
        if let Some(Implied::Rows(rows)) = self.implied(slot) {
            return Some(rows);
        }
        let array = self.recorder()?.window_in(slot)?;
        let axes = (0..array.array.rank()).map(Some).collect();
        Some(Rows { array, axes })
    }

    fn with_axis(&mut self, slot: In, axis: i32) -> Option<Rows> {
        let mut rows = self.rows(slot)?;
        let axis = normalize_axis(axis.into(), rows.axes.len() + 1)?;
        rows.axes.insert(axis, None);
        Some(rows)
    }

    fn with_order(&mut self, slot: In, perm: &[i32]) -> Option<Rows> {
        let rows = self.rows(slot)?;
        let axes = perm.iter().map(|&axis| Some(rows.axes[normalize_axis(axis.into(), rows.axes.len())?]));
        Some(Rows { axes: axes.collect::<Option<_>>()?, ..rows })
    }

    /// The scores that a product of queries with keys gives.
    fn scores(&mut self, n: &Addmm) -> Prepared<Option<Scores>> {
        let Some(rows) = self.rows(n.mat2) else { return Ok(None) };
        if n.bias.is_some() || n.alpha != 1.0 || self.implied(n.mat1).is_some() {
            return Ok(None);
        }
        let q = self.get(n.mat1)?;
        let is_fit = q.is_fixed() && rows.fits(&q, [3, 2]) && q.array.shape.last() == rows.array.array.shape.last();
        let Some(recorder) = self.recorder().filter(|_| is_fit) else { return Ok(None) };
        let (at, dtype) = (recorder.at, q.array.dtype);
        Ok(Some(Scores { at, q, k: rows.array, scale: 1.0, cap: None, spans: None, dtype }))
    }

    fn scores_of(&mut self, slot: In) -> Option<Scores> {
        match self.implied(slot) {
            Some(Implied::Scores(scores)) => Some(scores),
            _ => None,
        }
    }

    /// Scores in a wider type, or shares in a narrower one.
    fn scores_in_type(&mut self, n: &AsType) -> Option<Implied> {
        let dtype = n.scalar_type;
        match self.implied(n.x)? {
            Implied::Scores(scores) if dtype == DType::F32 => Some(Implied::Scores(Scores { dtype, ..scores })),
            Implied::Weights(weights) if dtype.is_float() => Some(Implied::Weights(Weights { dtype, ..weights })),
            _ => None,
        }
    }

    /// The number that a slot has held since the plan was built.
    fn number(&mut self, slot: In) -> Option<f32> {
        let x = self.recorder()?.constant_in(slot)?.array;
        let read = || float_dtype!(x.dtype, T => Ok(x.all::<T>()?[x.offset].to_f32()));
        if x.numel() == 1 && x.dtype.is_float() { read().ok() } else { None }
    }

    fn scaled_part(&mut self, a: In, b: In) -> Option<Implied> {
        match (self.implied(a), self.implied(b)) {
            (Some(Implied::Scores(scores)), None) => Some(Implied::Scores(scores.scaled(self.number(b)?)?)),
            (None, Some(Implied::Scores(scores))) => Some(Implied::Scores(scores.scaled(self.number(a)?)?)),
            (Some(Implied::Weights(weights)), Some(Implied::Total(total)))
            | (Some(Implied::Total(total)), Some(Implied::Weights(weights))) => {
                let fits = total.is_share && total.of == weights.scores.at && weights.sinks.is_none();
                fits.then_some(Implied::Weights(Weights { sinks: total.sinks, ..weights }))
            }
            _ => None,
        }
    }

    fn divided(&mut self, a: In, b: In) -> Option<Scores> {
        let scores = self.scores_of(a)?;
        scores.scaled(1.0 / self.number(b)?)
    }

    fn bounded(&mut self, slot: In) -> Option<Scores> {
        let scores = self.scores_of(slot).filter(|scores| scores.cap.is_none() && scores.spans.is_none())?;
        Some(Scores { cap: Some(1.0), ..scores })
    }

    /// Scores with −∞ outside of spans of visible keys.
    fn hidden(&mut self, n: &Where) -> Option<Scores> {
        let Some(Implied::Spans(mut spans)) = self.implied(n.condition) else { return None };
        let (scores, other) = if spans.is_inverted { (n.y, n.x) } else { (n.x, n.y) };
        let (scores, at) = (self.scores_of(scores)?, self.recorder()?.at);
        spans.is_inverted = false;
        let fits = scores.spans.is_none() && spans.fits(scores.queries()) && self.number(other)? == f32::NEG_INFINITY;
        fits.then_some(Scores { at, spans: Some(spans), ..scores })
    }

    fn weights(&mut self, n: &Softmax) -> Option<Weights> {
        let scores = self.scores_of(n.x)?;
        let dtype = scores.dtype;
        let is_last = is_last(n.axis, &scores);
        is_last.then_some(Weights { scores, sinks: None, dtype })
    }

    fn total(&mut self, n: &LogSumExp) -> Option<Total> {
        let scores = self.scores_of(n.x)?;
        let is_last = n.keepdims && matches!(n.axes[..], [axis] if is_last(axis, &scores));
        is_last.then_some(Total { of: scores.at, sinks: None, dtype: scores.dtype, is_share: false })
    }

    fn less_sinks(&mut self, a: In, b: In) -> Prepared<Option<Total>> {
        let (Some(Implied::Total(total)), None) = (self.implied(a), self.implied(b)) else { return Ok(None) };
        let sinks = self.get(b)?;
        let fits =
            total.sinks.is_none() && !total.is_share && sinks.is_fixed() && self.stays(&sinks) && sinks.array.dtype.is_float();
        Ok(fits.then_some(Total { sinks: Some(sinks), ..total }))
    }

    fn share(&mut self, slot: In) -> Option<Total> {
        match self.implied(slot) {
            Some(Implied::Total(total)) if total.sinks.is_some() && !total.is_share => Some(Total { is_share: true, ..total }),
            _ => None,
        }
    }

    /// Binds the product of shares and values to the result of one call. `false` if the node is
    /// another product.
    pub(super) fn attend_with_weights(&mut self, n: &Addmm) -> Prepared<bool> {
        let Some(Implied::Weights(Weights { scores, sinks, dtype })) = self.implied(n.mat1) else { return Ok(false) };
        let Some(values) = self.rows(n.mat2) else { return Ok(false) };
        let (spec, q) = (self.spec(n.out)?, &scores.q.array);
        let (queries, rank) = (scores.queries(), q.rank());
        let heads: usize = q.shape[1..rank - 2].iter().product();
        let is_bound = scores.cap.is_none_or(|cap| cap != 0.0);
        let fits = is_bound && n.bias.is_none() && n.alpha == 1.0 && values.fits(&scores.q, [2, 3]);
        let are_sinks = sinks.as_ref().is_none_or(|sinks| has_entry_for_each_head(&sinks.array.shape, &q.shape));
        if !fits || !are_sinks || dtype != q.dtype || spec.dtype != dtype {
            return Ok(false);
        }
        let (batch, depth, width) = (q.shape[0], q.shape[rank - 1], values.array.array.shape[3]);
        let q = self.reshaped(scores.q.clone(), &[batch, heads, queries, depth])?;
        let sinks = sinks.map(|sinks| self.rows_in_type(sinks, DType::F32)).transpose()?;
        let scale = scores.scale * scores.cap.unwrap_or(1.0);
        let form =
            Scored { scale, cap: scores.cap, seen: scores.spans.as_ref().map(|spans| spans.keys), has_sinks: sinks.is_some() };
        let bounds = scores.spans.as_ref().map(|spans| &spans.bounds);
        let ins: SmallVec<[&MemRef; 5]> = [&q, &scores.k, &values.array].into_iter().chain(bounds).chain(&sinks).collect();
        let shape: &[usize] = &[batch, heads, queries, width];
        let name: Arc<str> = "Addmm + Softmax + Addmm".into();
        let mut outs = self.call_many((Some(name), Cost::Attention), &ins, &[(dtype, shape)], move |cx, ins, outs| {
            attend_scored(cx, ins, form, &mut outs[0])
        })?;
        if let Some(mut y) = outs.pop() {
            y.array.set_shape(&spec.shape);
            self.put(n.out, y);
        }
        Ok(true)
    }
}

fn is_last(axis: i32, scores: &Scores) -> bool {
    let rank = scores.q.array.rank();
    normalize_axis(axis.into(), rank) == Some(rank - 1)
}

/// Whether sinks of this shape have one entry for each head of queries `[B, .., T, D]`.
fn has_entry_for_each_head(sinks: &[usize], q: &[usize]) -> bool {
    let heads = &q[1..q.len() - 2];
    let expected = std::iter::once(&1).chain(heads).chain(&[1, 1]);
    let skipped = q.len().checked_sub(sinks.len());
    skipped.is_some_and(|skipped| skipped <= 1 && zip(sinks, expected.skip(skipped)).all(|(a, b)| a == b))
}
