//! Exported programs and the roles of their inputs and outputs.

use flambeau_tensor::{Expr, Symbol};
use indexmap::IndexMap;

use crate::{Argument, Graph, Weight};

/// Rules that a graph follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// As captured: operators may write to their operands, views alias, and outputs do not list
    /// writes.
    Training,
    /// Functional: each write is an additional output, described by an [`OutputSpec`].
    Aten,
}

/// Smallest and largest value, inclusive. `None` means unbounded.
pub type Range = (Option<i64>, Option<i64>);

/// Role of a graph input. `arg` is the value's name in the graph, and `name` is the qualified name
/// in the model.
#[derive(Clone, Debug, PartialEq)]
pub enum InputSpec {
    /// A key of [`Exported::weights`].
    Parameter { arg: String, name: String },
    /// A key of [`Exported::weights`] if persistent, else of [`Exported::constants`].
    Buffer { arg: String, name: String, persistent: bool },
    /// A key of [`Exported::constants`].
    TensorConstant { arg: String, name: String },
    /// A tensor or dynamic integer passed by the caller.
    UserInput(Argument),
    /// A scalar passed by the caller, fixed during capture.
    ConstantInput { name: String, value: Argument },
    /// An ordering token without contents.
    Token { arg: String },
    /// A script object.
    CustomObj { arg: String, name: String },
}

/// Role of a graph output. `arg` is the value's name in the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputSpec {
    UserOutput(Argument),
    LossOutput {
        arg: String,
    },
    /// The new value of a buffer.
    BufferMutation {
        arg: String,
        name: String,
    },
    /// The new value of a parameter.
    ParameterMutation {
        arg: String,
        name: String,
    },
    /// The new value of the user input whose graph value is `name`.
    UserInputMutation {
        arg: String,
        name: String,
    },
    GradientToParameter {
        arg: String,
        name: String,
    },
    GradientToUserInput {
        arg: String,
        name: String,
    },
    Token {
        arg: String,
    },
}

/// One spec per graph input and per graph output, in graph order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
}

/// A captured program with its weights.
#[derive(Clone, Debug)]
pub struct Exported {
    pub graph: Graph,
    pub signature: Signature,
    /// Range of each symbol.
    pub ranges: IndexMap<Symbol, Range>,
    /// Ranges of expressions of symbols.
    pub expression_ranges: Vec<(Expr, Range)>,
    /// Conditions on input sizes that capture assumed, as Python expressions.
    pub guards: Vec<String>,
    /// Structure of the inputs `(args, kwargs)`, as PyTorch's tree text.
    pub in_spec: String,
    /// Structure of the outputs, as PyTorch's tree text.
    pub out_spec: String,
    /// Parameter names of the captured `forward`.
    pub forward_arg_names: Vec<String>,
    pub torch_version: String,
    pub dialect: Dialect,
    /// Parameters and persistent buffers by qualified name.
    pub weights: IndexMap<String, Weight>,
    /// Non-persistent buffers and tensor constants by qualified name.
    pub constants: IndexMap<String, Weight>,
}

impl Exported {
    /// The weight, buffer or constant behind a graph input, if it has one.
    pub fn weight_of(&self, input: &InputSpec) -> Option<&Weight> {
        match input {
            InputSpec::Parameter { name, .. } => self.weights.get(name),
            InputSpec::Buffer { name, persistent: true, .. } => self.weights.get(name).or_else(|| self.constants.get(name)),
            InputSpec::Buffer { name, .. } => self.constants.get(name).or_else(|| self.weights.get(name)),
            InputSpec::TensorConstant { name, .. } => self.constants.get(name),
            _ => None,
        }
    }
}
