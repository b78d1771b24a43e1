//! The archive's JSON, schema major version 8. Absent fields have defaults, and unknown fields are
//! ignored.

use std::fmt;

use indexmap::IndexMap;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use serde_json::value::RawValue;

/// The supported major version of the schema.
pub(crate) const MAJOR: i64 = 8;

#[derive(Deserialize)]
pub(crate) struct Program<'a> {
    #[serde(borrow)]
    pub(crate) graph_module: GraphModule<'a>,
    #[serde(default)]
    pub(crate) range_constraints: IndexMap<String, RangeConstraint>,
    pub(crate) schema_version: SchemaVersion,
    #[serde(default)]
    pub(crate) verifiers: Vec<String>,
    #[serde(default)]
    pub(crate) torch_version: String,
    #[serde(default)]
    pub(crate) guards_code: Vec<String>,
}

#[derive(Deserialize)]
pub(crate) struct SchemaVersion {
    pub(crate) major: i64,
    #[serde(default)]
    pub(crate) minor: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct RangeConstraint {
    pub(crate) min_val: Option<i64>,
    pub(crate) max_val: Option<i64>,
}

#[derive(Deserialize)]
pub(crate) struct GraphModule<'a> {
    #[serde(borrow)]
    pub(crate) graph: Graph<'a>,
    #[serde(default, borrow)]
    pub(crate) signature: GraphSignature<'a>,
    #[serde(default)]
    pub(crate) module_call_graph: Vec<ModuleCallEntry>,
}

#[derive(Deserialize)]
pub(crate) struct ModuleCallEntry {
    #[serde(default)]
    pub(crate) fqn: String,
    #[serde(default)]
    pub(crate) signature: Option<ModuleCallSignature>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct ModuleCallSignature {
    pub(crate) in_spec: String,
    pub(crate) out_spec: String,
    pub(crate) forward_arg_names: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Graph<'a> {
    #[serde(borrow)]
    pub(crate) inputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub(crate) outputs: Vec<Argument<'a>>,
    #[serde(borrow)]
    pub(crate) nodes: Vec<Node<'a>>,
    pub(crate) tensor_values: IndexMap<String, TensorMeta>,
    pub(crate) sym_int_values: IndexMap<String, SymInt>,
    pub(crate) sym_bool_values: IndexMap<String, SymBool>,
    pub(crate) sym_float_values: IndexMap<String, SymFloat>,
    pub(crate) is_single_tensor_return: bool,
}

#[derive(Deserialize)]
pub(crate) struct Node<'a> {
    pub(crate) target: String,
    #[serde(default, borrow)]
    pub(crate) inputs: Vec<NamedArgument<'a>>,
    #[serde(default, borrow)]
    pub(crate) outputs: Vec<Argument<'a>>,
    #[serde(default, borrow)]
    pub(crate) metadata: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) is_hop_single_tensor_return: Option<bool>,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct NamedArgument<'a> {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(borrow)]
    pub(crate) arg: Argument<'a>,
    #[serde(default)]
    pub(crate) kind: Option<i64>,
}

#[derive(Deserialize)]
pub(crate) struct Name {
    pub(crate) name: String,
}

#[derive(Deserialize)]
pub(crate) struct CustomObj {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) class_fqn: String,
}

#[derive(Deserialize)]
pub(crate) struct GraphArgument<'a> {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(borrow)]
    pub(crate) graph: Graph<'a>,
}

#[derive(Deserialize)]
pub(crate) struct Complex {
    pub(crate) real: Double,
    pub(crate) imag: Double,
}

#[derive(Deserialize)]
pub(crate) struct Device {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) index: Option<i64>,
}

#[derive(Deserialize)]
pub(crate) enum OptionalTensor {
    #[serde(rename = "as_tensor")]
    Tensor(Name),
    #[serde(rename = "as_none")]
    None(de::IgnoredAny),
}

#[derive(Deserialize)]
pub(crate) enum SymArg<T> {
    #[serde(rename = "as_name")]
    Name(String),
    #[serde(rename = "as_int", alias = "as_float", alias = "as_bool")]
    Literal(T),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "the variants are the schema's tags")]
pub(crate) enum Argument<'a> {
    AsNone(de::IgnoredAny),
    AsTensor(Name),
    AsTensors(Vec<Name>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Double),
    AsFloats(Vec<Double>),
    AsString(String),
    AsStrings(Vec<String>),
    AsSymInt(SymArg<i64>),
    AsSymInts(Vec<SymArg<i64>>),
    AsScalarType(i64),
    AsMemoryFormat(i64),
    AsLayout(i64),
    AsDevice(Device),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsSymBool(SymArg<bool>),
    AsSymBools(Vec<SymArg<bool>>),
    AsOptionalTensors(Vec<OptionalTensor>),
    #[serde(borrow)]
    AsGraph(Box<GraphArgument<'a>>),
    AsCustomObj(CustomObj),
    AsOperator(String),
    AsSymFloat(SymArg<Double>),
    AsSymFloats(Vec<SymArg<Double>>),
    AsOptionalTensor(OptionalTensor),
    AsComplex(Complex),
    AsNestedTensors(Vec<Vec<Name>>),
    AsIntLists(Vec<Vec<i64>>),
    AsFloatLists(Vec<Vec<Double>>),
    #[serde(borrow)]
    AsStringToArgument(IndexMap<String, Argument<'a>>),
}

#[derive(Deserialize)]
pub(crate) struct SymExpr {
    pub(crate) expr_str: String,
    /// Value in the captured run.
    #[serde(default)]
    pub(crate) hint: Option<Hint>,
}

#[derive(Deserialize)]
pub(crate) struct Hint {
    #[serde(default)]
    pub(crate) as_int: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymInt {
    AsExpr(SymExpr),
    AsInt(i64),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymFloat {
    AsExpr(SymExpr),
    AsFloat(Double),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymBool {
    AsExpr(SymExpr),
    AsBool(bool),
}

#[derive(Deserialize)]
pub(crate) struct TensorMeta {
    pub(crate) dtype: i64,
    pub(crate) sizes: Vec<SymInt>,
    #[serde(default)]
    pub(crate) requires_grad: bool,
    pub(crate) device: Device,
    pub(crate) strides: Vec<SymInt>,
    pub(crate) storage_offset: SymInt,
    pub(crate) layout: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct GraphSignature<'a> {
    #[serde(borrow)]
    pub(crate) input_specs: Vec<InputSpec<'a>>,
    #[serde(borrow)]
    pub(crate) output_specs: Vec<OutputSpec<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputSpec<'a> {
    Parameter {
        arg: Name,
        parameter_name: String,
    },
    Buffer {
        arg: Name,
        buffer_name: String,
        persistent: bool,
    },
    TensorConstant {
        arg: Name,
        tensor_constant_name: String,
    },
    CustomObj {
        arg: CustomObj,
        custom_obj_name: String,
    },
    Token {
        arg: Name,
    },
    UserInput {
        #[serde(borrow)]
        arg: Argument<'a>,
    },
    ConstantInput {
        name: String,
        #[serde(borrow)]
        value: Argument<'a>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputSpec<'a> {
    UserOutput {
        #[serde(borrow)]
        arg: Argument<'a>,
    },
    LossOutput {
        arg: Name,
    },
    BufferMutation {
        arg: Name,
        buffer_name: String,
    },
    ParameterMutation {
        arg: Name,
        parameter_name: String,
    },
    GradientToParameter {
        arg: Name,
        parameter_name: String,
    },
    GradientToUserInput {
        arg: Name,
        user_input_name: String,
    },
    UserInputMutation {
        arg: Name,
        user_input_name: String,
    },
    Token {
        arg: Name,
    },
}

#[derive(Deserialize)]
pub(crate) struct PayloadConfig {
    pub(crate) config: IndexMap<String, PayloadMeta>,
}

#[derive(Deserialize)]
pub(crate) struct PayloadMeta {
    pub(crate) path_name: String,
    #[serde(default)]
    pub(crate) use_pickle: bool,
    #[serde(default)]
    pub(crate) tensor_meta: Option<TensorMeta>,
}

/// A float: a number, or one of the strings `Infinity`, `-Infinity`, `NaN`.
#[derive(Clone, Copy)]
pub(crate) struct Double(pub(crate) f64);

impl<'de> Deserialize<'de> for Double {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Double, D::Error> {
        struct Float;
        impl Visitor<'_> for Float {
            type Value = Double;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Double, E> {
                Ok(Double(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Double, E> {
                Ok(Double(v as f64))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Double, E> {
                Ok(Double(v as f64))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Double, E> {
                match v {
                    "Infinity" => Ok(Double(f64::INFINITY)),
                    "-Infinity" => Ok(Double(f64::NEG_INFINITY)),
                    "NaN" => Ok(Double(f64::NAN)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
                }
            }
        }
        deserializer.deserialize_any(Float)
    }
}
