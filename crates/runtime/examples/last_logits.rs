//! Computes the logits at the last position of a prompt: `last_logits MODEL.pte IDS.json CHUNK
//! OUT.bin`.
//!
//! IDS.json is a list of token ids. The model reads the prompt in pieces of CHUNK tokens (0: all at
//! once). The logits are written as raw little-endian f32, for comparison with other programs.

use std::{fs, sync::Arc, time::Instant};

use flambeau_cpu::CpuEngine;
use flambeau_ir::engine::{Engine, LoadOptions};
use flambeau_runtime::{Program, Value};
use flambeau_tensor::{DType, Tensor, cast};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, ids, chunk, out] = &args[..] else { return Err("expected MODEL.pte IDS.json CHUNK OUT.bin".into()) };
    let ids: Vec<i64> = serde_json::from_slice(&fs::read(ids)?)?;
    let chunk = match chunk.parse()? {
        0 => ids.len(),
        n => n,
    };
    let engine: Arc<dyn Engine> = Arc::new(CpuEngine::new(None));
    let start = Instant::now();
    let mut method = Program::open(model)?.method("forward", &engine, &LoadOptions::default())?;
    eprintln!("loaded in {:?}", start.elapsed());
    let start = Instant::now();
    let mut last = Vec::new();
    for (i, piece) in ids.chunks(chunk).enumerate() {
        let positions: Vec<i64> = (0..piece.len()).map(|j| (i * chunk + j) as i64).collect();
        let tokens = Tensor::from_slice(piece, &[1, piece.len()])?;
        let positions = Tensor::from_slice(&positions, &[piece.len()])?;
        last = method.run(&[Value::Tensor(tokens), Value::Tensor(positions)])?;
    }
    eprintln!("{} tokens in {:?}", ids.len(), start.elapsed());
    let logits = last.first().and_then(Value::as_tensor).ok_or("the method returns no tensor")?;
    let vocabulary = *logits.shape().last().ok_or("the logits have no shape")?;
    let wide = cast(logits, DType::F32)?;
    let values = wide.as_slice::<f32>()?;
    fs::write(out, values[values.len() - vocabulary..].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
