//! What the names of an exported graph stand for.

use std::collections::{HashMap, HashSet};

use flambeau_lower::Refuse;
use flambeau_pt2::{Subclass, SymBool};
use flambeau_tensor::{Expr, Symbol};

use super::alias::TensorValue;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Binding<'a> {
    Tensor(TensorValue<'a>),
    /// Another key of the same tensor.
    Same(String),
    Int(Expr),
    /// A condition on sizes.
    Bool(SymBool),
    /// A quantized weight, of which calls read the fields.
    Subclass(&'a str, &'a Subclass),
    /// A value that no slot can hold, and why; an error only if something needs it.
    Absent(Refuse),
}

impl Binding<'_> {
    /// A value that no slot can hold.
    pub(super) fn absent(reason: impl Into<String>) -> Self {
        Binding::Absent(Refuse::Unsupported(reason.into()))
    }
}

/// The names of a program and its sub-graphs.
#[derive(Debug)]
pub(super) struct Names<'a> {
    /// What names stand for; names in a sub-graph are prefixed with its scope.
    pub(super) values: HashMap<String, Binding<'a>>,
    /// Scope of the graph that is being traced.
    pub(super) scope: String,
    /// Names that anything reads.
    pub(super) used: HashSet<String>,
    /// Symbols of the archive that calls have identified.
    pub(super) symbols: HashMap<Symbol, Expr>,
}

impl<'a> Names<'a> {
    pub(super) fn new(used: HashSet<String>) -> Names<'a> {
        Names { values: HashMap::new(), scope: String::new(), used, symbols: HashMap::new() }
    }

    /// A name of the graph that is being traced, as a key of `values`.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// States what a name of the graph that is being traced stands for.
    pub(super) fn bind(&mut self, name: &str, value: Binding<'a>) {
        self.values.insert(self.key(name), value);
    }

    /// The binding of a key, with renamings followed.
    pub(super) fn resolve(&self, key: &str) -> Option<Binding<'a>> {
        match self.values.get(key)? {
            Binding::Same(other) => self.resolve(other),
            value => Some(value.clone()),
        }
    }

    /// A name of the current scope as a sub-graph's operand.
    pub(super) fn operand(&self, name: &str) -> Binding<'a> {
        let key = self.key(name);
        match self.values.get(&key) {
            Some(Binding::Tensor(_)) => Binding::Same(key),
            Some(value) => value.clone(),
            None => Binding::Absent(Refuse::Reported),
        }
    }

    /// An archived expression with the symbols that calls have identified.
    pub(super) fn expr(&self, e: &Expr) -> Expr {
        e.substitute(&|s| Some(self.symbols.get(s).cloned().unwrap_or_else(|| Expr::symbol(s.clone()))))
            .unwrap_or_else(|| e.clone())
    }
}
