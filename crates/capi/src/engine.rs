//! Engines.

use std::{
    ffi::{CString, c_char},
    sync::Arc,
};

use flambeau::engine::Engine;
use flambeau_cli::library;

use crate::{
    border::{self, Out},
    failure::Failure,
    text,
};

/// The object behind `flb_engine`.
pub(crate) struct EngineHandle {
    pub(crate) engine: Arc<dyn Engine>,
    name: CString,
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_engine_new(flags: *const *const c_char, flag_count: usize, out: *mut *mut EngineHandle) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, flags) = unsafe { (Out::handle(out, "out")?, border::texts(flags, flag_count, "flags")?) };
        let engine = library::engine(&flags).map_err(|error| Failure::load(&error))?;
        let name = text::c_string(engine.name().to_owned());
        out.give(EngineHandle { engine, name });
        Ok(())
    })
}

/// # Safety
/// `engine` is null or an engine that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_engine_name(engine: *const EngineHandle) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { engine.as_ref() }.map_or(c"", |engine| &engine.name).as_ptr()
}

/// # Safety
/// As [`flb_engine_name`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_engine_free(engine: *mut EngineHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(engine) }
}
