//! Low-rank adapters in PEFT's form.

use fastrand::Rng;
use serde_json::{Map, json};

/// The files of an adapter of rank 2 of linear layers `[out, in]`, with factors that depend on
/// `seed`. Its scale is 1.
pub fn low_rank_adapter(modules: &[(&str, [usize; 2])], seed: u64) -> Vec<(String, Vec<u8>)> {
    const RANK: usize = 2;
    let (mut header, mut data, mut random) = (Map::new(), Vec::new(), Rng::with_seed(seed));
    for (module, [out, columns]) in modules {
        for (factor, shape) in [("A", [RANK, *columns]), ("B", [*out, RANK])] {
            let begin = data.len();
            data.extend((0..shape[0] * shape[1]).flat_map(|_| (2.0 * random.f32() - 1.0).to_le_bytes()));
            let name = format!("base_model.model.{module}.lora_{factor}.weight");
            header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }));
        }
    }
    let header = json!(header).to_string().into_bytes();
    let weights = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    let config = json!({ "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none" });
    vec![("adapter_config.json".into(), config.to_string().into_bytes()), ("adapter_model.safetensors".into(), weights)]
}
