//! A call with its operands by the names that the operator gives them.

use flambeau_aten::Schema;
use flambeau_tensor::{DType, Tensor, normalize_axis};

use crate::Error;

/// An operand of a call.
#[derive(Clone, Debug)]
pub enum Argument {
    None,
    Tensor(Tensor),
    /// A list of tensors; elements may be None.
    Tensors(Vec<Option<Tensor>>),
    Bool(bool),
    Bools(Vec<bool>),
    /// An integer, or the ExecuTorch number of an element type.
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Str(String),
}

impl Argument {
    fn kind(&self) -> &'static str {
        match self {
            Argument::None => "none",
            Argument::Tensor(_) => "a tensor",
            Argument::Tensors(_) => "a list of tensors",
            Argument::Bool(_) => "a boolean",
            Argument::Bools(_) => "a list of booleans",
            Argument::Int(_) => "an integer",
            Argument::Ints(_) => "a list of integers",
            Argument::Float(_) => "a float",
            Argument::Floats(_) => "a list of floats",
            Argument::Str(_) => "a string",
        }
    }
}

/// One call of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Call<'c> {
    /// Names the operands.
    pub schema: &'static Schema,
    /// The operands in the order of the schema.
    pub args: &'c [Argument],
    /// Element types of the results, as the program declares them.
    pub results: &'c [DType],
}

impl Call<'_> {
    /// The operand of that name, if it is given.
    pub(crate) fn arg(&self, name: &str) -> Option<&Argument> {
        let at = self.schema.operands().position(|param| param.name == name)?;
        self.args.get(at).filter(|a| !matches!(a, Argument::None))
    }

    fn wrong<T>(&self, name: &'static str, expected: &'static str) -> Result<T, Error> {
        Err(Error::Argument { name, found: self.arg(name).map_or("none", Argument::kind), expected })
    }

    /// A tensor.
    pub(crate) fn tensor(&self, name: &'static str) -> Result<&Tensor, Error> {
        match self.arg(name) {
            Some(Argument::Tensor(t)) => Ok(t),
            _ => self.wrong(name, "a tensor"),
        }
    }

    /// A number; integers and booleans convert.
    pub(crate) fn number(&self, name: &'static str) -> Result<f64, Error> {
        match self.arg(name) {
            Some(Argument::Int(v)) => Ok(*v as f64),
            Some(Argument::Float(v)) => Ok(*v),
            Some(Argument::Bool(b)) => Ok(f64::from(u8::from(*b))),
            _ => self.wrong(name, "a number"),
        }
    }

    /// A number, or `default` if it is absent.
    pub(crate) fn number_or(&self, name: &'static str, default: f64) -> Result<f64, Error> {
        if self.arg(name).is_some() { self.number(name) } else { Ok(default) }
    }

    /// A list of integers. A single integer is a list of one, an absent operand an empty list.
    pub(crate) fn ints(&self, name: &'static str) -> Result<Vec<i64>, Error> {
        match self.arg(name) {
            None => Ok(Vec::new()),
            Some(Argument::Int(v)) => Ok(vec![*v]),
            Some(Argument::Ints(list)) => Ok(list.clone()),
            Some(_) => self.wrong(name, "a list of integers"),
        }
    }

    /// A boolean; one that is absent is false.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.arg(name), Some(Argument::Bool(true)))
    }

    /// A boolean; one that is absent is true.
    pub(crate) fn flag_or_true(&self, name: &str) -> bool {
        self.arg(name).is_none() || self.flag(name)
    }

    /// A string, if it is given.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        if let Some(Argument::Str(s)) = self.arg(name) { Some(s) } else { None }
    }

    /// The axes that `dim` names, if it names any.
    pub(crate) fn listed_axes(&self, rank: usize) -> Result<Vec<usize>, Error> {
        let listed = self.ints("dim")?;
        listed.iter().map(|&axis| normalize_axis(axis, rank).ok_or(Error::Axis { axis, rank })).collect()
    }

    /// The axes that `dim` names; all if it names none.
    pub(crate) fn axes(&self, rank: usize) -> Result<Vec<usize>, Error> {
        let listed = if rank == 0 { Vec::new() } else { self.listed_axes(rank)? };
        Ok(if listed.is_empty() { (0..rank).collect() } else { listed })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The results of an operator's kernel for these operands.
    pub(crate) fn run(target: &str, args: &[Argument], results: &[DType]) -> Result<Vec<Tensor>, Error> {
        let schema = flambeau_aten::schema(target).expect("the operator has a schema");
        let of_tensor = |a: &Argument| if let Argument::Tensor(t) = a { Some(t.dtype()) } else { None };
        let dtypes: Vec<DType> = args.iter().filter_map(of_tensor).chain(results.iter().copied()).collect();
        let kernel = crate::kernel_for(schema, &dtypes).expect("the operator has a kernel");
        kernel.run(&Call { schema, args, results })
    }
}
