//! Metadata that exporters write into constant methods.

use flambeau_runtime::{KvCacheConfig, KvLayer, Program, Value};
use flambeau_tensor::{DType, cast};

use super::adapters::AdapterFacts;

/// Metadata of a language model. Missing entries are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// Number of positions in the model's caches.
    pub context: Option<usize>,
    /// Maximum number of tokens per step.
    pub chunk: Option<usize>,
    /// Type of activations and logits.
    pub dtype: Option<DType>,
    /// Size of the vocabulary.
    pub vocab: Option<usize>,
    /// Id of the token that begins a sequence.
    pub bos: Option<u32>,
    /// Ids that end generation.
    pub eos: Vec<u32>,
    /// Layers of the cache that the runner provides to programs without caches of their own.
    pub cache: Vec<KvLayer>,
    /// Adapters that the program applies at run time.
    pub adapters: Vec<AdapterFacts>,
    /// Whether the model has a recurrent state, which holds only the last position.
    pub is_recurrent: bool,
}

impl Metadata {
    /// Reads the constant methods of a program.
    pub fn of(program: &Program) -> Metadata {
        let count = |name: &str| program.constant_int(name).and_then(|v| usize::try_from(v).ok()).filter(|&v| v > 0);
        let first = |names: &[&str]| names.iter().find_map(|name| count(name));
        let ids = |name: &str| program.constant(name).unwrap_or_default().iter().flat_map(integers).collect::<Vec<i64>>();
        let id = |v: i64| u32::try_from(v).ok();
        let mut eos: Vec<u32> = ids("get_eos_ids").into_iter().filter_map(id).collect();
        if eos.is_empty() {
            eos = ids("get_eos_id").into_iter().filter_map(id).collect();
        }
        Metadata {
            context: first(&["get_max_ctx_len", "get_max_context_len", "get_max_seq_len"]),
            chunk: first(&["get_prefill_chunk_size", "get_max_prefill_chunk"]),
            dtype: program.constant_int("get_dtype").and_then(|code| DType::from_code(i8::try_from(code).ok()?)),
            vocab: count("get_vocab_size"),
            bos: program.constant_int("get_bos_id").and_then(id),
            eos,
            cache: cache_layers(program).unwrap_or_default(),
            adapters: AdapterFacts::of(program),
            is_recurrent: program.constant("use_recurrent_state").is_some_and(|v| matches!(v.first(), Some(Value::Bool(true)))),
        }
    }

    /// Configuration of the cache to provide, with keys and values in the given type.
    pub fn cache_config(&self, dtype: DType) -> Option<KvCacheConfig> {
        let capacity = self.context.filter(|_| !self.cache.is_empty())?;
        Some(KvCacheConfig { capacity, layers: self.cache.clone(), dtype, max_write: self.chunk })
    }
}

/// The integers of a value: the value itself, or the elements of a tensor.
fn integers(value: &Value) -> Vec<i64> {
    match value {
        Value::Tensor(t) => {
            cast(t, DType::I64).ok().and_then(|t| t.as_slice::<i64>().map(<[i64]>::to_vec).ok()).unwrap_or_default()
        }
        other => other.as_int().into_iter().collect(),
    }
}

/// Cache layers of a program; lists with one entry apply to all layers.
fn cache_layers(program: &Program) -> Option<Vec<KvLayer>> {
    const MAX_LAYERS: i64 = 4096;
    let n = program.constant_int("get_n_caches").filter(|n| (1..=MAX_LAYERS).contains(n))?;
    let list = |name: &str| Some(program.constant(name)?.iter().flat_map(integers).collect::<Vec<i64>>());
    let (heads, sizes, windows) = (list("get_kv_heads")?, list("get_head_dims")?, list("get_windows").unwrap_or_default());
    let at = |list: &[i64], i: usize| {
        let value = if list.len() == 1 { list.first() } else { list.get(i) };
        value.and_then(|&v| usize::try_from(v).ok())
    };
    (0..n as usize)
        .map(|i| {
            let window = at(&windows, i).filter(|&w| w > 0);
            Some(KvLayer { window, n_kv_heads: at(&heads, i)?, head_dim: at(&sizes, i)? })
        })
        .collect()
}
