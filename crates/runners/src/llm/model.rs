//! A language model: the data that its sequences share.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, ValueSpec};
use flambeau_tensor::DType;
use sha2::{Digest, Sha256};

use super::{
    adapters::Adapters,
    draft::{self, Draft},
    metadata::Metadata,
    sequence::Sequence,
    signature::{Positions, Signature, read_signature},
};
use crate::{Error, Result};

/// Options for loading a language model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Method to use. The default is `forward`, the only computing method, or `target` with its
    /// draft.
    pub method: Option<String>,
    /// Maximum number of tokens per step; the default is the program's.
    pub chunk: Option<usize>,
    /// Positions of a cache that the runner provides; the default is the program's.
    pub context: Option<usize>,
}

/// A language model on an engine. Its sequences share the weights. A clone refers to the same
/// model.
#[derive(Clone)]
pub struct Model {
    shared: Arc<ModelData>,
    /// Draft model for speculative decoding.
    guesser: Option<Box<Model>>,
}

struct ModelData {
    program: Program,
    engine: Arc<dyn Engine>,
    name: String,
    load: LoadOptions,
    signature: Signature,
    metadata: Metadata,
    chunk: usize,
    drafts: bool,
    keeps_rows: bool,
    has_plain_state: bool,
    gives_all_logits: bool,
    sequence_bytes: usize,
    fingerprint: OnceLock<[u8; 32]>,
    /// The method loaded to read the facts above, reused for the first sequence.
    first: Mutex<Option<Method>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("method", &self.shared.name).field("metadata", &self.shared.metadata).finish_non_exhaustive()
    }
}

/// Maximum number of tokens per step if the program sets no bound.
const LONGEST_STEP: usize = 512;

impl Model {
    /// Loads a model.
    ///
    /// # Errors
    /// Fails if the program cannot be loaded, or if the method's inputs are not tokens and
    /// positions.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>, options: &ModelOptions) -> Result<Model> {
        let name = method_name(program, options.method.as_deref())?;
        let mut metadata = Metadata::of(program);
        metadata.context = options.context.filter(|_| !metadata.cache.is_empty()).or(metadata.context);
        let load = LoadOptions { kv_cache: metadata.cache_config(output_dtype(program, &name)), ..LoadOptions::default() };
        let method = program.method(&name, engine, &load)?;
        // Programs without metadata still state the length of their caches.
        metadata.context = [metadata.context, method.cache_len()].into_iter().flatten().min();
        let what = |what| Error::Signature { method: name.clone(), what };
        let signature = read_signature(method.inputs()).map_err(what)?;
        let (named, taken) = (metadata.adapters.len(), signature.adapters.unwrap_or(0));
        if named != taken {
            return Err(what(format!("it names {named} adapters and takes the scales of {taken}")));
        }
        let asked = options.chunk.or(metadata.chunk).unwrap_or(LONGEST_STEP).max(1);
        let chunk = if signature.fixed { signature.longest.unwrap_or(1) } else { asked.min(signature.longest.unwrap_or(asked)) };
        if signature.fixed && chunk != 1 {
            return Err(what(format!("every step takes exactly {chunk} tokens; export it with a dynamic number of tokens")));
        }
        let shared = ModelData {
            program: program.clone(),
            engine: Arc::clone(engine),
            chunk: chunk.max(1),
            drafts: options.method.is_none() && draft::has_draft(program),
            keeps_rows: metadata.context.is_some_and(|context| method.keeps_rows(context)),
            has_plain_state: method.has_plain_state(),
            gives_all_logits: !signature.fixed && gives_rows(method.outputs().first()),
            sequence_bytes: method.state_bytes() + load.kv_cache.as_ref().map_or(0, |cache| cache.bytes()),
            fingerprint: OnceLock::new(),
            signature,
            metadata,
            load,
            name,
            first: Mutex::new(Some(method)),
        };
        Ok(Model { shared: Arc::new(shared), guesser: None })
    }

    /// Creates an empty sequence.
    ///
    /// # Errors
    /// Fails if the engine has no memory for its caches, or if the program's draft cannot be
    /// loaded.
    pub fn sequence(&self) -> Result<Sequence> {
        let ModelData { program, engine, name, load, drafts, .. } = &*self.shared;
        let first = self.shared.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let method = first.map_or_else(|| program.method(name, engine, load), Ok)?;
        let draft = drafts.then(|| Draft::load(program, engine)).transpose()?;
        let sequence = Sequence::new(self.clone(), method, draft);
        Ok(match &self.guesser {
            Some(guesser) => sequence.with_guesser(guesser.sequence()?),
            None => sequence,
        })
    }

    /// Adds a draft model for speculative decoding: a step of this model then verifies several
    /// tokens at once. Tokens are sampled from this model's logits, so the text only changes by the
    /// rounding of multi-token steps. Callers must check that both models use the same token ids.
    ///
    /// # Errors
    /// Fails if the models state different vocabulary sizes, if this model cannot
    /// [verify](Self::check_judges) drafts, or if `draft` cannot propose tokens.
    pub fn with_draft(self, draft: &Model) -> Result<Model> {
        if let (Some(model), Some(reference)) = (self.metadata().vocab, draft.metadata().vocab)
            && model != reference
        {
            return Err(Error::Vocabularies { model, reference });
        }
        let what = match () {
            () if draft.samples_tokens() => "draws tokens itself",
            () if !draft.can_truncate() => "has states that cannot go back",
            () => {
                self.check_judges()?;
                return Ok(Model { guesser: Some(Box::new(draft.clone())), ..self });
            }
        };
        Err(Error::NoGuesses { method: draft.shared.name.clone(), what })
    }

    /// Metadata of the program.
    pub fn metadata(&self) -> &Metadata {
        &self.shared.metadata
    }

    /// Maximum number of tokens per step.
    pub fn chunk(&self) -> usize {
        self.shared.chunk
    }

    /// Maximum number of positions of a sequence; `None` if neither the metadata nor the caches
    /// state a bound.
    pub fn context(&self) -> Option<usize> {
        self.shared.metadata.context
    }

    /// Bytes of one sequence's caches and states, without the engine's memory for intermediate
    /// results.
    pub fn sequence_bytes(&self) -> usize {
        let guesser = self.guesser.as_ref().map_or(0, |guesser| guesser.sequence_bytes());
        self.shared.sequence_bytes.saturating_add(guesser)
    }

    /// Whether sequences can be truncated: positions are inputs, and caches have a row per
    /// position. Assumes that attention masks rows at or after a step's positions.
    pub fn can_truncate(&self) -> bool {
        let ModelData { metadata, signature, keeps_rows, .. } = &*self.shared;
        let is_windowed = metadata.cache.iter().any(|layer| layer.window.is_some());
        signature.positions != Positions::None && *keeps_rows && !is_windowed && !metadata.is_recurrent
    }

    /// Whether [snapshots](Sequence::snapshot) contain the whole state of a sequence; an engine may
    /// still not return it. False for programs with their own draft, and for caches managed by the
    /// engine (ExecuTorch's `UpdateAndAttend`).
    pub fn can_snapshot(&self) -> bool {
        self.shared.has_plain_state && !self.shared.drafts
    }

    /// Bytes of the program's files, which hold the weights.
    pub fn program_bytes(&self) -> usize {
        self.shared.program.contents().map(<[u8]>::len).sum()
    }

    /// Hash of everything that determines the contents of caches: the program with its weights, the
    /// method, the engine and this version. The first call reads all weights.
    pub(super) fn fingerprint(&self) -> [u8; 32] {
        let ModelData { program, engine, name, .. } = &*self.shared;
        *self.shared.fingerprint.get_or_init(|| {
            let names = [env!("CARGO_PKG_VERSION"), engine.name(), name].map(str::as_bytes);
            let mut hash = Sha256::new();
            for part in names.into_iter().chain(program.contents()) {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
            hash.finalize().into()
        })
    }

    /// Whether the program returns the logits of every token instead of only a step's last one.
    pub fn gives_all_logits(&self) -> bool {
        self.shared.gives_all_logits
    }

    /// Checks that the model can verify draft tokens: it returns the logits after each token, and
    /// can remove rejected ones.
    ///
    /// # Errors
    /// Returns [`Error::NoGuesses`] with the reason.
    pub fn check_judges(&self) -> Result<()> {
        let what = match () {
            () if self.samples_tokens() => "draws tokens itself",
            () if !self.gives_all_logits() => "gives the logits of a step's last token alone",
            () if !self.can_truncate() => "has states that cannot go back",
            () => return Ok(()),
        };
        Err(Error::NoGuesses { method: self.shared.name.clone(), what })
    }

    /// The adapters with these scales by name, all others left out. `None` if a name is unknown.
    pub fn adapters(&self, scales: &[(&str, f32)]) -> Option<Adapters> {
        let all = &self.metadata().adapters;
        let mut list = vec![0.0; all.len()];
        for (name, scale) in scales {
            list[all.iter().position(|known| known.name == *name)?] = *scale;
        }
        Some(Adapters::new(&list))
    }

    /// All adapters at their default scales.
    pub fn default_adapters(&self) -> Adapters {
        Adapters::new(&self.metadata().adapters.iter().map(|adapter| adapter.scale).collect::<Vec<_>>())
    }

    /// # Errors
    /// Returns [`Error::Adapters`] if the model has fewer adapters.
    pub(super) fn check_adapters(&self, adapters: &Adapters) -> Result<()> {
        let (found, expected) = (adapters.scales().len(), self.metadata().adapters.len());
        if found > expected { Err(Error::Adapters { found, expected }) } else { Ok(()) }
    }

    /// Whether the program samples the next token itself and returns no logits.
    pub fn samples_tokens(&self) -> bool {
        self.shared.signature.draws
    }

    pub(super) fn signature(&self) -> &Signature {
        &self.shared.signature
    }
}

/// Whether an output has a row for each token of a step.
fn gives_rows(output: Option<&ValueSpec>) -> bool {
    let dims = output.and_then(ValueSpec::tensor).map_or(&[][..], |spec| &spec.dims);
    dims.len() == 3 && !matches!(dims[1], DimSpec::Fixed(_))
}

fn method_name(program: &Program, asked: Option<&str>) -> Result<String> {
    if let Some(name) = asked {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = program.computing_methods().collect();
    match names.as_slice() {
        names if names.contains(&"forward") => Ok("forward".to_owned()),
        _ if draft::has_draft(program) => Ok(draft::TARGET.to_owned()),
        [only] => Ok((*only).to_owned()),
        names => {
            let what = format!("name the method to use, the program has {}", names.join(", "));
            Err(Error::Signature { method: "forward".into(), what })
        }
    }
}

/// The type of the first output as stated in the file: the model's computation type.
fn output_dtype(program: &Program, name: &str) -> DType {
    program.output_dtype(name).filter(|d| d.is_float()).unwrap_or(DType::BF16)
}
