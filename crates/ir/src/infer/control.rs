//! Rules of nodes that run chains or foreign code.
//!
//! A rule sees one node, so `If` and `Scan` prove only facts about their own fields. The caller
//! handles their chains. For an `If`, it runs the rules of both branches and merges the contents.
//! For a `Scan`, it calls [`enter_scan`], runs the body's rules once, then calls [`leave_scan`].

use flambeau_tensor::{DType, Expr};

use super::{Dims, Infer, InferError, Result, ShapeCx, axis_of, bad_attribute, need_node_dtype, size::unify};
use crate::{
    field::{In, Out},
    node::{If, MetalKernel, Noop, Scan},
};

impl Infer for Noop {
    fn infer(&self, _cx: &mut dyn ShapeCx) -> Result<()> {
        Ok(())
    }
}

impl Infer for If {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        cx.int(self.cond).map(drop)
    }
}

impl Infer for Scan {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        scan_steps(self, cx).map(drop)
    }
}

/// Number of iterations of a scan.
///
/// # Errors
/// If the scan's lists are empty or differ in length, or if its originals have no steps or
/// different numbers of steps.
pub fn scan_steps(scan: &Scan, cx: &dyn ShapeCx) -> Result<Expr> {
    if scan.originals.is_empty() {
        return bad_attribute("originals", "empty", "at least one tensor");
    }
    if scan.sliced.len() != scan.originals.len() {
        return bad_attribute("sliced", format!("{} entries", scan.sliced.len()), scan.originals.len());
    }
    let mut steps: Option<Expr> = None;
    for &original in &scan.originals {
        let spec = cx.read(original)?;
        let own = &spec.dims[axis_of(scan.scan_axis, spec.rank())?];
        steps = Some(match steps {
            None => own.clone(),
            Some(steps) => unify("originals", own, &steps)?,
        });
    }
    match steps {
        Some(Expr::Int(0)) | None => Err(InferError::Shape("a scan of no steps has nothing to stack".to_owned())),
        Some(steps) => Ok(steps),
    }
}

/// Records the contents of a scan's sliced slots for its body: the originals without the scan axis.
///
/// # Errors
/// As [`scan_steps`].
pub fn enter_scan(scan: &Scan, cx: &mut dyn ShapeCx) -> Result<Expr> {
    let steps = scan_steps(scan, cx)?;
    // All originals are read before the first slice is written, because a slot may be both.
    let originals = cx.read_all(&scan.originals)?;
    for (&slot, mut spec) in scan.sliced.iter().zip(originals) {
        spec.dims.remove(axis_of(scan.scan_axis, spec.rank())?);
        cx.write(slot, spec.dtype, spec.dims)?;
    }
    Ok(steps)
}

/// Records the contents of a scan's output slots: the body's results, stacked along the scan axis.
///
/// # Errors
/// If the body left an output unset, or the output's rank has no such axis.
pub fn leave_scan(scan: &Scan, steps: &Expr, cx: &mut dyn ShapeCx) -> Result<()> {
    let outputs: Vec<In> = scan.outputs.iter().map(|o| In(o.0)).collect();
    for (slot, mut spec) in scan.outputs.iter().zip(cx.read_all(&outputs)?) {
        spec.dims.insert(axis_of(scan.scan_axis, spec.rank() + 1)?, steps.clone());
        cx.write(Out(slot.0), spec.dtype, spec.dims)?;
    }
    Ok(())
}

/// Refuses a list whose length differs from the length of its parallel list.
fn need_len(field: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { bad_attribute(field, format!("{found} entries"), expected) }
}

impl MetalKernel {
    fn check_lists(&self) -> Result<()> {
        if self.inputs.is_empty() || self.outputs.is_empty() {
            return bad_attribute(if self.inputs.is_empty() { "inputs" } else { "outputs" }, "empty", "at least one tensor");
        }
        need_len("input_names", self.input_names.len(), self.inputs.len())?;
        need_len("output_names", self.output_names.len(), self.outputs.len())?;
        need_len("output_shape_lengths", self.output_shape_lengths.len(), self.outputs.len())?;
        need_len("output_dtypes", self.output_dtypes.len(), self.outputs.len())?;
        need_len("template_arg_kinds", self.template_arg_kinds.len(), self.template_arg_names.len())?;
        need_len("template_arg_values", self.template_arg_values.len(), self.template_arg_names.len())?;
        need_len("grid", self.grid.len(), 3)?;
        need_len("threadgroup", self.threadgroup.len(), 3)?;
        if let Some(n) = self.output_shape_lengths.iter().find(|n| **n < 0) {
            return bad_attribute("output_shape_lengths", n, "at least 0");
        }
        let total = self.output_shape_lengths.iter().map(|&n| i64::from(n)).sum::<i64>();
        if total != self.output_shapes_flat.len() as i64 {
            return bad_attribute("output_shapes_flat", format!("{} entries", self.output_shapes_flat.len()), total);
        }
        Ok(())
    }
}

impl Infer for MetalKernel {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        self.check_lists()?;
        for &input in &self.inputs {
            cx.read(input)?;
        }
        for (field, counts) in [("grid", &self.grid), ("threadgroup", &self.threadgroup)] {
            if let Some(n) = cx.ints(counts)?.iter().find(|n| n.as_int().is_some_and(|n| n < 0)) {
                return bad_attribute(field, n, "at least 0");
            }
        }
        let mut sizes = cx.ints(&self.output_shapes_flat)?.into_iter();
        let shapes = self.output_shape_lengths.iter().zip(&self.output_dtypes);
        for (&out, (&rank, &dtype)) in self.outputs.iter().zip(shapes) {
            let dims: Dims = sizes.by_ref().take(rank as usize).collect();
            let dtype: DType = need_node_dtype("output_dtypes", dtype)?;
            cx.write_created(out, dtype, dims)?;
        }
        Ok(())
    }
}
