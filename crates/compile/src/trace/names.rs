//! Bindings of the names of an exported graph.

use std::collections::{HashMap, HashSet};

use flambeau_lower::Refuse;
use flambeau_pt2::{Subclass, SymBool};
use flambeau_tensor::{Expr, Symbol};

use super::alias::TensorValue;

/// The value bound to a name.
#[derive(Clone, Debug)]
pub(super) enum Binding<'a> {
    Tensor(TensorValue<'a>),
    /// Another key of the same tensor.
    Same(String),
    Int(Expr),
    /// A condition on sizes.
    Bool(SymBool),
    /// A quantized weight whose fields calls read.
    Subclass(&'a str, &'a Subclass),
    /// A value that no slot can hold, with the reason. It is an error only if it is read.
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
    /// Bindings by name. Names in a sub-graph are prefixed with its scope.
    pub(super) values: HashMap<String, Binding<'a>>,
    /// Scope of the current graph.
    pub(super) scope: String,
    /// Names that are read anywhere.
    pub(super) used: HashSet<String>,
    /// Symbols of the archive that calls have identified.
    pub(super) symbols: HashMap<Symbol, Expr>,
}

impl<'a> Names<'a> {
    pub(super) fn new(used: HashSet<String>) -> Names<'a> {
        Names { values: HashMap::new(), scope: String::new(), used, symbols: HashMap::new() }
    }

    /// The key in `values` of a name of the current graph.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// Binds a name of the current graph.
    pub(super) fn bind(&mut self, name: &str, value: Binding<'a>) {
        self.values.insert(self.key(name), value);
    }

    /// The binding of a key, after following aliases.
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
