//! Builds, compiles and runs a checkpoint: `logits CHECKPOINT IDS.json REFERENCE.bin [DTYPE]`.
//!
//! CHECKPOINT is a GGUF file or a Hugging Face folder, IDS a JSON list of token ids, REFERENCE the last position's logits as raw
//! f32. Prints the largest difference and the five best ids, for all tokens in one call and again with the last one alone.

use std::{error::Error, fs, path::Path, sync::Arc, time::Instant};

use flambeau_cpu::CpuEngine;
use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value};
use flambeau_tensor::{DType, Tensor, cast};
use flambeau_zoo::{Checkpoint, Options, build};

fn main() {
    if let Err(error) = run() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn checkpoint(path: &Path) -> Result<Checkpoint, Box<dyn Error>> {
    if !path.is_dir() {
        return Ok(Checkpoint::from_gguf(fs::read(path)?.into())?);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?.into()));
    }
    Ok(Checkpoint::from_folder(files)?)
}

fn logits(method: &mut Method, ids: &[i64], start: i64) -> Result<Vec<f32>, Box<dyn Error>> {
    let places: Vec<i64> = (start..).take(ids.len()).collect();
    let inputs =
        [Value::Tensor(Tensor::from_slice(ids, &[1, ids.len()])?), Value::Tensor(Tensor::from_slice(&places, &[ids.len()])?)];
    match &method.run(&inputs)?[..] {
        [Value::Tensor(out)] => Ok(cast(out, DType::F32)?.aligned().as_slice::<f32>()?.to_vec()),
        _ => Err("expected one tensor".into()),
    }
}

fn show(what: &str, found: &[f32], want: &[f32]) {
    let worst = found.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by(|&a, &b| found[b].total_cmp(&found[a]));
    println!("{what}: {} logits, largest difference {worst}, best ids {:?}", found.len(), &order[..order.len().min(5)]);
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, ids, reference, dtype @ ..] = &args[..] else { return Err("expected CHECKPOINT IDS.json REFERENCE.bin".into()) };
    let ids: Vec<i64> = serde_json::from_slice(&fs::read(ids)?)?;
    let reference: Vec<f32> = fs::read(reference)?.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let dtype = dtype.first().map(|name| DType::from_name(name).ok_or("expected f32, f16 or bf16")).transpose()?;

    let start = Instant::now();
    let model = build(&checkpoint(Path::new(model))?, &Options { dtype, max_seq_len: Some(1024), ..Options::default() })?;
    let built = start.elapsed();
    let engine: Arc<dyn Engine> = Arc::new(CpuEngine::new(Some(2)));
    let compiled = flambeau_compile::compile(&[("forward", &model.exported)], &Default::default(), &*engine)?;
    let mut file = Vec::new();
    compiled.write(&mut file)?;
    println!("built in {built:?}, compiled in {:?}, {} bytes", start.elapsed() - built, file.len());

    let mut method = Program::from_bytes(file)?.method("forward", &engine, &LoadOptions::default())?;
    let Some((last, before)) = ids.split_last() else { return Err("no ids".into()) };
    show("one call", &logits(&mut method, &ids, 0)?, &reference);
    if before.is_empty() {
        return Ok(());
    }
    method.reset();
    logits(&mut method, before, 0)?;
    show("two calls", &logits(&mut method, &[*last], before.len() as i64)?, &reference);
    Ok(())
}
