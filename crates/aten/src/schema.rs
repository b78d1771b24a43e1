//! What a schema says, and what follows from it.

use std::fmt;

use crate::Operator;

/// What an operator takes and returns.
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

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub name: &'static str,
    pub ty: Type,
    pub alias: Option<Alias>,
    pub default: Option<Literal>,
    pub keyword_only: bool,
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Return {
    pub ty: Type,
    pub alias: Option<Alias>,
}

/// Memory that parameters and results share: those of one set are views of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    pub set: &'static str,
    /// Whether the operator writes there.
    pub write: bool,
}

/// The type of a parameter or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Tensor,
    Int,
    /// An integer that may be symbolic.
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
    /// A list; where it states a length, a single element stands for that many.
    List(Box<Type>, Option<usize>),
}

/// A default.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'static str),
    Ints(Vec<i64>),
}

/// How an operator returns its results, in PyTorch's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It writes to no operand.
    Functional,
    /// It writes its result to `self`: `add_`.
    InPlace,
    /// It writes its results to operands that exist for that alone: `add.out`.
    Out,
    /// It writes to other operands, beside what it returns.
    Mutable,
}

impl Type {
    /// The type of a value that is there.
    pub fn required(&self) -> &Type {
        match self {
            Type::Optional(ty) => ty,
            ty => ty,
        }
    }

    /// Whether it is a list whose items may be absent.
    pub fn has_optional_items(&self) -> bool {
        matches!(self, Type::List(item, _) if matches!(**item, Type::Optional(_)))
    }

    /// Whether values of the two types are the same, however long their lists are.
    fn agrees(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::List(a, _), Type::List(b, _)) | (Type::Optional(a), Type::Optional(b)) => a.agrees(b),
            (a, b) => a == b,
        }
    }
}

impl Param {
    /// Whether the parameter exists to take a result.
    pub fn is_out(&self) -> bool {
        self.keyword_only && self.is_written()
    }

    /// Whether the operator writes to it.
    pub fn is_written(&self) -> bool {
        self.alias.is_some_and(|alias| alias.write)
    }
}

impl Schema {
    /// The name that programs captured by `torch.export` give the operator.
    pub fn target(&self) -> String {
        let overload = if self.overload.is_empty() { "default" } else { self.overload };
        format!("{}.{}.{overload}", self.namespace, self.name)
    }

    /// The parameter of that name.
    pub fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.name == name)
    }

    /// The parameters that the operator reads its arguments from, in order: all but those that exist to take results.
    pub fn operands(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| !param.is_out())
    }

    /// The parameters that the operator writes to.
    pub fn written(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|param| param.is_written())
    }

    /// Whether results share memory with an operand that the operator does not write to.
    pub fn is_view(&self) -> bool {
        self.returns.iter().any(|result| result.alias.is_some_and(|alias| !alias.write))
    }

    /// How the operator returns its results.
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

    /// The operator that returns what this one writes as its result: `add.Tensor` for `add_.Tensor` and `add.out`; itself if it writes
    /// nothing.
    pub fn functional(&'static self) -> Option<&'static Schema> {
        match self.kind() {
            Kind::Functional => Some(self),
            Kind::InPlace => self.variant(&base_of_in_place(self.name)?, Kind::Functional),
            Kind::Out => self.variant(self.name, Kind::Functional).or_else(|| self.variant(self.name, Kind::Mutable)),
            Kind::Mutable => None,
        }
    }

    /// The operator that writes to its last operands what this one returns: `add.out` for `add.Tensor`.
    pub fn out_variant(&self) -> Option<&'static Schema> {
        self.variant(self.name, Kind::Out)
    }

    /// The operator that returns a copy of what this one returns a view of: `permute_copy` for `permute`.
    pub fn copying(&self) -> Option<&'static Schema> {
        self.variant(&format!("{}_copy", self.name), Kind::Functional)
    }

    /// The operator of that name and kind with the same operands, in any order. The one that an in-place variant writes to may have
    /// another name there.
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

    /// The operands that all variants of an operator have. What says of which kind a new tensor is, variants that write to an existing
    /// one lack.
    fn common_operands(&self) -> Vec<&Param> {
        const OPTIONS: [&str; 4] = ["dtype", "layout", "device", "pin_memory"];
        let makes_tensor = OPTIONS.iter().all(|name| self.param(name).is_some());
        self.operands().filter(|param| !(makes_tensor && OPTIONS.contains(&param.name))).collect()
    }
}

/// The parameters without a parameter of the same name and type in the other list.
fn unmatched<'a>(params: &[&'a Param], others: &[&Param]) -> Vec<&'a Param> {
    let is_in_both = |p: &&Param| others.iter().any(|other| other.name == p.name && other.ty.agrees(&p.ty));
    params.iter().copied().filter(|p| !is_in_both(p)).collect()
}

/// What an in-place variant is a variant of: `add` for `add_`, `__and__` for `__iand__`.
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
