//! Tensor files: `.bin`, `.npy`, `.npz` or `.safetensors`, selected by the first byte.

#![no_main]

use flambeau_cli::tensors::{Format, parse};
use flambeau_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, file)) = bytes.split_first() else { return };
    let (format, file) = match kind % 5 {
        0 => (Format::Bin, file.to_vec()),
        1 => (Format::Npy, file.to_vec()),
        2 => (Format::Npz, file.to_vec()),
        3 => (Format::Npz, flambeau_fuzz::zip(&[("x.npy", file)])),
        _ => (Format::Safetensors, file.to_vec()),
    };
    let _ = parse(format, &Bytes::from(file));
});
