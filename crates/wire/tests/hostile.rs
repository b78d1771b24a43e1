//! Readers return a value or an error for any bytes, and never panic.

use flambeau_ir::{Add, Graph, In, Out, Slot, SlotCounts, TensorMeta, Tid, check};
use flambeau_tensor::{Bytes, DType};
use flambeau_wire::{
    Blob, ProgramWriter, mlx, ptd,
    pte::{Allocation, Chain, Delegate, EValue, ExecutionPlan, Instruction, TensorValue},
    read_program,
};
use proptest::prelude::*;

/// A payload that adds a constant to its input.
fn payload() -> Vec<u8> {
    let slot = |i| Slot::Tensor(Tid(i));
    let graph = Graph {
        slots: SlotCounts { constants: 1, inputs: 1, outputs: 1, ..SlotCounts::default() },
        chains: vec![vec![Add { a: In(Tid(1)), b: In(Tid(0)), out: Out(Tid(2)) }.into()]],
        inputs: vec![slot(1)],
        outputs: vec![slot(2)],
        names: vec![("w".into(), slot(0))],
        meta: vec![TensorMeta::fixed(DType::F32, &[2]); 3],
        ..Graph::default()
    };
    mlx::encode(&check(graph).expect("the example is valid"))
}

/// A program with that payload.
fn program() -> Vec<u8> {
    let tensor = |offset| {
        let allocation = Some(Allocation { memory_id: 1, offset });
        EValue::Tensor(Box::new(TensorValue { allocation, ..TensorValue::new(DType::F32, &[2]) }))
    };
    let call = Instruction::DelegateCall { delegate: 0, args: vec![0, 1] };
    let plan = ExecutionPlan {
        name: "forward".into(),
        values: vec![tensor(0), tensor(16), EValue::Int(1), EValue::IntList(vec![2])],
        inputs: vec![0],
        outputs: vec![1],
        chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
        delegates: vec![Delegate { id: "MLXBackend".into(), ..Delegate::default() }],
        non_const_buffer_sizes: vec![0, 32],
        ..ExecutionPlan::default()
    };
    let mut writer = ProgramWriter::new();
    writer.method(plan, vec![Blob::from_bytes(payload())]).expect("one payload for one delegate");
    writer.constant_method("get_max_seq_len", vec![EValue::Int(128)]);
    writer.named("w", Blob::from_bytes(vec![0; 8])).expect("the key is free");
    let mut out = Vec::new();
    writer.write(&mut out).expect("the example is valid");
    out
}

/// Reads a file in every format, including nodes. Returns whether it is a program with a payload.
fn read_all(file: &Bytes) -> bool {
    let _ = ptd::read_data_file(file);
    let _ = mlx::decode(file);
    let Ok(program) = read_program(file) else { return false };
    let mut decoded = false;
    for plan in &program.plans {
        for delegate in &plan.delegates {
            decoded |= mlx::decode(&program.delegate_payload(delegate)).is_ok_and(|graph| check(graph).is_ok());
        }
        for value in &plan.values {
            if let EValue::Tensor(tensor) = value {
                let _ = program.tensor_data(tensor);
            }
        }
    }
    decoded
}

#[test]
fn every_truncation_is_refused() {
    let file = program();
    assert!(read_all(&file.clone().into()));
    for len in 0..file.len() {
        assert!(read_program(&Bytes::copy_from_slice(&file[..len])).is_err(), "{len} of {}", file.len());
    }
    let payload = payload();
    for len in 0..payload.len() {
        assert!(mlx::decode(&payload[..len]).is_err(), "{len} of {}", payload.len());
    }
}

#[test]
fn no_changed_byte_panics() {
    let file = program();
    let mut valid = 0;
    for at in 0..file.len() {
        for flip in [0xff, 0x01, 0x02, 0x10, 0x80] {
            let mut changed = file.clone();
            changed[at] ^= flip;
            valid += usize::from(read_all(&changed.into()));
        }
    }
    // Changes of padding, names and weights are valid. Changes of offsets, tags and lengths are
    // not.
    assert!(valid > 0 && valid < 5 * file.len(), "{valid}");
}

proptest! {
    #[test]
    fn no_random_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512), magic in 0usize..5) {
        let mut file = bytes;
        let marks: [(usize, &[u8]); 5] = [(0, b""), (4, b"ET12"), (4, b"ET12eh00\x20\0\0\0"), (4, b"FT01FH01\x28\0\0\0"), (4, b"MLX0")];
        let (at, mark) = marks[magic];
        if file.len() >= at + mark.len() {
            file[at..at + mark.len()].copy_from_slice(mark);
        }
        prop_assert!(!read_all(&file.into()));
    }

    #[test]
    fn no_number_of_changed_words_panics(words in prop::collection::vec((0usize..1000, any::<u32>()), 1..8), small in any::<bool>()) {
        let mut file = program();
        for (at, word) in words {
            let at = at * 4 % (file.len() - 4);
            let word = if small { word % 64 } else { word };
            file[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        read_all(&file.into());
    }
}
