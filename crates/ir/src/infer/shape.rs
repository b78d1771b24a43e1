//! Rules of nodes that move elements without reading their values.

use flambeau_tensor::Expr;

use super::{
    Dims, Infer, InferError, Result, ShapeCx, Spec, axis_of, bad_attribute, promote,
    size::{check_broadcasts_to, unify},
};
use crate::node::{
    AsStrided, BroadcastTo, Concatenate, Contiguous, ExpandDims, Flip, IdCopy, Pad, Repeat, Reshape, Roll, Split, Squeeze, Stack,
    Tile, Transpose,
};

macro_rules! copies {
    ($($name:ident)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let x = cx.read(self.x)?;
                cx.write(self.out, x.dtype, x.dims)
            }
        }
    )* };
}

copies!(IdCopy Contiguous);

impl Infer for ExpandDims {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let mut x = cx.read(self.x)?;
        x.dims.insert(axis_of(self.axis, x.rank() + 1)?, Expr::Int(1));
        cx.write(self.out, x.dtype, x.dims)
    }
}

impl Infer for Squeeze {
    /// A listed axis is removed only if its size is known to be 1, so a symbolic size stays.
    /// Entries out of range are ignored.
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let listed = self.dims.iter().filter_map(|&d| axis_of(d, x.rank()).ok()).fold(0u64, |mask, i| mask | 1 << i);
        let mask = if self.dims.is_empty() { u64::MAX } else { listed };
        let stays = |(i, d): &(usize, &Expr)| mask & (1 << i) == 0 || **d != Expr::Int(1);
        let dims = x.dims.iter().enumerate().filter(stays).map(|(_, d)| d.clone()).collect();
        cx.write(self.out, x.dtype, dims)
    }
}

impl Infer for Tile {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let reps = cx.ints(&self.reps)?;
        if let Some(rep) = reps.iter().find(|r| r.as_int().is_some_and(|r| r < 0)) {
            return bad_attribute("reps", rep, "at least 0");
        }
        let rank = x.rank().max(reps.len());
        let one = Expr::Int(1);
        let at = |s: &[Expr], i: usize| (i + s.len()).checked_sub(rank).and_then(|j| s.get(j).cloned()).unwrap_or(one.clone());
        let dims = (0..rank).map(|i| cx.mul(&at(&x.dims, i), &at(&reps, i))).collect();
        cx.write(self.out, x.dtype, dims)
    }
}

impl Infer for Repeat {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let mut x = cx.read(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let repeats = cx.int(self.repeats)?;
        if repeats.as_int().is_some_and(|r| r < 0) {
            return bad_attribute("repeats", repeats, "at least 0");
        }
        x.dims[axis] = cx.mul(&x.dims[axis], &repeats);
        cx.write_created(self.out, x.dtype, x.dims)
    }
}

impl Infer for BroadcastTo {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let mut dims = cx.ints(&self.shape)?;
        let lead = dims.len().checked_sub(x.rank());
        let Some(lead) = lead else { return check_broadcasts_to(&x.dims, &dims) };
        for (i, dim) in dims.iter_mut().enumerate() {
            let own = i.checked_sub(lead).map(|j| &x.dims[j]);
            match (dim.as_int(), own) {
                (Some(-1), Some(own)) => *dim = own.clone(),
                (Some(n), None) if n < 0 => return bad_attribute("shape", n, "a size where `x` has none to keep"),
                (None, Some(Expr::Int(n))) if *n != 1 => *dim = Expr::Int(*n),
                _ => {}
            }
        }
        check_broadcasts_to(&x.dims, &dims)?;
        cx.write(self.out, x.dtype, dims)
    }
}

impl Infer for Pad {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let mut x = cx.read(self.x)?;
        let edge = match &*self.mode {
            "constant" => false,
            "edge" => true,
            other => return bad_attribute("mode", other, "constant or edge"),
        };
        if self.pad_width.len() != 2 * x.rank() {
            return bad_attribute("pad_width", format!("{} entries", self.pad_width.len()), 2 * x.rank());
        }
        for (dim, pair) in x.dims.iter_mut().zip(self.pad_width.chunks_exact(2)) {
            let before_size = dim.clone();
            for &width in pair {
                let width = cx.int(width)?;
                if width.as_int().is_some_and(|w| w < 0) {
                    return bad_attribute("pad_width", width, "at least 0");
                }
                *dim = cx.add(dim, &width);
            }
            if edge && before_size == Expr::Int(0) && *dim != before_size {
                return Err(InferError::Shape("an empty axis has no edge to repeat".to_owned()));
            }
        }
        cx.write(self.out, x.dtype, x.dims)
    }
}

impl Infer for Reshape {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let mut dims = cx.ints(&self.shape)?;
        let mut inferred = None;
        for (i, dim) in dims.iter().enumerate() {
            match dim.as_int() {
                Some(-1) if inferred.is_none() => inferred = Some(i),
                Some(n) if n < 0 => return bad_attribute("shape", n, "sizes and at most one -1"),
                _ => {}
            }
        }
        let total = cx.product(&x.dims);
        if let Some(i) = inferred {
            dims[i] = Expr::Int(1);
            let rest = cx.product(&dims);
            dims[i] = match (&total, &rest) {
                (Expr::Int(n), Expr::Int(d)) if *d == 0 || n % d != 0 => {
                    return Err(InferError::Shape(format!("{n} elements do not divide into groups of {d}")));
                }
                _ => cx.floor_div(&total, &rest),
            };
        } else {
            let wanted = cx.product(&dims);
            unify("shape", &wanted, &total)?;
        }
        cx.write(self.out, x.dtype, dims)
    }
}

impl Infer for Transpose {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let expected = || format!("a permutation of {} axes", x.rank());
        let mut seen = 0u64;
        let mut dims = Dims::with_capacity(x.rank());
        for &axis in &self.perm {
            let from = axis_of(axis, x.rank())?;
            if seen & (1 << from) != 0 {
                return bad_attribute("perm", format!("axis {axis} twice"), expected());
            }
            seen |= 1 << from;
            dims.push(x.dims[from].clone());
        }
        if dims.len() != x.rank() {
            return bad_attribute("perm", format!("{} axes", dims.len()), expected());
        }
        cx.write(self.out, x.dtype, dims)
    }
}

/// Refuses a view that reaches outside of `n` elements, if all numbers are known.
fn check_reach(dims: &[Expr], strides: &[Expr], offset: u64, n: &Expr) -> Result<()> {
    let known = |e: &[Expr]| e.iter().map(Expr::as_int).collect::<Option<super::SmallVec<[i64; 8]>>>();
    let (Some(dims), Some(strides), Some(n)) = (known(dims), known(strides), n.as_int()) else { return Ok(()) };
    if dims.contains(&0) {
        return Ok(());
    }
    let (mut lo, mut hi) = (i128::from(offset), i128::from(offset));
    for (dim, stride) in dims.iter().zip(&strides) {
        let reach = i128::from(*stride) * (i128::from(*dim) - 1);
        lo += reach.min(0);
        hi += reach.max(0);
    }
    if lo >= 0 && hi < i128::from(n) {
        return Ok(());
    }
    Err(InferError::Shape(format!("the view reaches elements {lo} to {hi} of {n}")))
}

impl Infer for AsStrided {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let (dims, strides) = (cx.ints(&self.shape)?, cx.ints(&self.strides)?);
        if dims.len() != strides.len() {
            return bad_attribute("strides", format!("{} entries", strides.len()), dims.len());
        }
        super::check_limits(x.dtype, &dims, crate::limits::MAX_TENSOR_BYTES)?;
        let n = cx.product(&x.dims);
        check_reach(&dims, &strides, self.offset, &n)?;
        cx.write(self.out, x.dtype, dims)
    }
}

/// Result of joining tensors before the sizes are added: the first one's shape, and the common
/// type.
fn joined(tensors: &[Spec]) -> Result<Spec> {
    let Some((first, rest)) = tensors.split_first() else { return bad_attribute("tensors", "empty", "at least one tensor") };
    let dtype = rest.iter().fold(first.dtype, |d, t| promote(d, t.dtype));
    match rest.iter().find(|t| t.rank() != first.rank()) {
        Some(odd) => Err(InferError::Rank { field: "tensors", found: odd.rank(), expected: first.rank().to_string() }),
        None => Ok(Spec { dtype, dims: first.dims.clone() }),
    }
}

impl Infer for Concatenate {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let tensors = cx.read_all(&self.tensors)?;
        let mut out = joined(&tensors)?;
        let axis = axis_of(self.axis, out.rank())?;
        for tensor in &tensors[1..] {
            for (i, (to, from)) in out.dims.iter_mut().zip(&tensor.dims).enumerate() {
                *to = if i == axis { cx.add(to, from) } else { unify("tensors", from, to)? };
            }
        }
        cx.write(self.out, out.dtype, out.dims)
    }
}

impl Infer for Stack {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let tensors = cx.read_all(&self.tensors)?;
        let mut out = joined(&tensors)?;
        for tensor in &tensors[1..] {
            for (to, from) in out.dims.iter_mut().zip(&tensor.dims) {
                *to = unify("tensors", from, to)?;
            }
        }
        out.dims.insert(axis_of(self.axis, out.rank() + 1)?, Expr::Int(tensors.len() as i64));
        cx.write(self.out, out.dtype, out.dims)
    }
}

/// Lengths of the parts: chunks of a single size, or sections with the rest in the last one.
fn part_sizes(cx: &mut dyn ShapeCx, total: &Expr, sizes: &[Expr], parts: usize) -> Result<Vec<Expr>> {
    let sections = match sizes {
        [] => return bad_attribute("sizes", "empty", "at least one size"),
        [chunk] => {
            if chunk.as_int().is_some_and(|c| c < 1) {
                return bad_attribute("sizes", chunk, "at least 1");
            }
            if let (Some(n), Some(c)) = (total.as_int(), chunk.as_int())
                && (n.max(1) + c - 1) / c != parts as i64
            {
                return bad_attribute("outs", format!("{parts} parts"), format!("{n} elements in chunks of {c}"));
            }
            vec![chunk.clone(); parts]
        }
        _ if sizes.len() != parts => return bad_attribute("outs", format!("{parts} parts"), sizes.len()),
        _ => sizes.to_vec(),
    };
    if let Some(size) = sections.iter().find(|s| s.as_int().is_some_and(|s| s < 0)) {
        return bad_attribute("sizes", size, "at least 0");
    }
    let mut rest = total.clone();
    let mut out = Vec::with_capacity(parts);
    for size in sections.iter().take(parts.saturating_sub(1)) {
        rest = cx.sub(&rest, size);
        out.push(size.clone());
    }
    if rest.as_int().is_some_and(|r| r < 0) {
        return bad_attribute("sizes", "more than the axis has", total);
    }
    out.push(rest);
    Ok(out)
}

impl Infer for Split {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        let axis = axis_of(self.axis, x.rank())?;
        let sizes = cx.ints(&self.sizes)?;
        if self.outs.is_empty() {
            return bad_attribute("outs", "empty", "at least one part");
        }
        let parts = part_sizes(cx, &x.dims[axis], &sizes, self.outs.len())?;
        for (&out, size) in self.outs.iter().zip(parts) {
            let mut dims = x.dims.clone();
            dims[axis] = size;
            cx.write(out, x.dtype, dims)?;
        }
        Ok(())
    }
}

impl Infer for Roll {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        cx.ints(&self.shift)?;
        if self.shift.len() < self.axes.len() {
            return bad_attribute(
                "shift",
                format!("{} entries", self.shift.len()),
                format!("one for each of {} axes", self.axes.len()),
            );
        }
        for &axis in &self.axes {
            axis_of(axis, x.rank())?;
        }
        cx.write(self.out, x.dtype, x.dims)
    }
}

impl Infer for Flip {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let x = cx.read(self.x)?;
        for &axis in &self.axes {
            axis_of(axis, x.rank())?;
        }
        cx.write(self.out, x.dtype, x.dims)
    }
}
