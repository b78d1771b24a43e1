//! The gated delta rule on CUDA: one launch for all steps, which keeps the states in registers.

use flambeau_tensor::{DType, Shape};

use super::{DeltaRuleSizes, Operands};
use crate::{
    cuda,
    cx::Cx,
    error::Result,
    ffi::{Array, KernelText, Launch},
};

/// Threads of a block, and rows of a head's state that it holds, as the kernel has them.
const THREADS: usize = 256;
const ROWS: usize = 32;
/// Widest key that fits the kernel's registers and shared memory.
const WIDEST: usize = 256;

/// The result `[B, T, H, Dv]` and the last state `[B, H, Dv, Dk]`; `None` if no kernel supports the
/// operands.
pub(super) fn run(cx: &mut Cx<'_>, operands: &Operands) -> Result<Option<(Array, Array)>> {
    let DeltaRuleSizes { batch, steps, key_heads, heads, dk, dv } = operands.sizes;
    let fits = dk.is_multiple_of(32) && (32..=WIDEST).contains(&dk) && batch * steps * heads * dv > 0;
    if !cx.is_cuda() || !fits || cx.m.residency()?.is_none_or(|device| device.shared_memory == 0) {
        return Ok(None);
    }
    // MLX hands a shape over where the text names it: the number of steps is not compiled in.
    let text = KernelText {
        is_cuda: true,
        name: &format!("flambeau_delta_{dk}"),
        source: &format!("delta_rule<{dk}>({{q,k,v,g,beta,state,y,next,static_cast<int>(q_shape[1]),{key_heads},{heads},{dv}}});"),
        header: cuda::delta(),
        inputs: &["q", "k", "v", "g", "beta", "state"].map(str::to_owned),
        outputs: &["y", "next"].map(str::to_owned),
        row_contiguous: true,
        atomic_outputs: false,
        shared_memory: 0,
    };
    let shapes = [&[batch, steps, heads, dv], &[batch, heads, dv, dk]].map(|shape| (DType::F32, Shape::from_slice(shape)));
    let grid = [batch * heads * THREADS, dv.div_ceil(ROWS), 1].map(|n| n as i32);
    let launch = Launch { outputs: &shapes, grid, threads: [THREADS as i32, 1, 1], templates: &[], init: None };
    let Operands { q, k, v, g, beta, state, .. } = operands;
    let mut results = cuda::launch(cx.m, &text, &[q, k, v, g, beta, state], &launch)?.into_iter();
    Ok(results.next().zip(results.next()))
}
