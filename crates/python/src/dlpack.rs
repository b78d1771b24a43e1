//! Tensors of other libraries and ours, in DLPack's form, without a copy.

use std::{
    ffi::{CStr, c_void},
    ptr, slice,
};

use bytes::Bytes;
use flambeau::tensor::{AlignedBytes, DType, Tensor, numel};
use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

use crate::errors::InputError;

/// Devices whose memory the host can read: the CPU, and host memory that CUDA or ROCm pinned.
const HOST: [i32; 3] = [1, 3, 11];

/// (type, DLPack's code, bits).
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

/// A tensor of another library that we have taken over; dropping it gives it back.
enum Owner {
    Plain(*mut Plain),
    Versioned(*mut Versioned),
}

// SAFETY: DLPack lets any thread read a tensor and call its deleter, which `drop` calls with the interpreter attached.
unsafe impl Send for Owner {}
// SAFETY: as above; nothing is written through it.
unsafe impl Sync for Owner {}

impl Owner {
    fn view(&self) -> &View {
        // SAFETY: the pointers came out of a capsule of that name, and stay valid until the deleter is called.
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
        // The memory of a library may belong to Python objects. At the interpreter's end it is left alone.
        let _ = Python::try_attach(|_| {
            // SAFETY: called once, by the only owner, as DLPack asks for.
            unsafe {
                match *self {
                    Owner::Plain(tensor) => (*tensor).deleter.map(|delete| delete(tensor)),
                    Owner::Versioned(tensor) => (*tensor).deleter.map(|delete| delete(tensor)),
                }
            }
        });
    }
}

/// Elements of another library's tensor, without gaps.
struct Foreign {
    data: *const u8,
    len: usize,
    /// Keeps the elements.
    _owner: Owner,
}

// SAFETY: as for `Owner`; the elements are only read.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the owner holds `len` bytes there until it is dropped. That nobody writes to them during a run is the caller's to see to, as it is
        // for every library that shares memory by DLPack.
        unsafe { slice::from_raw_parts(self.data, self.len) }
    }
}

/// What a capsule holds.
pub(crate) enum Import {
    Tensor(Tensor),
    /// It lies on a device that the host cannot read.
    Elsewhere,
}

/// Takes over the tensor of a capsule. Elements without gaps are shared, others copied.
///
/// # Errors
/// The object is no fresh capsule of DLPack's, or has elements of a type that does not exist here.
pub(crate) fn import(capsule: &Bound<'_, PyAny>) -> PyResult<Import> {
    let owner = take(capsule)?;
    let view = owner.view();
    if let Owner::Versioned(tensor) = owner
        // SAFETY: the version stands first in every version.
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
    // SAFETY: `shape` has `ndim` entries, and so has `strides` where it is not null; of rank 0 they may be null.
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
    // SAFETY: as the caller promises.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(at, count) } }
}

/// Takes the pointer out of a capsule, and renames it, so that nobody else does.
fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Owner> {
    let raw = capsule.as_ptr();
    // SAFETY: the calls check that the object is a capsule of the name; a pointer of that name is of that type.
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
        // SAFETY: DLPack's strides lead to elements of the tensor, and these lie one behind the other.
        unsafe { ptr::copy_nonoverlapping(data, out.as_mut_ptr(), out.len()) };
        return;
    }
    for (i, part) in out.chunks_exact_mut(out.len() / shape[0]).enumerate() {
        let at = data.wrapping_offset(i as isize * strides[0] as isize * size as isize);
        gather(at, (&shape[1..], &strides[1..]), size, part);
    }
}

/// Elements at an address, which `owner` keeps: what `__array_interface__` describes.
pub(crate) fn borrowed(owner: &Bound<'_, PyAny>, address: usize, len: usize) -> Bytes {
    struct Kept {
        data: usize,
        len: usize,
        /// Keeps the elements.
        _owner: Py<PyAny>,
    }
    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            // SAFETY: the owner promises `len` bytes there for as long as it lives.
            unsafe { slice::from_raw_parts(self.data as *const u8, self.len) }
        }
    }
    Bytes::from_owner(Kept { data: address, len, _owner: owner.clone().unbind() })
}

/// A tensor that is lent to another library, in both forms.
struct Lent {
    plain: Plain,
    versioned: Versioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Keeps the elements.
    _bytes: Bytes,
}

/// A capsule with a tensor, whose elements the taker may write: nobody else may hold them. `None` for elements without a code in DLPack.
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
    // SAFETY: `lent` is a whole value until a deleter takes it back; the capsule gets a pointer into it that stays where it is.
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

/// Frees a tensor whose capsule nobody has taken.
unsafe extern "C" fn end(capsule: *mut ffi::PyObject) {
    // SAFETY: only a capsule that still has its first name holds the pointer of that type, which nobody else will free.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            give_back_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            give_back_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn give_back_plain(tensor: *mut Plain) {
    // SAFETY: the taker calls this once with what it got from `export`.
    unsafe { drop(Box::from_raw((*tensor).context.cast::<Lent>())) }
}

unsafe extern "C" fn give_back_versioned(tensor: *mut Versioned) {
    // SAFETY: as above.
    unsafe { drop(Box::from_raw((*tensor).context.cast::<Lent>())) }
}
