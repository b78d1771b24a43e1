//! Products of many rows with indexed matrices on CUDA. Rows with the same matrix index are
//! multiplied together.
//!
//! MLX takes such rows one by one, so that it reads and unpacks a matrix as often as it is named.

use flambeau_ir as ir;
use flambeau_tensor::{DType, Shape};

use crate::{
    cuda,
    cx::Cx,
    error::{OpError, Result},
    ffi::{Array, KernelText, Launch, QuantizedMatrix},
};

/// Minimum number of results for which rows are grouped.
const ROWS_TO_GROUP: usize = 256;
/// Rows and columns of results in a tile, and columns of a step, as the kernel has them.
const TILE_ROWS: usize = 64;
const TILE_COLUMNS: usize = 128;
const TILE_DEPTH: usize = 64;
/// Threads per block, and threads of the sorting block. The sorting block's threads also bound the
/// number of matrices.
const THREADS: usize = 128;
const SORT_THREADS: usize = 1024;
/// Bytes of shared memory: three buffers for rows, two for unpacked weights.
const SHARED: usize = TILE_DEPTH * 2 * (3 * TILE_ROWS + 2 * TILE_COLUMNS);

/// Compile-time parameters of the kernels.
pub(super) struct Grouped {
    dtype: DType,
    group: usize,
    experts: usize,
    /// Columns and rows of a matrix.
    k: usize,
    n: usize,
    /// Number of results, and number of results per row.
    count: usize,
    each: usize,
}

impl Grouped {
    /// The sizes of a node that computes in `dtype`, if the kernels take it.
    ///
    /// # Errors
    /// If a slot is empty, or MLX fails.
    pub(super) fn of(cx: &Cx<'_>, node: &ir::GatherQmm, dtype: DType) -> Result<Option<Grouped>> {
        let Some(rhs) = node.rhs_indices.filter(|_| cx.is_cuda() && node.lhs_indices.is_none()) else { return Ok(None) };
        let (x, w, chosen) = (&cx.peek(node.x.0)?.shape, &cx.peek(node.w.0)?.shape, &cx.peek(rhs.0)?.shape);
        let ([lead @ .., 1, k], &[experts, n, words]) = (&x[..], &w[..]) else { return Ok(None) };
        let coded = node.mode == ir::QuantMode::Affine && node.bits == 4 && node.biases.is_some() && node.transpose;
        let Some(each) = rows_each(lead, chosen).filter(|_| coded) else { return Ok(None) };
        let (group, count) = (node.group_size as usize, chosen.iter().product());
        let sizes = Grouped { dtype, group, experts, k: *k, n, count, each };
        let holds = cx.m.residency()?.is_some_and(|device| device.shared_memory >= SHARED);
        Ok((holds && words * 8 == *k && sizes.fits()).then_some(sizes))
    }

    fn fits(&self) -> bool {
        cuda::type_name(self.dtype).is_some()
            && matches!(self.group, 32 | 64 | 128)
            && self.k.is_multiple_of(self.group.max(TILE_DEPTH))
            && self.n.is_multiple_of(TILE_COLUMNS)
            && (1..=SORT_THREADS).contains(&self.experts)
            && self.count >= ROWS_TO_GROUP
    }

    /// Maximum number of tiles for the rows.
    fn tiles(&self) -> usize {
        self.count / TILE_ROWS + self.experts.min(self.count)
    }

    /// The products `[count, n]` of `x` with the matrices `chosen`, u32 within their number.
    ///
    /// # Errors
    /// If MLX refuses a kernel.
    pub(super) fn products(&self, cx: &mut Cx<'_>, x: &Array, w: QuantizedMatrix<'_>, chosen: &Array) -> Result<Array> {
        let missing = || OpError::value("a kernel gave no result");
        let [order, tiles] = self.sort(cx, chosen)?;
        let &Grouped { dtype, group, k, n, count, each, .. } = self;
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let text = KernelText {
            is_cuda: true,
            name: &format!("flambeau_experts_{ty}_{group}_{SHARED}"),
            source: &format!("expert_products<{ty},{group}>({{x,w,scales,biases,order,tiles,y,{k},{n},{each}}});"),
            header: cuda::experts(),
            inputs: &["x", "w", "scales", "biases", "order", "tiles"].map(str::to_owned),
            outputs: &["y".to_owned()],
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: SHARED as i32,
        };
        let outputs = [(dtype, Shape::from_slice(&[count, n]))];
        let grid = [n / TILE_COLUMNS * THREADS, self.tiles(), 1].map(|n| n as i32);
        let launch = Launch { outputs: &outputs, grid, threads: [THREADS as i32, 1, 1], templates: &[], init: None };
        let inputs = [x, w.w, w.scales, w.biases.ok_or_else(missing)?, &order, &tiles];
        cuda::launch(cx.m, &text, &inputs, &launch)?.pop().ok_or_else(missing)
    }

    /// The rows by their matrices, and their tiles.
    fn sort(&self, cx: &mut Cx<'_>, chosen: &Array) -> Result<[Array; 2]> {
        let (count, experts, tiles) = (self.count, self.experts, self.tiles());
        // MLX hands a shape over where the text names it: the number of rows is not compiled in.
        let chosen = chosen.reshape(&[count])?;
        let text = KernelText {
            is_cuda: true,
            name: "flambeau_expert_tiles",
            source: &format!("expert_tiles(chosen,static_cast<int>(chosen_shape[0]),{experts},order,tiles);"),
            header: cuda::experts(),
            inputs: &["chosen".to_owned()],
            outputs: &["order", "tiles"].map(str::to_owned),
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: 0,
        };
        let outputs = [&[count][..], &[tiles, 3]].map(|shape| (DType::I32, Shape::from_slice(shape)));
        let threads = [SORT_THREADS as i32, 1, 1];
        let launch = Launch { outputs: &outputs, grid: threads, threads, templates: &[], init: None };
        let results = cuda::launch(cx.m, &text, &[&chosen], &launch)?;
        results.try_into().map_err(|_| OpError::value("a kernel gave other results"))
    }
}

/// Number of results per row if rows of shape `lead` broadcast to results of shape `chosen`.
fn rows_each(lead: &[usize], chosen: &[usize]) -> Option<usize> {
    match (lead, chosen) {
        _ if lead == chosen => Some(1),
        ([outer @ .., 1], [same @ .., each]) if outer == same => Some(*each),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_for_the_results_of_the_last_axis() {
        assert_eq!(rows_each(&[7, 1], &[7, 8]), Some(8));
        assert_eq!(rows_each(&[7, 8], &[7, 8]), Some(1));
        assert_eq!(rows_each(&[1, 8], &[7, 8]), None);
        assert_eq!(rows_each(&[8], &[7, 8]), None);
    }

    #[test]
    fn there_are_never_more_tiles_than_room_for_them() {
        let sizes = |count, experts| Grouped { dtype: DType::BF16, group: 64, experts, k: 64, n: 128, count, each: 1 };
        // One row of each matrix but one, which has all the others.
        for (count, experts) in [(256_usize, 16), (256, 256), (300, 512), (16384, 256)] {
            let alone = experts.min(count) - 1;
            let tiles = alone + (count - alone).div_ceil(TILE_ROWS);
            assert!(tiles <= sizes(count, experts).tiles(), "{count} rows, {experts} matrices");
        }
    }
}
