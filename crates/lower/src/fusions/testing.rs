//! Test support: builds small programs from calls and lists the nodes left after fusion.

use flambeau_ir::{Slot, Spec, Tid};
use flambeau_tensor::{DType, Expr, Shape, Symbol};

use crate::{Arg, Call, ConstExpr, Constant, Item, Lower, Origin, OutMeta, Range, SsaGraph, fuse};

pub(crate) struct Program {
    pub(crate) lower: Lower,
    results: Vec<Slot>,
    n_inputs: u32,
}

/// Sizes of a test value; 0 means the symbol `s`.
fn dims(shape: &[i64]) -> Vec<Expr> {
    let size = |&d: &i64| if d == 0 { Expr::symbol(Symbol::new("s")) } else { Expr::Int(d) };
    shape.iter().map(size).collect()
}

impl Program {
    pub(crate) fn new() -> Program {
        let mut lower = Lower::new();
        lower.set_range(Symbol::new("s"), Range { min: Some(1), max: Some(64) });
        Program { lower, results: Vec::new(), n_inputs: 0 }
    }

    pub(crate) fn input(&mut self, _name: &str, dtype: DType, shape: &[i64]) -> Tid {
        self.n_inputs += 1;
        self.lower.slot(Spec { dtype, dims: dims(shape).into() }, Origin::Input(self.n_inputs - 1))
    }

    pub(crate) fn weight(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Tid {
        let expr = ConstExpr::Stored(0);
        self.lower.constant(Constant { name: name.into(), dtype, shape: Shape::from_slice(shape), expr })
    }

    pub(crate) fn call(&mut self, target: &str, tensors: &[(&str, Tid)], dtype: DType, shape: &[i64]) -> Tid {
        let args = tensors.iter().map(|(n, t)| ((*n).to_owned(), Arg::Tensor(*t))).collect();
        self.call_args(target, args, dtype, shape)
    }

    pub(crate) fn call_with_float(&mut self, target: &str, x: Tid, arg: (&str, f64), dtype: DType, shape: &[i64]) -> Tid {
        let args = vec![("self".to_owned(), Arg::Tensor(x)), (arg.0.to_owned(), Arg::Float(arg.1))];
        self.call_args(target, args, dtype, shape)
    }

    pub(crate) fn call_reduce(&mut self, target: &str, x: Tid, axis: i64, dtype: DType, shape: &[i64]) -> Tid {
        let args = vec![
            ("self".to_owned(), Arg::Tensor(x)),
            ("dim".to_owned(), Arg::Ints(vec![Expr::Int(axis)])),
            ("keepdim".to_owned(), Arg::Bool(true)),
        ];
        self.call_args(target, args, dtype, shape)
    }

    pub(crate) fn call_args(&mut self, target: &str, args: Vec<(String, Arg)>, dtype: DType, shape: &[i64]) -> Tid {
        let target = if target.matches('.').count() == 1 { format!("{target}.default") } else { target.to_owned() };
        let target = target.replace("to.dtype.default", "to.dtype");
        let call = Call { target, args, outputs: vec![OutMeta { dtype, dims: dims(shape), used: true }] };
        match &self.lower.call(&call, 0).unwrap()[..] {
            [Item::Tensor(t)] => *t,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn result(&mut self, t: Tid) {
        self.results.push(Slot::Tensor(t));
    }

    pub(crate) fn fused_graph(self) -> SsaGraph {
        let mut ssa = self.lower.into_graph();
        ssa.results = self.results;
        fuse(&mut ssa);
        ssa
    }

    pub(crate) fn fused(self) -> Vec<&'static str> {
        self.fused_graph().chains[0].iter().map(|n| n.node.name()).collect()
    }
}
