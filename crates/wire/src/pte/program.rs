//! Programs as plain data.

use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;

use crate::segment::Segment;

/// A `.pte` file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Methods, with distinct names.
    pub plans: Vec<ExecutionPlan>,
    /// Unsupported methods, which cannot be written.
    pub unsupported: Vec<UnsupportedMethod>,
    /// Segment of each key. Several keys may share one.
    pub named_data: IndexMap<String, u32>,
    /// Segments. Segment 0 usually holds the constants.
    pub segments: Vec<Segment>,
    /// Storage of constant tensors.
    pub constants: Constants,
    /// Storage of the initial contents of planned tensors. Only the first entry is used.
    pub mutable_data: Vec<Subsegment>,
    /// Delegate payloads stored inline in the program's tables.
    pub inline_payloads: Vec<Bytes>,
}

/// A method that needs an unsupported feature, such as an element type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedMethod {
    pub name: String,
    /// The unsupported feature, and its place in the file.
    pub reason: String,
}

/// Storage of constant tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Constants {
    /// No constants.
    #[default]
    None,
    /// At offsets in a segment. Entry 0 is a placeholder.
    Segment(Subsegment),
    /// Inside the program's tables, in files older than segments. Entry 0 is a placeholder.
    Inline(Vec<Bytes>),
}

/// Offsets in a segment. Entry 0 is a placeholder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subsegment {
    /// Index of the segment.
    pub segment: u32,
    /// Byte offsets from the segment's first byte.
    pub offsets: Vec<u64>,
}

/// A method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionPlan {
    /// Method name.
    pub name: String,
    /// Structure of arguments and results in Python. It is informational, but always written,
    /// because some readers require it.
    pub container: ContainerMeta,
    /// The value table. All value indices refer to it.
    pub values: Vec<EValue>,
    /// Value indices of the inputs.
    pub inputs: Vec<u32>,
    /// Value indices of the outputs.
    pub outputs: Vec<u32>,
    /// Instruction sequences, at least one.
    pub chains: Vec<Chain>,
    /// Kernels that instructions name by index.
    pub operators: Vec<Operator>,
    /// Delegates that instructions name by index.
    pub delegates: Vec<Delegate>,
    /// Size of each memory arena, in bytes. Entry 0 is a placeholder.
    pub non_const_buffer_sizes: Vec<u64>,
    /// Devices of arenas. Empty if all arenas are on the CPU.
    pub devices: Vec<BufferDevice>,
}

/// JSON pytrees of a method's arguments and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMeta {
    pub inputs: String,
    pub outputs: String,
}

/// The device of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferDevice {
    /// Arena, as an index into `non_const_buffer_sizes`.
    pub buffer: u32,
    pub device: Device,
}

/// A device as stored in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// 0 is CPU, 1 is CUDA.
    pub kind: i8,
    pub index: i8,
}

/// A value: an argument, a result, or an intermediate.
#[derive(Clone, Debug, PartialEq)]
pub enum EValue {
    None,
    Int(i64),
    Bool(bool),
    Double(f64),
    Tensor(Box<TensorValue>),
    String(String),
    /// Indices of `Int` values, so a list follows changing sizes.
    IntList(Vec<u32>),
    DoubleList(Vec<f64>),
    BoolList(Vec<bool>),
    /// Indices of `Tensor` values with lower indices than the list.
    TensorList(Vec<u32>),
    /// Indices of `Tensor` values, or none.
    OptionalTensorList(Vec<Option<u32>>),
}

/// A tensor without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorValue {
    pub dtype: DType,
    /// The shape, or its upper bound if dynamic.
    pub sizes: Vec<u32>,
    /// Permutation of axes, from outermost to innermost.
    pub dim_order: Vec<u8>,
    pub requires_grad: bool,
    /// PyTorch's layout number. 0 is strided.
    pub layout: i8,
    /// Whether the shape is only an upper bound.
    pub dynamic: bool,
    /// Entry of the constants or of the initial contents. 0 means none.
    pub data_buffer_idx: u32,
    /// Place in an arena, or `None` for unplanned memory.
    pub allocation: Option<Allocation>,
    /// Name and location, if the writer stated them.
    pub extra: Option<ExtraTensorInfo>,
}

/// A place in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Arena, as an index into `non_const_buffer_sizes`, never 0.
    pub memory_id: u32,
    /// Byte offset in the arena.
    pub offset: u64,
}

/// Additional properties of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraTensorInfo {
    /// Entry of the mutable data segments. Readers always use the first.
    pub mutable_data_segments_idx: u64,
    /// Key of external data, or the attribute's name.
    pub fully_qualified_name: Option<String>,
    /// Whether an external file holds the data under this name.
    pub external: bool,
    pub device: Device,
}

/// A sequence of instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Not used by any runtime.
    pub inputs: Vec<i32>,
    /// Not used by any runtime.
    pub outputs: Vec<i32>,
    pub instructions: Vec<Instruction>,
}

/// One step of a method. Indices refer to the method's values, operators and delegates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Runs a kernel. Arguments follow the operator's schema, and the results are repeated at the
    /// end.
    KernelCall { op: u32, args: Vec<u32> },
    /// Runs a delegate: inputs, then outputs.
    DelegateCall { delegate: u32, args: Vec<u32> },
    /// Copies a value, not the tensor's data.
    MoveCall { from: u32, to: u32 },
    /// Jumps to `destination` in the same chain if the condition is false. The chain's length means
    /// its end.
    JumpFalse { cond: u32, destination: u32 },
    /// Drops a tensor's data.
    Free { value: u32 },
}

/// A kernel's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operator {
    /// Name without overload, such as `aten::add`.
    pub name: String,
    /// Overload, such as `out`. May be empty.
    pub overload: String,
}

impl Operator {
    /// Registered name of the kernel: `name` or `name.overload`.
    pub fn full_name(&self) -> String {
        if self.overload.is_empty() { self.name.clone() } else { format!("{}.{}", self.name, self.overload) }
    }
}

/// A part of a method that runs on a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delegate {
    /// Backend name, such as `MLXBackend`.
    pub id: String,
    /// Location of the payload.
    pub data: DelegateData,
    pub compile_specs: Vec<CompileSpec>,
}

/// Location of a delegate's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegateData {
    /// Entry of [`Program::inline_payloads`].
    Inline(u32),
    /// Entry of [`Program::segments`].
    Segment(u32),
}

impl Default for DelegateData {
    fn default() -> Self {
        DelegateData::Inline(0)
    }
}

/// A setting for a backend's compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileSpec {
    pub key: String,
    pub value: Bytes,
}

impl Program {
    /// The method with this name.
    pub fn plan(&self, name: &str) -> Option<&ExecutionPlan> {
        self.plans.iter().find(|p| p.name == name)
    }

    /// Bytes of a segment, empty if there is no such segment.
    pub fn segment(&self, index: u32) -> Bytes {
        self.segments.get(index as usize).map(|s| s.data.clone()).unwrap_or_default()
    }

    /// A delegate's payload, shared with the file.
    pub fn delegate_payload(&self, delegate: &Delegate) -> Bytes {
        match delegate.data {
            DelegateData::Inline(i) => self.inline_payloads.get(i as usize).cloned().unwrap_or_default(),
            DelegateData::Segment(i) => self.segment(i),
        }
    }

    /// The data of a key, shared with the file. Neither type nor shape is stored with it.
    pub fn named(&self, key: &str) -> Option<Bytes> {
        self.named_data.get(key).map(|&segment| self.segment(segment))
    }

    /// The elements of a constant tensor, or the initial elements of a planned tensor, shared with
    /// the file. `None` if the file has none.
    pub fn tensor_data(&self, tensor: &TensorValue) -> Option<Bytes> {
        if tensor.data_buffer_idx == 0 || tensor.is_external() {
            return None;
        }
        let index = tensor.data_buffer_idx as usize;
        let bytes = match (&self.constants, tensor.allocation) {
            (_, Some(_)) => self.subsegment(self.mutable_data.first()?, index),
            (Constants::None, None) => None,
            (Constants::Segment(constants), None) => self.subsegment(constants, index),
            (Constants::Inline(buffers), None) => buffers.get(index).cloned(),
        }?;
        let len = usize::try_from(tensor.nbytes()?).ok().filter(|&n| n <= bytes.len())?;
        Some(bytes.slice(..len))
    }

    /// The bytes from an entry's offset to the end of its segment.
    fn subsegment(&self, of: &Subsegment, index: usize) -> Option<Bytes> {
        let start = usize::try_from(*of.offsets.get(index)?).ok()?;
        let data = self.segment(of.segment);
        (start <= data.len()).then(|| data.slice(start..))
    }
}

impl ExecutionPlan {
    /// Creates a method without inputs that returns `values`, such as `get_max_seq_len`.
    ///
    /// A Python list is returned as one value per element.
    pub fn constant(name: impl Into<String>, values: Vec<EValue>) -> ExecutionPlan {
        ExecutionPlan {
            name: name.into(),
            outputs: (0..values.len() as u32).collect(),
            values,
            chains: vec![Chain::default()],
            non_const_buffer_sizes: vec![0],
            ..ExecutionPlan::default()
        }
    }
}

impl TensorValue {
    /// Creates a row-major tensor with static shape and without memory.
    pub fn new(dtype: DType, sizes: &[u32]) -> TensorValue {
        TensorValue {
            dtype,
            sizes: sizes.to_vec(),
            dim_order: (0..sizes.len() as u8).collect(),
            requires_grad: false,
            layout: 0,
            dynamic: false,
            data_buffer_idx: 0,
            allocation: None,
            extra: None,
        }
    }

    /// Number of elements, at the upper bound if dynamic. `None` if it overflows 64 bits.
    pub fn numel(&self) -> Option<u64> {
        self.sizes.iter().try_fold(1u64, |n, &d| n.checked_mul(d.into()))
    }

    /// Number of bytes, at the upper bound if dynamic. `None` if it overflows 64 bits.
    pub fn nbytes(&self) -> Option<u64> {
        self.numel()?.checked_mul(self.dtype.size() as u64)
    }

    /// Whether an external data file holds the elements.
    pub fn is_external(&self) -> bool {
        self.extra.as_ref().is_some_and(|e| e.external)
    }
}
