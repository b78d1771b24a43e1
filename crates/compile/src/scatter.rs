//! Writes the new contents of a view into its parent.

use flambeau_aten::{Inverse, schema};
use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, Lower, OutMeta, Refuse};
use flambeau_pt2::{Argument, Node};
use flambeau_tensor::Expr;

use crate::functionalize::{bare, lowered_target};

/// The named parameters that a call provides.
fn all_given(
    given: &mut impl FnMut(&str) -> Result<Option<Arg>, Refuse>,
    params: impl IntoIterator<Item = &'static str>,
) -> Result<Vec<(&'static str, Arg)>, Refuse> {
    let present = params.into_iter().map(|param| Ok(given(param)?.map(|value| (param, value))));
    present.filter_map(Result::transpose).collect()
}

/// One result of a call that makes views.
pub(crate) struct Parts<'m> {
    /// Index of the result.
    pub(crate) at: usize,
    /// Types and sizes of all results.
    pub(crate) metas: &'m [OutMeta],
}

/// Returns `whole` with the region that `parts` selects replaced by `part`.
pub(crate) fn into_parent(
    lower: &mut Lower,
    view: &Node,
    parts: &Parts<'_>,
    whole: Tid,
    part: Tid,
    id: u32,
    mut read: impl FnMut(&Argument) -> Result<Arg, Refuse>,
) -> Result<Tid, Refuse> {
    let target = lowered_target(bare(&view.target));
    let unknown = || Refuse::Unsupported(format!("a write through `{target}`"));
    let schema = schema(&target).ok_or_else(unknown)?;
    let mut given = |param: &str| view.arg(param).map(&mut read).transpose();
    let dim = given("dim")?.unwrap_or(Arg::Int(Expr::Int(0)));
    let sizes = Arg::Ints(lower.spec(whole).dims.to_vec());
    let (target, extra) = match schema.inverse().ok_or_else(unknown)? {
        Inverse::Identity => return Ok(part),
        Inverse::Slice => {
            let bounds = all_given(&mut given, ["start", "end", "step"])?;
            ("aten.slice_scatter.default", [vec![("dim", dim)], bounds].concat())
        }
        Inverse::Narrow => {
            let (Some(Arg::Int(start)), Some(Arg::Int(length))) = (given("start")?, given("length")?) else {
                return Err(Refuse::Unsupported("a write through a view with unknown bounds".to_owned()));
            };
            let axis = split_axis(schema.name, &dim, lower.spec(whole).rank()).ok_or_else(unknown)?;
            let from_end = start.as_int().is_some_and(|s| s < 0);
            let start = if from_end { start + lower.spec(whole).dims[axis].clone() } else { start };
            let end = Arg::Int(start.clone() + length);
            ("aten.slice_scatter.default", vec![("dim", dim), ("start", Arg::Int(start)), ("end", end)])
        }
        Inverse::Select => {
            let index = given("index")?.unwrap_or(Arg::Int(Expr::Int(0)));
            ("aten.select_scatter.default", vec![("dim", dim), ("index", index)])
        }
        Inverse::Diagonal => ("aten.diagonal_scatter.default", all_given(&mut given, ["offset", "dim1", "dim2"])?),
        Inverse::Split => {
            let axis = split_axis(schema.name, &dim, lower.spec(whole).rank()).ok_or_else(unknown)?;
            let (start, end) = parts.bounds(axis).ok_or_else(unknown)?;
            let dim = Arg::Int(Expr::Int(axis as i64));
            ("aten.slice_scatter.default", vec![("dim", dim), ("start", Arg::Int(start)), ("end", Arg::Int(end))])
        }
        Inverse::Unbind => ("aten.select_scatter.default", vec![("dim", dim), ("index", Arg::Int(Expr::Int(parts.at as i64)))]),
        Inverse::Reshape if lower.spec(whole).dtype != lower.spec(part).dtype => {
            return Err(Refuse::Unsupported("a write through a view of another element type".to_owned()));
        }
        Inverse::Reshape => {
            return run(lower, "aten.view.default", vec![("self", Arg::Tensor(part)), ("size", sizes)], whole, id);
        }
        Inverse::Involution => {
            let axes = all_given(&mut given, schema.params.iter().skip(1).map(|param| param.name))?;
            return run(lower, &target, [vec![("self", Arg::Tensor(part))], axes].concat(), whole, id);
        }
        Inverse::Permutation => {
            let Some(Arg::Ints(dims)) = given("dims")? else { return Err(Refuse::Missing("dims".to_owned())) };
            let dims = Arg::Ints(inverse(&dims)?);
            return run(lower, &target, vec![("self", Arg::Tensor(part)), ("dims", dims)], whole, id);
        }
        Inverse::Move => {
            let (Some(source), Some(destination)) = (given("source")?, given("destination")?) else { return Err(unknown()) };
            let args = vec![("self", Arg::Tensor(part)), ("source", destination), ("destination", source)];
            return run(lower, &target, args, whole, id);
        }
        Inverse::Places => return Err(unknown()),
    };
    let mut args = vec![("self", Arg::Tensor(whole)), ("src", Arg::Tensor(part))];
    args.extend(extra);
    run(lower, target, args, whole, id)
}

/// The axis that an operator splits.
fn split_axis(name: &str, dim: &Arg, rank: usize) -> Option<usize> {
    match name {
        "vsplit" => Some(0),
        "hsplit" => Some(usize::from(rank > 1)),
        "dsplit" => Some(2),
        _ => match dim {
            Arg::Int(e) => e.as_int().and_then(|d| flambeau_tensor::normalize_axis(d, rank)),
            _ => None,
        },
    }
}

impl Parts<'_> {
    /// Start and end of the part on an axis. The parts follow each other without gaps.
    fn bounds(&self, axis: usize) -> Option<(Expr, Expr)> {
        let size = |meta: &OutMeta| meta.dims.get(axis).cloned();
        let before = self.metas.get(..self.at)?.iter().map(size).collect::<Option<Vec<Expr>>>()?;
        let start = before.into_iter().fold(Expr::Int(0), |n, s| n + s);
        let end = start.clone() + size(self.metas.get(self.at)?)?;
        Some((start, end))
    }
}

/// The permutation that undoes `dims`.
fn inverse(dims: &[Expr]) -> Result<Vec<Expr>, Refuse> {
    let rank = dims.len();
    let mut out = vec![Expr::Int(0); rank];
    for (i, dim) in dims.iter().enumerate() {
        let axis = dim.as_int().and_then(|d| flambeau_tensor::normalize_axis(d, rank));
        let axis = axis.ok_or_else(|| Refuse::Unsupported("a permutation with unknown axes".to_owned()))?;
        out[axis] = Expr::Int(i as i64);
    }
    Ok(out)
}

/// Lowers a call whose result has the type and shape of `like`.
fn run(lower: &mut Lower, target: &str, args: Vec<(&str, Arg)>, like: Tid, id: u32) -> Result<Tid, Refuse> {
    let spec = lower.spec(like).clone();
    let args = args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
    let outputs = vec![OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: true }];
    match lower.call(&Call { target: target.to_owned(), args, outputs }, id)?.first() {
        Some(Item::Tensor(t)) => Ok(*t),
        _ => Err(Refuse::Unsupported("a write back has no result".to_owned())),
    }
}
