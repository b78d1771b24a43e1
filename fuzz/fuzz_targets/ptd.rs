//! Files of named data.

#![no_main]

use flambeau_tensor::Bytes;
use flambeau_wire::ptd::read_data_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = read_data_file(&Bytes::copy_from_slice(bytes));
});
