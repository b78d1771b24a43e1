//! Values for attention alone, with sizes that depend on data. No step writes them: the plan keeps
//! their parts in arrays of known sizes.
//!
//! A mask of a window compares the position of each query with the positions of all keys. The
//! number of keys is known only at run time, but each query sees one span of them.

use flambeau_ir::{ARange, In, Int, Node, Out, Role, Slot, Tid};
use flambeau_tensor::{DType, Shape};
use smallvec::{SmallVec, smallvec};

use super::{
    memref::MemRef,
    planner::Planner,
    scores::{Rows, Scores, Total, Weights},
};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Context,
    obstacle::Prepared,
};

/// A value that no step writes.
#[derive(Clone, Debug)]
pub(super) enum Implied {
    Line(Line),
    Spans(Spans),
    Rows(Rows),
    Scores(Scores),
    Weights(Weights),
    Total(Total),
}

/// A kind of values that a plan leaves out until a node needs one of them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// Keys and values decoded from codes.
    Decoded,
    /// Masks of windows.
    Masks,
    /// Scores of queries and keys, and values computed from them.
    Scores,
}

/// The positions of keys: consecutive integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Keys {
    start: i64,
    stop: Int,
}

impl Keys {
    /// Their number in this run.
    pub(crate) fn count(self, cx: &Context) -> Result<usize> {
        Ok(usize::try_from(cx.int(self.stop)?.saturating_sub(self.start)).unwrap_or(0))
    }
}

/// Integers `slope · key + sign · added` for every key; `slope` and `sign` are 1 or −1.
#[derive(Clone, Debug)]
pub(super) struct Line {
    keys: Keys,
    slope: i64,
    /// One integer, or one for each row, and its sign.
    added: Option<(MemRef, i64)>,
    dtype: DType,
}

/// A boolean mask `[.., Tk]` that is true in one span of keys in each row.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    pub(crate) keys: Keys,
    /// The first key of each row's span, and the one after the last: i64 `[.., 2]`. Any pair with
    /// no key between is an empty span.
    pub(crate) bounds: MemRef,
    /// Whether the mask is false in the spans, and true elsewhere.
    pub(crate) is_inverted: bool,
}

impl Implied {
    pub(super) fn dtype(&self) -> DType {
        match self {
            Implied::Line(line) => line.dtype,
            Implied::Spans(_) => DType::Bool,
            Implied::Rows(rows) => rows.dtype(),
            Implied::Scores(scores) => scores.dtype(),
            Implied::Weights(weights) => weights.dtype(),
            Implied::Total(total) => total.dtype(),
        }
    }

    /// The kind to write out if a node needs the value.
    pub(super) fn kind(&self) -> LeftOut {
        match self {
            Implied::Line(_) | Implied::Spans(_) => LeftOut::Masks,
            Implied::Rows(_) | Implied::Scores(_) | Implied::Weights(_) | Implied::Total(_) => LeftOut::Scores,
        }
    }

    /// The arrays that are read when attention runs.
    pub(super) fn operands(&self) -> SmallVec<[&MemRef; 4]> {
        match self {
            Implied::Line(line) => line.added.iter().map(|(x, _)| x).collect(),
            Implied::Spans(spans) => smallvec![&spans.bounds],
            Implied::Rows(rows) => rows.operands(),
            Implied::Scores(scores) => scores.operands(),
            Implied::Weights(weights) => weights.operands(),
            Implied::Total(total) => total.operands(),
        }
    }

    /// As [`Self::operands`], to be given other places.
    pub(super) fn operands_mut(&mut self) -> SmallVec<[&mut MemRef; 4]> {
        match self {
            Implied::Line(line) => line.added.iter_mut().map(|(x, _)| x).collect(),
            Implied::Spans(spans) => smallvec![&mut spans.bounds],
            Implied::Rows(rows) => rows.operands_mut(),
            Implied::Scores(scores) => scores.operands_mut(),
            Implied::Weights(weights) => weights.operands_mut(),
            Implied::Total(total) => total.operands_mut(),
        }
    }
}

impl Spans {
    /// Whether there is a span for each of `queries` queries, or one for all, and heads do not
    /// differ.
    pub(super) fn fits(&self, queries: usize) -> bool {
        let Some((_, rows)) = self.bounds.array.shape.split_last() else { return false };
        let (last, outer) = rows.split_last().map_or((1, rows), |(&last, outer)| (last, outer));
        (last == queries || last == 1) && outer.iter().all(|&n| n == 1)
    }
}

/// A comparison of integers.
#[derive(Clone, Copy, Debug)]
enum Relation {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
}

impl Relation {
    /// The relation of the exchanged operands, or of the negated ones.
    fn turned(self) -> Relation {
        match self {
            Relation::Less => Relation::Greater,
            Relation::LessEqual => Relation::GreaterEqual,
            Relation::Greater => Relation::Less,
            Relation::GreaterEqual => Relation::LessEqual,
            Relation::Equal => Relation::Equal,
        }
    }

    /// The first integer in this relation to `x`, and the one after the last.
    fn span(self, x: i64) -> [i64; 2] {
        let after = x.saturating_add(1);
        match self {
            Relation::Less => [i64::MIN, x],
            Relation::LessEqual => [i64::MIN, after],
            Relation::Greater => [after, i64::MAX],
            Relation::GreaterEqual => [x, i64::MAX],
            Relation::Equal => [x, after],
        }
    }
}

impl Planner<'_> {
    /// Binds a node's result to a value that no step writes, if attention can do without it.
    pub(super) fn imply(&mut self, node: &Node) -> Prepared<bool> {
        let Some(recorder) = self.recorder() else { return Ok(false) };
        let [masks, scores] = [LeftOut::Masks, LeftOut::Scores].map(|kind| recorder.leaves_out(kind));
        let mut implied = None;
        if masks {
            implied = self.part_of_mask(node)?;
        }
        if scores && implied.is_none() {
            if let Node::Addmm(n) = node
                && self.attend_with_weights(n)?
            {
                return Ok(true);
            }
            implied = self.part_of_attention(node)?;
        }
        let (Some((out, implied)), Some(recorder)) = (implied, self.recorder()) else { return Ok(false) };
        recorder.put_implied(out.0, implied);
        Ok(true)
    }

    /// The result of a node of a mask, if no step writes it.
    fn part_of_mask(&mut self, node: &Node) -> Prepared<Option<(Out, Implied)>> {
        let (out, implied) = match node {
            Node::ARange(n) => (n.out, self.keys(n).map(Implied::Line)),
            Node::Add(n) => (n.out, self.sum([n.a, n.b], 1)?.map(Implied::Line)),
            Node::Subtract(n) => (n.out, self.sum([n.a, n.b], -1)?.map(Implied::Line)),
            Node::Less(n) => (n.out, self.compared([n.a, n.b], Relation::Less, n.out)?.map(Implied::Spans)),
            Node::LessEqual(n) => (n.out, self.compared([n.a, n.b], Relation::LessEqual, n.out)?.map(Implied::Spans)),
            Node::Greater(n) => (n.out, self.compared([n.a, n.b], Relation::Greater, n.out)?.map(Implied::Spans)),
            Node::GreaterEqual(n) => (n.out, self.compared([n.a, n.b], Relation::GreaterEqual, n.out)?.map(Implied::Spans)),
            Node::Equal(n) => (n.out, self.compared([n.a, n.b], Relation::Equal, n.out)?.map(Implied::Spans)),
            Node::LogicalAnd(n) => (n.out, self.in_both([n.a, n.b], n.out)?.map(Implied::Spans)),
            Node::LogicalNot(n) => (n.out, self.inverted(n.x).map(Implied::Spans)),
            _ => return Ok(None),
        };
        Ok(implied.map(|implied| (out, implied)))
    }

    /// The mask in a slot as spans of visible keys for each of `queries` rows.
    pub(crate) fn spans_of_mask(&mut self, slot: In, queries: usize) -> Option<Spans> {
        match self.implied(slot) {
            Some(Implied::Spans(spans)) if spans.fits(queries) && !spans.is_inverted => Some(spans),
            _ => None,
        }
    }

    pub(super) fn implied(&mut self, slot: In) -> Option<Implied> {
        self.recorder().and_then(|recorder| recorder.implied(slot.0).cloned())
    }

    /// Consecutive integers up to one known only at run time.
    fn keys(&mut self, n: &ARange) -> Option<Line> {
        let recorder = self.recorder()?;
        let (start, step, dtype) = (recorder.int(n.start)?, recorder.int(n.step)?, recorder.env.get(n.out.0)?.dtype);
        let Int::Vid(end) = n.stop else { return None };
        if step != 1 || !is_signed(dtype) || recorder.int(n.stop).is_some() {
            return None;
        }
        // The integer is read when attention runs, so it must last.
        let mut writers = recorder.graph.inputs.iter().filter(|&&slot| slot == Slot::Value(end)).count();
        for node in recorder.graph.chains.iter().flatten() {
            node.walk(&mut |role, slot| writers += usize::from(role != Role::Read && slot == Slot::Value(end)));
        }
        let keys = Keys { start, stop: n.stop };
        (writers == 1).then_some(Line { keys, slope: 1, added: None, dtype })
    }

    /// `a + sign · b` of a line and integers of rows.
    fn sum(&mut self, [a, b]: [In; 2], sign: i64) -> Prepared<Option<Line>> {
        let (line, other, signs) = match (self.implied(a), self.implied(b)) {
            (Some(Implied::Line(line)), None) => (line, b, [1, sign]),
            (None, Some(Implied::Line(line))) => (line, a, [sign, 1]),
            _ => return Ok(None),
        };
        let Some(x) = self.integers(other)? else { return Ok(None) };
        if line.added.is_some() || !self.stays(&x) || x.array.dtype != line.dtype {
            return Ok(None);
        }
        Ok(Some(Line { slope: signs[0] * line.slope, added: Some((x, signs[1])), ..line }))
    }

    /// Integers of rows `[.., 1]`, or one for all.
    fn integers(&mut self, slot: In) -> Prepared<Option<MemRef>> {
        let x = self.get(slot)?;
        let is_row = x.is_fixed() && x.array.shape.last().is_none_or(|&n| n == 1);
        if !is_row || !is_signed(x.array.dtype) {
            return Ok(None);
        }
        Ok(Some(x))
    }

    /// A comparison of a line with integers of rows.
    fn compared(&mut self, [a, b]: [In; 2], relation: Relation, out: Out) -> Prepared<Option<Spans>> {
        let (line, other, relation) = match (self.implied(a), self.implied(b)) {
            (Some(Implied::Line(line)), None) => (line, b, relation),
            (None, Some(Implied::Line(line))) => (line, a, relation.turned()),
            _ => return Ok(None),
        };
        let (Some(limit), Some(rows)) = (self.integers(other)?, self.rows_of(out.0)) else { return Ok(None) };
        let count: usize = rows.iter().product();
        let (added, sign) = line.added.clone().map_or((None, 0), |(x, sign)| (Some(x), sign));
        if added.iter().chain([&limit]).any(|x| !is_one_or(x, count)) {
            return Ok(None);
        }
        let limit = self.rows_in_type(limit, DType::I64)?;
        let added = added.map(|x| self.rows_in_type(x, DType::I64)).transpose()?;
        let (slope, start) = (line.slope, line.keys.start);
        // With a falling line, the negated key is in relation to the limit.
        let relation = if slope > 0 { relation } else { relation.turned() };
        let ins: SmallVec<[&MemRef; 2]> = [&limit].into_iter().chain(&added).collect();
        let bounds = self.call(&ins, (DType::I64, &with_pair(&rows)), move |_, ins, y| {
            let limits = ins[0].slice::<i64>()?;
            let added = ins.get(1).map(Array::slice::<i64>).transpose()?;
            for (i, to) in pairs_mut(y)?.iter_mut().enumerate() {
                let rest = at(limits, i).saturating_sub(added.map_or(0, |x| sign * at(x, i)));
                *to = relation.span(slope.saturating_mul(rest)).map(|key| key.saturating_sub(start));
            }
            Ok(())
        })?;
        Ok(Some(Spans { keys: line.keys, bounds, is_inverted: false }))
    }

    /// The keys in the spans of both masks.
    fn in_both(&mut self, [a, b]: [In; 2], out: Out) -> Prepared<Option<Spans>> {
        let (Some(Implied::Spans(a)), Some(Implied::Spans(b))) = (self.implied(a), self.implied(b)) else { return Ok(None) };
        let Some(rows) = self.rows_of(out.0) else { return Ok(None) };
        let count: usize = rows.iter().product();
        let are_alike = a.keys == b.keys && !a.is_inverted && !b.is_inverted;
        if !are_alike || [&a, &b].iter().any(|spans| ![2, 2 * count].contains(&spans.bounds.array.numel())) {
            return Ok(None);
        }
        let bounds = self.call(&[&a.bounds, &b.bounds], (DType::I64, &with_pair(&rows)), |_, ins, y| {
            let (a, b) = (pairs(&ins[0])?, pairs(&ins[1])?);
            for (i, to) in pairs_mut(y)?.iter_mut().enumerate() {
                let (a, b) = (at(a, i), at(b, i));
                *to = [a[0].max(b[0]), a[1].min(b[1])];
            }
            Ok(())
        })?;
        Ok(Some(Spans { keys: a.keys, bounds, is_inverted: false }))
    }

    fn inverted(&mut self, slot: In) -> Option<Spans> {
        let Some(Implied::Spans(spans)) = self.implied(slot) else { return None };
        Some(Spans { is_inverted: !spans.is_inverted, ..spans })
    }

    /// Sizes of a result without its last axis, if they are known.
    fn rows_of(&mut self, out: Tid) -> Option<Shape> {
        let spec = self.recorder()?.env.get(out)?;
        let (_, rows) = spec.dims.split_last()?;
        rows.iter().map(|d| d.as_int().and_then(|n| usize::try_from(n).ok())).collect()
    }
}

/// Whether a [`Line`] may hold integers of this type.
fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

fn is_one_or(x: &MemRef, count: usize) -> bool {
    x.array.numel() == 1 || x.array.numel() == count
}

/// Element `i`, or the only one.
fn at<T: Copy>(items: &[T], i: usize) -> T {
    items[i.min(items.len() - 1)]
}

fn with_pair(rows: &[usize]) -> Shape {
    rows.iter().copied().chain([2]).collect()
}

/// The bounds of spans.
pub(crate) fn pairs(x: &Array) -> Result<&[[i64; 2]]> {
    bytemuck::try_cast_slice(x.slice::<i64>()?).map_err(|_| OpError::value("bounds of spans are not pairs"))
}

fn pairs_mut(x: &mut Array) -> Result<&mut [[i64; 2]]> {
    bytemuck::try_cast_slice_mut(x.slice_mut::<i64>()?).map_err(|_| OpError::value("bounds of spans are not pairs"))
}
