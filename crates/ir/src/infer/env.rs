//! A plain environment for inference on symbolic sizes.

use std::collections::HashMap;

use flambeau_tensor::{Expr, Symbol};

use super::{InferError, Result, ShapeCx, Spec};
use crate::field::{Tid, Vid};

/// Contents of every slot, with possibly symbolic sizes. Unknown integers are fresh symbols `?0`,
/// `?1`, ….
///
/// Memory depends on the number of set slots, not on their indices.
#[derive(Clone, Debug, Default)]
pub struct Env {
    specs: HashMap<Tid, Spec>,
    values: HashMap<Vid, Expr>,
    ranges: HashMap<Symbol, (i64, i64)>,
    fresh: u64,
}

impl Env {
    /// An empty environment.
    pub fn new() -> Env {
        Env::default()
    }

    /// An empty environment. Its fresh symbols differ from all symbols made here so far.
    pub fn disjoint(&self) -> Env {
        Env { fresh: self.fresh, ..Env::default() }
    }

    /// A fresh symbol with inclusive bounds.
    pub fn fresh(&mut self, min: i64, max: i64) -> Expr {
        let symbol = self.fresh_symbol();
        self.declare(symbol.clone(), min, max);
        Expr::symbol(symbol)
    }

    fn fresh_symbol(&mut self) -> Symbol {
        self.fresh += 1;
        Symbol::new(&format!("?{}", self.fresh - 1))
    }

    /// Declares the inclusive bounds of a symbol. A symbol without a declaration is any 32-bit
    /// integer.
    pub fn declare(&mut self, symbol: Symbol, min: i64, max: i64) {
        self.ranges.insert(symbol, (min, max));
    }

    /// The bounds of a symbol.
    pub fn range(&self, symbol: &Symbol) -> (i64, i64) {
        self.ranges.get(symbol).copied().unwrap_or((i64::from(i32::MIN), i64::from(i32::MAX)))
    }

    /// Contents of a tensor slot, if it was written.
    pub fn get(&self, tid: Tid) -> Option<&Spec> {
        self.specs.get(&tid)
    }

    /// Contents of a value slot, if it was written.
    pub fn get_value(&self, vid: Vid) -> Option<&Expr> {
        self.values.get(&vid)
    }

    /// Sets or clears the contents of a tensor slot, and returns the old contents.
    pub fn replace(&mut self, tid: Tid, spec: Option<Spec>) -> Option<Spec> {
        match spec {
            Some(spec) => self.specs.insert(tid, spec),
            None => self.specs.remove(&tid),
        }
    }

    /// Sets or clears the contents of a value slot, and returns the old contents.
    pub fn replace_value(&mut self, vid: Vid, value: Option<Expr>) -> Option<Expr> {
        match value {
            Some(value) => self.values.insert(vid, value),
            None => self.values.remove(&vid),
        }
    }

    /// Clears all tensor slots for which `keep` is false.
    pub fn retain_tensors(&mut self, keep: &dyn Fn(Tid) -> bool) {
        self.specs.retain(|&tid, _| keep(tid));
    }

    /// Clears all value slots.
    pub fn forget_values(&mut self) {
        self.values.clear();
    }
}

impl ShapeCx for Env {
    fn spec(&self, tid: Tid) -> Result<Spec> {
        self.get(tid).cloned().ok_or(InferError::Unset(tid))
    }

    fn value(&self, vid: Vid) -> Result<Expr> {
        self.get_value(vid).cloned().ok_or(InferError::UnsetValue(vid))
    }

    fn set(&mut self, tid: Tid, spec: Spec) {
        self.replace(tid, Some(spec));
    }

    fn set_value(&mut self, vid: Vid, value: Expr) {
        self.replace_value(vid, Some(value));
    }

    fn unknown(&mut self) -> Expr {
        Expr::symbol(self.fresh_symbol())
    }

    fn bounds(&self, size: &Expr) -> (i64, i64) {
        size.bounds(&|s| self.range(s))
    }
}
