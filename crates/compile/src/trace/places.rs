//! Places of a view's elements in an ancestor tensor, computed from strides.
//!
//! Most views have an inverse, which [`scatter`](crate::scatter) calls. Windows and user-given
//! strides have none, because they may show an element several times. Their places become a
//! constant index.

use std::{collections::HashMap, rc::Rc};

use flambeau_aten::{Inverse, schema};
use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, ConstExpr, Constant, Item, Lower, OutMeta, Refuse};
use flambeau_pt2::{Graph, Node, TensorMeta};
use flambeau_tensor::{DType, Expr, Shape, Tensor};

use super::{Trace, alias::ViewOf};
use crate::functionalize::{bare, lowered_target};

/// Largest number of writes to one element by one call.
const MAX_ROUNDS: u32 = 64;

/// The places of a view's elements in an ancestor tensor.
#[derive(Debug)]
pub(super) struct Places {
    /// Key of the ancestor.
    pub(super) parent: String,
    /// Number of elements of the ancestor.
    elements: usize,
    /// By element of the view, in order, its number in the ancestor.
    index: Vec<usize>,
    /// By element of the view, the number of earlier elements at the same place.
    round: Vec<u32>,
}

impl Places {
    /// Largest number of writes that one element receives.
    pub(super) fn rounds(&self) -> u32 {
        self.round.iter().max().map_or(1, |&last| last + 1)
    }
}

/// Places in memory of all elements, in order; `None` if a size or a stride is unknown.
fn memory(meta: &TensorMeta) -> Option<Vec<i64>> {
    let mut places = vec![meta.storage_offset.as_int()?];
    for (size, stride) in meta.sizes.iter().zip(&meta.strides) {
        let (size, stride) = (size.as_int()?, stride.as_int()?);
        places = places.iter().flat_map(|place| (0..size).map(move |i| place + i * stride)).collect();
    }
    Some(places)
}

/// By element of `part`, its number among the elements of `whole`. `None` if an element is missing
/// there or sizes are unknown.
fn numbers(whole: &TensorMeta, part: &TensorMeta) -> Option<Vec<usize>> {
    let of_place: HashMap<i64, usize> = memory(whole)?.into_iter().enumerate().map(|(i, place)| (place, i)).collect();
    memory(part)?.iter().map(|place| of_place.get(place).copied()).collect()
}

fn operand_meta<'g>(graph: &'g Graph, node: &Node) -> Option<&'g TensorMeta> {
    graph.tensors.get(node.inputs.first()?.arg.as_tensor()?)
}

fn result_meta<'g>(graph: &'g Graph, node: &Node, at: usize) -> Option<&'g TensorMeta> {
    graph.tensors.get(*node.output_names().get(at)?)
}

fn has_inverse(node: &Node) -> bool {
    let inverse = schema(&lowered_target(bare(&node.target))).and_then(|s| s.inverse());
    inverse.is_some_and(|i| i != Inverse::Places)
}

impl<'a> Trace<'a> {
    /// The chain of views from a value to its base, nearest first.
    fn views_above(&self, view: &Rc<ViewOf<'a>>) -> Result<Vec<Rc<ViewOf<'a>>>, Refuse> {
        let mut all = vec![view.clone()];
        let mut at = view.clone();
        while let Some(next) = self.tensor(&at.parent)?.1.view {
            all.push(next.clone());
            at = next;
        }
        Ok(all)
    }

    /// The places of a value in the nearest ancestor above all views without an inverse. `None` if
    /// every view has an inverse.
    pub(super) fn places(&self, key: &str) -> Result<Option<Places>, Refuse> {
        let Some(view) = self.tensor(key)?.1.view else { return Ok(None) };
        let above = self.views_above(&view)?;
        let Some(top) = above.iter().rev().find(|v| !has_inverse(v.node)) else { return Ok(None) };
        let target = bare(&top.node.target);
        let whole = operand_meta(top.graph, top.node);
        let index = whole.zip(result_meta(view.graph, view.node, view.at)).and_then(|(whole, part)| numbers(whole, part));
        let Some((whole, index)) = whole.zip(index) else {
            return Err(Refuse::Unsupported(format!("a write through `{target}` whose sizes are not known at compile time")));
        };
        let mut times: HashMap<usize, u32> = HashMap::new();
        let mut next_round = |i: &usize| {
            let next = times.entry(*i).or_insert(0);
            *next += 1;
            *next - 1
        };
        let round = index.iter().map(&mut next_round).collect();
        let elements = whole.sizes.iter().filter_map(Expr::as_int).product::<i64>() as usize;
        let places = Places { parent: top.parent.clone(), elements, index, round };
        if places.rounds() > MAX_ROUNDS {
            return Err(Refuse::Unsupported(format!(
                "a write through `{target}` that reaches one element {} times",
                places.rounds()
            )));
        }
        Ok(Some(places))
    }

    /// Returns `whole` with the elements of one round taken from `part`.
    pub(super) fn put(&mut self, places: &Places, round: u32, whole: Tid, part: Tid) -> Result<Tid, Refuse> {
        let id = self.calls.len() as u32;
        let (lower, n) = (&mut self.lower, places.elements);
        let dims = lower.spec(whole).dims.to_vec();
        let [old, new] = [flat(lower, whole, n, id)?, flat(lower, part, places.index.len(), id)?];
        let both = vec![("tensors", Arg::Tensors(vec![Some(old), Some(new)]))];
        let both = run(lower, "aten.cat.default", both, whole, &[n + places.index.len()], id)?;
        let mut from: Vec<usize> = (0..n).collect();
        for (i, &place) in places.index.iter().enumerate().filter(|(i, _)| places.round[*i] == round) {
            from[place] = n + i;
        }
        let taken = take(lower, both, &from, id)?;
        shaped(lower, taken, dims, id)
    }

    /// Lowers a view by user-given strides to a gather from an ancestor tensor. Returns `None` if
    /// the call is not such a view, or if strides are unknown.
    pub(super) fn strided_view(&mut self, graph: &Graph, node: &Node) -> Option<Result<Vec<Item>, Refuse>> {
        if lowered_target(bare(&node.target)) != "aten.as_strided.default" {
            return None;
        }
        let part = result_meta(graph, node, 0)?;
        let name = node.inputs.first()?.arg.as_tensor()?;
        let mut whole = (self.names.key(name), operand_meta(graph, node)?.clone());
        let index = loop {
            if let Some(index) = numbers(&whole.1, part) {
                break index;
            }
            let above = self.tensor(&whole.0).ok()?.1.view?;
            whole = (above.parent.clone(), operand_meta(above.graph, above.node)?.clone());
        };
        let id = self.calls.len() as u32;
        let dims = part.sizes.clone();
        Some(self.current(&whole.0).and_then(|x| {
            let elements = whole.1.sizes.iter().filter_map(Expr::as_int).product::<i64>() as usize;
            let flat = flat(&mut self.lower, x, elements, id)?;
            let taken = take(&mut self.lower, flat, &index, id)?;
            Ok(vec![Item::Tensor(shaped(&mut self.lower, taken, dims, id)?)])
        }))
    }
}

fn flat(lower: &mut Lower, x: Tid, elements: usize, id: u32) -> Result<Tid, Refuse> {
    shaped(lower, x, vec![Expr::Int(elements as i64)], id)
}

fn shaped(lower: &mut Lower, x: Tid, dims: Vec<Expr>, id: u32) -> Result<Tid, Refuse> {
    let args = vec![("self", Arg::Tensor(x)), ("size", Arg::Ints(dims.clone()))];
    let sizes: Option<Vec<usize>> = dims.iter().map(|d| d.as_int().map(|d| d as usize)).collect();
    let sizes = sizes.ok_or_else(|| Refuse::Unsupported("a view whose sizes are not known at compile time".to_owned()))?;
    run(lower, "aten.view.default", args, x, &sizes, id)
}

/// Gathers elements of a vector by number.
fn take(lower: &mut Lower, x: Tid, from: &[usize], id: u32) -> Result<Tid, Refuse> {
    let numbers: Vec<i32> = from.iter().map(|&i| i as i32).collect();
    let tensor = Tensor::from_slice(&numbers, &[from.len()]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
    let expr = ConstExpr::Literal(tensor.bytes().clone());
    let shape = Shape::from_slice(&[from.len()]);
    let index = lower.constant(Constant { name: "_places".to_owned(), dtype: DType::I32, shape, expr });
    let args = vec![("self", Arg::Tensor(x)), ("dim", Arg::Int(Expr::Int(0))), ("index", Arg::Tensor(index))];
    run(lower, "aten.index_select.default", args, x, &[from.len()], id)
}

/// Lowers a call whose result has the type of `like`.
fn run(lower: &mut Lower, target: &str, args: Vec<(&str, Arg)>, like: Tid, sizes: &[usize], id: u32) -> Result<Tid, Refuse> {
    let args = args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
    let dims = sizes.iter().map(|&d| Expr::Int(d as i64)).collect();
    let outputs = vec![OutMeta { dtype: lower.spec(like).dtype, dims, used: true }];
    match lower.call(&Call { target: target.to_owned(), args, outputs }, id)?.first() {
        Some(Item::Tensor(t)) => Ok(*t),
        _ => Err(Refuse::Unsupported(format!("`{target}` has no result"))),
    }
}
