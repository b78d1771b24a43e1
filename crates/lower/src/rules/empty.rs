//! Results without elements, for calls that a rule refuses because of them.

use flambeau_aten::{Schema, Type};

use super::ops;
use crate::{Call, Item, Lower, OutMeta, Refuse, call::unsupported};

impl Lower {
    /// Tensors of the recorded types, if none of them has an element.
    ///
    /// # Errors
    /// Fails if a result has elements, or is no tensor.
    pub(crate) fn empty_results(&mut self, call: &Call, schema: &Schema) -> Result<Vec<Item>, Refuse> {
        let is_empty = |out: &OutMeta| out.dims.iter().any(|d| d.as_int() == Some(0));
        if call.outputs.is_empty() || !call.outputs.iter().all(is_empty) {
            return unsupported("a result with elements");
        }
        let mut made = Vec::with_capacity(call.outputs.len());
        for out in &call.outputs {
            made.push(ops::full(self, 0.0, &out.dims, out.dtype)?);
        }
        match &schema.returns[..] {
            [only] if matches!(only.ty, Type::List(..)) => Ok(vec![Item::Tensors(made)]),
            all if all.len() == made.len() && all.iter().all(|r| r.ty == Type::Tensor) => {
                Ok(made.into_iter().map(Item::Tensor).collect())
            }
            _ => unsupported("a result that is no tensor"),
        }
    }
}
