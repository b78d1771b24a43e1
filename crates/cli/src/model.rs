//! A model on the command line: a program, or a checkpoint, which is exported into the cache at its
//! first use.

mod source;

pub(crate) use self::source::{program_name, repository_programs};

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    compile,
    runners::{
        embed::{Classifier, Embedder, Tagger},
        speech::SpeechModel,
    },
    runtime::Program,
    tensor::Bytes,
    zoo,
};

use self::source::{Source, Weights};
use crate::{
    checkpoint,
    count::positive,
    environment, exporter,
    failure::{hint, usage},
    file_kind::{FileKind, LockArgs, WeightsArgs},
    hub::{Cached, Hub, ModelName, Wanted},
    lora::LoraArgs,
    quantize::QuantizeArgs,
    reranker,
    shelf::programs,
    tokenizer::{self, KNOWN_FILES},
};

/// A model by its file, folder or name.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Program (.pte), model folder, GGUF file, or ORG/NAME on the Hugging Face hub, with :QUANT
    /// for one of its GGUF files. Checkpoints are exported once, into the cache
    #[arg(value_name = "MODEL")]
    model: String,

    #[command(flatten)]
    weights: WeightsArgs,

    #[command(flatten)]
    export: ExportArgs,

    /// Settings that override the model's.
    #[arg(skip)]
    given: Overrides,
}

/// User settings that override the model's own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    /// Whether a tokenizer flag is given.
    pub(crate) tokenizer: bool,
    /// Number of cache positions.
    pub(crate) context: Option<usize>,
}

/// Export settings of a checkpoint.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ExportArgs {
    /// Type of activations and caches of an exported checkpoint: f32, f16 or bf16
    #[arg(help_heading = "Export", long, value_name = "TYPE")]
    dtype: Option<String>,

    /// Maximum sequence length of an exported checkpoint: positions that the KV caches hold
    #[arg(help_heading = "Export", long, value_name = "N", value_parser = positive, alias = "max-ctx-len", alias = "max-seq-length")]
    max_seq_len: Option<usize>,

    /// Element type of an exported checkpoint's key-value cache
    #[arg(help_heading = "Export", long, value_name = "KIND")]
    kv_cache: Option<exporter::KvCache>,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    quantize: QuantizeArgs,

    /// Folder for exported programs; by default flambeau/models in the user's cache folder
    #[arg(help_heading = "Export", long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

/// Descriptions of the default quantizations of floats: a language model's and a speech model's.
const FOUR_BITS: &str = "weights in 4 bits, embeddings in 8 (--qlinear none keeps floats)";
const EIGHT_BITS: &str = "the decoder's weights in 8 bits (--qlinear none keeps floats)";

/// Description of 4-bit floats, which programs do not have.
const SMALL_FLOATS: &str = "weights of 4-bit floats as floats (--qlinear 4w quantizes them again)";

/// Kind of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A language model.
    Language,
    /// A text encoder.
    Encoder,
    /// A classifier of texts or of text pairs.
    Classifier,
    /// It gives scores of each token of a text.
    Tagger,
    /// It transcribes.
    Speech,
}

impl Kind {
    fn of_program(program: &Program) -> Kind {
        match () {
            () if Embedder::is_in(program) => Kind::Encoder,
            () if Classifier::is_in(program) => Kind::Classifier,
            () if Tagger::is_in(program) => Kind::Tagger,
            () if SpeechModel::is_in(program) => Kind::Speech,
            () => Kind::Language,
        }
    }

    fn of_checkpoint(checkpoint: &zoo::Checkpoint) -> Kind {
        match () {
            () if checkpoint.is_encoder() => Kind::Encoder,
            () if checkpoint.gives_scores() => Kind::Classifier,
            () if checkpoint.tags_tokens() => Kind::Tagger,
            () if checkpoint.is_speech() => Kind::Speech,
            () => Kind::Language,
        }
    }

    /// Whether all programs of the kind state it.
    fn states_itself(self) -> bool {
        [Kind::Encoder, Kind::Classifier, Kind::Tagger].contains(&self)
    }

    /// Description of the kind, and the commands that take it.
    fn advice(self) -> &'static str {
        match self {
            Kind::Language => "a language model: use it with `flambeau generate`, `chat` or `serve`",
            Kind::Encoder => "a text encoder: use it with `flambeau embed` or `serve`",
            Kind::Classifier => "a classifier of texts: use it with `flambeau rerank`, `classify` or `serve`",
            Kind::Tagger => "a classifier of tokens: use it with `flambeau classify` or `serve`",
            Kind::Speech => "a model of speech: use it with `flambeau transcribe` or `serve`",
        }
    }
}

/// An opened program.
pub(crate) struct Opened {
    pub(crate) program: Program,
    /// Path of the program.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

impl ModelArgs {
    pub(crate) fn new(model: &str, lock: LockArgs, export: &ExportArgs) -> ModelArgs {
        ModelArgs { model: model.to_owned(), weights: lock.into(), export: export.clone(), given: Overrides::default() }
    }

    /// The same model with other settings.
    pub(crate) fn with_overrides(&self, given: Overrides) -> ModelArgs {
        ModelArgs { given, ..self.clone() }
    }

    /// Options for locking the weights of this model and its companions in memory.
    pub(crate) fn lock(&self) -> LockArgs {
        self.weights.lock
    }

    /// The model as the user calls it.
    pub(crate) fn name(&self) -> &str {
        &self.model
    }

    /// The paths of the model and of its weights, as far as they are given.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [Path::new(&self.model)].into_iter().chain(self.weights.data.as_deref())
    }

    /// Opens the program of a language model with its weights, and returns its path. An exported
    /// program computes `logits`.
    pub(crate) fn open(&self, logits: zoo::Logits, threads: Option<usize>) -> Result<(Program, PathBuf)> {
        self.open_as(Kind::Language, logits, threads)
    }

    /// As [`open`](Self::open), for a text encoder.
    pub(crate) fn open_encoder(&self, threads: Option<usize>) -> Result<(Program, PathBuf)> {
        self.open_as(Kind::Encoder, zoo::Logits::default(), threads)
    }

    /// As [`open`](Self::open), for a classifier of texts. A language model becomes a reranker.
    pub(crate) fn open_classifier(&self, threads: Option<usize>) -> Result<(Program, PathBuf)> {
        self.open_as(Kind::Classifier, zoo::Logits::default(), threads)
    }

    /// As [`open`](Self::open), for a model of speech.
    pub(crate) fn open_speech(&self, threads: Option<usize>) -> Result<(Program, PathBuf)> {
        self.open_as(Kind::Speech, zoo::Logits::default(), threads)
    }

    /// Opens the program, which is to be of a kind.
    fn open_as(&self, kind: Kind, logits: zoo::Logits, threads: Option<usize>) -> Result<(Program, PathBuf)> {
        let Opened { program, path, .. } = self.open_if(&[kind], logits, threads)?;
        Ok((program, path))
    }

    /// Opens the program of a model of any kind.
    pub(crate) fn open_any(&self, logits: zoo::Logits, threads: Option<usize>) -> Result<Opened> {
        self.open_if(&[], logits, threads)
    }

    /// Opens the program of a classifier of texts or of tokens. Another model is refused before an
    /// export.
    pub(crate) fn open_labeller(&self, threads: Option<usize>) -> Result<Opened> {
        const LABELLERS: [Kind; 2] = [Kind::Classifier, Kind::Tagger];
        let opened = self.open_if(&LABELLERS, zoo::Logits::default(), threads)?;
        self.check_kind(opened.kind, &LABELLERS)?;
        Ok(opened)
    }

    /// Opens the program of a model of one of the `wanted` kinds, or of any kind if there are none.
    fn open_if(&self, wanted: &[Kind], logits: zoo::Logits, threads: Option<usize>) -> Result<Opened> {
        let path = match self.checkpoint()? {
            Some(checkpoint) => self.exported(&checkpoint, wanted, logits, threads)?,
            None => {
                self.check_unused()?;
                PathBuf::from(&self.model)
            }
        };
        let program = self.weights.open(&path)?;
        let kind = Kind::of_program(&program);
        // A program without metadata may be a language model, or ExecuTorch's model of speech.
        if kind != Kind::Language || wanted.iter().all(|kind| kind.states_itself()) {
            self.check_kind(kind, wanted)?;
        }
        Ok(Opened { program, path, kind })
    }

    /// Refuses a model of another kind than the wanted ones, if there are some.
    pub(crate) fn check_kind(&self, found: Kind, wanted: &[Kind]) -> Result<()> {
        if !wanted.is_empty() && !wanted.contains(&found) {
            bail!("{} is {}", self.model, found.advice());
        }
        Ok(())
    }

    /// Opens another model to compare this one with. If it is exported, then as this one, save that
    /// its weights and caches keep their type.
    pub(crate) fn open_reference(&self, model: &str, logits: zoo::Logits, threads: Option<usize>) -> Result<Program> {
        let export = ExportArgs { quantize: QuantizeArgs::floats(), kv_cache: None, ..self.export.clone() };
        let reference = ModelArgs::new(model, self.lock(), &export);
        match reference.checkpoint()? {
            Some(checkpoint) => self.lock().open(&reference.exported(&checkpoint, &[Kind::Language], logits, threads)?),
            None => self.lock().open(Path::new(model)),
        }
    }

    /// The folder or file to export. `None` for a program, or for a missing file.
    fn checkpoint(&self) -> Result<Option<Source>> {
        let path = Path::new(&self.model);
        if path.is_dir() || matches!(FileKind::of_file(path), Some(FileKind::Gguf | FileKind::Ggml | FileKind::Nemo)) {
            return Ok(Some(Source { path: path.to_owned(), name: None }));
        }
        let is_file_name = path.extension().is_some_and(|e| ["pte", "gguf", "nemo", "pt2", "ptd"].iter().any(|known| e == *known));
        if path.exists() || is_file_name {
            return Ok(None);
        }
        let name = ModelName::of_no_file(&self.model)?;
        let model = fetched(&name)?;
        Ok(Some(Source { path: model.path(), name: Some(program_name(&name, model.selection.label().as_deref())) }))
    }

    /// Refuses export options for a program.
    pub(crate) fn check_unused(&self) -> Result<()> {
        let export = &self.export;
        let given = [
            (export.dtype.is_some(), "--dtype"),
            (export.max_seq_len.is_some(), "--max-seq-len"),
            (export.kv_cache.is_some(), "--kv-cache"),
            (!export.lora.is_empty(), "--lora"),
        ];
        let given = given.into_iter().find_map(|(given, flag)| given.then_some(flag));
        match given.or(export.quantize.given()) {
            Some(flag) => Err(usage(format!("{flag} is for checkpoints; {} is a program, where it is decided", self.model))),
            None => Ok(()),
        }
    }

    /// Path of the checkpoint's program in the cache. Exports the checkpoint if there is none. If
    /// the program exists and only one kind is wanted, the checkpoint is not opened.
    fn exported(&self, source: &Source, wanted: &[Kind], logits: zoo::Logits, threads: Option<usize>) -> Result<PathBuf> {
        let path = source.path.as_path();
        let only = if let [kind] = wanted { Some(*kind) } else { None };
        let opened = if only.is_none() { Some(checkpoint::open_path(path)?) } else { None };
        let kind = only.or(opened.as_ref().map(Kind::of_checkpoint)).unwrap_or(Kind::Language);
        let opened = match opened {
            None if kind == Kind::Speech && self.export.quantize.given().is_none() && source::may_decode_speech(path) => {
                Some(checkpoint::open_path(path)?)
            }
            opened => opened,
        };
        let (quantize, how) = self.quantization(path, kind, opened.as_ref())?;
        let options = self.export_options(kind, logits)?;
        let folder = self.export.cache_dir.clone().map_or_else(|| environment::cache("models"), Ok)?;
        let tokenizer = if self.given.tokenizer { exporter::Carried::Nothing } else { exporter::Carried::Own };
        let mut settings = format!("{options:?} {quantize:?} {tokenizer:?}{}", self.export.lora.state()?);
        if kind == Kind::Classifier {
            settings.push_str(" as a classifier");
        }
        let key = source::Key::new(source, &settings)?;
        let target = folder.join(key.file_name());
        if target.is_file() {
            programs::touch(&target);
            if [FOUR_BITS, EIGHT_BITS].contains(&how) {
                eprintln!("{}: {how}", path.display());
            }
            // The encoder of a GGUF model is another file.
            if kind == Kind::Language && path.is_dir() {
                checkpoint::note_unused(&opened.map_or_else(|| checkpoint::open_path(path), Ok)?);
            }
            return Ok(target);
        }
        let start = Instant::now();
        let mut opened = opened.map_or_else(|| checkpoint::open_path(path), Ok)?;
        self.export.lora.apply(&mut opened)?;
        if only == Some(Kind::Classifier) && Kind::of_checkpoint(&opened) == Kind::Language {
            opened = reranker::of_language_model(opened, path)?;
        }
        self.check_kind(Kind::of_checkpoint(&opened), wanted)?;
        if kind == Kind::Language && !self.given.tokenizer {
            check_tokenizer(&opened, path)?;
        }
        checkpoint::note_unused(&opened);
        eprintln!("exporting {} once, {how}, to {}", path.display(), target.display());
        let options = if kind == Kind::Language { exporter::with_context(&opened, options) } else { options };
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let engine = flambeau::engines(threads, false).get("cpu")?;
        let tokenizer = exporter::carried(tokenizer, opened.tokenizer())?;
        exporter::write(&opened, &options, compile::Options { threads, ..quantize }, &*engine, (&target, start), tokenizer)?;
        key.remove_superseded(&folder);
        programs::make_room(&folder, &target)?;
        Ok(target)
    }

    /// Options of an export without the default context length.
    fn export_options(&self, kind: Kind, logits: zoo::Logits) -> Result<zoo::Options> {
        Ok(zoo::Options {
            dtype: self.export.dtype.as_deref().map(exporter::dtype).transpose()?,
            max_seq_len: self.export.max_seq_len.or(self.given.context),
            kv_cache: self.export.kv_cache.unwrap_or_default().into(),
            logits: if kind == Kind::Language { logits } else { zoo::Logits::default() },
            ..zoo::Options::default()
        })
    }

    /// How weights are quantized, also in words. Unless the user says otherwise, language models of
    /// floats get 4 bits, and embeddings 8. The decoders of speech models get 8, because 4 cost
    /// words. Parakeet and text encoders keep floats.
    fn quantization(&self, path: &Path, kind: Kind, opened: Option<&zoo::Checkpoint>) -> Result<(compile::Options, &'static str)> {
        if self.export.quantize.given().is_some() {
            return Ok((self.export.quantize.options()?, "quantized as asked"));
        }
        let with_its_bits = || Ok((compile::Options::default(), "with the bits that it has"));
        match kind {
            Kind::Language => match source::weights(path)? {
                Weights::Floats => Ok((QuantizeArgs::of_recipe("default").options()?, FOUR_BITS)),
                Weights::Codes => with_its_bits(),
                Weights::SmallFloats => Ok((compile::Options::default(), SMALL_FLOATS)),
            },
            Kind::Speech if opened.is_some_and(zoo::Checkpoint::has_speech_decoder) => {
                if opened.is_some_and(zoo::Checkpoint::is_quantized) {
                    return with_its_bits();
                }
                Ok((QuantizeArgs::of_recipe("speech").options()?, EIGHT_BITS))
            }
            Kind::Speech | Kind::Encoder | Kind::Classifier | Kind::Tagger => {
                Ok((compile::Options::default(), "weights as they are"))
            }
        }
    }
}

/// Refuses a folder of a language model without a tokenizer, before it is exported.
fn check_tokenizer(opened: &zoo::Checkpoint, path: &Path) -> Result<()> {
    let has = |list: &[(String, Bytes)], name: &str| list.iter().any(|(found, _)| found == name);
    match opened.tokenizer() {
        zoo::TokenizerSource::Files(list) if tokenizer::file_among(&|name| has(list, name)).is_none() => {
            let missing = format!("{} has no {KNOWN_FILES}", path.display());
            Err(hint(anyhow::anyhow!(missing), "give one with --tokenizer FILE_OR_FOLDER"))
        }
        _ => Ok(()),
    }
}

/// A model of the hub, downloaded into Hugging Face's cache unless it is there.
fn fetched(name: &ModelName) -> Result<Cached> {
    let hub = Hub::from_environment();
    match hub.cached(name)? {
        // Another program may have fetched config and weights alone.
        Some(model) if model.selection.single.is_some() || tokenizer::is_in(&model.snapshot) => return Ok(model),
        Some(_) => {}
        None => eprintln!("fetching {name} once"),
    }
    hub.download(name, &Wanted::default())?;
    hub.cached(name)?.with_context(|| format!("{name} has no weights that Flambeau reads"))
}
