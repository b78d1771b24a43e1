//! The entries of `flb_error`.

use std::ffi::{CStr, c_char};

use crate::{
    border,
    failure::{Failure, Kind},
};

const NO_TEXT: &CStr = c"";

/// # Safety
/// `error` is null or an error that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_error_get_kind(error: *const Failure) -> u32 {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { error.as_ref() }.map_or(Kind::None, |error| error.kind()) as u32
}

/// # Safety
/// As [`flb_error_get_kind`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_error_get_text(error: *const Failure) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { error.as_ref() }.map_or(NO_TEXT, |error| error.text()).as_ptr()
}

/// # Safety
/// As [`flb_error_get_kind`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_error_free(error: *mut Failure) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(error) }
}
