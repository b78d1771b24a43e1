//! Builds a graph from one operator call.

use std::{collections::HashMap, sync::Arc};

use flambeau_aten::Type;
use flambeau_ir::{Checked, Graph, IdCopy, In, MetaDim, Node, Out, Slot, SlotCounts, SlotRef, Spec, TensorMeta, Tid, check};
use flambeau_lower::{Arg, Call, ConstExpr, Item, Lower, Origin, OutMeta, SsaGraph};
use flambeau_tensor::{Bytes, DType, Expr, Symbol};
use flambeau_wire::pte::{EValue, ExecutionPlan};

use super::{Lowering, Signature, stand_in_for};
use crate::OperatorError;

/// Builds the checked graph of a call, and the bytes of its constants by name.
pub(super) fn build(
    plan: &ExecutionPlan,
    lowering: Lowering,
    signature: &Signature,
    results: &[u32],
) -> Result<(Arc<Checked>, HashMap<String, Bytes>), OperatorError> {
    let mut lower = Lower::new();
    for (i, (dtype, shape)) in signature.tensors.iter().enumerate() {
        lower.slot(Spec::fixed(*dtype, shape), Origin::Input(i as u32));
    }
    let items = lower.call(&call(plan, lowering, signature, results), 0)?;
    let mut tensors = Vec::new();
    for item in items {
        match item {
            Item::Tensor(t) => tensors.push(t),
            Item::Tensors(list) => tensors.extend(list),
            other => return Err(OperatorError::ResultKind(format!("{other:?}"))),
        }
    }
    if tensors.len() != results.len() {
        return Err(OperatorError::ResultCount { found: tensors.len(), expected: results.len() });
    }
    let (graph, literals) = assemble(lower.into_graph(), &tensors, signature.tensors.len())?;
    Ok((Arc::new(check(graph)?), literals))
}

fn call(plan: &ExecutionPlan, lowering: Lowering, signature: &Signature, results: &[u32]) -> Call {
    let named = lowering.schema.operands().zip(&signature.args);
    let args = named.map(|(param, arg)| (param.name.to_owned(), typed(&param.ty, arg)));
    let stored = |meta: OutMeta| match stand_in_for(meta.dtype).filter(|_| signature.stands_in) {
        Some(dtype) => OutMeta { dtype, ..meta },
        None => meta,
    };
    let outputs = results.iter().map(|&at| stored(out_meta(plan, at))).collect();
    Call { target: lowering.row.target.to_owned(), args: args.collect(), outputs }
}

/// Converts numbers to element types, which plans store as numbers.
fn typed(ty: &Type, arg: &Arg) -> Arg {
    match arg {
        Arg::Int(Expr::Int(code)) if *ty.required() == Type::ScalarType => {
            i8::try_from(*code).ok().and_then(DType::from_code).map_or(Arg::Opaque("dtype"), Arg::DType)
        }
        other => other.clone(),
    }
}

/// Type and sizes that a plan declares for a result. Variable sizes become symbols that match any
/// size.
fn out_meta(plan: &ExecutionPlan, at: u32) -> OutMeta {
    let Some(EValue::Tensor(t)) = plan.values.get(at as usize) else {
        return OutMeta { dtype: DType::F32, dims: Vec::new(), used: false };
    };
    let dim = |(i, &size): (usize, &u32)| {
        if t.dynamic { Expr::symbol(Symbol::new(&format!("r{at}_{i}"))) } else { Expr::Int(size.into()) }
    };
    OutMeta { dtype: t.dtype, dims: t.sizes.iter().enumerate().map(dim).collect(), used: true }
}

fn meta(spec: &Spec) -> TensorMeta {
    let dim = |d: &Expr| match d.as_int().and_then(|v| u32::try_from(v).ok()) {
        Some(n) => MetaDim::Static(n),
        None => MetaDim::Dynamic { min: 0, max: None },
    };
    TensorMeta::row_major(spec.dtype, spec.dims.iter().map(dim).collect())
}

/// Numbers the slots of an SSA graph: constants, inputs, outputs, temporaries. The first `inputs`
/// slots of the SSA graph are its inputs.
fn assemble(ssa: SsaGraph, results: &[Tid], inputs: usize) -> Result<(Graph, HashMap<String, Bytes>), OperatorError> {
    let is_constant = |t: &usize| matches!(ssa.tensors[*t].origin, Origin::Constant(_));
    let constants: Vec<usize> = (0..ssa.tensors.len()).filter(is_constant).collect();
    let slots = SlotCounts {
        constants: constants.len() as u32,
        inputs: inputs as u32,
        outputs: results.len() as u32,
        buffers: 0,
        temps: (ssa.tensors.len() - constants.len() - inputs) as u32,
    };
    let mut graph = Graph { slots, values: ssa.values.len() as u32, ..Graph::default() };
    let mut literals = HashMap::new();
    let mut number = vec![Tid(0); ssa.tensors.len()];
    for (i, &t) in constants.iter().enumerate() {
        let Origin::Constant(constant) = &ssa.tensors[t].origin else { continue };
        let ConstExpr::Literal(bytes) = &constant.expr else {
            return Err(OperatorError::Constant(constant.name.clone()));
        };
        let key = format!("{i}/{}", constant.name);
        number[t] = Tid(i as u32);
        graph.names.push((key.clone(), Slot::Tensor(number[t])));
        literals.insert(key, bytes.clone());
        graph.meta.push(meta(&ssa.tensors[t].spec));
    }
    let (first_input, first_output) = (slots.constants, slots.constants + slots.inputs);
    for ((number, info), tid) in number.iter_mut().zip(&ssa.tensors).take(inputs).zip((first_input..).map(Tid)) {
        *number = tid;
        graph.inputs.push(Slot::Tensor(tid));
        graph.meta.push(meta(&info.spec));
    }
    let temps = (first_output + slots.outputs..).map(Tid);
    for (t, tid) in (inputs..ssa.tensors.len()).filter(|t| !is_constant(t)).zip(temps) {
        number[t] = tid;
    }
    graph.chains = ssa.chains.iter().map(|chain| chain.iter().map(|n| renumbered(&n.node, &number)).collect()).collect();
    for (i, &result) in results.iter().enumerate() {
        let (out, from) = (Tid(first_output + i as u32), result.0 as usize);
        let x = number[from];
        graph.outputs.push(Slot::Tensor(out));
        graph.meta.push(meta(&ssa.tensors[from].spec));
        if let Some(main) = graph.chains.first_mut() {
            main.push(IdCopy { x: In(x), out: Out(out) }.into());
        }
    }
    Ok((graph, literals))
}

fn renumbered(node: &Node, number: &[Tid]) -> Node {
    let mut node = node.clone();
    node.walk_mut(&mut |_, slot| {
        if let SlotRef::Tensor(t) = slot
            && let Some(new) = number.get(t.0 as usize)
        {
            *t = *new;
        }
    });
    node
}
