//! Regions of autocast. The program records the types of results there, but not that PyTorch
//! converts the operands.

use flambeau_lower::{Call, Refuse};
use flambeau_tensor::DType;

use super::Trace;

/// Operators that compute in the region's type even if their first operand has it already.
const PRODUCTS: [&str; 14] = [
    "addbmm",
    "addmm",
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
    "matmul",
    "mm",
    "scaled_dot_product_attention",
];

impl Trace<'_> {
    /// Converts the operands of a call in a region of autocast to the type in which the call
    /// computes. Results in the region's type come from operands of that type, and results in f32
    /// from operands in f32.
    pub(super) fn autocast(&mut self, call: &mut Call) -> Result<(), Refuse> {
        let Some(low) = self.autocast else { return Ok(()) };
        let mut floats = call.outputs.iter().filter(|out| out.used).map(|out| out.dtype).filter(|d| d.is_float());
        let Some(computed) = floats.next().filter(|first| floats.all(|d| d == *first)) else { return Ok(()) };
        let first = call.reads().map(|t| self.lower.spec(t).dtype).find(|d| d.is_float());
        let name = flambeau_aten::schema(&call.target).map_or("", |schema| schema.name);
        let from = match computed {
            DType::F32 => low,
            _ if computed == low && (first == Some(DType::F32) || PRODUCTS.contains(&name)) => DType::F32,
            _ => return Ok(()),
        };
        let id = self.calls.len() as u32;
        for t in call.reads_mut() {
            if self.lower.spec(*t).dtype == from {
                *t = self.converted(*t, computed, id)?;
            }
        }
        Ok(())
    }
}
