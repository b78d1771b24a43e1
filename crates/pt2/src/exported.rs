//! An exported program and what its inputs and outputs mean.

use flambeau_tensor::{Expr, Symbol};
use indexmap::IndexMap;

use crate::{Argument, Graph, Weight};

/// Which rules the graph follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// As captured: operators may write to their operands, views alias, and no output says what was written.
    Training,
    /// Functional: a write is a further output, named by an [`OutputSpec`].
    Aten,
}

/// Smallest and largest value, both included; `None` is unbounded.
pub type Range = (Option<i64>, Option<i64>);

/// What a graph input stands for. `arg` is the name of the value in the graph, `name` the qualified name in the model.
#[derive(Clone, Debug, PartialEq)]
pub enum InputSpec {
    /// A key of [`Exported::weights`].
    Parameter { arg: String, name: String },
    /// A key of [`Exported::weights`] if persistent, else of [`Exported::constants`].
    Buffer { arg: String, name: String, persistent: bool },
    /// A key of [`Exported::constants`].
    TensorConstant { arg: String, name: String },
    /// A tensor or a dynamic integer of the caller.
    UserInput(Argument),
    /// A scalar of the caller that capture took as fixed.
    ConstantInput { name: String, value: Argument },
    /// An ordering token, which carries nothing.
    Token { arg: String },
    /// A script object.
    CustomObj { arg: String, name: String },
}

/// What a graph output stands for. `arg` is the name of the value in the graph.
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

/// One spec per graph input and per graph output, in their order.
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
    /// Values that each symbol may take.
    pub ranges: IndexMap<Symbol, Range>,
    /// Values that expressions of symbols may take.
    pub expression_ranges: Vec<(Expr, Range)>,
    /// Conditions on input sizes that capture assumed, as Python expressions.
    pub guards: Vec<String>,
    /// Structure of the inputs `(args, kwargs)`, PyTorch's tree text.
    pub in_spec: String,
    /// Structure of the outputs, PyTorch's tree text.
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
