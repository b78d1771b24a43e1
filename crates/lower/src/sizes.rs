//! Sizes computed by nodes: integer arithmetic on the axes of tensors.

mod rounded;

use flambeau_ir::{
    AddInt, Float, FloorDivideInt, Full, In, Int, ItemInt, Maximum, Minimum, ModInt, MultiplyInt, SubtractInt, SymSize, Tid, Vid,
};
use flambeau_tensor::{Atom, DType, Expr};

use crate::{
    Lower, Origin, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
};

/// Slope and offset of a size that is linear in `symbol`.
fn line(size: &Expr, symbol: &Expr) -> Option<(i64, i64)> {
    let (mut slope, mut shift) = (0, 0);
    for (coefficient, factors) in size.terms() {
        match &factors[..] {
            [] => shift = coefficient,
            [only] if Expr::atom(only.clone()) == *symbol && slope == 0 => slope = coefficient,
            _ => return None,
        }
    }
    (slope > 0).then_some((slope, shift))
}

impl Lower {
    /// A size as a rank-0 tensor, i64.
    ///
    /// # Errors
    /// Fails if nodes cannot compute the size.
    pub fn size_tensor(&mut self, size: &Expr) -> Result<Tid, Refuse> {
        let value = match self.int(size)? {
            Int::Lit(v) => return self.integers("_size", &[v], DType::I64).and_then(|t| self.reshape(t, &[])),
            Int::Vid(v) => Float::Vid(v),
        };
        self.emit(Full { out: NEW, shape: Vec::new(), v: value, scalar_type: DType::I64 })
    }

    /// A size as a node operand: a literal if known, else a value slot that nodes compute from
    /// tensor shapes.
    pub(crate) fn int(&mut self, size: &Expr) -> Result<Int, Refuse> {
        if let Some(v) = size.as_int() {
            return Ok(Int::Lit(v));
        }
        self.vid(size).map(Int::Vid)
    }

    /// The value slot of a size returned by a method.
    ///
    /// # Errors
    /// Fails if nodes cannot compute the size, or if it is known and needs no slot.
    pub fn size_slot(&mut self, size: &Expr) -> Result<Vid, Refuse> {
        self.vid(size)
    }

    /// [`Lower::int`] of several sizes.
    pub(crate) fn ints(&mut self, sizes: &[Expr]) -> Result<Vec<Int>, Refuse> {
        sizes.iter().map(|e| self.int(e)).collect()
    }

    /// The value slot of a size that is not known at compile time.
    pub(crate) fn vid(&mut self, size: &Expr) -> Result<Vid, Refuse> {
        if let Some(vid) = self.known_value(size) {
            return Ok(vid);
        }
        match size.as_atom() {
            Some(Atom::Symbol(_)) => self.size_of_some_tensor(size),
            Some(Atom::FloorDiv(a, b)) => {
                let (a, b) = (self.int(a)?, self.int(b)?);
                self.emit_value(FloorDivideInt { a, b, out: NEW_VALUE })
            }
            Some(Atom::Mod(a, b)) => {
                let (a, b) = (self.int(a)?, self.int(b)?);
                self.emit_value(ModInt { a, b, out: NEW_VALUE })
            }
            Some(Atom::Max(a, b)) => self.extreme(size, a, b, true),
            Some(Atom::Min(a, b)) => self.extreme(size, a, b, false),
            Some(Atom::Rounded(rounding, x)) => self.rounded(size, *rounding, x),
            Some(Atom::Opaque(_)) => unsupported(format!("the size {size} cannot be computed by graph nodes")),
            None => self.sum(size),
        }
    }

    fn size_of_some_tensor(&mut self, size: &Expr) -> Result<Vid, Refuse> {
        match self.axis_of(size, true).or_else(|| self.axis_of(size, false)) {
            Some(node) => self.emit_value(node),
            None => self.solved(size),
        }
    }

    /// The node that reads a size from an axis of an input, or of another non-constant tensor.
    fn axis_of(&self, size: &Expr, inputs: bool) -> Option<SymSize> {
        self.graph().tensors.iter().enumerate().find_map(|(t, info)| {
            let fits = matches!(info.origin, Origin::Input(_)) == inputs
                && !matches!(info.origin, Origin::Constant(_))
                && info.spec.dtype.is_node_dtype();
            let dim = info.spec.dims.iter().position(|d| d == size).filter(|_| fits)?;
            Some(SymSize { a: In(Tid(t as u32)), dim: dim as i32, out: NEW_VALUE })
        })
    }

    /// The larger or smaller of two sizes. Value nodes cannot compare, so tensor nodes do.
    fn extreme(&mut self, size: &Expr, a: &Expr, b: &Expr, larger: bool) -> Result<Vid, Refuse> {
        let (a, b) = (In(self.size_tensor(a)?), In(self.size_tensor(b)?));
        let extreme = if larger { self.emit(Maximum { a, b, out: NEW })? } else { self.emit(Minimum { a, b, out: NEW })? };
        let vid = self.emit_value(ItemInt { x: In(extreme), out: NEW_VALUE })?;
        self.know_value(vid, size);
        Ok(vid)
    }

    /// Solves for a symbol `n` that occurs only in sizes `a n + b`: reads such an axis and inverts
    /// the formula.
    fn solved(&mut self, symbol: &Expr) -> Result<Vid, Refuse> {
        let inputs = self.graph().tensors.iter().filter(|info| matches!(info.origin, Origin::Input(_)));
        let found = inputs.flat_map(|info| info.spec.dims.iter()).find_map(|d| Some((d.clone(), line(d, symbol)?)));
        let found = found.and_then(|(size, line)| Some((self.axis_of(&size, true)?, line)));
        let Some((whole, (slope, shift))) = found else { return unsupported(format!("no tensor has the size {symbol}")) };
        let a = Int::Vid(self.emit_value(whole)?);
        let a = match shift {
            0 => a,
            _ => Int::Vid(self.emit_value(SubtractInt { a, b: Int::Lit(shift), out: NEW_VALUE })?),
        };
        self.emit_value(FloorDivideInt { a, b: Int::Lit(slope), out: NEW_VALUE })
    }

    fn sum(&mut self, size: &Expr) -> Result<Vid, Refuse> {
        let mut terms = size.terms();
        // Constants sort first; starting from a symbolic term saves the addition to zero.
        terms.sort_by_key(|(coefficient, factors)| (factors.is_empty(), *coefficient < 0));
        let mut total: Option<Int> = None;
        for (coefficient, factors) in terms {
            let mut product: Option<Int> = None;
            for factor in factors {
                let factor = Int::Vid(self.vid(&Expr::atom(factor))?);
                product = Some(self.times(product, factor)?);
            }
            let magnitude = coefficient.saturating_abs();
            let term = match product {
                Some(p) if magnitude == 1 => p,
                p => self.times(p, Int::Lit(magnitude))?,
            };
            total = Some(match total {
                None if coefficient < 0 => Int::Vid(self.emit_value(SubtractInt { a: Int::Lit(0), b: term, out: NEW_VALUE })?),
                None => term,
                Some(a) if coefficient < 0 => Int::Vid(self.emit_value(SubtractInt { a, b: term, out: NEW_VALUE })?),
                Some(a) => Int::Vid(self.emit_value(AddInt { a, b: term, out: NEW_VALUE })?),
            });
        }
        match total {
            Some(Int::Vid(v)) => Ok(v),
            _ => unsupported(format!("the size {size} is not symbolic")),
        }
    }

    fn times(&mut self, a: Option<Int>, b: Int) -> Result<Int, Refuse> {
        match a {
            None => Ok(b),
            Some(a) => Ok(Int::Vid(self.emit_value(MultiplyInt { a, b, out: NEW_VALUE })?)),
        }
    }
}
