//! Arrays.

use std::{
    ffi::{c_int, c_void},
    fmt, ptr,
    ptr::NonNull,
};

use flambeau_tensor::{AlignedBytes, Bytes, DType, Shape, Tensor};

use super::{Api, Failure, Raw, Result, call};

/// A handle to an array of MLX.
pub(crate) struct Array {
    api: Api,
    raw: NonNull<c_void>,
}

// SAFETY: a handle owns its C++ object. MLX counts references to shared data atomically, so any
// thread may drop a handle. Every other call fails with a message on a thread that has chosen no
// device.
unsafe impl Send for Array {}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: an entry made the handle, `own` took it over, and nothing else frees it.
        unsafe { (self.api.0.fl_array_free)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spec() {
            Ok((dtype, shape)) => write!(f, "{dtype}{:?}", &shape[..]),
            Err(e) => write!(f, "{e}"),
        }
    }
}

/// Drops the owner of wrapped bytes.
///
/// # Safety
/// `context` must come from [`Box::into_raw`] of a `Box<Bytes>`, and must not be used again.
unsafe extern "C" fn release_bytes(context: *mut c_void) {
    // SAFETY: the shim passes the pointer that `from_tensor` took from `Box::into_raw` of a
    // `Box<Bytes>`, once, as `fl_array_new` promises.
    drop(unsafe { Box::from_raw(context.cast::<Bytes>()) });
}

impl Array {
    /// Takes ownership of a handle returned by an entry.
    pub(super) fn own(api: Api, raw: Raw) -> Array {
        Array { api, raw: NonNull::new(raw).expect("an entry that succeeds makes a handle") }
    }

    pub(super) fn raw(&self) -> Raw {
        self.raw.as_ptr()
    }

    /// The shim that made it.
    pub(crate) fn api(&self) -> Api {
        self.api
    }

    /// Another handle to the same array.
    pub(crate) fn share(&self) -> Result<Array> {
        self.api.make(|out| call!(self.api, fl_array_clone(self.raw(), out)))
    }

    /// An array over the tensor's bytes. MLX uses them in place if its allocator can, and never
    /// writes them.
    ///
    /// # Errors
    /// For element types that MLX lacks, and if the device has no memory for a copy.
    pub(crate) fn from_tensor(api: Api, tensor: &Tensor) -> Result<Array> {
        if tensor.numel() == 0 {
            return Array::full(api, tensor.shape(), 0.0, tensor.dtype());
        }
        let tensor = tensor.aligned();
        let dims: Vec<i64> = tensor.shape().iter().map(|&d| d as i64).collect();
        let data = tensor.bytes().as_ptr();
        let owner = Box::into_raw(Box::new(tensor.bytes().clone()));
        // The shim calls `release_bytes` on the owner exactly once, even when it fails.
        api.make(|out| {
            let code = c_int::from(tensor.dtype().code());
            call!(api, fl_array_new(data.cast_mut().cast(), dims[..].into(), code, release_bytes, owner.cast(), out))
        })
    }

    /// Element type and shape.
    ///
    /// # Errors
    /// If MLX made an element type that tensors lack.
    pub(crate) fn spec(&self) -> Result<(DType, Shape)> {
        let (mut dims, mut rank, mut code) = ([0i64; 16], 0, 0);
        call!(self.api, fl_array_spec(self.raw(), dims.as_mut_ptr(), dims.len(), &raw mut rank, &raw mut code))?;
        let dtype = i8::try_from(code).ok().and_then(DType::from_code);
        let dtype = dtype.ok_or_else(|| Failure("an array of an element type that tensors lack".into()))?;
        let dims = dims.get(..rank).ok_or_else(|| Failure(format!("an array of rank {rank}")))?;
        Ok((dtype, dims.iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect()))
    }

    /// Calls `f` on the bytes of a row-major array, which is computed first.
    ///
    /// # Errors
    /// If computing fails, or the array is not row-major.
    pub(crate) fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (mut data, mut len) = (ptr::null(), 0);
        call!(self.api, fl_array_data(self.raw(), &raw mut data, &raw mut len))?;
        if data.is_null() || len == 0 {
            return Ok(f(&[]));
        }
        // SAFETY: the array is computed and row-major, so `data` points to `len` readable bytes.
        // The handle keeps them alive, and MLX writes an array's storage only when no handle is
        // left.
        Ok(f(unsafe { std::slice::from_raw_parts(data.cast(), len) }))
    }

    /// A copy of a row-major array, computed first.
    ///
    /// # Errors
    /// As in [`Array::with_bytes`].
    pub(crate) fn to_tensor(&self) -> Result<Tensor> {
        let (dtype, shape) = self.spec()?;
        let bytes = self.with_bytes(|bytes| AlignedBytes::copy_of(bytes).into_bytes())?;
        Tensor::new(dtype, &shape, bytes).map_err(|e| Failure(e.to_string()))
    }
}
