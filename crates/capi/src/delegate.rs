//! Delegates by themselves: payloads of ExecuTorch's MLX backend, for runtimes that read `.pte`
//! files on their own.

use std::{
    ffi::{c_char, c_void},
    ptr,
    sync::{Arc, Mutex},
};

use flambeau::{
    engine::{Constants, EngineError, LoadOptions, Session, SharedState, Value as EngineValue},
    ir,
    runtime::Value,
    tensor::Bytes,
    wire::mlx,
};

use flambeau_cli::library;

use crate::{
    border::{self, Out, Prefixed},
    engine::EngineHandle,
    failure::{Failure, Kind},
    tensor::{Loan, Release},
    text,
    value::{self, RawValue, Values},
};

/// `flb_lent`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawLent {
    data: *const c_void,
    size: usize,
    release: Release,
    context: *mut c_void,
}

/// `flb_find`: writes the memory under a key to `lent`; another result than 0 says that there is
/// none.
type Find = Option<unsafe extern "C" fn(context: *mut c_void, key: *const c_char, lent: *mut RawLent) -> i32>;

/// Weights that C lends by key.
struct Lender {
    find: Find,
    context: *mut c_void,
}

impl Constants for Lender {
    fn get(&self, key: &str) -> Option<Bytes> {
        let key = text::c_string(key.to_owned());
        let mut lent = RawLent { data: std::ptr::null(), size: 0, release: None, context: std::ptr::null_mut() };
        // SAFETY: the caller of `flb_delegate_load` gave both for this use; key and place live
        // during the call.
        let found = unsafe { self.find?(self.context, key.as_ptr(), &mut lent) };
        if found != 0 {
            return None;
        }
        // SAFETY: the callback has lent this memory, as the header asks.
        unsafe { Loan::new(lent.data, lent.size, lent.release, lent.context) }.bytes().ok()
    }
}

/// The object behind `flb_delegate`.
struct DelegateHandle {
    session: Mutex<Box<dyn Session>>,
    inputs: usize,
    outputs: usize,
    /// Whether runs hand nothing on to later ones, so that arguments may be read where they are.
    is_stateless: bool,
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<DelegateHandle>();
};

/// The object behind `flb_state`.
struct StateHandle {
    state: SharedState,
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_state_new(out: *mut *mut StateHandle) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        unsafe { Out::handle(out, "out")? }.give(StateHandle { state: SharedState::default() });
        Ok(())
    })
}

/// # Safety
/// `state` is null or a state that was not freed; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_state_free(state: *mut StateHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(state) }
}

/// `flb_delegate_options`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawOptions {
    struct_size: usize,
    state: *const StateHandle,
    kv_cache: *const c_char,
}

// SAFETY: `repr(C)`, the size comes first, null pointers are valid, and 3 fields of whole words
// leave no padding.
unsafe impl Prefixed for RawOptions {}

impl RawOptions {
    const NONE: RawOptions = RawOptions { struct_size: size_of::<RawOptions>(), state: ptr::null(), kv_cache: ptr::null() };

    /// # Safety
    /// The pointers are as the header says.
    unsafe fn load(&self) -> Result<LoadOptions, Failure> {
        // SAFETY: passed on to the caller.
        let shared = unsafe { self.state.as_ref() }.map(|handle| handle.state.clone());
        if self.kv_cache.is_null() {
            return Ok(LoadOptions { shared, ..LoadOptions::default() });
        }
        // SAFETY: passed on to the caller.
        let text = unsafe { border::text(self.kv_cache, "kv_cache")? };
        let kv_cache = library::kv_cache(text).map_err(|error| Failure::input(library::message(&error)))?;
        Ok(LoadOptions { kv_cache: Some(kv_cache), shared })
    }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_load(
    engine: *const EngineHandle,
    payload: *const c_void,
    size: usize,
    find: Find,
    context: *mut c_void,
    out: *mut *mut DelegateHandle,
) -> *mut Failure {
    // SAFETY: passed on to the caller.
    unsafe { flb_delegate_load_with(engine, payload, size, find, context, &RawOptions::NONE, out) }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_load_with(
    engine: *const EngineHandle,
    payload: *const c_void,
    size: usize,
    find: Find,
    context: *mut c_void,
    options: *const RawOptions,
    out: *mut *mut DelegateHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, engine) = unsafe { (Out::handle(out, "out")?, border::object(engine, "engine")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let payload = unsafe { border::array(payload.cast::<u8>(), size, "payload")? };
        // SAFETY: the caller keeps what the header asks of arguments.
        let options = unsafe { border::read_prefixed(options, RawOptions::NONE, "options")?.load()? };
        let load = |error: &dyn std::fmt::Display| Failure::new(Kind::Load, error);
        let graph = ir::check(mlx::decode(payload).map_err(|error| load(&error))?).map_err(|error| load(&error))?;
        let (inputs, outputs, is_stateless) =
            (graph.inputs.len(), graph.outputs.len(), graph.buffers.is_empty() && options.kv_cache.is_none());
        let lender = Lender { find, context };
        let session = engine.engine.load(Arc::new(graph), &lender, &options).map_err(|error| load(&error))?;
        out.give(DelegateHandle { session: Mutex::new(session), inputs, outputs, is_stateless });
        Ok(())
    })
}

/// # Safety
/// `delegate` is null or was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_input_count(delegate: *const DelegateHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { delegate.as_ref() }.map_or(0, |delegate| delegate.inputs)
}

/// # Safety
/// As [`flb_delegate_input_count`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_output_count(delegate: *const DelegateHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { delegate.as_ref() }.map_or(0, |delegate| delegate.outputs)
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_run(
    delegate: *const DelegateHandle,
    inputs: *const RawValue,
    count: usize,
    out: *mut *mut Values,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, delegate) = unsafe { (Out::handle(out, "out")?, border::object(delegate, "delegate")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let inputs = unsafe { border::array(inputs, count, "inputs")? };
        // SAFETY: the caller keeps what the header asks of arguments.
        let arguments = unsafe { value::arguments(inputs, delegate.is_stateless)? };
        let converted = arguments.iter().enumerate().map(|(index, value)| match value {
            Value::Tensor(tensor) => Ok(EngineValue::Tensor(tensor.clone())),
            Value::Int(integer) => i32::try_from(*integer)
                .map(EngineValue::Int)
                .map_err(|_| Failure::input(format!("input {index} is {integer}, which has more than 32 bits"))),
            other => Err(Failure::input(format!("input {index} is {}, expected a tensor or an integer", other.describe()))),
        });
        let converted = converted.collect::<Result<Vec<_>, _>>()?;
        let results = border::lock(&delegate.session, "delegate")?.run(&converted).map_err(|error| {
            let kind = if matches!(error, EngineError::Arguments(_)) { Kind::Input } else { Kind::Execution };
            Failure::new(kind, error)
        })?;
        let results = results.into_iter().map(|result| match result {
            EngineValue::Tensor(tensor) => Value::Tensor(tensor),
            EngineValue::Int(integer) => Value::Int(integer.into()),
        });
        out.give(Values::new(results.collect(), &arguments)?);
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_reset(delegate: *const DelegateHandle) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let delegate = unsafe { border::object(delegate, "delegate")? };
        border::lock(&delegate.session, "delegate")?.reset();
        Ok(())
    })
}

/// `flb_on_step`.
type OnStep = Option<unsafe extern "C" fn(context: *mut c_void, name: *const c_char, start: u64, time: u64)>;

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_take_steps(
    delegate: *const DelegateHandle,
    on_step: OnStep,
    context: *mut c_void,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let delegate = unsafe { border::object(delegate, "delegate")? };
        let Some(on_step) = on_step else { return Err(Failure::input("`on_step` is null")) };
        let spans = border::lock(&delegate.session, "delegate")?.take_spans();
        for span in spans {
            let name = text::c_string(span.name.to_string());
            // SAFETY: the caller gave both for this use; the name lives during the call.
            unsafe { on_step(context, name.as_ptr(), span.start, span.time) }
        }
        Ok(())
    })
}

/// # Safety
/// As [`flb_delegate_input_count`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_delegate_free(delegate: *mut DelegateHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(delegate) }
}
