//! Recognises masks of a window over a cache: one with rows in order of their positions, or a ring.

use flambeau_ir::{Index, Int, Node, Tid, Vid};

use super::{
    super::find::Scope,
    Ring, Window,
    reader::{variable, writer},
};

/// The bounds of a mask computed before node `at`, and the number of rows: a visible row `j`
/// satisfies `0 <= position - j < width`.
pub(super) fn in_order(scope: &Scope<'_>, mask: Tid, at: usize) -> Option<(Window, Vid)> {
    let (i, Node::LogicalAnd(both)) = writer(scope, mask, at)? else { return None };
    let (low_at, Node::GreaterEqual(low)) = writer(scope, both.a.0, i)? else { return None };
    let (high_at, Node::Less(high)) = writer(scope, both.b.0, i)? else { return None };
    let (apart, Node::Subtract(minus)) = writer(scope, low.a.0, low_at)? else { return None };
    let (same, _) = writer(scope, high.a.0, high_at)?;
    let (expanded, Node::ExpandDims(column)) = writer(scope, minus.a.0, apart)? else { return None };
    let (_, Node::ARange(range)) = writer(scope, minus.b.0, apart)? else { return None };
    let plain = column.axis == 1 && range.start == Int::Lit(0) && range.step == Int::Lit(1) && same == apart;
    let window = Window { bounds: [low.b.0, high.b.0], positions: positions(scope, column.x.0, expanded)? };
    (plain && window.is_constant(scope)).then_some((window, variable(range.stop)?))
}

/// The bounds of a mask over a ring computed before node `at`. The age of row `j` is `(newest - j)
/// mod length`. A visible row satisfies `0 <= age - (newest - position) < width` and `age <=
/// newest`.
pub(super) fn in_ring(scope: &Scope<'_>, mask: Tid, at: usize) -> Option<(Window, Ring)> {
    let (i, Node::LogicalAnd(both)) = writer(scope, mask, at)? else { return None };
    let (past_at, Node::LogicalAnd(past)) = writer(scope, both.a.0, i)? else { return None };
    let (high_at, Node::Less(high)) = writer(scope, both.b.0, i)? else { return None };
    let (low_at, Node::GreaterEqual(low)) = writer(scope, past.a.0, past_at)? else { return None };
    let (exists_at, Node::LessEqual(exists)) = writer(scope, past.b.0, past_at)? else { return None };
    let (apart, Node::Subtract(distance)) = writer(scope, low.a.0, low_at)? else { return None };
    let (same, _) = writer(scope, high.a.0, high_at)?;
    let (aged, Node::Remainder(age)) = writer(scope, distance.a.0, apart)? else { return None };
    let (same_age, _) = writer(scope, exists.a.0, exists_at)?;
    let (counted, Node::Subtract(back)) = writer(scope, age.a.0, aged)? else { return None };
    let (expanded, Node::ExpandDims(column)) = writer(scope, distance.b.0, apart)? else { return None };
    let (behind_at, Node::Subtract(behind)) = writer(scope, column.x.0, expanded)? else { return None };
    let newest = [(back.a.0, counted), (exists.b.0, exists_at), (behind.a.0, behind_at)];
    let [first, others @ ..] = newest.map(|(tid, at)| writer(scope, tid, at).map(|(i, _)| i));
    let same_newest = others.iter().all(|other| *other == first);
    let (taken, Node::Take(last)) = writer(scope, back.a.0, counted)? else { return None };
    let is_last = last.axis == 0 && last.index == Index::Lit(-1) && column.axis == 1;
    let sources = [positions(scope, last.x.0, taken)?, positions(scope, behind.b.0, behind_at)?];
    let window = Window { bounds: [low.b.0, high.b.0], positions: sources[0] };
    let ring = Ring { length: age.b.0, rows: back.b.0 };
    let constant = window.is_constant(scope) && [ring.length, ring.rows].iter().all(|&t| scope.is_constant(t));
    let plain = same == apart && same_age == aged && same_newest && is_last && sources[0] == sources[1];
    (plain && constant).then_some((window, ring))
}

/// The positions whose rows of a ring an index computed before node `at` names, and the ring's
/// length.
pub(super) fn ring_row(scope: &Scope<'_>, index: Tid, at: usize) -> Option<(Tid, Tid)> {
    let (i, Node::Remainder(row)) = writer(scope, index, at)? else { return None };
    scope.is_constant(row.b.0).then_some((positions(scope, row.a.0, i)?, row.b.0))
}

/// The input that a slot holds at a node, or holds the last element of.
fn positions(scope: &Scope<'_>, tid: Tid, at: usize) -> Option<Tid> {
    let Some((expanded, Node::ExpandDims(column))) = writer(scope, tid, at) else {
        return writer(scope, tid, at).is_none().then_some(tid);
    };
    let (taken, Node::Take(last)) = writer(scope, column.x.0, expanded)? else { return None };
    let is_last = column.axis == 0 && last.axis == 0 && last.index == Index::Lit(-1);
    (is_last && writer(scope, last.x.0, taken).is_none()).then_some(last.x.0)
}

impl Window {
    fn is_constant(&self, scope: &Scope<'_>) -> bool {
        self.bounds.iter().all(|&t| scope.is_constant(t))
    }
}
