//! Inference on the sizes of a run, for engines. Every size is known, and each node's results are
//! queried one by one.

use flambeau_tensor::{DType, Expr, Shape};
use smallvec::SmallVec;

use super::{Infer, InferError, Result, ShapeCx, Spec, control::scan_steps};
use crate::{
    Node,
    field::{ChainId, Index, Int, Out, OutVid, Tid, Vid},
    node::{If, Scan},
};

/// Contents of the slots of a running graph.
pub trait Contents {
    /// Element type and shape in a tensor slot, or `None` if it is unset.
    fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])>;

    /// The integer in a value slot, or `None` if it is unset.
    fn integer(&self, vid: Vid) -> Option<i32>;

    /// The integer in a value slot.
    ///
    /// # Errors
    /// If nothing has been written to it.
    fn value(&self, vid: Vid) -> Result<i32> {
        self.integer(vid).ok_or(InferError::UnsetValue(vid))
    }

    /// A literal, clamped to 32 bits as every size is, or a value slot's content.
    ///
    /// # Errors
    /// If nothing has been written to the slot.
    fn int(&self, int: Int) -> Result<i64> {
        match int {
            Int::Lit(v) => Ok(v.clamp(i64::from(i32::MIN), i64::from(i32::MAX))),
            Int::Vid(vid) => self.value(vid).map(i64::from),
        }
    }

    /// The integer of an index, if it is not a tensor. Literals are clamped as in
    /// [`Contents::int`].
    ///
    /// # Errors
    /// If nothing has been written to the slot.
    fn place(&self, index: Index) -> Result<Option<i64>> {
        match index {
            Index::Lit(v) => self.int(Int::Lit(v)).map(Some),
            Index::Vid(vid) => self.int(Int::Vid(vid)).map(Some),
            Index::Tid(_) => Ok(None),
        }
    }

    /// The chain that a branch runs.
    ///
    /// # Errors
    /// If nothing has been written to the condition's slot.
    fn selected_chain(&self, branch: &If) -> Result<ChainId> {
        Ok(if self.int(branch.cond)? != 0 { branch.then_chain_idx } else { branch.else_chain_idx })
    }
}

/// Element type and shape of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutSpec {
    pub dtype: DType,
    pub shape: Shape,
}

/// Result types and shapes of one node, inferred from the current contents of its operands.
#[derive(Debug, Default)]
pub struct Inferred {
    tensors: SmallVec<[(Tid, Spec); 2]>,
    value: Option<(Vid, i32)>,
}

impl Inferred {
    /// Runs the inference rule of `node`, and drops the results of the previous node.
    ///
    /// # Errors
    /// If the rule refuses the contents of the slots.
    pub fn run(&mut self, node: &Node, contents: &impl Contents) -> Result<()> {
        self.tensors.clear();
        self.value = None;
        node.infer(&mut Rule { contents, inferred: self })
    }

    /// Element type and shape of a result, or `None` if the rule does not determine them.
    pub fn tensor(&self, slot: Out) -> Option<OutSpec> {
        let spec = self.spec(slot.0)?;
        Some(OutSpec { dtype: spec.dtype, shape: spec.shape()? })
    }

    /// An integer result, as far as the operands' sizes and integers determine it.
    ///
    /// # Errors
    /// If the rule does not determine it.
    pub fn value(&self, slot: OutVid) -> Result<i32> {
        let inferred = self.value.filter(|(vid, _)| *vid == slot.0);
        inferred.map(|(_, value)| value).ok_or(InferError::UnsetValue(slot.0))
    }

    fn spec(&self, tid: Tid) -> Option<&Spec> {
        self.tensors.iter().rev().find(|(inferred, _)| *inferred == tid).map(|(_, spec)| spec)
    }
}

/// Number of iterations of a scan, given the contents of the slots.
///
/// # Errors
/// As [`scan_steps`].
pub fn scan_length(scan: &Scan, contents: &impl Contents) -> Result<usize> {
    let steps = scan_steps(scan, &Rule { contents, inferred: &mut Inferred::default() })?;
    let open = || InferError::Shape(format!("the number of a scan's steps is {steps}"));
    steps.as_int().and_then(|n| usize::try_from(n).ok()).ok_or_else(open)
}

/// The caller's side of inference.
struct Rule<'a, C> {
    contents: &'a C,
    inferred: &'a mut Inferred,
}

impl<C: Contents> ShapeCx for Rule<'_, C> {
    fn spec(&self, tid: Tid) -> Result<Spec> {
        if let Some(spec) = self.inferred.spec(tid) {
            return Ok(spec.clone());
        }
        let (dtype, shape) = self.contents.tensor(tid).ok_or(InferError::Unset(tid))?;
        Ok(Spec::fixed(dtype, shape))
    }

    fn value(&self, vid: Vid) -> Result<Expr> {
        self.contents.value(vid).map(|value| Expr::Int(value.into()))
    }

    fn set(&mut self, tid: Tid, spec: Spec) {
        self.inferred.tensors.push((tid, spec));
    }

    fn set_value(&mut self, vid: Vid, value: Expr) {
        let value = value.as_int().and_then(|value| i32::try_from(value).ok());
        self.inferred.value = value.map(|value| (vid, value));
    }

    fn unknown(&mut self) -> Expr {
        // Only nodes that read elements ask for this, and engines compute their actual values.
        Expr::Int(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{field::In, node};

    /// Integers v0 and v1, and a tensor t0 `[3, 2]`.
    struct Two(i32, i32);

    impl Contents for Two {
        fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
            (tid == Tid(0)).then_some((DType::F32, &[3, 2]))
        }

        fn integer(&self, vid: Vid) -> Option<i32> {
            [self.0, self.1].get(vid.0 as usize).copied()
        }
    }

    fn result(node: &Node, contents: &Two) -> Result<i32> {
        let mut inferred = Inferred::default();
        inferred.run(node, contents)?;
        inferred.value(OutVid(Vid(2)))
    }

    #[test]
    fn integers_follow_from_integers() {
        let (a, b, out) = (Int::Vid(Vid(0)), Int::Vid(Vid(1)), OutVid(Vid(2)));
        let nodes: [Node; 5] = [
            node::AddInt { a, b, out }.into(),
            node::SubtractInt { a, b, out }.into(),
            node::MultiplyInt { a, b, out }.into(),
            node::FloorDivideInt { a, b, out }.into(),
            node::ModInt { a, b, out }.into(),
        ];
        let check = |a, b, expected: [i32; 5]| {
            let found = nodes.each_ref().map(|node| result(node, &Two(a, b)).expect("it fits 32 bits"));
            assert_eq!(found, expected, "{a} and {b}");
        };
        check(7, 2, [9, 5, 14, 3, 1]);
        check(-7, 2, [-5, -9, -14, -4, 1]);
        check(7, -2, [5, 9, -14, -4, -1]);
        check(-7, -2, [-9, -5, 14, 3, -1]);
        check(-6, -2, [-8, -4, 12, 3, 0]);
        check(6, -2, [4, 8, -12, -3, 0]);
        let refused = |node: &Node, a, b| result(node, &Two(a, b)).expect_err("it is no integer").to_string();
        assert_eq!(refused(&nodes[3], 5, 0), "divides 5 by zero");
        assert_eq!(refused(&nodes[4], 5, 0), "divides 5 by zero");
        assert_eq!(refused(&nodes[0], i32::MAX, 1), "2147483648 does not fit 32 bits");
        let size = node::SymSize { a: In(Tid(0)), dim: -1, out };
        assert_eq!(result(&size.into(), &Two(0, 0)), Ok(2));
    }

    #[test]
    fn branches_and_indices_follow_their_slots() {
        let branch = If { cond: Int::Vid(Vid(0)), then_chain_idx: ChainId(1), else_chain_idx: ChainId(2) };
        assert_eq!((Two(5, 0).selected_chain(&branch), Two(0, 0).selected_chain(&branch)), (Ok(ChainId(1)), Ok(ChainId(2))));
        let place = |index| Two(5, -1).place(index);
        assert_eq!((place(Index::Lit(i64::MAX)), place(Index::Vid(Vid(1)))), (Ok(Some(i64::from(i32::MAX))), Ok(Some(-1))));
        assert_eq!(place(Index::Tid(Tid(0))), Ok(None));
        assert!(place(Index::Vid(Vid(9))).is_err());
    }

    #[test]
    fn scans_count_their_steps() {
        let scan = |originals: Vec<In>, scan_axis| Scan {
            sliced: originals.iter().map(|_| Out(Tid(1))).collect(),
            originals,
            outputs: vec![],
            carry: vec![],
            scan_axis,
            body_chain_idx: crate::field::ChainId(1),
        };
        let steps = |scan: Scan| scan_length(&scan, &Two(0, 0));
        assert_eq!((steps(scan(vec![In(Tid(0))], 0)), steps(scan(vec![In(Tid(0))], -1))), (Ok(3), Ok(2)));
        assert!(steps(scan(vec![], 0)).is_err() && steps(scan(vec![In(Tid(0))], 2)).is_err());
    }
}
