//! Writes test programs and reads their results.

use std::sync::Arc;

use flambeau_cpu::CpuEngine;
use flambeau_runtime::{Engine, Error, LoadOptions, Method, Program, Value};
use flambeau_tensor::{DType, Tensor};
use flambeau_wire::{
    Blob, ProgramWriter,
    pte::{Allocation, Chain, EValue, ExecutionPlan, Instruction, Operator, TensorValue},
};

pub(crate) fn engine() -> Arc<dyn Engine> {
    Arc::new(CpuEngine::new(Some(1)))
}

/// A planned tensor.
pub(crate) fn planned(dtype: DType, sizes: &[u32]) -> EValue {
    let mut value = TensorValue::new(dtype, sizes);
    value.allocation = Some(Allocation { memory_id: 1, offset: 0 });
    EValue::Tensor(Box::new(value))
}

pub(crate) fn dynamic(dtype: DType, sizes: &[u32]) -> EValue {
    let EValue::Tensor(mut value) = planned(dtype, sizes) else { return EValue::None };
    value.dynamic = true;
    EValue::Tensor(value)
}

pub(crate) fn plan(values: Vec<EValue>, inputs: &[u32], outputs: &[u32], instructions: Vec<Instruction>) -> ExecutionPlan {
    ExecutionPlan {
        name: "forward".into(),
        values,
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        chains: vec![Chain { instructions, ..Chain::default() }],
        non_const_buffer_sizes: vec![0, 1 << 16],
        ..ExecutionPlan::default()
    }
}

/// A program with one method and named data.
pub(crate) fn program(plan: ExecutionPlan, payloads: Vec<Blob<'_>>, named: &[(&str, Vec<u8>)]) -> Result<Program, Error> {
    let mut writer = ProgramWriter::new();
    writer.method(plan, payloads).unwrap();
    for (key, bytes) in named {
        writer.named(*key, Blob::from_bytes(bytes.clone())).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file).unwrap();
    Program::from_bytes(file)
}

pub(crate) fn load(plan: ExecutionPlan, payloads: Vec<Blob<'_>>, named: &[(&str, Vec<u8>)]) -> Result<Method, Error> {
    program(plan, payloads, named)?.method("forward", &engine(), &LoadOptions::default())
}

pub(crate) fn kernels(names: &[(&str, &str)]) -> Vec<Operator> {
    names.iter().map(|(name, overload)| Operator { name: (*name).into(), overload: (*overload).into() }).collect()
}

pub(crate) fn floats(values: &[f32], shape: &[usize]) -> Value {
    Tensor::from_slice(values, shape).unwrap().into()
}

pub(crate) fn read(value: &Value) -> Vec<f32> {
    value.as_tensor().unwrap().as_slice::<f32>().unwrap().to_vec()
}
