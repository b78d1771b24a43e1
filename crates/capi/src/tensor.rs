//! Tensors, with elements that are copied, borrowed from C, or shared with a result.

use std::{
    ffi::{c_char, c_void},
    ptr, slice,
};

use bytes::Bytes;
use flambeau::tensor::{AlignedBytes, DType, Tensor, numel};

use crate::{
    border::{self, Out},
    failure::Failure,
};

/// The object behind `flb_tensor`. Its elements are aligned.
#[derive(Clone, Debug)]
pub(crate) struct TensorHandle {
    tensor: Tensor,
}

impl TensorHandle {
    pub(crate) fn new(tensor: &Tensor) -> TensorHandle {
        TensorHandle { tensor: tensor.aligned() }
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

/// `flb_release`: reports that C's memory is no longer read.
pub(crate) type Release = Option<unsafe extern "C" fn(context: *mut c_void)>;

/// C memory that tensors or programs read in place. Dropping it calls `release`, once.
pub(crate) struct Loan {
    data: *const u8,
    size: usize,
    release: Release,
    context: *mut c_void,
}

// SAFETY: the header requires that the memory stays unchanged and any thread may call `release`.
unsafe impl Send for Loan {}
// SAFETY: shared references only read the memory, and the header requires that it stays unchanged.
unsafe impl Sync for Loan {}

impl Loan {
    /// # Safety
    /// `data` is null, or `size` bytes live behind it, unchanged, until `release` is called.
    /// Without `release` they live as long as the loan. `release` may be called with `context` from
    /// any thread.
    pub(crate) unsafe fn new(data: *const c_void, size: usize, release: Release, context: *mut c_void) -> Loan {
        Loan { data: data.cast(), size, release, context }
    }

    /// The memory as shared bytes. `release` is called when nothing reads them any more.
    ///
    /// # Errors
    /// Fails if the memory is not valid.
    pub(crate) fn bytes(self) -> Result<Bytes, Failure> {
        // SAFETY: `new` was promised that the pointer is null or leads to so many bytes.
        unsafe { border::array(self.data, self.size, "data")? };
        Ok(Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        if self.size == 0 {
            return &[];
        }
        // SAFETY: `bytes` has checked the pointer and the size, and `new` was promised the rest.
        unsafe { slice::from_raw_parts(self.data, self.size) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller gave both for this one call.
            unsafe { release(self.context) }
        }
    }
}

/// Checks that a tensor of this type and shape has `size` bytes.
fn check_size(dtype: DType, shape: &[usize], size: usize) -> Result<(), Failure> {
    let expected = numel(shape).and_then(|count| count.checked_mul(dtype.size()));
    match expected {
        Some(expected) if expected == size => Ok(()),
        Some(expected) => Err(Failure::input(format!("a tensor {dtype}{shape:?} has {expected} bytes, found {size}"))),
        None => Err(Failure::input(format!("a tensor {dtype}{shape:?} is larger than memory"))),
    }
}

/// The element type with this number in the C interface.
pub(crate) fn dtype(code: i32) -> Result<DType, Failure> {
    let found = i8::try_from(code).ok().and_then(DType::from_code);
    found.ok_or_else(|| Failure::input(format!("no element type has the number {code}")))
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_copy(
    dtype_code: i32,
    shape: *const usize,
    rank: usize,
    data: *const c_void,
    size: usize,
    out: *mut *mut TensorHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, shape) = unsafe { (Out::handle(out, "out")?, border::array(shape, rank, "shape")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let data = unsafe { border::array(data.cast::<u8>(), size, "data")? };
        let dtype = dtype(dtype_code)?;
        check_size(dtype, shape, size)?;
        let tensor = Tensor::new(dtype, shape, AlignedBytes::copy_of(data).into_bytes()).map_err(Failure::input)?;
        out.give(TensorHandle { tensor });
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_borrow(
    dtype_code: i32,
    shape: *const usize,
    rank: usize,
    data: *const c_void,
    size: usize,
    release: Release,
    context: *mut c_void,
    out: *mut *mut TensorHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of borrowed memory.
        let loan = unsafe { Loan::new(data, size, release, context) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, shape) = unsafe { (Out::handle(out, "out")?, border::array(shape, rank, "shape")?) };
        let dtype = dtype(dtype_code)?;
        check_size(dtype, shape, size)?;
        if !data.addr().is_multiple_of(dtype.size()) {
            return Err(Failure::input(format!("`data` is not at a multiple of {} bytes: use flb_tensor_copy", dtype.size())));
        }
        let tensor = Tensor::new(dtype, shape, loan.bytes()?).map_err(Failure::input)?;
        out.give(TensorHandle { tensor });
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_share(tensor: *const TensorHandle, out: *mut *mut TensorHandle) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, tensor) = unsafe { (Out::handle(out, "out")?, border::object(tensor, "tensor")?) };
        out.give(tensor.clone());
        Ok(())
    })
}

/// # Safety
/// `tensor` is null or a tensor that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_dtype(tensor: *const TensorHandle) -> i32 {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { tensor.as_ref() }.map_or(-1, |handle| i32::from(handle.tensor.dtype().code()))
}

/// # Safety
/// As [`flb_tensor_dtype`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_rank(tensor: *const TensorHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { tensor.as_ref() }.map_or(0, |handle| handle.tensor.rank())
}

/// # Safety
/// As [`flb_tensor_dtype`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_shape(tensor: *const TensorHandle) -> *const usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { tensor.as_ref() }.map_or(ptr::null(), |handle| handle.tensor.shape().as_ptr())
}

/// # Safety
/// As [`flb_tensor_dtype`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_count(tensor: *const TensorHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { tensor.as_ref() }.map_or(0, |handle| handle.tensor.numel())
}

/// # Safety
/// As [`flb_tensor_dtype`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_size(tensor: *const TensorHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { tensor.as_ref() }.map_or(0, |handle| handle.tensor.bytes().len())
}

/// # Safety
/// As [`flb_tensor_dtype`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_data(tensor: *const TensorHandle) -> *const c_void {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { tensor.as_ref() }.map_or(ptr::null(), |handle| handle.tensor.bytes().as_ptr().cast())
}

/// # Safety
/// As [`flb_tensor_dtype`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_tensor_free(tensor: *mut TensorHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(tensor) }
}

#[unsafe(no_mangle)]
extern "C" fn flb_dtype_size(code: i32) -> usize {
    dtype(code).map_or(0, DType::size)
}

#[unsafe(no_mangle)]
extern "C" fn flb_dtype_name(code: i32) -> *const c_char {
    let name = match dtype(code) {
        Ok(DType::U8) => c"u8",
        Ok(DType::I8) => c"i8",
        Ok(DType::I16) => c"i16",
        Ok(DType::I32) => c"i32",
        Ok(DType::I64) => c"i64",
        Ok(DType::F16) => c"f16",
        Ok(DType::F32) => c"f32",
        Ok(DType::F64) => c"f64",
        Ok(DType::Bool) => c"bool",
        Ok(DType::BF16) => c"bf16",
        Ok(DType::U16) => c"u16",
        Ok(DType::U32) => c"u32",
        Ok(DType::U64) => c"u64",
        Ok(DType::F8E5M2) => c"f8e5m2",
        Ok(DType::F8E4M3) => c"f8e4m3",
        Ok(DType::F8E8M0) => c"f8e8m0",
        Ok(DType::C32) => c"c32",
        Ok(DType::C64) => c"c64",
        Err(_) => c"",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn names_are_those_of_the_types() {
        for dtype in (0..64).filter_map(DType::from_code) {
            // SAFETY: the text is constant.
            let name = unsafe { CStr::from_ptr(flb_dtype_name(i32::from(dtype.code()))) };
            assert_eq!(name.to_str(), Ok(dtype.name()));
            assert_eq!(flb_dtype_size(i32::from(dtype.code())), dtype.size());
        }
        assert_eq!((flb_dtype_size(10), flb_dtype_size(300)), (0, 0));
    }
}
