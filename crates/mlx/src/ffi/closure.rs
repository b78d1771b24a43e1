//! Functions that MLX traces once and runs often.

use std::{
    any::Any,
    ffi::{CString, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
};

use super::{Api, Array, Failure, Raw, Result, call};

/// A function over arrays.
type Body = Box<dyn Fn(Vec<Array>) -> Result<Vec<Array>> + Send>;

/// A function that MLX compiles once per signature of shapes and types.
#[derive(Debug)]
pub(crate) struct Closure {
    api: Api,
    raw: Raw,
    results: usize,
}

// SAFETY: no other handle refers to the handle's C++ function object, and its body is `Send`.
unsafe impl Send for Closure {}

struct Context {
    api: Api,
    body: Body,
}

/// # Safety
/// `context` must come from [`Box::into_raw`] of a `Box<Context>`, and must not be used again.
unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: the shim passes the pointer that `Closure::compile` took from `Box::into_raw` of a
    // `Box<Context>`. It does so once, when the last copy of the C++ function is destroyed.
    drop(unsafe { Box::from_raw(context.cast::<Context>()) });
}

/// # Safety
/// `context` must point to a [`Context`], and the lists must have the stated lengths.
unsafe extern "C" fn run(context: *mut c_void, inputs: *const Raw, n_inputs: usize, out: *mut Raw, n_out: usize) -> c_int {
    // SAFETY: `context` points to the `Context` boxed by `Closure::compile`. The shim releases it
    // only after the last copy of the C++ function, and a copy is running here.
    let context = unsafe { &*context.cast::<Context>() };
    let inputs: &[Raw] = match n_inputs {
        0 => &[],
        // SAFETY: the shim passes the data and length of a `std::vector` that lives during the
        // call.
        n => unsafe { slice::from_raw_parts(inputs, n) },
    };
    let traced = catch_unwind(AssertUnwindSafe(|| {
        let share = |&raw: &Raw| context.api.make(|out| call!(context.api, fl_array_clone(raw, out)));
        let results = (context.body)(inputs.iter().map(share).collect::<Result<_>>()?)?;
        if results.len() != n_out {
            return Err(Failure(format!("a traced function made {} results, expected {n_out}", results.len())));
        }
        for (i, result) in results.iter().enumerate() {
            let mut raw = ptr::null_mut();
            call!(context.api, fl_array_clone(result.raw(), &raw mut raw))?;
            // SAFETY: `i` is below `n_out`, as just checked, and the shim passes a vector of
            // `n_out` places.
            unsafe { *out.add(i) = raw };
        }
        Ok(())
    }));
    let message = match traced {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure.0,
        Err(payload) => panic_text(&*payload),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: `message` is a NUL-terminated string that outlives the call; the callee copies it.
    unsafe { (context.api.0.fl_fail)(message.as_ptr()) }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    format!("a traced function panicked: {}", text.unwrap_or("without a message"))
}

impl Closure {
    /// A compiled form of `body`, which makes `results` arrays and has no effects.
    pub(crate) fn compile(
        api: Api,
        results: usize,
        body: impl Fn(Vec<Array>) -> Result<Vec<Array>> + Send + 'static,
    ) -> Result<Closure> {
        let context = Box::into_raw(Box::new(Context { api, body: Box::new(body) }));
        let mut raw = ptr::null_mut();
        call!(api, fl_compile(run, context.cast(), release, results, &raw mut raw))?;
        Ok(Closure { api, raw, results })
    }

    /// Runs it, tracing first if the signature is new.
    pub(crate) fn call(&self, inputs: &[Array]) -> Result<Vec<Array>> {
        let inputs: Vec<Raw> = inputs.iter().map(Array::raw).collect();
        let mut out = vec![ptr::null_mut(); self.results];
        call!(self.api, fl_closure_call(self.raw, inputs[..].into(), out.as_mut_ptr()))?;
        Ok(out.into_iter().map(|raw| Array::own(self.api, raw)).collect())
    }
}

impl Drop for Closure {
    fn drop(&mut self) {
        // SAFETY: `fl_compile` made the handle for this value alone, and nothing else frees it.
        unsafe { (self.api.0.fl_closure_free)(self.raw) };
    }
}
