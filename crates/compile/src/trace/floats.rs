//! Arithmetic on floats that the program reads from tensors. In the graph, these floats are tensors
//! of rank 0.

use flambeau_lower::{Arg, Call, OutMeta, Refuse};
use flambeau_pt2::Node;
use flambeau_tensor::DType;

use super::{Binding, Trace, calls::tensor_arg};
use crate::functionalize::bare;

/// The operator on tensors for an operator of Python on numbers.
fn on_tensors(target: &str) -> Option<&'static str> {
    Some(match target {
        "_operator.add" => "aten.add.Tensor",
        "_operator.sub" => "aten.sub.Tensor",
        "_operator.mul" => "aten.mul.Tensor",
        "_operator.truediv" => "aten.div.Tensor",
        "_operator.pow" => "aten.pow.Tensor_Tensor",
        "_operator.neg" => "aten.neg.default",
        "_operator.pos" | "torch.sym_float" => "aten.clone.default",
        "torch.sym_max" => "aten.maximum.default",
        "torch.sym_min" => "aten.minimum.default",
        "torch._sym_sqrt" | "torch.sym_sqrt" | "math.sqrt" => "aten.sqrt.default",
        _ => return None,
    })
}

impl<'a> Trace<'a> {
    /// Lowers arithmetic with at least one float that a call has read from a tensor. Returns
    /// whether it is such a call.
    pub(super) fn float_arithmetic(&mut self, node: &'a Node) -> bool {
        let Some(target) = on_tensors(bare(&node.target)) else { return false };
        let read = |name: &&str| matches!(self.names.resolve(&self.names.key(name)), Some(Binding::Tensor(_)));
        if !node.inputs.iter().flat_map(|input| input.arg.names()).any(|name| read(&name)) {
            return false;
        }
        match self.float_result(node, target) {
            Ok(Arg::Tensor(t)) => {
                let value = Binding::Tensor(self.memory.new_base(t));
                node.output_names().into_iter().for_each(|name| self.names.bind(name, value.clone()));
                self.report(node, crate::Outcome::Absorbed);
            }
            Ok(_) => self.refuse(node, "it computes no number".to_owned()),
            Err(reason) => self.fail(node, &reason),
        }
        true
    }

    fn float_result(&mut self, node: &Node, target: &str) -> Result<Arg, Refuse> {
        let names = if target == "aten.pow.Tensor_Tensor" { ["self", "exponent"] } else { ["self", "other"] };
        let mut args = Vec::new();
        for (name, input) in names.into_iter().zip(&node.inputs) {
            let arg = match self.arg(&input.arg)? {
                Arg::Int(size) => Arg::Tensor(self.lower.size_tensor(&size)?),
                Arg::Float(value) => Arg::Tensor(self.lower.real_tensor(&flambeau_tensor::Real::number(value))?),
                other => other,
            };
            args.push((name.to_owned(), arg));
        }
        let outputs = vec![OutMeta { dtype: DType::F32, dims: Vec::new(), used: true }];
        tensor_arg(&self.lower.call(&Call { target: target.to_owned(), args, outputs }, self.calls.len() as u32)?)
    }
}
