//! Programs: the file, its payloads, their graphs, its tensors and named data.

#![no_main]

use flambeau_ir::check;
use flambeau_tensor::Bytes;
use flambeau_wire::{mlx, pte::EValue, read_program};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(program) = read_program(&Bytes::copy_from_slice(bytes)) else { return };
    for plan in &program.plans {
        for delegate in &plan.delegates {
            let _ = mlx::decode(&program.delegate_payload(delegate)).map(check);
        }
        for value in &plan.values {
            if let EValue::Tensor(tensor) = value {
                let _ = program.tensor_data(tensor);
            }
        }
    }
    for key in program.named_data.keys() {
        let _ = program.named(key);
    }
});
