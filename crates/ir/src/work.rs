//! Work of nodes in a run: bytes moved and floating-point operations.

use flambeau_tensor::numel;

use crate::{
    Cost, Node, Role,
    field::{In, Tid},
    infer::run::Contents,
};

impl Cost {
    /// Floating-point operations of a product, given the slot contents after the run. 0 for other
    /// nodes.
    pub fn flops(self, contents: &impl Contents) -> u64 {
        let numel = |tid| elements(contents, tid);
        let axis = |x: In, axis: usize| contents.tensor(x.0).and_then(|(_, shape)| shape.get(axis).copied()).unwrap_or(0);
        let last = |x: In| contents.tensor(x.0).and_then(|(_, shape)| shape.last().copied()).unwrap_or(0);
        let multiplications = match self {
            Cost::Product(x, _, out) | Cost::PackedProduct(x, _, _, out) | Cost::GatheredProduct(x, out) => {
                numel(out.0).saturating_mul(last(x))
            }
            Cost::Attention(q, k, out) => numel(q.0).saturating_add(numel(out.0)).saturating_mul(axis(k, 2)),
            Cost::Convolution(w, out) => numel(out.0).saturating_mul(numel(w.0) / axis(w, 0).max(1)),
            Cost::Free | Cost::View(_) | Cost::Relayout(_) | Cost::Stream | Cost::Gather | Cost::Update(_) | Cost::Unknown => 0,
        };
        2u64.saturating_mul(multiplications as u64)
    }

    /// Floating-point operations of a product with one row on the left. Only the weights must be
    /// known. 0 for other nodes.
    pub fn flops_of_one_row(self, contents: &impl Contents) -> u64 {
        let weights = match self {
            Cost::Product(_, w, _) => elements(contents, w.0),
            Cost::PackedProduct(_, w, bits, _) => elements(contents, w.0).saturating_mul(32) / bits.max(1) as usize,
            _ => 0,
        };
        2u64.saturating_mul(weights as u64)
    }
}

impl Node {
    /// Bytes that a run reads and writes, given the slot contents after it. The count is 0 if no
    /// data is moved, or if it depends on more than sizes.
    pub fn bytes(&self, contents: &impl Contents) -> u64 {
        match self.cost() {
            Cost::Free | Cost::View(_) | Cost::GatheredProduct(..) | Cost::Unknown => 0,
            Cost::Gather => 2 * bytes_of(contents, &self.tensors(|role| role == Role::Write)),
            Cost::Update(x) => 2 * bytes_of(contents, &[x.0]),
            Cost::Relayout(_)
            | Cost::Stream
            | Cost::Product(..)
            | Cost::PackedProduct(..)
            | Cost::Attention(..)
            | Cost::Convolution(..) => bytes_of(contents, &self.tensors(|_| true)),
        }
    }
}

/// Total bytes in tensor slots. Unset slots count as 0.
pub fn bytes_of(contents: &impl Contents, tids: &[Tid]) -> u64 {
    let bytes = |&tid: &Tid| contents.tensor(tid).and_then(|(dtype, shape)| numel(shape)?.checked_mul(dtype.size()));
    tids.iter().filter_map(bytes).map(|n| n as u64).sum()
}

fn elements(contents: &impl Contents, tid: Tid) -> usize {
    contents.tensor(tid).and_then(|(_, shape)| numel(shape)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType;

    use super::*;
    use crate::{
        Vid,
        field::{Int, Out},
        node,
    };

    /// Tensors by slot number, in f32.
    struct Shapes(&'static [&'static [usize]]);

    impl Contents for Shapes {
        fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
            self.0.get(tid.0 as usize).map(|&shape| (DType::F32, shape))
        }

        fn integer(&self, _: Vid) -> Option<i32> {
            None
        }
    }

    #[test]
    fn products_count_two_operations_a_multiplication() {
        let [x, w, bias] = [0, 1, 2].map(|t| In(Tid(t)));
        let addmm: Node = node::Addmm { mat1: x, mat2: w, out: Out(Tid(3)), bias: Some(bias), alpha: 1.0, beta: 1.0 }.into();
        let shapes = Shapes(&[&[5, 3], &[3, 4], &[4], &[5, 4]]);
        assert_eq!(addmm.cost().flops(&shapes), 2 * 5 * 3 * 4);
        assert_eq!(addmm.cost().flops_of_one_row(&shapes), 2 * 3 * 4);
        assert_eq!(addmm.bytes(&shapes), 4 * (15 + 12 + 4 + 20));
        let [q, k, v] = [x, w, bias];
        let sdpa: Node = node::Sdpa { q, k, v, out: Out(Tid(3)), scale: 1.0, mask: None, causal: false }.into();
        let shapes = Shapes(&[&[1, 2, 5, 8], &[1, 2, 7, 8], &[1, 2, 7, 6], &[1, 2, 5, 6]]);
        assert_eq!(sdpa.cost().flops(&shapes), 2 * (2 * 5 * 7 * 8 + 2 * 5 * 7 * 6));
        let conv: Node = node::Conv1D { x, w, out: Out(Tid(2)), stride: 1, padding: 0, dilation: 1, groups: 2 }.into();
        assert_eq!(conv.cost().flops(&Shapes(&[&[1, 9, 4], &[6, 3, 2], &[1, 7, 6]])), 2 * 7 * 6 * 3 * 2);
    }

    #[test]
    fn counts_stop_at_the_largest_number() {
        let [x, w] = [0, 1].map(|t| In(Tid(t)));
        let addmm: Node = node::Addmm { mat1: x, mat2: w, out: Out(Tid(2)), bias: None, alpha: 1.0, beta: 1.0 }.into();
        let vast = Shapes(&[&[1 << 31, 1 << 31], &[1 << 31, 1 << 32], &[1 << 31, 1 << 32]]);
        assert_eq!((addmm.cost().flops(&vast), addmm.cost().flops_of_one_row(&vast)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn packed_products_count_what_is_packed() {
        let packed: Node = "QuantizedMatmul x=t0 w=t1 scales=t2 out=t3 group_size=32 bits=8 mode=affine".parse().expect("a node");
        let shapes = Shapes(&[&[5, 64], &[7, 16], &[7, 2], &[5, 7]]);
        assert_eq!(packed.cost().flops(&shapes), 2 * 5 * 64 * 7);
        assert_eq!(packed.cost().flops_of_one_row(&shapes), 2 * 64 * 7);
    }

    #[test]
    fn views_move_nothing_and_updates_their_operand() {
        let [x, y] = [0, 1].map(|t| In(Tid(t)));
        let shapes = Shapes(&[&[8, 4], &[2, 4], &[8, 4]]);
        let (lit, out) = (Int::Lit, Out(Tid(2)));
        let slice: Node = node::Slice { x, out, axis: lit(0), start: lit(0), stop: lit(2), step: 1 }.into();
        assert_eq!((slice.cost().viewed(), slice.bytes(&shapes)), (Some(Tid(0)), 0));
        let update: Node = node::SliceUpdate { dst: x, update: y, out, axis: lit(0), start: lit(0), stop: lit(2), step: 1 }.into();
        assert_eq!((update.cost().viewed(), update.bytes(&shapes)), (None, 2 * 32));
        let take: Node = node::Take { x, out: Out(Tid(1)), index: crate::Index::Lit(0), axis: 0 }.into();
        assert_eq!(take.bytes(&shapes), 2 * 32);
    }
}
