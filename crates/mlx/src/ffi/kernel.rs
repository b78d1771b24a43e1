//! Kernels given by source text, in Metal's language or CUDA's.

use std::{
    collections::HashMap,
    ffi::{CString, c_char},
    ptr,
};

use flambeau_tensor::{DType, Shape};

use super::{Api, Array, Failure, Raw, Result, call, codes::TemplateKind, table};

/// A kernel's text and names.
#[derive(Clone, Debug)]
pub(crate) struct KernelText<'a> {
    pub(crate) is_cuda: bool,
    pub(crate) name: &'a str,
    pub(crate) source: &'a str,
    pub(crate) header: &'a str,
    pub(crate) inputs: &'a [String],
    pub(crate) outputs: &'a [String],
    pub(crate) row_contiguous: bool,
    pub(crate) atomic_outputs: bool,
    /// Bytes of shared memory a block; CUDA only.
    pub(crate) shared_memory: i32,
}

/// A template argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Template {
    Int(i32),
    Bool(bool),
    DType(DType),
}

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) outputs: &'a [(DType, Shape)],
    /// Threads in all, by axis.
    pub(crate) grid: [i32; 3],
    /// Threads of a block, by axis.
    pub(crate) threads: [i32; 3],
    pub(crate) templates: &'a [(String, Template)],
    /// Initial value of the results before the launch; uninitialised if absent.
    pub(crate) init: Option<f32>,
}

/// Compiled kernels by the digest of their text.
pub(crate) type Kernels = HashMap<[u8; 32], Kernel>;

/// A kernel that MLX compiles when it is first launched.
#[derive(Debug)]
pub(crate) struct Kernel {
    api: Api,
    raw: Raw,
    outputs: usize,
}

// SAFETY: the handle owns a C++ function object that no other handle refers to; MLX's caches behind
// it have locks.
unsafe impl Send for Kernel {}

/// Terminated strings and the pointers to them.
struct Strings {
    _own: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Strings {
    fn new<'a>(list: impl Iterator<Item = &'a str>) -> Result<Strings> {
        let own = list.map(terminated).collect::<Result<Vec<_>>>()?;
        let pointers = own.iter().map(|s| s.as_ptr()).collect();
        Ok(Strings { _own: own, pointers })
    }
}

fn terminated(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Failure("a kernel's text holds a zero byte".into()))
}

impl Kernel {
    /// A kernel from its text.
    pub(crate) fn new(api: Api, text: &KernelText<'_>) -> Result<Kernel> {
        let (name, source, header) = (terminated(text.name)?, terminated(text.source)?, terminated(text.header)?);
        let inputs = Strings::new(text.inputs.iter().map(String::as_str))?;
        let outputs = Strings::new(text.outputs.iter().map(String::as_str))?;
        let raw_text = table::KernelText {
            is_cuda: text.is_cuda.into(),
            name: name.as_ptr(),
            source: source.as_ptr(),
            header: header.as_ptr(),
            inputs: inputs.pointers.as_ptr(),
            n_inputs: inputs.pointers.len(),
            outputs: outputs.pointers.as_ptr(),
            n_outputs: outputs.pointers.len(),
            row_contiguous: text.row_contiguous.into(),
            atomic_outputs: text.atomic_outputs.into(),
            shared_memory: text.shared_memory,
        };
        let mut raw = ptr::null_mut();
        call!(api, fl_kernel_new(&raw const raw_text, &raw mut raw))?;
        Ok(Kernel { api, raw, outputs: text.outputs.len() })
    }

    /// Adds a launch to the graph.
    pub(crate) fn launch(&self, inputs: &[&Array], launch: &Launch<'_>) -> Result<Vec<Array>> {
        if launch.outputs.len() != self.outputs {
            return Err(Failure(format!("a kernel with {} results, expected {}", self.outputs, launch.outputs.len())));
        }
        let names = Strings::new(launch.templates.iter().map(|t| t.0.as_str()))?;
        let (kinds, values): (Vec<TemplateKind>, Vec<i32>) = launch.templates.iter().map(|t| t.1.parts()).unzip();
        let shapes: Vec<i64> = launch.outputs.iter().flat_map(|(_, shape)| shape.iter().map(|&d| d as i64)).collect();
        let ranks: Vec<usize> = launch.outputs.iter().map(|(_, shape)| shape.len()).collect();
        let dtypes: Vec<i32> = launch.outputs.iter().map(|(dtype, _)| dtype.code().into()).collect();
        let raw_launch = table::Launch {
            shapes: shapes.as_ptr(),
            ranks: ranks.as_ptr(),
            dtypes: dtypes.as_ptr(),
            n_outputs: launch.outputs.len(),
            grid: launch.grid,
            threads: launch.threads,
            template_names: names.pointers.as_ptr(),
            template_kinds: kinds.as_ptr(),
            template_values: values.as_ptr(),
            n_templates: launch.templates.len(),
            has_init: launch.init.is_some().into(),
            init: launch.init.unwrap_or(0.0),
        };
        let inputs: Vec<Raw> = inputs.iter().map(|x| x.raw()).collect();
        let mut out = vec![ptr::null_mut(); self.outputs];
        call!(self.api, fl_kernel_call(self.raw, inputs[..].into(), &raw const raw_launch, out.as_mut_ptr()))?;
        Ok(out.into_iter().map(|raw| Array::own(self.api, raw)).collect())
    }
}

impl Template {
    /// Kind and value as the shim takes them.
    fn parts(self) -> (TemplateKind, i32) {
        match self {
            Template::Int(v) => (TemplateKind::Int, v),
            Template::Bool(v) => (TemplateKind::Bool, v.into()),
            Template::DType(v) => (TemplateKind::DType, v.code().into()),
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: `fl_kernel_new` made the handle for this value alone, and nothing else frees it.
        unsafe { (self.api.0.fl_kernel_free)(self.raw) };
    }
}
