//! Limits on checkpoints. Each is far above the needs of real models.

/// Tensors of a GGUF file.
pub const MAX_GGUF_TENSORS: u64 = 1 << 17;
/// Parts of a split GGUF file.
pub const MAX_GGUF_PARTS: usize = 1 << 12;
/// Metadata entries of a GGUF file.
pub const MAX_GGUF_ENTRIES: u64 = 1 << 16;
/// Elements of a GGUF metadata array.
pub const MAX_GGUF_ARRAY: u64 = 1 << 24;
/// Bytes of a GGUF key or tensor name.
pub const MAX_GGUF_NAME_BYTES: u64 = 1 << 10;
/// Bytes of a GGUF text value, such as a chat template.
pub const MAX_GGUF_TEXT_BYTES: u64 = 16 << 20;
/// Axes of a GGUF tensor.
pub const MAX_GGUF_RANK: u32 = 8;
/// Largest alignment of GGUF tensor data.
pub const MAX_GGUF_ALIGNMENT: u64 = 1 << 20;
/// Variables of a CTranslate2 file, and its aliases.
pub const MAX_CT2_VARIABLES: u64 = 1 << 16;
/// Bytes of a name in a CTranslate2 file.
pub const MAX_CT2_NAME_BYTES: u64 = 1 << 10;
/// Axes of a CTranslate2 variable.
pub const MAX_CT2_RANK: u64 = 8;
/// Tensors of a whisper.cpp file.
pub const MAX_GGML_TENSORS: usize = 1 << 16;
/// Bytes of a tensor's name in a whisper.cpp file.
pub const MAX_GGML_NAME_BYTES: usize = 1 << 10;
/// Members of a `.nemo` file.
pub const MAX_NEMO_MEMBERS: usize = 1 << 10;
/// Ratio of inflated to compressed size of a `.nemo` file. Weights hardly compress.
pub const MAX_NEMO_INFLATION: u64 = 16;
/// Additional inflated bytes of a `.nemo` file, because a tar archive pads its members with zeros.
pub const MAX_NEMO_PADDING: u64 = 1 << 20;
/// Levels of lists and maps in a YAML file.
pub const MAX_YAML_DEPTH: usize = 64;
/// Bytes of `config.json`, an index or another JSON file that is parsed.
pub const MAX_JSON_BYTES: usize = 64 << 20;
/// Decoder layers of a model.
pub const MAX_LAYERS: usize = 1 << 12;
/// Width, heads, vocabulary and other sizes of a config.
pub const MAX_SIZE: usize = 1 << 24;
/// Elements of an attention head.
pub const MAX_HEAD_DIM: usize = 1 << 14;
/// Positions of a key/value cache.
pub const MAX_POSITIONS: usize = 1 << 24;
