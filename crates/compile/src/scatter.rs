//! Putting a written view back into what it is a view of.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, Lower, OutMeta, Refuse};
use flambeau_pt2::{Argument, Node};
use flambeau_tensor::Expr;

use crate::{inline::functional, trace::bare};

/// The parameters that a call gives, of those named.
fn all_given(
    given: &mut impl FnMut(&str) -> Result<Option<Arg>, Refuse>,
    params: &[&'static str],
) -> Result<Vec<(&'static str, Arg)>, Refuse> {
    let present = params.iter().map(|&param| Ok(given(param)?.map(|value| (param, value))));
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
    let target = functional(bare(&view.target));
    let name = target.strip_prefix("aten.").and_then(|t| t.split('.').next()).unwrap_or(target);
    let mut given = |param: &str| view.arg(param).map(&mut read).transpose();
    let dim = given("dim")?.unwrap_or(Arg::Int(Expr::Int(0)));
    let sizes = Arg::Ints(lower.spec(whole).dims.to_vec());
    let (target, extra) = match name {
        "alias" | "contiguous" | "detach" | "detach_" | "to" => return Ok(part),
        "slice" => {
            let bounds = all_given(&mut given, &["start", "end", "step"])?;
            ("aten.slice_scatter.default", [vec![("dim", dim)], bounds].concat())
        }
        "narrow" => {
            let (Some(Arg::Int(start)), Some(Arg::Int(length))) = (given("start")?, given("length")?) else {
                return Err(Refuse::Unsupported("a write through a view with unknown bounds".to_owned()));
            };
            let end = Arg::Int(start.clone() + length);
            ("aten.slice_scatter.default", vec![("dim", dim), ("start", Arg::Int(start)), ("end", end)])
        }
        "select" => {
            let index = given("index")?.unwrap_or(Arg::Int(Expr::Int(0)));
            ("aten.select_scatter.default", vec![("dim", dim), ("index", index)])
        }
        "diagonal" => ("aten.diagonal_scatter.default", all_given(&mut given, &["offset", "dim1", "dim2"])?),
        "split" | "chunk" | "split_with_sizes" => {
            let (start, end) = part_bounds(lower, &dim, &mut given, at, whole, part)?;
            ("aten.slice_scatter.default", vec![("dim", dim), ("start", Arg::Int(start)), ("end", Arg::Int(end))])
        }
        "unbind" => ("aten.select_scatter.default", vec![("dim", dim), ("index", Arg::Int(Expr::Int(at as i64)))]),
        "view" | "reshape" | "flatten" | "unflatten" | "unsqueeze" | "squeeze" | "view_as" => {
            return run(lower, "aten.view.default", vec![("self", Arg::Tensor(part)), ("size", sizes)], whole, id);
        }
        "transpose" | "t" | "swapaxes" | "swapdims" | "mT" | "numpy_T" => {
            let axes = all_given(&mut given, &["dim0", "dim1", "axis0", "axis1"])?;
            return run(lower, target, [vec![("self", Arg::Tensor(part))], axes].concat(), whole, id);
        }
        "permute" => {
            let Some(Arg::Ints(dims)) = given("dims")? else { return Err(Refuse::Missing("dims".to_owned())) };
            let dims = Arg::Ints(inverse(&dims)?);
            return run(lower, target, vec![("self", Arg::Tensor(part)), ("dims", dims)], whole, id);
        }
        other => return Err(Refuse::Unsupported(format!("a write through `{other}`"))),
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
