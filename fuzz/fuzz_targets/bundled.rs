//! Bundled programs.

#![no_main]

use flambeau_tensor::Bytes;
use flambeau_wire::bundled::read_bundled_program;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = read_bundled_program(&Bytes::copy_from_slice(bytes));
});
