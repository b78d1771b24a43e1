//! Versions of the library and of its binary interface.

use std::ffi::{CStr, c_char};

/// Version of the binary interface: `FLB_ABI_VERSION` of the header. It grows when a compiled
/// program would no longer fit.
const ABI_VERSION: u32 = 1;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};

#[unsafe(no_mangle)]
extern "C" fn flb_abi_version() -> u32 {
    ABI_VERSION
}

#[unsafe(no_mangle)]
extern "C" fn flb_version() -> *const c_char {
    VERSION.as_ptr()
}
