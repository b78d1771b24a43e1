//! Published models: config, tensors, tokenizer.

use flambeau_tensor::{Bytes, DType};
use flambeau_text::GgufVocab;
use indexmap::IndexMap;

use crate::{
    CheckpointTensor, Result,
    architecture::Architecture,
    encoder, family, folder, ggml,
    gguf::{self, Gguf},
    limits::MAX_POSITIONS,
    low_rank::{Attached, LowRank},
    nemo,
    options::DEFAULT_POSITIONS,
    spec::{EMBEDDING, HEAD},
    speech::{decoder, parakeet},
};

/// Source of a tokenizer.
#[derive(Clone, Debug)]
pub enum TokenizerSource {
    /// Existing tokenizer files of a Hugging Face folder by name, such as `tokenizer.json` and
    /// `tokenizer_config.json`.
    Files(Vec<(String, Bytes)>),
    /// The vocabulary in a GGUF file or in a file of whisper.cpp.
    Gguf(Box<GgufVocab>),
    /// The output pieces of a speech model, without rules to encode text.
    Pieces(Box<GgufVocab>),
}

/// A config and its tensors, under the names of Hugging Face checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    architecture: Architecture,
    tensors: IndexMap<String, CheckpointTensor>,
    tokenizer: TokenizerSource,
    /// Names of tensors in the file by their names in the program, where they differ.
    stored_names: IndexMap<String, String>,
    /// Adapters that programs apply at run time.
    adapters: Vec<Attached>,
}

impl Checkpoint {
    /// Creates a checkpoint from its parts. Tensors have the names of Hugging Face checkpoints,
    /// such as `model.layers.0.mlp.up_proj.weight`. Tensors that the family does not read are
    /// ignored. Shapes are checked when the program is built.
    pub(crate) fn new(
        mut architecture: Architecture,
        mut tensors: IndexMap<String, CheckpointTensor>,
        tokenizer: TokenizerSource,
    ) -> Checkpoint {
        if let Some(config) = architecture.text_mut() {
            config.tied = Some(is_tied(config.tied, &mut tensors));
        }
        Checkpoint { architecture, tensors, tokenizer, stored_names: IndexMap::new(), adapters: Vec::new() }
    }

    /// Reads a Hugging Face folder, given as its files. They are `config.json`, `model.safetensors`
    /// or the index with its shards, and optional files for generation and the tokenizer. Older
    /// folders hold `pytorch_model.bin` instead.
    /// sentence-transformers adds `modules.json` and the files of
    /// [`is_module_file`](Self::is_module_file). Other supported folders are MLX's
    /// quantization, Whisper in CTranslate2's form (`model.bin`, `config.json`, `tokenizer.json`)
    /// and Mistral's form (`params.json`, `consolidated.safetensors`).
    ///
    /// # Errors
    /// [`crate::Error::MissingFile`], [`crate::Error::File`], [`crate::Error::Family`] and
    /// [`crate::Error::Key`].
    pub fn from_folder(files: Vec<(String, Bytes)>) -> Result<Checkpoint> {
        folder::checkpoint(files)
    }

    /// Whether a path in a folder is a file of a sentence-transformers module, such as
    /// `1_Pooling/config.json` or `2_Dense/model.safetensors`.
    pub fn is_module_file(path: &str) -> bool {
        folder::sentence::module_file(path).is_some_and(|module| module.len() == path.len())
    }

    /// Whether a file of a folder holds weights of `torch.save`. They are read if the folder has
    /// no safetensors.
    pub fn is_pickled(name: &str) -> bool {
        folder::pickled::is_weights(name)
    }

    /// Reads a GGUF file of version 2 or 3.
    ///
    /// # Errors
    /// [`crate::Error::Gguf`] and [`crate::Error::Limit`] for a damaged file,
    /// [`crate::Error::Family`], [`crate::Error::Key`] and [`crate::Error::Tensor`] for an
    /// unsupported model.
    pub fn from_gguf(bytes: Bytes) -> Result<Checkpoint> {
        Checkpoint::from_gguf_parts(vec![bytes])
    }

    /// Reads a split GGUF file, given as all its parts in order.
    ///
    /// # Errors
    /// As [`from_gguf`](Self::from_gguf), and [`crate::Error::Part`] for parts of different files.
    pub fn from_gguf_parts(parts: Vec<Bytes>) -> Result<Checkpoint> {
        let file = Gguf::join(parts.into_iter().map(Gguf::parse).collect::<Result<_>>()?)?;
        let (architecture, (tensors, stored_names)) = gguf::read(&file)?;
        let tokenizer = TokenizerSource::Gguf(Box::new(gguf::vocab(&file)?));
        Ok(Checkpoint { stored_names, ..Checkpoint::new(architecture, tensors, tokenizer) })
    }

    /// Converts an error about a tensor to the tensor's name in the file.
    pub(crate) fn named_as_stored(&self, error: crate::Error) -> crate::Error {
        let stored = |name: &String| self.stored_names.get(name).unwrap_or(name).clone();
        match error {
            crate::Error::MissingTensor(name) => crate::Error::MissingTensor(stored(&name)),
            crate::Error::Tensor { name, expected, found } => crate::Error::Tensor { name: stored(&name), expected, found },
            other => other,
        }
    }

    /// Positions for which a language model was trained. `None` for other models.
    pub fn context(&self) -> Option<usize> {
        if let Architecture::Decoder(config) = &self.architecture { Some(config.positions.min(MAX_POSITIONS)) } else { None }
    }

    /// Largest number of positions of a language model whose key-value caches fit into `bytes`: all
    /// trained positions, or a power of two from 2048 on. `dtype` is the type of the caches, by
    /// default [`default_dtype`](Self::default_dtype). Returns `None` for other models.
    pub fn context_within(&self, bytes: u64, dtype: Option<DType>) -> Option<usize> {
        let Architecture::Decoder(config) = &self.architecture else { return None };
        let (trained, size) = (config.positions.min(MAX_POSITIONS), dtype.unwrap_or(self.default_dtype()).size());
        if trained <= DEFAULT_POSITIONS || config.cache_bytes(trained, size) <= bytes {
            return Some(trained);
        }
        let mut fitting = DEFAULT_POSITIONS;
        while 2 * fitting < trained && config.cache_bytes(2 * fitting, size) <= bytes {
            fitting *= 2;
        }
        Some(fitting)
    }

    /// Reads a Parakeet model in NeMo's form: a tar archive of config, weights and tokenizer. A
    /// compressed archive is inflated in memory.
    ///
    /// # Errors
    /// [`crate::Error::Nemo`], [`crate::Error::File`] and [`crate::Error::Graph`] for a damaged
    /// file, [`crate::Error::MissingFile`] and [`crate::Error::Key`] for another model.
    pub fn from_nemo(bytes: &Bytes) -> Result<Checkpoint> {
        nemo::checkpoint(bytes)
    }

    /// Reads a Whisper model in whisper.cpp's form (`ggml-base.en.bin`), in floats or in ggml's
    /// blocks.
    ///
    /// # Errors
    /// [`crate::Error::File`] for a damaged file, [`crate::Error::Tensor`] and
    /// [`crate::Error::MissingTensor`] for unsupported tensors.
    pub fn from_ggml(bytes: &Bytes) -> Result<Checkpoint> {
        ggml::checkpoint(bytes)
    }

    /// The hyperparameters.
    pub(crate) fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Inputs of a language model's folder that its program does not support: images, sound.
    pub fn unused_inputs(&self) -> &[&'static str] {
        if let Architecture::Decoder(config) = &self.architecture { &config.unused } else { &[] }
    }

    /// Whether it is a speech model. Its program has other methods than a language model.
    pub fn is_speech(&self) -> bool {
        self.architecture.listens()
    }

    /// Whether a decoder of transformer layers writes a speech model's text. Parakeet has no such
    /// decoder. `false` for other models.
    pub fn has_speech_decoder(&self) -> bool {
        self.is_speech() && !matches!(self.architecture, Architecture::Parakeet(_))
    }

    /// Whether any tensor is stored as codes with shared scales instead of floats.
    pub fn is_quantized(&self) -> bool {
        self.tensors.values().any(CheckpointTensor::is_packed)
    }

    /// Whether it is a model for text embeddings.
    pub fn is_encoder(&self) -> bool {
        matches!(&self.architecture, Architecture::Encoder(config) if config.scores.is_none())
    }

    /// Whether it gives scores of texts, or of pairs of texts.
    pub fn gives_scores(&self) -> bool {
        self.scores().is_some_and(|scores| scores.pooling.is_some())
    }

    /// Whether it generates text: it is no speech model, and neither encodes nor classifies texts.
    pub fn is_language_model(&self) -> bool {
        !self.is_speech() && !matches!(self.architecture, Architecture::Encoder(_))
    }

    /// Whether it gives scores of each token, as models that recognize names do.
    pub fn tags_tokens(&self) -> bool {
        self.scores().is_some_and(|scores| scores.pooling.is_none())
    }

    fn scores(&self) -> Option<&encoder::Scores> {
        match &self.architecture {
            Architecture::Encoder(config) => config.scores.as_ref(),
            _ => None,
        }
    }

    /// Turns a language model into one that scores how well a document fits a query, as
    /// Qwen3-Reranker does. The tokens `yes` and `no` are its answers.
    ///
    /// # Errors
    /// [`crate::Error::File`] for layers that programs without a cache cannot have, and
    /// [`crate::Error::Key`] for tokens outside the vocabulary.
    pub fn into_reranker(mut self, yes: u32, no: u32) -> Result<Checkpoint> {
        if let Architecture::Decoder(config) = self.architecture {
            self.architecture = Architecture::Encoder(Box::new(family::answering(config, encoder::Sentence::default(), yes, no)?));
        }
        Ok(self)
    }

    /// The program's name of a tensor that has another name in the file.
    pub(crate) fn name_by_stored(&self, stored: &str) -> Option<String> {
        self.stored_names.iter().find(|(_, name)| *name == stored).map(|(name, _)| name.clone())
    }

    /// Whether this tensor is both the embedding and the head.
    pub(crate) fn is_tied(&self, name: &str) -> bool {
        let is_tied = match &self.architecture {
            Architecture::Decoder(config) => config.tied,
            Architecture::Voxtral(config) => config.text.tied,
            _ => None,
        };
        is_tied == Some(true) && [EMBEDDING, HEAD].contains(&name)
    }

    /// Replaces a tensor.
    pub(crate) fn replace(&mut self, name: String, tensor: CheckpointTensor) {
        self.tensors.insert(name, tensor);
    }

    /// The adapters that programs apply at run time.
    pub(crate) fn adapters(&self) -> &[Attached] {
        &self.adapters
    }

    /// Number of adapters that programs apply at run time.
    pub fn adapter_count(&self) -> usize {
        self.adapters.len()
    }

    pub(crate) fn add_adapter(&mut self, adapter: Attached) {
        self.adapters.push(adapter);
    }

    /// Adds an adapter's update to its tensor.
    pub(crate) fn add_update(&mut self, update: LowRank) {
        if let Some(tensor) = self.tensors.get_mut(&*update.tensor) {
            tensor.add_update(update);
        }
    }

    /// All tensors.
    pub(crate) fn tensors(&self) -> &IndexMap<String, CheckpointTensor> {
        &self.tensors
    }

    /// Source of the tokenizer.
    pub fn tokenizer(&self) -> &TokenizerSource {
        &self.tokenizer
    }

    /// The default type of activations. A Hugging Face checkpoint states it. A GGUF file uses
    /// `bf16` if it has such tensors, else `f16`. `bf16` replaces `f16` for families whose
    /// activations exceed the range of `f16`, such as Gemma. A block's scales are `f16`. Small
    /// models need its three additional bits, because the best two logits are often closer than a
    /// step of `bf16`.
    pub fn default_dtype(&self) -> DType {
        if let TokenizerSource::Gguf(_) = self.tokenizer {
            let has_bf16 = self.tensors.values().any(|tensor| tensor.dtype() == DType::BF16);
            return self.in_range(if has_bf16 { DType::BF16 } else { DType::F16 });
        }
        let (stated, weight) = match &self.architecture {
            Architecture::Decoder(config) => (config.dtype, EMBEDDING),
            Architecture::Encoder(config) => (config.dtype, config.embedding.table),
            Architecture::Moonshine(config) => (config.dtype, decoder::EMBEDDING),
            Architecture::Parakeet(config) => (config.dtype, parakeet::SUBSAMPLING),
            Architecture::Whisper(config) => (config.dtype, decoder::EMBEDDING),
            Architecture::Voxtral(config) => (config.text.dtype, EMBEDDING),
            Architecture::VoxtralRealtime(config) => (config.text.dtype, EMBEDDING),
        };
        let stated = stated.or_else(|| self.tensors.get(weight).map(CheckpointTensor::dtype));
        self.in_range(stated.filter(|d| matches!(d, DType::F32 | DType::F16 | DType::BF16)).unwrap_or(DType::BF16))
    }

    /// The type, or `bf16` in place of `f16` if the family's activations exceed the range of `f16`.
    fn in_range(&self, dtype: DType) -> DType {
        match &self.architecture {
            Architecture::Decoder(config) if dtype == DType::F16 && !config.fits_f16 => DType::BF16,
            Architecture::Encoder(config) if dtype == DType::F16 && !config.fits_f16 => DType::BF16,
            _ => dtype,
        }
    }
}

/// Whether the embedding is the head too: as stated, unless the file has both and they differ. A
/// file may hold either one under a tie.
fn is_tied(stated: Option<bool>, tensors: &mut IndexMap<String, CheckpointTensor>) -> bool {
    match (stated, tensors.get(EMBEDDING), tensors.get(HEAD)) {
        (Some(true), Some(embedding), Some(head)) => !embedding.differs(head),
        (Some(true), None, Some(head)) => {
            let head = head.clone();
            tensors.insert(EMBEDDING.into(), head);
            true
        }
        (Some(stated), ..) => stated,
        (None, _, head) => head.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_files_without_bf16_compute_in_f16() {
        let mut tiny = Checkpoint::from_gguf(Bytes::from_static(include_bytes!("../tests/data/tiny.gguf"))).unwrap();
        assert_eq!(tiny.default_dtype(), DType::BF16);
        tiny.tensors.retain(|_, tensor| tensor.dtype() != DType::BF16);
        assert_eq!(tiny.default_dtype(), DType::F16);
        let Architecture::Decoder(config) = &mut tiny.architecture else { panic!() };
        config.fits_f16 = false;
        assert_eq!(tiny.default_dtype(), DType::BF16);
    }

    #[test]
    fn a_stated_tie_ends_where_a_file_has_two_matrices() {
        let matrix = |number: f32| {
            let bytes = Bytes::from(number.to_le_bytes().repeat(4));
            CheckpointTensor::plain("matrix", DType::F32, vec![2, 2], bytes).unwrap()
        };
        let tied = |stated, list: &[(&str, f32)]| {
            let mut tensors = list.iter().map(|(name, number)| ((*name).to_owned(), matrix(*number))).collect();
            (is_tied(stated, &mut tensors), tensors.contains_key(EMBEDDING))
        };
        let (one, same, other) = ((EMBEDDING, 1.0), (HEAD, 1.0), (HEAD, 2.0));
        assert_eq!(tied(Some(true), &[one]), (true, true));
        assert_eq!(tied(Some(true), &[one, same]), (true, true));
        assert_eq!(tied(Some(true), &[one, other]), (false, true));
        assert_eq!(tied(Some(true), &[other]), (true, true));
        assert_eq!(tied(Some(false), &[one, same]), (false, true));
        assert_eq!([tied(None, &[one]), tied(None, &[one, same])], [(true, true), (false, true)]);
    }

    #[test]
    fn contexts_are_as_long_as_their_caches_fit() {
        let mut tiny = Checkpoint::from_gguf(Bytes::from_static(include_bytes!("../tests/data/tiny.gguf"))).unwrap();
        assert_eq!((tiny.context(), tiny.context_within(0, None)), (Some(128), Some(128)));
        let Architecture::Decoder(config) = &mut tiny.architecture else { panic!() };
        config.positions = 40_000;
        let row = config.cache_bytes(1, 2);
        assert!(row > 0);
        let within = |rows: u64, dtype| tiny.context_within(rows * row, dtype);
        assert_eq!([0, 4095, 4096, 39_999, 40_000].map(|rows| within(rows, None)), [2048, 2048, 4096, 32_768, 40_000].map(Some));
        assert_eq!(within(40_000, Some(DType::F32)), Some(16_384));
    }
}
