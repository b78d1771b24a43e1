//! Schemas, and the relations between operators that follow from them.

use std::fmt;

use crate::Operator;

/// The signature of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    pub operator: Operator,
    pub namespace: &'static str,
    pub name: &'static str,
    /// Empty for the default overload.
    pub overload: &'static str,
    pub params: Vec<Param>,
    pub returns: Vec<Return>,
    pub(crate) text: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub name: &'static str,
    pub ty: Type,
    pub alias: Option<Alias>,
    pub default: Option<Literal>,
    pub keyword_only: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Return {
    pub ty: Type,
    pub alias: Option<Alias>,
}

/// An alias set; parameters and results of one set share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    pub set: &'static str,
    /// Whether the operator writes to the shared memory.
    pub write: bool,
}

/// The type of a parameter or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Tensor,
    Int,
    /// An integer or a symbolic integer.
    SymInt,
    Float,
    Bool,
    /// An integer, a float or a boolean.
    Scalar,
    Str,
    ScalarType,
    Layout,
    Device,
    MemoryFormat,
    Generator,
    Optional(Box<Type>),
    /// A list with an optional fixed length. With a length, one element may stand for the whole
    /// list.
    List(Box<Type>, Option<usize>),
}

/// A parameter's default value.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'static str),
    Ints(Vec<i64>),
}

/// The variants of operators, in PyTorch's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes to no operand.
    Functional,
    /// Writes its result to `self`: `add_`.
    InPlace,
    /// Writes its results to dedicated keyword-only operands: `add.out`.
    Out,
    /// Writes to other operands in addition to its results.
    Mutable,
}

impl Type {
    /// The type without an outer `Optional`.
    pub fn required(&self) -> &Type {
        match self {
            Type::Optional(ty) => ty,
            ty => ty,
        }
    }

    /// Whether the type is a list of optional items.
    pub fn has_optional_items(&self) -> bool {
        matches!(self, Type::List(item, _) if matches!(**item, Type::Optional(_)))
    }

    /// Whether the types are equal except for the lengths of lists.
    fn agrees(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::List(a, _), Type::List(b, _)) | (Type::Optional(a), Type::Optional(b)) => a.agrees(b),
            (a, b) => a == b,
        }
    }
}

impl Param {
    /// Whether the parameter is an output: keyword-only and written.
    pub fn is_out(&self) -> bool {
        self.keyword_only && self.is_written()
    }

    /// Whether the operator writes to the parameter.
    pub fn is_written(&self) -> bool {
        self.alias.is_some_and(|alias| alias.write)
    }
}

impl Schema {
    /// The operator's name in a `torch.export` program: `aten.add.Tensor`.
    pub fn target(&self) -> String {
        let overload = if self.overload.is_empty() { "default" } else { self.overload };
        format!("{}.{}.{overload}", self.namespace, self.name)
    }

    /// The parameter called `name`.
    pub fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.name == name)
    }

    /// The operator's parameters except outputs, in order.
    pub fn operands(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| !param.is_out())
    }

    /// The parameters that the operator writes to.
    pub fn written(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| param.is_written())
    }

    /// Whether a result aliases an operand without a write.
    pub fn is_view(&self) -> bool {
        self.returns.iter().any(|result| result.alias.is_some_and(|alias| !alias.write))
    }

    /// The operator's variant.
    pub fn kind(&self) -> Kind {
        if self.params.iter().any(Param::is_out) {
            Kind::Out
        } else if self.written().next().is_none() {
            Kind::Functional
        } else if base_of_in_place(self.name).is_some() {
            Kind::InPlace
        } else {
            Kind::Mutable
        }
    }

    /// The functional variant of an in-place or out variant: `add.Tensor` for `add_.Tensor` and
    /// `add.out`. A functional operator returns itself. An out variant without one falls back to
    /// the mutable variant.
    pub fn functional(&'static self) -> Option<&'static Schema> {
        match self.kind() {
            Kind::Functional => Some(self),
            Kind::InPlace => self.variant(&base_of_in_place(self.name)?, Kind::Functional),
            Kind::Out => self.variant(self.name, Kind::Functional).or_else(|| self.variant(self.name, Kind::Mutable)),
            Kind::Mutable => None,
        }
    }

    /// The out variant: `add.out` for `add.Tensor`.
    pub fn out_variant(&self) -> Option<&'static Schema> {
        self.variant(self.name, Kind::Out)
    }

    /// The copying variant of a view: `permute_copy` for `permute`.
    pub fn copying(&self) -> Option<&'static Schema> {
        self.variant(&format!("{}_copy", self.name), Kind::Functional)
    }

    /// The overload of `name` with the given kind and the same operands, in any order. The operand
    /// that one of the two writes to may have another name in the other.
    fn variant(&self, name: &str, kind: Kind) -> Option<&'static Schema> {
        let fits = |other: &Schema| {
            let (own, others) = (self.common_operands(), other.common_operands());
            let (left, right) = (unmatched(&own, &others), unmatched(&others, &own));
            let rest_fits = match (&left[..], &right[..]) {
                ([], []) => true,
                ([a], [b]) => a.ty.agrees(&b.ty) && (a.is_written() || b.is_written()),
                _ => false,
            };
            other.kind() == kind && rest_fits
        };
        Operator::of_name(self.namespace, name).map(Operator::schema).find(|other| fits(other))
    }

    /// The operands that all variants of an operator share. Out variants lack the options of a
    /// factory function (`dtype`, `layout`, `device`, `pin_memory`).
    fn common_operands(&self) -> Vec<&Param> {
        const OPTIONS: [&str; 4] = ["dtype", "layout", "device", "pin_memory"];
        let makes_tensor = OPTIONS.iter().all(|name| self.param(name).is_some());
        self.operands().filter(|param| !(makes_tensor && OPTIONS.contains(&param.name))).collect()
    }
}

/// The parameters with no parameter of the same name and type in `others`.
fn unmatched<'a>(params: &[&'a Param], others: &[&Param]) -> Vec<&'a Param> {
    let is_in_both = |p: &&Param| others.iter().any(|other| other.name == p.name && other.ty.agrees(&p.ty));
    params.iter().copied().filter(|p| !is_in_both(p)).collect()
}

/// The base name of an in-place variant: `add` for `add_`, `__and__` for `__iand__`.
fn base_of_in_place(name: &str) -> Option<String> {
    match name.strip_prefix("__i").filter(|rest| rest.ends_with("__")) {
        Some(rest) => Some(format!("__{rest}")),
        None if name.ends_with("__") => None,
        None => name.strip_suffix('_').map(str::to_owned),
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}
