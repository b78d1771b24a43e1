//! Exchange of tensors with other libraries by DLPack, without copies.

use std::{
    ffi::{CStr, c_void},
    ptr, slice,
};

use bytes::Bytes;
use flambeau::tensor::{AlignedBytes, DType, Tensor, numel};
use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

use crate::errors::InputError;

/// Device codes of memory that the host can read: the CPU, and host memory pinned by CUDA or ROCm.
const HOST: [i32; 3] = [1, 3, 11];

/// (type, DLPack type code, bits).
const TYPES: [(DType, u8, u8); 18] = [
    (DType::I8, 0, 8),
    (DType::I16, 0, 16),
    (DType::I32, 0, 32),
    (DType::I64, 0, 64),
    (DType::U8, 1, 8),
    (DType::U16, 1, 16),
    (DType::U32, 1, 32),
    (DType::U64, 1, 64),
    (DType::F16, 2, 16),
    (DType::F32, 2, 32),
    (DType::F64, 2, 64),
    (DType::BF16, 4, 16),
    (DType::C32, 5, 32),
    (DType::C64, 5, 64),
    (DType::Bool, 6, 8),
    (DType::F8E4M3, 10, 8),
    (DType::F8E5M2, 12, 8),
    (DType::F8E8M0, 14, 8),
];

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct View {
    data: *mut c_void,
    device: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Plain {
    view: View,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Plain)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    view: View,
}

/// An imported tensor of another library; dropping it calls its deleter.
enum Owner {
    Plain(*mut Plain),
    Versioned(*mut Versioned),
}

// SAFETY: DLPack lets any thread read a tensor and call its deleter. `drop` calls the deleter with
// the interpreter attached.
unsafe impl Send for Owner {}
// SAFETY: DLPack lets any thread read a tensor, and nothing is written through an `Owner`.
unsafe impl Sync for Owner {}

impl Owner {
    fn view(&self) -> &View {
        // SAFETY: the pointers come from a capsule of the matching name, and stay valid until the
        // deleter is called.
        unsafe {
            match *self {
                Owner::Plain(tensor) => &(*tensor).view,
                Owner::Versioned(tensor) => &(*tensor).view,
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A library's memory may belong to Python objects. At interpreter shutdown it is leaked.
        let _ = Python::try_attach(|_| {
            // SAFETY: `drop` runs once and this is the only owner, so the deleter is called once,
            // as DLPack requires.
            unsafe {
                match *self {
                    Owner::Plain(tensor) => (*tensor).deleter.map(|delete| delete(tensor)),
                    Owner::Versioned(tensor) => (*tensor).deleter.map(|delete| delete(tensor)),
                }
            }
        });
    }
}

/// Contiguous elements of another library's tensor.
struct Foreign {
    data: *const u8,
    len: usize,
    /// Keeps the elements alive.
    _owner: Owner,
}

// SAFETY: `Owner` is `Send`, and the elements are only read.
unsafe impl Send for Foreign {}
// SAFETY: `Owner` is `Sync`, and the elements are only read.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `data` points to `len` bytes that the owner keeps until it is dropped. Callers
        // must not write to them during a run, as with every library that shares memory by DLPack.
        unsafe { slice::from_raw_parts(self.data, self.len) }
    }
}

/// Contents of a capsule.
pub(crate) enum Import {
    Tensor(Tensor),
    /// A tensor on a device that the host cannot read.
    Elsewhere,
}

/// Takes over the tensor in a capsule. Shares contiguous elements and copies others.
///
/// # Errors
/// Fails if the object is not an unused DLPack capsule, or if the element type is unsupported.
pub(crate) fn import(capsule: &Bound<'_, PyAny>) -> PyResult<Import> {
    let owner = take(capsule)?;
    let view = owner.view();
    if let Owner::Versioned(tensor) = owner
        // SAFETY: the pointer is valid, and `major` is the first field in every version of the
        // struct.
        && unsafe { (*tensor).major } != 1
    {
        return Err(PyBufferError::new_err("the tensor is in another major version of DLPack than 1"));
    }
    if !HOST.contains(&view.device) {
        return Ok(Import::Elsewhere);
    }
    let dtype = TYPES.iter().find(|t| (t.1, t.2, 1) == (view.code, view.bits, view.lanes)).map(|t| t.0);
    let dtype = dtype.ok_or_else(|| {
        InputError::new_err(format!(
            "elements of DLPack type {} with {} bits x {} lanes do not exist here",
            view.code, view.bits, view.lanes
        ))
    })?;
    let rank = usize::try_from(view.ndim).unwrap_or(0);
    // SAFETY: `shape` has `ndim` entries, and so does `strides` unless it is null. For rank 0 both
    // may be null.
    let (sizes, strides) = unsafe { (entries(view.shape, rank), (!view.strides.is_null()).then(|| entries(view.strides, rank))) };
    let shape: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    let shape = shape.filter(|shape| numel(shape).is_some_and(|n| n.checked_mul(dtype.size()).is_some()));
    let shape = shape.ok_or_else(|| InputError::new_err(format!("{sizes:?} is no shape")))?;
    let count = numel(&shape).unwrap_or(0);
    if count == 0 {
        return tensor(Tensor::zeros(dtype, &shape));
    }
    let data = view.data.cast::<u8>().wrapping_add(view.byte_offset as usize);
    match strides.filter(|strides| !is_row_major(&shape, strides)) {
        None => {
            let bytes = Bytes::from_owner(Foreign { data, len: count * dtype.size(), _owner: owner });
            tensor(Tensor::new(dtype, &shape, bytes).map(|t| t.aligned()))
        }
        Some(strides) => {
            let mut out = AlignedBytes::zeroed(count * dtype.size());
            gather(data, (&shape, strides), dtype.size(), out.as_mut_slice());
            tensor(Tensor::new(dtype, &shape, out.into_bytes()))
        }
    }
}

fn tensor(result: Result<Tensor, flambeau::tensor::Error>) -> PyResult<Import> {
    result.map(Import::Tensor).map_err(|error| InputError::new_err(error.to_string()))
}

/// # Safety
/// `at` points to `count` entries, unless `count` is 0.
unsafe fn entries<'a>(at: *mut i64, count: usize) -> &'a [i64] {
    // SAFETY: `count` is not 0, so the caller guarantees `count` entries at `at`.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(at, count) } }
}

/// Takes the pointer from a capsule, and renames the capsule so that no other consumer takes it.
fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Owner> {
    let raw = capsule.as_ptr();
    // SAFETY: the calls check that the object is a capsule with this name, and the name determines
    // the pointer's type.
    unsafe {
        if ffi::PyCapsule_IsValid(raw, PLAIN.as_ptr()) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(raw, PLAIN.as_ptr());
            ffi::PyCapsule_SetName(raw, c"used_dltensor".as_ptr());
            return Ok(Owner::Plain(tensor.cast()));
        }
        if ffi::PyCapsule_IsValid(raw, VERSIONED.as_ptr()) == 1 {
            let tensor = ffi::PyCapsule_GetPointer(raw, VERSIONED.as_ptr());
            ffi::PyCapsule_SetName(raw, c"used_dltensor_versioned".as_ptr());
            return Ok(Owner::Versioned(tensor.cast()));
        }
    }
    Err(PyBufferError::new_err("expected a fresh capsule of DLPack's"))
}

fn is_row_major(shape: &[usize], strides: &[i64]) -> bool {
    let mut step = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == step;
        step *= size as i64;
        fits
    })
}

/// Copies elements of `size` bytes in row-major order.
fn gather(data: *const u8, (shape, strides): (&[usize], &[i64]), size: usize, out: &mut [u8]) {
    if is_row_major(shape, strides) {
        // SAFETY: DLPack's strides stay inside the tensor, and these elements are contiguous, so
        // `out.len()` bytes are readable.
        unsafe { ptr::copy_nonoverlapping(data, out.as_mut_ptr(), out.len()) };
        return;
    }
    for (i, part) in out.chunks_exact_mut(out.len() / shape[0]).enumerate() {
        let at = data.wrapping_offset(i as isize * strides[0] as isize * size as isize);
        gather(at, (&shape[1..], &strides[1..]), size, part);
    }
}

/// Bytes at an address that `owner` keeps alive, as described by `__array_interface__`.
pub(crate) fn borrowed(owner: &Bound<'_, PyAny>, address: usize, len: usize) -> Bytes {
    struct ForeignBytes {
        data: usize,
        len: usize,
        /// Keeps the elements alive.
        _owner: Py<PyAny>,
    }
    impl AsRef<[u8]> for ForeignBytes {
        fn as_ref(&self) -> &[u8] {
            // SAFETY: the owner guarantees `len` bytes at `data` for its lifetime, and `_owner`
            // keeps it alive.
            unsafe { slice::from_raw_parts(self.data as *const u8, self.len) }
        }
    }
    Bytes::from_owner(ForeignBytes { data: address, len, _owner: owner.clone().unbind() })
}

/// An exported tensor, in both forms of DLPack.
struct Lent {
    plain: Plain,
    versioned: Versioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Keeps the elements alive.
    _bytes: Bytes,
}

/// Exports a tensor as a capsule. The consumer may write to the elements, so nothing else may share
/// them.
///
/// # Errors
/// Fails for element types without a DLPack code.
pub(crate) fn export<'py>(py: Python<'py>, tensor: &Tensor, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    let kind = TYPES.iter().find(|t| t.0 == tensor.dtype());
    let &(_, code, bits) = kind.ok_or_else(|| PyBufferError::new_err(format!("DLPack has no {} elements", tensor.dtype())))?;
    let shape: Vec<i64> = tensor.shape().iter().map(|&size| size as i64).collect();
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    let view = || View {
        data: tensor.bytes().as_ptr().cast_mut().cast(),
        device: 1,
        device_id: 0,
        ndim: shape.len() as i32,
        code,
        bits,
        lanes: 1,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let lent = Box::new(Lent {
        plain: Plain { view: view(), context: ptr::null_mut(), deleter: Some(give_back_plain) },
        versioned: Versioned {
            major: 1,
            minor: 0,
            context: ptr::null_mut(),
            deleter: Some(give_back_versioned),
            flags: 0,
            view: view(),
        },
        _bytes: tensor.bytes().clone(),
        shape,
        strides,
    });
    let lent = Box::into_raw(lent);
    // SAFETY: `lent` is a complete value until a deleter frees it. The capsule gets a pointer into
    // its heap allocation, which does not move.
    unsafe {
        for view in [&mut (*lent).plain.view, &mut (*lent).versioned.view] {
            view.shape = (*lent).shape.as_mut_ptr();
            view.strides = (*lent).strides.as_mut_ptr();
        }
        ((*lent).plain.context, (*lent).versioned.context) = (lent.cast(), lent.cast());
        let (pointer, name): (*mut c_void, _) = match versioned {
            true => ((&raw mut (*lent).versioned).cast(), VERSIONED),
            false => ((&raw mut (*lent).plain).cast(), PLAIN),
        };
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end));
        if capsule.is_null() {
            drop(Box::from_raw(lent));
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Frees a tensor whose capsule was never consumed.
unsafe extern "C" fn end(capsule: *mut ffi::PyObject) {
    // SAFETY: only an unconsumed capsule keeps its first name. Its pointer then has the matching
    // type, and no consumer will free it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            give_back_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            give_back_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn give_back_plain(tensor: *mut Plain) {
    // SAFETY: the consumer calls the deleter once, with the pointer from `export`, whose context is
    // the leaked `Lent`.
    unsafe { drop(Box::from_raw((*tensor).context.cast::<Lent>())) }
}

unsafe extern "C" fn give_back_versioned(tensor: *mut Versioned) {
    // SAFETY: the consumer calls the deleter once, with the pointer from `export`, whose context is
    // the leaked `Lent`.
    unsafe { drop(Box::from_raw((*tensor).context.cast::<Lent>())) }
}
