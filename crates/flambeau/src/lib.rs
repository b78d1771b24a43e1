//! Flambeau: ExecuTorch's MLX delegate in Rust.
//!
//! It compiles PyTorch programs captured by `torch.export` into ExecuTorch `.pte` files that
//! delegate their work to MLX. It runs such files on its own CPU engine, or on an installed MLX.
//!
//! | to | use | feature |
//! |---|---|---|
//! | load a `.pte` file and run its methods | [`runtime`], [`tensor`] | |
//! | inspect or write files and graphs | [`wire`], [`ir`] | |
//! | compute on the CPU | [`cpu`] | `cpu` |
//! | compute on MLX: Metal, CUDA or its CPU backend | [`mlx`] | `mlx` |
//! | compile an archive of `torch.export` | [`pt2`], [`compile`] | `compile` |
//! | convert a Hugging Face folder or a GGUF file to a program | [`zoo`] | `zoo` |
//! | tokenize, render chats, sample, generate and embed text | [`text`], [`runners`] | `text` |
//! | decode recordings, transcribe speech | [`audio`], [`runners`] | `speech` |
//! | implement an engine | [`engine`] | |
//!
//! All features are enabled by default. A program that only runs models needs
//! `default-features = false, features = ["cpu"]`, without the dependencies of the other features.

#![forbid(unsafe_code)]
#![cfg_attr(
    feature = "compile",
    doc = r#"
From a captured program to results:

```
use flambeau::{compile, engine::LoadOptions, pt2::Archive, runtime::{Program, map_file}, tensor::Tensor};

# fn main() -> Result<(), Box<dyn std::error::Error>> {
let cpu = flambeau::engines(None, false).get("cpu")?;
let exported = Archive::open(map_file("examples/data/mlp.pt2")?)?.only_program()?;
let mut file = Vec::new();
compile::compile(&[("forward", &exported)], &compile::Options::default(), &*cpu)?.write(&mut file)?;

let mut forward = Program::from_bytes(file)?.method("forward", &cpu, &LoadOptions::default())?;
let x = Tensor::from_slice(&[0.5f32, -1.0, 0.0, 2.0], &[1, 4])?;
let outputs = forward.run(&[x.into()])?;
assert_eq!(outputs[0].describe(), "f32[1, 2]");
# Ok(())
# }
```
"#
)]

/// Element types, shapes, shared bytes, tensors and tensor comparison.
///
/// ```
/// use flambeau::tensor::{DType, Tensor, Tolerance, cast, compare};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let x = Tensor::from_slice(&[1.0f32, 2.5, -3.0], &[3])?;
/// let rounded = cast(&cast(&x, DType::BF16)?, DType::F32)?;
/// compare(&rounded, &x, Tolerance { relative: 1e-2, absolute: 0.0 })?;
/// # Ok(())
/// # }
/// ```
pub mod tensor {
    pub use flambeau_tensor::{
        AlignedBytes, Bool, Bytes, DType, DTypeClass, Distance, Element, Error, Mismatch, Shape, Tensor, Tolerance, bf16, cast,
        compare, distance, f16, numel, tensor_list,
    };
}

/// The graph of a delegate: nodes over numbered slots, a checker, and a text form.
///
/// ```
/// use flambeau::ir::{Graph, check};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let graph: Graph = r#"slots constants=0 inputs=1 outputs=1 buffers=0 temps=0 values=0
/// main 0
/// input t0
/// output t1
/// name t0 "x"
/// name t1 "y"
/// meta t0 f32[2]
/// meta t1 f32[2]
/// chain 0
///   Add a=t0 b=t0 out=t1
/// "#
/// .parse()?;
/// let checked = check(graph)?;
/// assert_eq!(checked.node_count(), 1);
/// # Ok(())
/// # }
/// ```
pub mod ir {
    pub use flambeau_ir::{
        Chain, CheckError, Checked, FieldInfo, Graph, MetaDim, Node, NodeInfo, Role, Slot, SlotClass, SlotCounts, TensorMeta, Tid,
        Vid, check::check, infer::Env, json,
    };
}

/// The interface between programs and engines: the traits of an engine, and its options and values.
#[cfg_attr(
    feature = "cpu",
    doc = r#"
A graph on an engine, without a file:

```
use std::sync::Arc;

use flambeau::{engine::{Engine, LoadOptions, NoConstants, Value}, ir, tensor::Tensor};

# fn main() -> Result<(), Box<dyn std::error::Error>> {
let text = "slots constants=0 inputs=1 outputs=1 buffers=0 temps=0 values=0\nmain 0\ninput t0\noutput t1\n\
    name t0 \"x\"\nname t1 \"y\"\nmeta t0 f32[2]\nmeta t1 f32[2]\nchain 0\n  Exp x=t0 out=t1\n";
let graph = Arc::new(ir::check(text.parse()?)?);
let engine = flambeau::cpu::CpuEngine::new(Some(1));
let mut session = engine.load(graph, &NoConstants, &LoadOptions::default())?;
let results = session.run(&[Value::Tensor(Tensor::from_slice(&[0.0f32, 1.0], &[2])?)])?;
assert!(matches!(&results[..], [Value::Tensor(y)] if y.shape() == [2]));
# Ok(())
# }
```
"#
)]
pub mod engine {
    pub use flambeau_ir::engine::{
        Clock, Constants, DecodeStep, Engine, EngineError, FusedRegion, KvCacheConfig, KvLayer, LoadOptions, NoConstants,
        NodeByNode, Outcome, PipelinedDecoding, Run, Sampling, Session, SharedState, Span, Steps, Value,
    };
}

/// Readers and writers of `.pte` programs, `.ptd` data files and delegate payloads.
///
/// ```
/// use flambeau::wire::{ProgramWriter, pte::EValue, read_program};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut writer = ProgramWriter::new();
/// writer.constant_method("get_answer", vec![EValue::Int(42)]);
/// let mut file = Vec::new();
/// writer.write(&mut file)?;
/// let program = read_program(&file.into())?;
/// assert!(program.plan("get_answer").is_some());
/// # Ok(())
/// # }
/// ```
pub mod wire {
    pub use flambeau_wire::{Blob, Error, ProgramWriter, bundled, etdump, mlx, ptd, pte, read_program};
}

/// Programs and their methods.
#[cfg_attr(
    feature = "cpu",
    doc = r#"
```
use flambeau::{engine::LoadOptions, runtime::Program, tensor::Tensor};

# fn main() -> Result<(), Box<dyn std::error::Error>> {
let cpu = flambeau::engines(None, false).get("cpu")?;
let program = Program::open("examples/data/mlp.pte")?;
let mut forward = program.method("forward", &cpu, &LoadOptions::default())?;
println!("takes {}", forward.inputs()[0]);
let outputs = forward.run(&[Tensor::from_slice(&[1.0f32; 8], &[2, 4])?.into()])?;
assert_eq!(outputs[0].describe(), "f32[2, 2]");
# Ok(())
# }
```
"#
)]
pub mod runtime {
    pub use flambeau_runtime::{
        DimSpec, Engines, Error, InstructionTrace, MLX_BACKEND, Method, Place, Program, RunTrace, TensorSpec, Value, ValueKind,
        ValueSpec, map_file, map_file_locked, operator_names, verify,
    };
}

/// The CPU engine.
///
/// ```
/// use flambeau::{cpu::CpuEngine, engine::Engine};
///
/// let engine = CpuEngine::new(Some(2));
/// assert_eq!(engine.name(), "cpu");
/// ```
#[cfg(feature = "cpu")]
pub mod cpu {
    pub use flambeau_cpu::CpuEngine;
}

/// The MLX engine. It needs an installed MLX and, once per version of MLX, a C++ compiler.
///
/// ```no_run
/// use flambeau::mlx::{MlxEngine, Options, Search, Shim};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let interpreters = vec!["python3".into()];
/// let search = Search { path: Some(".venv".into()), interpreters, prefixes: vec![] };
/// let (install, cache) = (search.find()?, "cache".into());
/// let shim = Shim { install, ahead: vec![], cache, compiler: None };
/// let engine = MlxEngine::open(&shim, &Options::default())?;
/// println!("MLX {} on {}", engine.version(), engine.device());
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "mlx")]
pub mod mlx {
    pub use flambeau_mlx::{
        Device, Error, Install, Interface, MemoryUse, MlxEngine, Options, Region, Search, Shim, SingleNode, StepPlan,
    };
}

/// Reader of archives written by `torch.export.save`.
///
/// ```
/// use flambeau::{pt2::Archive, runtime::map_file};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let exported = Archive::open(map_file("examples/data/mlp.pt2")?)?.only_program()?;
/// let calls: Vec<&str> = exported.graph.nodes.iter().map(|node| node.target.as_str()).collect();
/// assert!(calls.contains(&"torch.ops.aten.gelu.default"), "{calls:?}");
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "compile")]
pub mod pt2 {
    pub use flambeau_pt2::{
        Archive, Argument, Error, Exported, Graph, InputSpec, Node, OutputSpec, ScalarType, Signature, SourceLocation, Weight,
    };
}

/// The compiler from exported programs to `.pte` files. It folds constants by running them on the
/// caller's engine.
///
/// ```
/// use flambeau::compile::{Options, Scheme, SchemeName, compile};
/// use flambeau::{pt2::Archive, runtime::map_file};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cpu = flambeau::engines(None, false).get("cpu")?;
/// let exported = Archive::open(map_file("examples/data/mlp.pt2")?)?.only_program()?;
/// let linear = Some(Scheme::from_name("4w", Some(32))?);
/// let options = Options { linear, ..Options::default() };
/// let output = compile(&[("forward", &exported)], &options, &*cpu)?;
/// for method in &output.report.methods {
///     println!("{}: {} calls became {} nodes", method.name, method.calls.len(), method.nodes);
/// }
/// let mut file = Vec::new();
/// output.write(&mut file)?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "compile")]
pub mod compile {
    pub use flambeau_compile::{
        CallReport, Delegate, Error, Fit, InputStatistics, Layers, LinearWeight, Loaded, MethodReport, ObserveError, Observer,
        Options, Outcome, Output, Precision, Report, Scheme, SchemeError, SchemeName, Statistics, Ties, WeightRule, compile,
        dry_run, linear_weights,
    };
}

/// Model families: converts checkpoints to exported programs, without Python.
///
/// ```
/// use flambeau::{compile, runtime::{Program, map_file}, zoo::{self, Checkpoint}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let cpu = flambeau::engines(None, false).get("cpu")?;
/// let mut files = Vec::new();
/// for entry in std::fs::read_dir("examples/data/tiny-llama")? {
///     let entry = entry?;
///     files.push((entry.file_name().to_string_lossy().into_owned(), map_file(entry.path())?));
/// }
/// let model = zoo::build(&Checkpoint::from_folder(files)?, &zoo::Options::default())?;
/// let mut file = Vec::new();
/// zoo::compile(&model, compile::Options::default(), &*cpu)?.write(&mut file)?;
/// assert_eq!(Program::from_bytes(file)?.computing_methods().collect::<Vec<_>>(), ["forward"]);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "zoo")]
pub mod zoo {
    pub use flambeau_zoo::{
        Adapter, Checkpoint, Error, Family, KvCache, Logits, MethodConstant, Model, Options, ScalePrecision, TokenizerSource,
        build, families, gguf, parse_json,
    };

    use crate::{compile, engine::Engine, wire::pte::EValue};

    /// Compiles a whole model, with its metadata as constant methods. [Routers and
    /// gates](Model::floats) stay in floating point unless a rule in the options quantizes them.
    ///
    /// # Errors
    /// As [`compile`](compile::compile); also fails if the delegate cannot take all calls.
    pub fn compile<'m>(
        model: &'m Model,
        options: compile::Options,
        engine: &dyn Engine,
    ) -> Result<compile::Output<'m>, compile::Error> {
        let options = with_floats(model, options);
        let mut output = compile::compile(&model.programs(), &options, engine)?;
        for (name, value) in &model.metadata {
            let values = match value {
                MethodConstant::Bool(v) => vec![EValue::Bool(*v)],
                MethodConstant::Int(v) => vec![EValue::Int(*v)],
                MethodConstant::Ints(list) => list.iter().map(|&v| EValue::Int(v)).collect(),
                MethodConstant::Text(v) => vec![EValue::String(v.clone())],
            };
            output.constant_method(name, values);
        }
        Ok(output)
    }

    /// Prepares the method `forward` to observe the inputs of the linear layers that
    /// [`compile`](compile()) quantizes with these options. Products of columns are kept for blocks
    /// of at most `block` columns, or fewer if all products have more than `most` floats.
    ///
    /// # Errors
    /// As [`compile::Observer::new`].
    pub fn observe(
        model: &Model,
        options: &compile::Options,
        engine: &dyn Engine,
        block: usize,
        most: usize,
    ) -> Result<compile::Observer, compile::Error> {
        let options = with_floats(model, options.clone());
        let (_, forward) = model.methods.first().ok_or(compile::ObserveError::Parts)?;
        compile::Observer::new(forward, &options, engine, (block, most))
    }

    /// Loads the method `forward` on an engine, as [`compile`](compile()) would write it.
    ///
    /// # Errors
    /// As [`compile::Loaded::new`].
    pub fn load(model: &Model, options: compile::Options, engine: &dyn Engine) -> Result<compile::Loaded, compile::Error> {
        let (_, forward) = model.methods.first().ok_or(compile::ObserveError::Parts)?;
        compile::Loaded::new(forward, &with_floats(model, options), engine)
    }

    /// The weights of linear layers that [`compile`](compile()) quantizes with
    /// [`Options::linear`](compile::Options::linear).
    ///
    /// # Errors
    /// As [`compile::linear_weights`].
    pub fn linear_weights(model: &Model, options: compile::Options) -> Result<Vec<compile::LinearWeight>, compile::Error> {
        let (_, forward) = model.methods.first().ok_or(compile::ObserveError::Parts)?;
        compile::linear_weights(forward, &with_floats(model, options))
    }

    /// The options with a rule for each weight that stays in floating point.
    fn with_floats(model: &Model, mut options: compile::Options) -> compile::Options {
        options.require_full = true;
        options.rules.extend(model.floats.iter().map(|name| compile::WeightRule {
            pattern: name.clone(),
            layers: compile::Layers::All,
            scheme: None,
            is_optional: true,
        }));
        options
    }
}

/// Tokenizers, chat templates and sampling.
///
/// ```
/// use flambeau::text::{
///     ChatInput, ChatTemplate, Sampler, SamplingParams, Tokenizer, TokenizerFiles, message,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tokenizer = std::fs::read("examples/data/tiny-llama/tokenizer.json")?;
/// let config = std::fs::read("examples/data/tiny-llama/tokenizer_config.json")?;
/// let files = TokenizerFiles {
///     tokenizer: &tokenizer,
///     tokenizer_config: Some(&config),
///     ..TokenizerFiles::default()
/// };
/// let tokenizer = Tokenizer::from_files(&files)?;
/// let template = ChatTemplate::from_files(&files, tokenizer.special(), None)?;
/// let template = template.expect("the folder has a template");
///
/// let chat = ChatInput {
///     messages: vec![message("user", "where is the cat ?")],
///     add_generation_prompt: true,
///     ..ChatInput::default()
/// };
/// let prompt = tokenizer.encode(&template.render(&chat)?, false)?;
/// assert_eq!(tokenizer.decode(&prompt, true)?, "user : where is the cat ? assistant :");
///
/// let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
/// let mut sampler = Sampler::new(params)?;
/// assert_eq!(sampler.sample(&[0.1, 2.0, -1.0], &prompt)?, 1);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "text")]
pub mod text {
    pub use flambeau_text::{
        ChatInput, ChatTemplate, Clock, Constraint, ConvertedTokenizer, DetokenizeStream, Error, GenerationDefaults, GgufVocab,
        GrammarCompiler, Placed, Sampler, SamplingParams, SpecialTokens, StopMatcher, StopStep, Tokenizer, TokenizerFiles,
        VOCABULARY_FILES, argmax, check_schema, lark_rule, likeliest, log_probabilities, message, spaced, tokenizer_files,
    };
}

/// Decodes recordings to samples, and computes the features of speech models from samples.
///
/// ```no_run
/// use std::fs::File;
///
/// use flambeau::audio::{LogMel, Recording};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut recording = Recording::from_file(File::open("talk.mp3")?, 16_000)?;
/// let samples = recording.read_to_end()?;
/// let spectrogram = LogMel::new(80).window(&samples, 3000);
/// assert_eq!(spectrogram.len(), 80 * 3000);
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "speech")]
pub mod audio {
    pub use flambeau_audio::{Error, LogMel, MAX_CHANNELS, ParakeetMel, Pcm, RATES, Recording, Sample, VoiceActivity};
}

/// Loops over methods: text generation, text embeddings and, with the feature `speech`,
/// transcription.
#[cfg_attr(
    all(feature = "cpu", feature = "zoo"),
    doc = r#"
```
use std::{sync::atomic::AtomicBool, time::Instant};

use flambeau::{runners::llm::{Model, ModelOptions, Request, generate}, runtime::Program, text::{SamplingParams, Tokenizer}};

# fn main() -> Result<(), Box<dyn std::error::Error>> {
# use flambeau::{compile, runtime::map_file, zoo::{self, Checkpoint}};
# let folder = "examples/data/tiny-llama";
# let read = |name: &str| Ok::<_, Box<dyn std::error::Error>>((name.to_owned(), map_file(format!("{folder}/{name}"))?));
# let checkpoint = Checkpoint::from_folder(vec![read("config.json")?, read("model.safetensors")?, read("tokenizer.json")?])?;
# let model = zoo::build(&checkpoint, &zoo::Options::default())?;
# let cpu = flambeau::engines(None, false).get("cpu")?;
# let mut file = Vec::new();
# compile::compile(&model.programs(), &compile::Options::default(), &*cpu)?.write(&mut file)?;
# let program = Program::from_bytes(file)?;
# let tokenizer = Tokenizer::from_json(&std::fs::read(format!("{folder}/tokenizer.json"))?)?;
// `program` is the file that `zoo` and `compile` made, `tokenizer` the folder's own.
let mut sequence = Model::load(&program, &cpu, &ModelOptions::default())?.sequence()?;
let request = Request {
    prompt: tokenizer.encode("the cat sat on", false)?,
    max_new_tokens: 8,
    sampling: SamplingParams { temperature: 0.7, seed: 1, ..SamplingParams::default() },
    ignore_eos: true,
    ..Request::default()
};
let (start, cancelled) = (Instant::now(), AtomicBool::new(false));
let generation = generate(&mut sequence, &tokenizer, &request, &|| start.elapsed(), &cancelled, &mut |piece| print!("{piece}"))?;
assert_eq!(generation.ids.len(), 8);
# Ok(())
# }
```
"#
)]
#[cfg(feature = "text")]
pub mod runners {
    #[cfg(feature = "speech")]
    pub use flambeau_runners::speech;
    pub use flambeau_runners::{Error, embed, llm};
}

/// The engines of this build without external requirements: the CPU engine, with the feature `cpu`.
/// Add [`MlxEngine`](mlx::MlxEngine) with [`Engines::with`](runtime::Engines::with) if MLX is
/// installed.
///
/// `threads` limits the CPU engine's threads, including the caller's; `None` means one per core.
/// With `profile`, sessions measure the time of each node.
pub fn engines(threads: Option<usize>, profile: bool) -> runtime::Engines {
    let engines = runtime::Engines::new();
    #[cfg(feature = "cpu")]
    let engines = engines.with(std::sync::Arc::new(cpu::CpuEngine::new(threads).with_profile(profile.then(clock))));
    #[cfg(not(feature = "cpu"))]
    let _ = (threads, profile);
    engines
}

/// A monotonic clock for engines that measure time.
pub fn clock() -> engine::Clock {
    let start = std::time::Instant::now();
    engine::Clock::new(move || start.elapsed())
}
