//! Programs and methods.

use std::{
    ffi::{CString, c_char, c_void},
    ptr,
    sync::{Arc, Mutex},
};

use flambeau::{
    engine::{Engine, LoadOptions},
    runtime::{Method, Program, Value},
    tensor::AlignedBytes,
};

use crate::{
    border::{self, Out},
    engine::EngineHandle,
    failure::Failure,
    tensor::{Loan, Release, TensorHandle},
    text,
    value::{self, Described, RawInfo, RawValue, Values},
};

/// The object behind `flb_program`.
pub(crate) struct ProgramHandle {
    program: Program,
    engine: Arc<dyn Engine>,
    names: Vec<CString>,
}

impl ProgramHandle {
    /// # Safety
    /// `data_path` is null or a text that ends with a zero byte.
    unsafe fn new(program: Program, engine: &EngineHandle, data_path: *const c_char) -> Result<ProgramHandle, Failure> {
        let program = if data_path.is_null() {
            program
        } else {
            // SAFETY: passed on to the caller.
            program.with_data(unsafe { border::text(data_path, "data_path")? })?
        };
        let names = program.method_names().map(|name| text::c_string(name.to_owned())).collect();
        Ok(ProgramHandle { program, engine: Arc::clone(&engine.engine), names })
    }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_program_open(
    engine: *const EngineHandle,
    path: *const c_char,
    data_path: *const c_char,
    out: *mut *mut ProgramHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, engine) = unsafe { (Out::handle(out, "out")?, border::object(engine, "engine")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let program = Program::open(unsafe { border::text(path, "path")? })?;
        // SAFETY: the caller keeps what the header asks of arguments.
        out.give(unsafe { ProgramHandle::new(program, engine, data_path)? });
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_program_from_bytes(
    engine: *const EngineHandle,
    data: *const c_void,
    size: usize,
    data_path: *const c_char,
    out: *mut *mut ProgramHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, engine) = unsafe { (Out::handle(out, "out")?, border::object(engine, "engine")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let bytes = unsafe { border::array(data.cast::<u8>(), size, "data")? };
        let program = Program::from_bytes(AlignedBytes::copy_of(bytes).into_bytes())?;
        // SAFETY: the caller keeps what the header asks of arguments.
        out.give(unsafe { ProgramHandle::new(program, engine, data_path)? });
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_program_borrow(
    engine: *const EngineHandle,
    data: *const c_void,
    size: usize,
    data_path: *const c_char,
    release: Release,
    context: *mut c_void,
    out: *mut *mut ProgramHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of borrowed memory.
        let loan = unsafe { Loan::new(data, size, release, context) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, engine) = unsafe { (Out::handle(out, "out")?, border::object(engine, "engine")?) };
        let program = Program::from_bytes(loan.bytes()?)?;
        // SAFETY: the caller keeps what the header asks of arguments.
        out.give(unsafe { ProgramHandle::new(program, engine, data_path)? });
        Ok(())
    })
}

/// # Safety
/// `program` is null or a program that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_program_method_count(program: *const ProgramHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { program.as_ref() }.map_or(0, |program| program.names.len())
}

/// # Safety
/// As [`flb_program_method_count`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_program_method_name(program: *const ProgramHandle, index: usize) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    let name = unsafe { program.as_ref() }.and_then(|program| program.names.get(index));
    name.map_or(ptr::null(), |name| name.as_ptr())
}

/// # Safety
/// As [`flb_program_method_count`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_program_free(program: *mut ProgramHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(program) }
}

/// The object behind `flb_method`.
pub(crate) struct MethodHandle {
    method: Mutex<Method>,
    /// Whether runs hand nothing on to later ones, so that arguments may be read where they lie.
    is_stateless: bool,
    inputs: Vec<Described>,
    outputs: Vec<Described>,
}

// Every handle may be used from any thread, as the header says.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<EngineHandle>();
    shared::<TensorHandle>();
    shared::<ProgramHandle>();
    shared::<MethodHandle>();
    shared::<Values>();
    shared::<Failure>();
};

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_load(
    program: *const ProgramHandle,
    name: *const c_char,
    out: *mut *mut MethodHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, program, name) =
            unsafe { (Out::handle(out, "out")?, border::object(program, "program")?, border::text(name, "name")?) };
        let method = program.program.method(name, &program.engine, &LoadOptions::default())?;
        out.give(MethodHandle {
            is_stateless: method.is_stateless(),
            inputs: method.inputs().iter().map(Described::new).collect(),
            outputs: method.outputs().iter().map(Described::new).collect(),
            method: Mutex::new(method),
        });
        Ok(())
    })
}

/// # Safety
/// `method` is null or a method that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_input_count(method: *const MethodHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { method.as_ref() }.map_or(0, |method| method.inputs.len())
}

/// # Safety
/// As [`flb_method_input_count`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_output_count(method: *const MethodHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { method.as_ref() }.map_or(0, |method| method.outputs.len())
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_input(method: *const MethodHandle, index: usize, info: *mut RawInfo) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let inputs = unsafe { &border::object(method, "method")?.inputs };
        let found = inputs.get(index).ok_or_else(|| value::no_place("input", index, inputs.len()))?;
        // SAFETY: the caller keeps what the header asks of arguments.
        unsafe { border::write_prefixed(info, &found.raw(), "info") }
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_output(method: *const MethodHandle, index: usize, info: *mut RawInfo) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let outputs = unsafe { &border::object(method, "method")?.outputs };
        let found = outputs.get(index).ok_or_else(|| value::no_place("output", index, outputs.len()))?;
        // SAFETY: the caller keeps what the header asks of arguments.
        unsafe { border::write_prefixed(info, &found.raw(), "info") }
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_run(
    method: *const MethodHandle,
    inputs: *const RawValue,
    count: usize,
    out: *mut *mut Values,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, method) = unsafe { (Out::handle(out, "out")?, border::object(method, "method")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let inputs = unsafe { border::array(inputs, count, "inputs")? };
        // SAFETY: the caller keeps what the header asks of arguments.
        let arguments = unsafe { value::arguments(inputs, method.is_stateless)? };
        let results = border::lock(&method.method, "method")?.run(&arguments)?;
        out.give(Values::new(results, &arguments)?);
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_reset(method: *const MethodHandle) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let method = unsafe { border::object(method, "method")? };
        border::lock(&method.method, "method")?.reset();
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_attribute(
    method: *const MethodHandle,
    name: *const c_char,
    out: *mut *mut TensorHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, method, name) =
            unsafe { (Out::handle(out, "out")?, border::object(method, "method")?, border::text(name, "name")?) };
        let found = border::lock(&method.method, "method")?.attribute(name);
        let Some(Value::Tensor(tensor)) = found else {
            return Err(Failure::input(format!("no tensor of the method is called `{name}`")));
        };
        // The method may write to its own memory in a later run.
        out.give(TensorHandle::new(&value::copied(&tensor)?));
        Ok(())
    })
}

/// # Safety
/// As [`flb_method_input_count`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_method_free(method: *mut MethodHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(method) }
}
