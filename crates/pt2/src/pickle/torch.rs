//! Constructors of tensors.

use flambeau_tensor::DType;
use indexmap::IndexMap;

use crate::{
    Attribute, ScalarType, Storage, Subclass, View, Weight,
    container::Container,
    limits::{MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTE_ITEMS, MAX_RANK},
};

use super::{
    fault::PickleFault,
    machine::{Host, Machine, StackValue},
};

/// Provides the constructors, and the storages next to the pickle.
pub(super) struct Loader {
    container: Container,
    id: String,
    /// Class names, indexed by [`Global::Class`].
    classes: Vec<String>,
}

impl Loader {
    pub(super) fn new(container: Container, id: &str) -> Loader {
        Loader { container, id: id.into(), classes: Vec::new() }
    }
}

/// A global name that a pickle may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    RebuildFromType,
    RebuildWrapperSubclass,
    RebuildTensor,
    RebuildTensorTyped,
    RebuildParameter,
    OrderedDict,
    Size,
    Device,
    GetLayout,
    /// Class of a storage, with its element type. `None` is an untyped storage, which counts bytes.
    StorageClass(Option<DType>),
    /// An element type by PyTorch's name.
    DType(&'static str),
    /// The class of ordinary tensors.
    PlainTensor,
    /// A class from a quantization library, for tensors or their settings.
    Class(usize),
}

const CONSTRUCTORS: [(&str, &str, Global); 23] = [
    ("torch._tensor", "_rebuild_from_type_v2", Global::RebuildFromType),
    ("torch._utils", "_rebuild_wrapper_subclass", Global::RebuildWrapperSubclass),
    ("torch._utils", "_rebuild_tensor_v2", Global::RebuildTensor),
    ("torch._utils", "_rebuild_tensor_v3", Global::RebuildTensorTyped),
    ("torch._utils", "_rebuild_parameter", Global::RebuildParameter),
    ("collections", "OrderedDict", Global::OrderedDict),
    ("torch", "Size", Global::Size),
    ("torch", "device", Global::Device),
    ("torch.serialization", "_get_layout", Global::GetLayout),
    ("torch", "FloatStorage", Global::StorageClass(Some(DType::F32))),
    ("torch", "HalfStorage", Global::StorageClass(Some(DType::F16))),
    ("torch", "BFloat16Storage", Global::StorageClass(Some(DType::BF16))),
    ("torch", "CharStorage", Global::StorageClass(Some(DType::I8))),
    ("torch", "ByteStorage", Global::StorageClass(Some(DType::U8))),
    ("torch", "ShortStorage", Global::StorageClass(Some(DType::I16))),
    ("torch", "IntStorage", Global::StorageClass(Some(DType::I32))),
    ("torch", "LongStorage", Global::StorageClass(Some(DType::I64))),
    ("torch", "BoolStorage", Global::StorageClass(Some(DType::Bool))),
    ("torch", "DoubleStorage", Global::StorageClass(Some(DType::F64))),
    ("torch.storage", "UntypedStorage", Global::StorageClass(None)),
    ("torch", "Tensor", Global::PlainTensor),
    ("torch.nn.parameter", "Parameter", Global::PlainTensor),
    ("torch.nn.parameter", "Buffer", Global::PlainTensor),
];

/// Packages whose classes may be read. Only fields and names are read, never code.
const QUANTIZERS: [&str; 2] = ["torchao.", "executorch."];

/// Element types below one byte, which occur only as attributes.
const SMALL_TYPES: [&str; 14] =
    ["int1", "int2", "int3", "int4", "int5", "int6", "int7", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"];

pub(super) enum Object {
    Storage {
        storage: Storage,
        dtype: Option<DType>,
    },
    Tensor(View),
    Foreign {
        dtype: ScalarType,
        shape: Vec<usize>,
    },
    Subclass(Box<Subclass>),
    /// A settings object of this class. Only its class is read.
    Setting(usize),
}

type Val = StackValue<Global>;

impl Host for Loader {
    type Global = Global;
    type Object = Object;

    fn global(&mut self, module: &str, name: &str) -> Option<Global> {
        if let Some(row) = CONSTRUCTORS.iter().find(|row| row.0 == module && row.1 == name) {
            return Some(row.2);
        }
        if QUANTIZERS.iter().any(|package| module.starts_with(package)) {
            let known = self.classes.iter().position(|class| class == name);
            return Some(Global::Class(known.unwrap_or_else(|| {
                self.classes.push(name.to_owned());
                self.classes.len() - 1
            })));
        }
        if module != "torch" {
            return None;
        }
        let small = SMALL_TYPES.iter().find(|&&small| small == name).copied();
        small.or_else(|| ScalarType::from_torch_name(name).map(ScalarType::torch_name)).map(Global::DType)
    }

    fn reduce(m: &mut Machine<Loader>, global: Global, args: &[Val]) -> Result<Val, PickleFault> {
        match (global, args) {
            (Global::OrderedDict, []) => Ok(m.new_dict()),
            (Global::Size | Global::Device | Global::GetLayout, [only, ..]) => Ok(*only),
            (Global::RebuildParameter, [data, ..]) => Ok(*data),
            (Global::RebuildTensor, [storage, offset, size, stride, ..]) => m.rebuild(*storage, *offset, *size, *stride, None),
            (Global::RebuildTensorTyped, [storage, offset, size, stride, _, _, dtype, ..]) => {
                m.rebuild(*storage, *offset, *size, *stride, Some(m.scalar_type(*dtype)?))
            }
            (Global::RebuildFromType, [func, class, args, state]) => m.rebuild_from_type(*func, *class, *args, *state),
            (Global::Class(class), _) => Ok(m.new_object(Object::Setting(class))),
            _ => Err(PickleFault::Arguments { callee: format!("{global:?}"), arguments: args.len() }),
        }
    }

    fn has_state(object: &Object) -> bool {
        matches!(object, Object::Setting(_))
    }

    fn persistent(m: &mut Machine<Loader>, id: Val) -> Result<Val, PickleFault> {
        let Some(&[tag, StackValue::Global(Global::StorageClass(dtype)), key, ..]) = m.tuple(id) else {
            return Err(m.expected("a storage's id", id));
        };
        let key =
            m.text(key).filter(|_| m.text(tag) == Some("storage")).ok_or_else(|| m.expected("a storage's id", id))?.to_owned();
        let id = format!("{}:{key}", m.host.id);
        let storage = Storage::member(&m.host.container, &format!("data/{key}"), id)?;
        Ok(m.new_object(Object::Storage { storage, dtype }))
    }
}

/// Refuses counts above `limit`.
fn within(what: &'static str, found: usize, limit: usize) -> Result<(), PickleFault> {
    if found > limit { Err(PickleFault::Limit { what, found, limit }) } else { Ok(()) }
}

impl Machine<Loader> {
    fn object(&self, value: Val) -> Option<&Object> {
        match value {
            StackValue::Object(at) => self.objects.get(at),
            _ => None,
        }
    }

    fn scalar_type(&self, value: Val) -> Result<ScalarType, PickleFault> {
        match value {
            StackValue::Global(Global::DType(name)) => ScalarType::from_torch_name(name).ok_or(PickleFault::ElementType(name)),
            other => Err(self.expected("an element type", other)),
        }
    }

    fn size(&self, value: Val) -> Result<usize, PickleFault> {
        match value {
            StackValue::Int(v) => {
                usize::try_from(v).map_err(|_| PickleFault::Expected { expected: "a size", found: v.to_string() })
            }
            other => Err(self.expected("a size", other)),
        }
    }

    fn sizes(&self, value: Val) -> Result<Vec<usize>, PickleFault> {
        let items = self.list(value).ok_or_else(|| self.expected("sizes", value))?;
        within("dims", items.len(), MAX_RANK)?;
        items.iter().map(|&v| self.size(v)).collect()
    }

    fn rebuild(
        &mut self,
        storage: Val,
        offset: Val,
        size: Val,
        stride: Val,
        dtype: Option<ScalarType>,
    ) -> Result<Val, PickleFault> {
        let Some(Object::Storage { storage, dtype: stored }) = self.object(storage) else {
            return Err(self.expected("a storage", storage));
        };
        let dtype = dtype.or(stored.map(ScalarType::Known)).ok_or(PickleFault::Untyped)?;
        let shape = self.sizes(size)?;
        let Some(dtype) = dtype.dtype() else { return Ok(self.new_object(Object::Foreign { dtype, shape })) };
        let view = View { dtype, shape, strides: self.sizes(stride)?, offset: self.size(offset)?, storage: storage.clone() };
        view.check_extent()?;
        Ok(self.new_object(Object::Tensor(view)))
    }

    fn rebuild_from_type(&mut self, func: Val, class: Val, args: Val, state: Val) -> Result<Val, PickleFault> {
        let args = self.tuple(args).ok_or_else(|| self.expected("a tuple of arguments", args))?.to_vec();
        match (func, class) {
            (StackValue::Global(Global::RebuildWrapperSubclass), StackValue::Global(Global::Class(class))) => {
                let class = self.host.classes[class].clone();
                let [_, dtype, size, ..] = args[..] else {
                    return Err(PickleFault::Arguments { callee: class, arguments: args.len() });
                };
                let subclass = self.subclass(&class, dtype, size, state).map_err(|fault| fault.at(&class))?;
                Ok(self.new_object(Object::Subclass(Box::new(subclass))))
            }
            (
                StackValue::Global(func @ (Global::RebuildTensor | Global::RebuildTensorTyped)),
                StackValue::Global(Global::PlainTensor),
            ) => Loader::reduce(self, func, &args),
            _ => Err(PickleFault::Rebuild { class: self.kind(class), by: self.kind(func) }),
        }
    }

    fn subclass(&self, class: &str, dtype: Val, size: Val, state: Val) -> Result<Subclass, PickleFault> {
        let entries = self.dict(state).ok_or_else(|| self.expected("a dict of fields", state))?;
        within("fields", entries.len(), MAX_ATTRIBUTE_ITEMS)?;
        let (mut tensors, mut attributes) = (IndexMap::new(), IndexMap::new());
        for &(key, value) in entries {
            let key = self.text(key).ok_or_else(|| self.expected("a text as key", key))?;
            if key.starts_with('_') {
                continue;
            }
            match value {
                StackValue::Object(at) => match self.objects.get(at) {
                    Some(Object::Tensor(view)) => drop(tensors.insert(key.to_owned(), view.clone())),
                    Some(Object::Setting(class)) => {
                        attributes.insert(key.to_owned(), Attribute::Object(self.host.classes[*class].clone()));
                    }
                    _ => return Err(self.expected("a plain tensor or a scalar", value).at(format!("field `{key}`"))),
                },
                other => {
                    let attribute = self.attribute(other, true).map_err(|fault| fault.at(format!("field `{key}`")))?;
                    attributes.insert(key.to_owned(), attribute);
                }
            }
        }
        let (dtype, shape) = (self.scalar_type(dtype)?, self.sizes(size)?);
        Ok(Subclass { class: class.to_owned(), dtype, shape, tensors, attributes })
    }

    fn attribute(&self, value: Val, lists: bool) -> Result<Attribute, PickleFault> {
        Ok(match value {
            StackValue::None => Attribute::None,
            StackValue::Bool(v) => Attribute::Bool(v),
            StackValue::Int(v) => Attribute::Int(v),
            StackValue::Float(v) => Attribute::Float(v),
            StackValue::Global(Global::DType(name)) => Attribute::DType(name.to_owned()),
            StackValue::Text(_) => {
                let text = self.text(value).unwrap_or_default();
                within("bytes of text", text.len(), MAX_ATTRIBUTE_BYTES)?;
                Attribute::Text(text.to_owned())
            }
            StackValue::Tuple(_) | StackValue::List(_) if lists => {
                let items = self.list(value).unwrap_or_default();
                within("items", items.len(), MAX_ATTRIBUTE_ITEMS)?;
                Attribute::List(items.iter().map(|&v| self.attribute(v, false)).collect::<Result<_, _>>()?)
            }
            other => return Err(self.expected("a scalar", other)),
        })
    }

    /// Converts a value to the tensor that it holds.
    pub(super) fn weight(&self, value: Val) -> Result<Weight, PickleFault> {
        match self.object(value) {
            Some(Object::Tensor(view)) => Ok(Weight::Strided(view.clone())),
            Some(Object::Subclass(subclass)) => Ok(Weight::Subclass(subclass.clone())),
            Some(Object::Foreign { dtype, shape }) => Ok(Weight::Foreign { dtype: *dtype, shape: shape.clone() }),
            Some(Object::Storage { .. } | Object::Setting(_)) | None => Err(self.expected("a tensor", value)),
        }
    }
}
