//! Element types of calls that write to an operand of another type.

use flambeau_lower::{Call, Operand, result_type};
use flambeau_tensor::DType;

use super::Trace;

/// Operators that promote their operands to one type and compute in it.
const PROMOTING: [&str; 36] = [
    "add",
    "addcdiv",
    "addcmul",
    "arctan2",
    "atan2",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "copysign",
    "div",
    "divide",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "gcd",
    "hypot",
    "lcm",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "mul",
    "multiply",
    "nextafter",
    "pow",
    "remainder",
    "sub",
    "subtract",
    "true_divide",
    "xlogy",
    "special_xlog1py",
];

/// Parameters whose types decide the common type.
const OPERANDS: [&str; 7] = ["self", "other", "exponent", "tensor1", "tensor2", "min", "max"];

impl Trace<'_> {
    /// The type in which PyTorch computes the functional form of a write, if it differs from the
    /// type of the written operand. PyTorch converts only the result.
    pub(super) fn computed_type(&self, call: &Call) -> Option<DType> {
        let schema = flambeau_aten::schema(&call.target)?;
        let [out] = &call.outputs[..] else { return None };
        if !PROMOTING.contains(&schema.name) {
            return None;
        }
        let operand = |name: &&str| call.arg(name).map(|arg| Operand::of(&self.lower, arg));
        let operands: Vec<Operand> = OPERANDS.iter().filter_map(operand).collect();
        let computed = result_type(&operands);
        let fits = computed != out.dtype && computed.class() == out.dtype.class() && computed.is_node_dtype();
        (fits && out.dtype.is_node_dtype()).then_some(computed)
    }
}
