//! Putting a written view back into what it is a view of.

use flambeau_aten::{Inverse, schema};
use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, Lower, OutMeta, Refuse};
use flambeau_pt2::{Argument, Node};
use flambeau_tensor::Expr;

use crate::functionalize::{bare, lowered_target};

/// The parameters that a call gives, of those named.
fn all_given(
    given: &mut impl FnMut(&str) -> Result<Option<Arg>, Refuse>,
    params: impl IntoIterator<Item = &'static str>,
) -> Result<Vec<(&'static str, Arg)>, Refuse> {
    let present = params.into_iter().map(|param| Ok(given(param)?.map(|value| (param, value))));
    present.filter_map(Result::transpose).collect()
}

/// `whole` with the part that `view` selects replaced by `part`; `at` counts the view's results.
pub(crate) fn into_parent(
    lower: &mut Lower,
    view: &Node,
    at: usize,
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
            // A window that starts before the end and reaches it has no end to count from the front.
            let reaches_end = start.as_int().zip(length.as_int()).is_some_and(|(start, length)| start < 0 && start + length == 0);
            let end = Arg::Int(if reaches_end { Expr::Int(i64::MAX) } else { start.clone() + length });
            ("aten.slice_scatter.default", vec![("dim", dim), ("start", Arg::Int(start)), ("end", end)])
        }
        Inverse::Select => {
            let index = given("index")?.unwrap_or(Arg::Int(Expr::Int(0)));
            ("aten.select_scatter.default", vec![("dim", dim), ("index", index)])
        }
        Inverse::Diagonal => ("aten.diagonal_scatter.default", all_given(&mut given, ["offset", "dim1", "dim2"])?),
        Inverse::Split => {
            let (start, end) = part_bounds(lower, &dim, &mut given, at, whole, part)?;
            ("aten.slice_scatter.default", vec![("dim", dim), ("start", Arg::Int(start)), ("end", Arg::Int(end))])
        }
        Inverse::Unbind => ("aten.select_scatter.default", vec![("dim", dim), ("index", Arg::Int(Expr::Int(at as i64)))]),
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
        Inverse::Unknown => return Err(unknown()),
    };
    let mut args = vec![("self", Arg::Tensor(whole)), ("src", Arg::Tensor(part))];
    args.extend(extra);
    run(lower, target, args, whole, id)
}

/// Where the `at`-th part of a split begins and ends.
fn part_bounds(
    lower: &Lower,
    dim: &Arg,
    given: &mut dyn FnMut(&str) -> Result<Option<Arg>, Refuse>,
    at: usize,
    whole: Tid,
    part: Tid,
) -> Result<(Expr, Expr), Refuse> {
    let unknown = || Refuse::Unsupported("a write through a part of unknown place".to_owned());
    let dims = &lower.spec(whole).dims;
    let axis = match dim {
        Arg::Int(e) => e.as_int().and_then(|d| flambeau_tensor::normalize_axis(d, dims.len())),
        _ => None,
    };
    let (size, own) = axis.and_then(|a| Some((dims.get(a)?, lower.spec(part).dims.get(a)?))).ok_or_else(unknown)?;
    let listed = given("split_sizes")?;
    let start = match (listed, given("split_size")?, given("chunks")?) {
        (Some(Arg::Ints(sizes)), ..) | (_, Some(Arg::Ints(sizes)), _) => {
            sizes.iter().take(at).cloned().fold(Expr::Int(0), |n, s| n + s)
        }
        (_, Some(Arg::Int(each)), _) => each * Expr::Int(at as i64),
        (.., Some(Arg::Int(chunks))) => {
            let (size, chunks) = (size.as_int().ok_or_else(unknown)?, chunks.as_int().filter(|&c| c > 0).ok_or_else(unknown)?);
            Expr::Int((size + chunks - 1) / chunks * at as i64)
        }
        _ => return Err(unknown()),
    };
    let end = start.clone() + own.clone();
    Ok((start, end))
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

/// Lowers a call whose result looks like `like`.
fn run(lower: &mut Lower, target: &str, args: Vec<(&str, Arg)>, like: Tid, id: u32) -> Result<Tid, Refuse> {
    let spec = lower.spec(like).clone();
    let args = args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
    let outputs = vec![OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: true }];
    match lower.call(&Call { target: target.to_owned(), args, outputs }, id)?.first() {
        Some(Item::Tensor(t)) => Ok(*t),
        _ => Err(Refuse::Unsupported("a write back has no result".to_owned())),
    }
}
