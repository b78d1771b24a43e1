//! A PyTorch call in the form that rules read: arguments by name, tensors as virtual slots.

use flambeau_ir::{InferError, Tid};
use flambeau_tensor::{DType, Expr};

/// An argument's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Tensor(Tid),
    /// A list of tensors and Nones.
    Tensors(Vec<Option<Tid>>),
    Bool(bool),
    Int(Expr),
    Ints(Vec<Expr>),
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
    Floats(Vec<f64>),
    Str(String),
    DType(DType),
    /// A value that no rule reads (layout, device, memory format …), as the name of its kind.
    Opaque(&'static str),
}

/// Metadata that the program records for one result.
#[derive(Clone, Debug, PartialEq)]
pub struct OutMeta {
    pub dtype: DType,
    /// Sizes, outermost first.
    pub dims: Vec<Expr>,
    /// Whether a later call or the program's output reads the result.
    pub used: bool,
}

/// A result of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Tensor(Tid),
    /// A list of tensors, as `split` returns.
    Tensors(Vec<Tid>),
    Int(Expr),
    /// An absent or unread result.
    None,
}

/// Why a call cannot be expressed in nodes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refuse {
    #[error("no rule for this operator")]
    NoRule,
    /// The operator belongs to a group without rules.
    #[error("{}; {}", .0.reason, .0.instead)]
    Kind(&'static crate::Refusal),
    #[error("argument `{0}` is missing")]
    Missing(String),
    #[error("argument `{param}` is {found}, expected {expected}")]
    Argument { param: String, found: String, expected: String },
    #[error("`{param}` must be known at compile time, it is {found}")]
    Dynamic { param: String, found: String },
    #[error("{0} values have no place in an MLX graph")]
    DType(DType),
    #[error("{0}")]
    Unsupported(String),
    /// The call reads a result of a call that was refused earlier.
    #[error("a call that it depends on was refused")]
    Reported,
    #[error(transparent)]
    Infer(#[from] InferError),
}

/// Builds [`Refuse::Unsupported`] with its own reason.
pub(crate) fn unsupported<T>(reason: impl Into<String>) -> Result<T, Refuse> {
    Err(Refuse::Unsupported(reason.into()))
}

/// One call of an operator.
#[derive(Clone, Debug)]
pub struct Call {
    /// Target as the archive spells it, without the `torch.ops.` prefix: `aten.add.Tensor`,
    /// `mlx.rope.default`.
    pub target: String,
    /// Arguments in schema order, by name. Arguments at their default may be absent.
    pub args: Vec<(String, Arg)>,
    /// One entry per tensor result; a list result has one per element.
    pub outputs: Vec<OutMeta>,
}

impl Arg {
    /// The tensors of the argument.
    pub fn tensors(&self) -> impl Iterator<Item = Tid> {
        let (one, list) = match self {
            Arg::Tensor(t) => (Some(*t), &[][..]),
            Arg::Tensors(list) => (None, &list[..]),
            _ => (None, &[][..]),
        };
        one.into_iter().chain(list.iter().flatten().copied())
    }

    /// As [`tensors`](Self::tensors), to be replaced.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tid> {
        let (one, list) = match self {
            Arg::Tensor(t) => (Some(t), &mut [][..]),
            Arg::Tensors(list) => (None, &mut list[..]),
            _ => (None, &mut [][..]),
        };
        one.into_iter().chain(list.iter_mut().flatten())
    }
}

impl Call {
    /// The tensors that the call reads, in the order of its arguments.
    pub fn reads(&self) -> impl Iterator<Item = Tid> {
        self.args.iter().flat_map(|(_, arg)| arg.tensors())
    }

    /// As [`reads`](Self::reads), to be replaced.
    pub fn reads_mut(&mut self) -> impl Iterator<Item = &mut Tid> {
        self.args.iter_mut().flat_map(|(_, arg)| arg.tensors_mut())
    }

    /// The argument of that name, if it was given and is not None.
    pub fn arg(&self, param: &str) -> Option<&Arg> {
        self.args.iter().find(|(name, _)| name == param).map(|(_, arg)| arg).filter(|arg| **arg != Arg::None)
    }

    fn required(&self, param: &str) -> Result<&Arg, Refuse> {
        self.arg(param).ok_or_else(|| Refuse::Missing(param.to_owned()))
    }

    fn wrong<T>(param: &str, found: &Arg, expected: &str) -> Result<T, Refuse> {
        Err(Refuse::Argument { param: param.to_owned(), found: format!("{found:?}"), expected: expected.to_owned() })
    }

    /// A tensor argument.
    pub fn tensor(&self, param: &str) -> Result<Tid, Refuse> {
        match self.required(param)? {
            Arg::Tensor(t) => Ok(*t),
            other => Call::wrong(param, other, "a tensor"),
        }
    }

    /// A tensor argument that may be None.
    pub fn tensor_opt(&self, param: &str) -> Result<Option<Tid>, Refuse> {
        self.arg(param).map(|_| self.tensor(param)).transpose()
    }

    /// A list of tensors, with its None entries.
    pub fn tensors_opt(&self, param: &str) -> Result<Vec<Option<Tid>>, Refuse> {
        match self.required(param)? {
            Arg::Tensors(ts) => Ok(ts.clone()),
            Arg::Tensor(t) => Ok(vec![Some(*t)]),
            other => Call::wrong(param, other, "a list of tensors"),
        }
    }

    /// A list of tensors without None entries.
    pub fn tensors(&self, param: &str) -> Result<Vec<Tid>, Refuse> {
        let list = self.tensors_opt(param)?;
        list.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| Refuse::Missing(format!("{param}[…]")))
    }

    /// An integer argument, possibly symbolic.
    pub fn size(&self, param: &str) -> Result<Expr, Refuse> {
        match self.required(param)? {
            Arg::Int(e) => Ok(e.clone()),
            Arg::Bool(b) => Ok(Expr::Int(i64::from(*b))),
            other => Call::wrong(param, other, "an integer"),
        }
    }

    /// An integer argument, possibly symbolic, that may be absent.
    pub fn size_opt(&self, param: &str) -> Result<Option<Expr>, Refuse> {
        self.arg(param).map(|_| self.size(param)).transpose()
    }

    /// An integer that must be known at compile time.
    pub fn int(&self, param: &str) -> Result<i64, Refuse> {
        let size = self.size(param)?;
        size.as_int().ok_or_else(|| Refuse::Dynamic { param: param.to_owned(), found: size.to_string() })
    }

    /// An integer that must be known at compile time, or the operator's default.
    pub fn int_or(&self, param: &str, default: i64) -> Result<i64, Refuse> {
        self.arg(param).map_or(Ok(default), |_| self.int(param))
    }

    /// A list of integers, possibly symbolic. A single integer is a list of one.
    pub fn sizes(&self, param: &str) -> Result<Vec<Expr>, Refuse> {
        match self.required(param)? {
            Arg::Ints(list) => Ok(list.clone()),
            Arg::Int(e) => Ok(vec![e.clone()]),
            Arg::Tensors(list) if list.is_empty() => Ok(Vec::new()),
            other => Call::wrong(param, other, "a list of integers"),
        }
    }

    /// A list of integers that must be known at compile time; `None` if absent.
    pub fn ints_opt(&self, param: &str) -> Result<Option<Vec<i64>>, Refuse> {
        if self.arg(param).is_none() {
            return Ok(None);
        }
        let known = |e: &Expr| e.as_int().ok_or_else(|| Refuse::Dynamic { param: param.to_owned(), found: e.to_string() });
        self.sizes(param)?.iter().map(known).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A list of integers that must be known at compile time.
    pub fn ints(&self, param: &str) -> Result<Vec<i64>, Refuse> {
        self.ints_opt(param)?.ok_or_else(|| Refuse::Missing(param.to_owned()))
    }

    /// A float argument with the operator's default; integers and booleans convert.
    pub fn float_or(&self, param: &str, default: f64) -> Result<f64, Refuse> {
        match self.arg(param) {
            None => Ok(default),
            Some(Arg::Float(v)) => Ok(*v),
            Some(Arg::Bool(b)) => Ok(f64::from(u8::from(*b))),
            Some(Arg::Int(e)) => match e.as_int() {
                Some(v) => Ok(v as f64),
                None => Err(Refuse::Dynamic { param: param.to_owned(), found: e.to_string() }),
            },
            Some(other) => Call::wrong(param, other, "a number"),
        }
    }

    /// A float argument that may be absent.
    pub fn float_opt(&self, param: &str) -> Result<Option<f64>, Refuse> {
        self.arg(param).map(|_| self.float_or(param, 0.0)).transpose()
    }

    /// A boolean argument with the operator's default.
    pub fn bool_or(&self, param: &str, default: bool) -> Result<bool, Refuse> {
        match self.arg(param) {
            None => Ok(default),
            Some(Arg::Bool(b)) => Ok(*b),
            Some(Arg::Int(Expr::Int(v))) => Ok(*v != 0),
            Some(other) => Call::wrong(param, other, "a boolean"),
        }
    }

    /// A string argument with the operator's default.
    pub fn str_or<'a>(&'a self, param: &str, default: &'a str) -> Result<&'a str, Refuse> {
        match self.arg(param) {
            None => Ok(default),
            Some(Arg::Str(s)) => Ok(s),
            Some(other) => Call::wrong(param, other, "a string"),
        }
    }

    /// An element type argument; `None` if absent.
    pub fn dtype_opt(&self, param: &str) -> Result<Option<DType>, Refuse> {
        match self.arg(param) {
            None => Ok(None),
            Some(Arg::DType(d)) => Ok(Some(*d)),
            Some(other) => Call::wrong(param, other, "a dtype"),
        }
    }

    /// The recorded metadata of the `i`-th tensor result.
    pub fn out(&self, i: usize) -> Result<&OutMeta, Refuse> {
        self.outputs.get(i).ok_or_else(|| Refuse::Missing(format!("result {i}")))
    }

    /// Whether the program reads the `i`-th tensor result.
    pub fn is_used(&self, i: usize) -> bool {
        self.outputs.get(i).is_some_and(|o| o.used)
    }
}
