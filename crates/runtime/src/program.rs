//! Programs: a `.pte` file with optional external data.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use flambeau_ir::{Checked, Graph, check, engine::Constants};
use flambeau_tensor::{Bytes, DType, Tensor};
use flambeau_wire::{
    mlx,
    ptd::{self, DataFile},
    pte::{self, Delegate, EValue, ExecutionPlan, TensorValue},
    read_program,
};

use crate::{ConstantError, Error, Result, Value, map_file, map_file_locked};

/// Backend name of the MLX delegate in programs.
pub const MLX_BACKEND: &str = "MLXBackend";

/// An opened program. Clones share all data.
#[derive(Clone, Debug)]
pub struct Program {
    shared: Arc<ProgramData>,
}

#[derive(Debug)]
struct ProgramData {
    file: pte::Program,
    /// Bytes that `file` was decoded from.
    bytes: Bytes,
    data: Option<DataFile>,
    /// Checked graphs by plan and delegate, built at first use.
    graphs: Vec<Vec<OnceLock<Arc<Checked>>>>,
}

/// Finds constants by key. External data takes precedence over data in the program.
impl Constants for Program {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.named(key)
    }
}

impl Program {
    /// Maps a `.pte` file. Weights are not read before use.
    ///
    /// # Errors
    /// The file cannot be read or is not a valid program.
    pub fn open(path: impl AsRef<Path>) -> Result<Program> {
        let path = path.as_ref();
        Program::of_file(path, map_file(path)?)
    }

    /// Like [`open`](Program::open), but reads the file at once and [locks](map_file_locked) it in
    /// memory.
    ///
    /// # Errors
    /// As [`open`](Program::open) and [`map_file_locked`].
    pub fn open_locked(path: impl AsRef<Path>) -> Result<Program> {
        let path = path.as_ref();
        Program::of_file(path, map_file_locked(path)?)
    }

    fn of_file(path: &Path, bytes: Bytes) -> Result<Program> {
        let file = read_program(&bytes).map_err(|source| Error::File { path: path.to_owned(), source })?;
        Ok(Program::new(file, bytes))
    }

    /// Opens a program in memory. The bytes are shared, not copied.
    ///
    /// # Errors
    /// The bytes are not a valid program.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Program> {
        let bytes = bytes.into();
        Ok(Program::new(read_program(&bytes)?, bytes))
    }

    fn new(file: pte::Program, bytes: Bytes) -> Program {
        let graphs = file.plans.iter().map(|plan| plan.delegates.iter().map(|_| OnceLock::new()).collect()).collect();
        Program { shared: Arc::new(ProgramData { file, bytes, data: None, graphs }) }
    }

    /// Adds the data of a `.ptd` file, which takes precedence over the program's own data.
    ///
    /// # Errors
    /// The file cannot be read or is not a valid data file.
    pub fn with_data(self, path: impl AsRef<Path>) -> Result<Program> {
        let path = path.as_ref();
        self.with_data_of(path, &map_file(path)?)
    }

    /// Like [`with_data`](Program::with_data), but reads the file at once and
    /// [locks](map_file_locked) it in memory.
    ///
    /// # Errors
    /// As [`with_data`](Program::with_data) and [`map_file_locked`].
    pub fn with_locked_data(self, path: impl AsRef<Path>) -> Result<Program> {
        let path = path.as_ref();
        self.with_data_of(path, &map_file_locked(path)?)
    }

    fn with_data_of(self, path: &Path, bytes: &Bytes) -> Result<Program> {
        let data = ptd::read_data_file(bytes).map_err(|source| Error::File { path: path.to_owned(), source })?;
        Ok(self.with_data_file(data))
    }

    /// Adds data that is already read.
    #[must_use]
    pub fn with_data_file(self, data: DataFile) -> Program {
        let mut program = Program::new(self.shared.file.clone(), self.shared.bytes.clone());
        if let Some(shared) = Arc::get_mut(&mut program.shared) {
            shared.data = Some(data);
        }
        program
    }

    /// The decoded file.
    pub fn file(&self) -> &pte::Program {
        &self.shared.file
    }

    /// All bytes that determine the program's results, in pieces. They are the bytes of its file,
    /// then each key of the external data with its bytes.
    pub fn contents(&self) -> impl Iterator<Item = &[u8]> {
        let data = self.shared.data.iter().flat_map(|data| {
            data.entries.iter().flat_map(|(key, entry)| {
                let segment = data.segments.get(entry.segment as usize);
                [key.as_bytes(), segment.map_or(&[], |segment| &segment.data[..])]
            })
        });
        std::iter::once(&self.shared.bytes[..]).chain(data)
    }

    /// Names of all supported methods in the file's order, including constant methods.
    pub fn method_names(&self) -> impl Iterator<Item = &str> {
        self.file().plans.iter().map(|plan| plan.name.as_str())
    }

    /// Names of the methods that are not constant.
    pub fn computing_methods(&self) -> impl Iterator<Item = &str> {
        self.file().plans.iter().filter(|plan| !is_constant(plan)).map(|plan| plan.name.as_str())
    }

    /// Named data by key. The bytes are shared with their file.
    pub fn named(&self, key: &str) -> Option<Bytes> {
        self.shared.data.as_ref().and_then(|data| data.get(key)).or_else(|| self.file().named(key))
    }

    /// The values that a constant method such as `get_max_seq_len` returns. `None` if there is no
    /// such method, or if it has inputs or instructions.
    pub fn constant(&self, method: &str) -> Option<Vec<Value>> {
        let plan = self.file().plan(method).filter(|plan| is_constant(plan))?;
        plan.outputs.iter().map(|&i| self.initial(plan, i).ok().flatten()).collect()
    }

    /// The single integer that a constant method returns.
    pub fn constant_int(&self, method: &str) -> Option<i64> {
        match self.constant(method)?.as_slice() {
            [one] => one.as_int(),
            _ => None,
        }
    }

    /// Element type of a method's first result, if that is a tensor. Nothing is loaded.
    pub fn output_dtype(&self, method: &str) -> Option<DType> {
        let plan = self.file().plan(method)?;
        match plan.values.get(*plan.outputs.first()? as usize)? {
            EValue::Tensor(t) => Some(t.dtype),
            _ => None,
        }
    }

    /// Index of a method's plan.
    pub(crate) fn plan_index(&self, name: &str) -> Result<usize> {
        if let Some(method) = self.file().unsupported.iter().find(|method| method.name == name) {
            return Err(Error::Unsupported { method: name.to_owned(), reason: method.reason.clone() });
        }
        self.file().plans.iter().position(|plan| plan.name == name).ok_or_else(|| {
            let names: Vec<String> = self.method_names().map(|n| format!("`{}`", n.escape_debug())).collect();
            let found = if names.is_empty() { "no methods".to_owned() } else { names.join(", ") };
            Error::NoMethod { name: name.to_owned(), found }
        })
    }

    /// Decodes a delegate's graph without checking it.
    ///
    /// # Errors
    /// [`Error::ForeignDelegate`] for another backend, [`Error::Payload`] if the payload cannot be
    /// decoded.
    pub fn graph(&self, plan: &ExecutionPlan, index: usize, delegate: &Delegate) -> Result<Graph> {
        if delegate.id != MLX_BACKEND {
            return Err(Error::ForeignDelegate { method: plan.name.clone(), id: delegate.id.escape_debug().to_string() });
        }
        let payload = self.file().delegate_payload(delegate);
        mlx::decode(&payload).map_err(|source| Error::Payload { method: plan.name.clone(), delegate: index, source })
    }

    /// A delegate's checked graph. It is decoded and checked once for all sessions.
    pub(crate) fn checked(&self, plan_index: usize, index: usize) -> Result<Arc<Checked>> {
        let (plan, cell) = (&self.file().plans[plan_index], &self.shared.graphs[plan_index][index]);
        if let Some(graph) = cell.get() {
            return Ok(Arc::clone(graph));
        }
        let graph = self.graph(plan, index, &plan.delegates[index])?;
        let graph = check(graph).map_err(|source| Error::Graph { method: plan.name.clone(), delegate: index, source })?;
        Ok(Arc::clone(cell.get_or_init(|| Arc::new(graph))))
    }

    /// Contents of a value before a method runs. `None` for tensors without contents, and for
    /// lists.
    pub(crate) fn initial(&self, plan: &ExecutionPlan, index: u32) -> Result<Option<Value>, ConstantError> {
        Ok(match plan.values.get(index as usize) {
            Some(EValue::None) => Some(Value::None),
            Some(EValue::Int(v)) => Some(Value::Int(*v)),
            Some(EValue::Bool(v)) => Some(Value::Bool(*v)),
            Some(EValue::Double(v)) => Some(Value::Double(*v)),
            Some(EValue::String(v)) => Some(Value::String(v.clone())),
            Some(EValue::Tensor(t)) => self.tensor(t)?.map(Value::Tensor),
            _ => None,
        })
    }

    /// A tensor's elements in the files, or `None` if they hold none.
    fn tensor(&self, value: &TensorValue) -> Result<Option<Tensor>, ConstantError> {
        let bytes = if value.is_external() { Some(self.external(value)?) } else { self.file().tensor_data(value) };
        let Some(bytes) = bytes else { return Ok(None) };
        if !value.dim_order.iter().enumerate().all(|(i, &d)| i == usize::from(d)) {
            return Err(ConstantError::DimOrder(value.dim_order.clone()));
        }
        let shape: Vec<usize> = value.sizes.iter().map(|&d| d as usize).collect();
        Ok(Some(Tensor::new(value.dtype, &shape, bytes)?.aligned()))
    }

    fn external(&self, value: &TensorValue) -> Result<Bytes, ConstantError> {
        let key = value.extra.as_ref().and_then(|e| e.fully_qualified_name.as_deref()).unwrap_or_default();
        let missing = || ConstantError::NoData(key.to_owned());
        let data = self.shared.data.as_ref().ok_or_else(missing)?;
        let layout = data.entries.get(key).ok_or_else(missing)?.layout.as_ref();
        let fits = layout.is_some_and(|l| l.dtype == value.dtype && l.sizes == value.sizes && l.dim_order == value.dim_order);
        if !fits {
            let expected = format!("{}{:?}", value.dtype, value.sizes);
            let found = layout.map_or("no layout".into(), |l| format!("{}{:?}", l.dtype, l.sizes));
            return Err(ConstantError::Layout { key: key.to_owned(), expected, found });
        }
        data.get(key).ok_or_else(missing)
    }
}

/// Whether a method only returns values that the file holds.
pub(crate) fn is_constant(plan: &ExecutionPlan) -> bool {
    plan.inputs.is_empty() && plan.chains.iter().all(|chain| chain.instructions.is_empty())
}
