//! A checkpoint case: a tiny model in its published form, and its logits at every position.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile,
    engine::{Engine, LoadOptions},
    runtime::{Method, Program, Value},
    tensor::{Bytes, DType, Tensor, Tolerance, compare},
    text::argmax,
    zoo,
};
use serde_json::Value as Json;

use super::{Outcome, case::tensors};
use crate::{checkpoint, lora};

/// Number of tokens per call.
#[derive(Clone, Copy)]
enum Chunk {
    Tokens(usize),
    All,
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunk::Tokens(n) => write!(f, "chunks of {n}"),
            Chunk::All => f.write_str("one chunk"),
        }
    }
}

/// How the adapter beside a checkpoint is applied, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lora {
    Merged,
    AtRunTime,
}

impl fmt::Display for Lora {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Lora::Merged { "weights as exported" } else { "an adapter at run time" })
    }
}

/// `case.json` of a checkpoint.
pub(super) struct CheckpointCase {
    tolerance: Tolerance,
    chunks: Vec<Chunk>,
    prompt: Vec<i64>,
    /// The greedy continuation of the prompt, end tokens included.
    continuation: Vec<i64>,
}

impl CheckpointCase {
    pub(super) fn read(json: &Json, tolerance: Tolerance) -> Result<CheckpointCase> {
        let ids = |key: &str| -> Result<Vec<i64>> {
            let list = json["greedy"][key].as_array().map(|list| list.iter().filter_map(Json::as_i64).collect());
            list.with_context(|| format!("case.json has no list `greedy.{key}`"))
        };
        let chunk = |json: &Json| match json.as_u64() {
            Some(n) if n > 0 => Ok(Chunk::Tokens(n as usize)),
            _ if json == "all" => Ok(Chunk::All),
            _ => bail!("case.json names the chunk {json}, expected a number of tokens or \"all\""),
        };
        let chunks =
            json["chunks"].as_array().context("case.json has no list `chunks`")?.iter().map(chunk).collect::<Result<_>>()?;
        Ok(CheckpointCase { tolerance, chunks, prompt: ids("prompt")?, continuation: ids("new")? })
    }

    /// Exports the checkpoint in f32 and compares the program's results with the case. An adapter
    /// is merged in one program, and applied at run time in another.
    pub(super) fn run(&self, folder: &Path, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        let Some(model) = ["checkpoint", "checkpoint.gguf"].map(|name| folder.join(name)).into_iter().find(|path| path.exists())
        else {
            return Ok(Outcome::Skipped("there is neither a folder checkpoint nor a file checkpoint.gguf".into()));
        };
        let tokens = ids(&one(folder, "tokens.bin")?)?;
        let expected = one(folder, "expected_logits.bin")?;
        let &[1, positions, _] = expected.shape() else { bail!("expected_logits.bin has shape {:?}", expected.shape()) };
        if positions != tokens.len() {
            bail!("{positions} positions of expected logits for {} tokens", tokens.len());
        }
        let length = tokens.len().max(self.prompt.len() + self.continuation.len());
        // One program takes all chunks but the whole text. Windows shorter than the text then get
        // ring caches.
        let applications = if at_run_time(&model)? { &[Lora::Merged, Lora::AtRunTime][..] } else { &[Lora::Merged] };
        let parts = self.chunks.iter().filter_map(|chunk| if let Chunk::Tokens(n) = chunk { Some(*n) } else { None }).max();
        for (longest, chunks) in [(parts, self.chunks_of(false)), (Some(length), self.chunks_of(true))] {
            let Some(longest) = longest.filter(|_| !chunks.is_empty()) else { continue };
            for &lora in applications {
                let program = program(&model, (length, longest.min(length)), lora, engine)?;
                // One method for all runs: state has to begin anew at position 0.
                let mut method = program.method("forward", engine, &LoadOptions::default())?;
                for &chunk in &chunks {
                    self.compare_text(&mut method, chunk, &tokens, &expected).context(lora)?;
                }
                self.compare_continuation(&mut method, longest).context(lora)?;
            }
        }
        Ok(Outcome::Passed(Vec::new()))
    }

    /// The last logits of every chunk.
    fn compare_text(&self, method: &mut Method, chunk: Chunk, tokens: &[i64], expected: &Tensor) -> Result<()> {
        let size = if let Chunk::Tokens(n) = chunk { n } else { tokens.len() };
        let row = expected.bytes().len() / tokens.len();
        for (part, first) in tokens.chunks(size).zip((0..).step_by(size)) {
            let logits = step(method, part, first)?;
            let last = first + part.len() - 1;
            let want = Tensor::new(DType::F32, &[logits.numel()], expected.bytes().slice(last * row..(last + 1) * row))?;
            compare(&logits.reshape(&[logits.numel()])?, &want, self.tolerance)
                .with_context(|| format!("{chunk}: logits of position {last}"))?;
        }
        Ok(())
    }

    /// Chunks that are the whole text, or else its parts.
    fn chunks_of(&self, whole: bool) -> Vec<Chunk> {
        self.chunks.iter().copied().filter(|chunk| matches!(chunk, Chunk::All) == whole).collect()
    }

    /// Compares the continuation of the prompt, which is read `longest` tokens at a time.
    fn compare_continuation(&self, method: &mut Method, longest: usize) -> Result<()> {
        let mut logits = None;
        for (part, first) in self.prompt.chunks(longest).zip((0..).step_by(longest)) {
            logits = Some(step(method, part, first)?);
        }
        let mut logits = logits.context("the case has no prompt")?;
        for (i, &want) in self.continuation.iter().enumerate() {
            let found = best(&logits)?;
            if found != want {
                bail!("greedy token {i} is {found}, expected {want}");
            }
            logits = step(method, &[found], self.prompt.len() + i)?;
        }
        Ok(())
    }
}

/// The program of a checkpoint in f32, for these positions and at most `longest` tokens per call.
fn program(model: &Path, (positions, longest): (usize, usize), how: Lora, engine: &Arc<dyn Engine>) -> Result<Program> {
    let options = zoo::Options { max_seq_len: Some(positions), prefill_chunk: Some(longest), ..zoo::Options::default() };
    let mut checkpoint = checkpoint::open_path(model)?;
    match (adapter(model)?, how) {
        (Some(adapter), Lora::Merged) => checkpoint.merge(&adapter, 1.0)?,
        (Some(adapter), Lora::AtRunTime) => checkpoint.attach("adapter", &adapter, 1.0)?,
        (None, _) => {}
    }
    program_of(&checkpoint, &options, engine)
}

/// The adapter next to a checkpoint.
fn adapter(model: &Path) -> Result<Option<zoo::Adapter>> {
    let path = ["adapter", "adapter.gguf"].map(|name| model.with_file_name(name)).into_iter().find(|path| path.exists());
    path.map(|path| lora::read(&path)).transpose()
}

/// Whether there is an adapter that can be applied at run time.
fn at_run_time(model: &Path) -> Result<bool> {
    Ok(adapter(model)?.is_some_and(|adapter| !adapter.replaces_weights()))
}

/// The folder or GGUF file of a case.
pub(super) fn published(case: &Path) -> Result<PathBuf> {
    let found = ["checkpoint.gguf", "checkpoint"].map(|name| case.join(name)).into_iter().find(|path| path.exists());
    found.context("there is neither a folder checkpoint nor a file checkpoint.gguf")
}

/// The program of a checkpoint in f32.
pub(super) fn program_with(model: &Path, options: &zoo::Options, engine: &Arc<dyn Engine>) -> Result<Program> {
    program_of(&checkpoint::open_path(model)?, options, engine)
}

fn program_of(checkpoint: &zoo::Checkpoint, options: &zoo::Options, engine: &Arc<dyn Engine>) -> Result<Program> {
    let model = zoo::build(checkpoint, &zoo::Options { dtype: Some(DType::F32), ..*options })?;
    let mut bytes = Vec::new();
    zoo::compile(&model, compile::Options::default(), &**engine)?.write(&mut bytes)?;
    Ok(Program::from_bytes(Bytes::from(bytes))?)
}

/// The logits of the last of `tokens`, whose first is at position `first`.
fn step(method: &mut Method, tokens: &[i64], first: usize) -> Result<Tensor> {
    let places: Vec<i64> = (first as i64..).take(tokens.len()).collect();
    let mut inputs = vec![Tensor::from_slice(tokens, &[1, tokens.len()])?, Tensor::from_slice(&places, &[tokens.len()])?];
    if method.inputs().len() > inputs.len() {
        inputs.push(Tensor::from_slice(&[1.0f32], &[1])?);
    }
    match &method.run(&inputs.into_iter().map(Value::Tensor).collect::<Vec<_>>())?[..] {
        [Value::Tensor(logits)] => Ok(logits.clone()),
        other => bail!("the program has {} outputs, expected logits", other.len()),
    }
}

/// The token of the highest logit.
fn best(logits: &Tensor) -> Result<i64> {
    let (token, _) = argmax(logits.aligned().as_slice::<f32>()?).context("no logit is a number")?;
    Ok(token.into())
}

/// The only tensor of a file.
pub(super) fn one(folder: &Path, name: &str) -> Result<Tensor> {
    match &tensors(&folder.join(name))?[..] {
        [tensor] => Ok(tensor.clone()),
        other => bail!("{name} holds {} tensors, expected one", other.len()),
    }
}

fn ids(tokens: &Tensor) -> Result<Vec<i64>> {
    let tokens = tokens.aligned();
    Ok(tokens.as_slice::<i32>()?.iter().map(|&id| i64::from(id)).collect())
}
