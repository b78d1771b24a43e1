//! Calls whose positions of equal elements nodes cannot give as PyTorch does.

use flambeau_lower::{Call, Item, Refuse};
use flambeau_pt2::{Graph, Node};
use flambeau_tensor::DType;

use super::Trace;
use crate::Ties;

/// PyTorch sorts axes of this size or less stably.
const STABLE_UP_TO: i64 = 16;

impl Trace<'_> {
    /// Leaves a call to a kernel of the host if the program uses positions among equal elements, or
    /// the order of an unsorted `topk`. Returns `None` for other calls, where kernels cannot
    /// run, and if any positions will do.
    ///
    /// Whole delegates matter more than positions in f32 and positions that only other calls read.
    /// Routers of experts call `topk` in every layer, and `sort` has no kernel in ExecuTorch.
    pub(super) fn ranked(&mut self, graph: &Graph, node: &Node, call: &Call, id: u32) -> Option<Vec<Item>> {
        if self.fallback.ties == Ties::Any {
            return None;
        }
        let has_positions = call.outputs.last()?.used;
        let x = self.lower.spec(call.tensor("self").ok()?);
        let dim = call.int("dim").unwrap_or(-1);
        let axis = flambeau_tensor::normalize_axis(dim, x.rank())?;
        let is_longer = |size: i64| x.dims[axis].as_int().is_none_or(|n| n > size);
        let is_returned = |name: &&str| graph.outputs.iter().any(|out| out.names().contains(name));
        // Wider floats are seldom equal.
        let repeats = !matches!(x.dtype, DType::F32 | DType::F64);
        let returns_repeated = || repeats && node.output_names().last().is_some_and(is_returned);
        let prefers_kernel = match &call.target[..] {
            "aten.topk.default" => {
                let is_unsorted = call.bool_or("sorted", true) == Ok(false);
                let uses_positions = has_positions && (!x.dtype.is_float() || returns_repeated());
                is_longer(1) && (uses_positions || is_unsorted && node.output_names().iter().any(is_returned))
            }
            "aten.kthvalue.default" => has_positions && is_longer(2),
            "aten.mode.default" => has_positions && (x.dtype.is_float() || is_longer(STABLE_UP_TO)),
            "aten.sort.default" | "aten.argsort.default" => is_longer(STABLE_UP_TO) && returns_repeated(),
            _ => false,
        };
        if !prefers_kernel {
            return None;
        }
        let (n_inputs, reason) = (self.interface.inputs.len(), Refuse::Missing("kernel".to_owned()));
        self.fallback.call(&mut self.lower, call, id, n_inputs, reason).ok()
    }
}
