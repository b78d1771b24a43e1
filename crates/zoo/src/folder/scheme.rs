//! Reads a folder's quantization scheme from its config, and its quantized tensors.

use safetensors::Dtype;

use super::{
    Stored, compressed, fp4, fp8, gptq,
    mlx::Packing,
    parts::Tensors,
    torchao::{self, BUNDLED},
};
use crate::{CheckpointTensor, Error, Result, fields::Fields};

/// Supported methods, for messages.
const METHODS: &str = "fp8, gptq, awq, compressed-tensors, mxfp4 or MLX's own";

/// A quantization scheme.
pub(super) enum Scheme<'a> {
    /// MLX's scheme, or none.
    Mlx(Packing<'a>),
    /// 8-bit floats in blocks with a shared scale.
    Fp8 {
        block: Option<[usize; 2]>,
    },
    /// Zero points are stored minus `stored_less`. `group` inputs share a scale, or all inputs if
    /// `None`.
    Gptq {
        bits: usize,
        stored_less: u32,
        group: Option<usize>,
    },
    Awq,
    /// Possible numbers of inputs that share a scale, if not all inputs do.
    CompressedTensors {
        groups: Vec<usize>,
    },
    /// gpt-oss's experts.
    Mxfp4,
    /// ExecuTorch's bundles of torchao tensors. Their names lack `model.`.
    Bundle,
}

impl<'a> Scheme<'a> {
    /// Reads the config's quantization entry.
    ///
    /// # Errors
    /// [`Error::Key`] for an unsupported method or variant.
    pub(super) fn new(f: &Fields<'a>) -> Result<Scheme<'a>> {
        let Some(config) = f.child("quantization_config")? else { return Ok(Scheme::Mlx(Packing::new(f)?)) };
        let only = |key: &str, known: &[&str]| match config.text(key)? {
            Some(found) if !known.contains(&found) => Err(config.error(key, known.join(" or "))),
            _ => Ok(()),
        };
        match config.text("quant_method")? {
            None => Ok(Scheme::Mlx(Packing::new(f)?)),
            Some("fp8") => {
                only("fmt", &["e4m3", "float8_e4m3fn"])?;
                let block = config.ints("weight_block_size")?;
                let block: Vec<usize> = block.iter().filter_map(|&n| usize::try_from(n).ok().filter(|&n| n > 0)).collect();
                match block[..] {
                    [rows, cols] => Ok(Scheme::Fp8 { block: Some([rows, cols]) }),
                    [] => Ok(Scheme::Fp8 { block: None }),
                    _ => Err(config.error("weight_block_size", "rows and columns of a block")),
                }
            }
            Some("gptq") => {
                only("checkpoint_format", &["gptq", "gptq_v2"])?;
                if config.child("dynamic")?.is_some_and(|dynamic| !dynamic.is_empty()) {
                    return Err(config.error("dynamic", "the same settings for all modules"));
                }
                let stored_less = u32::from(config.text("checkpoint_format")? != Some("gptq_v2"));
                let group =
                    config.ints("group_size")?.first().and_then(|&size| usize::try_from(size).ok()).filter(|&size| size > 0);
                Ok(Scheme::Gptq { bits: bits(&config, "bits", &[2, 3, 4, 8])?, stored_less, group })
            }
            Some("awq") => {
                only("version", &["gemm", "GEMM"])?;
                bits(&config, if config.get("bits").is_some() { "bits" } else { "w_bit" }, &[4])?;
                Ok(Scheme::Awq)
            }
            Some("compressed-tensors") => {
                only("format", &["pack-quantized", "float-quantized", "int-quantized", "naive-quantized"])?;
                let groups = config.get("config_groups").and_then(|groups| groups.as_object()).into_iter().flatten();
                let size = |group: &serde_json::Value| usize::try_from(group["weights"]["group_size"].as_u64()?).ok();
                Ok(Scheme::CompressedTensors { groups: groups.filter_map(|(_, group)| size(group)).collect() })
            }
            Some("mxfp4") => Ok(Scheme::Mxfp4),
            Some(method) => Err(Error::key("quantization_config.quant_method", METHODS, method)),
        }
    }

    /// The quantized tensor that starts at a stored tensor, with its name. `None` if there is none.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] and [`Error::Tensor`] for missing or inconsistent parts.
    pub(super) fn read(&self, name: &str, lead: &Stored, all: &Tensors) -> Result<Option<(String, CheckpointTensor)>> {
        let weight = |module: &str, tensor| Ok(Some((format!("{module}.weight"), tensor)));
        match (self, name.rsplit_once('.')) {
            (Scheme::Mlx(packing), Some((module, "weight"))) if lead.dtype == Dtype::U32 => {
                weight(module, packing.source(module, lead, all)?)
            }
            (Scheme::Fp8 { .. } | Scheme::CompressedTensors { .. }, Some((module, "weight"))) if lead.dtype == Dtype::F8_E4M3 => {
                weight(module, fp8::small_floats(module, lead, all, self.block())?)
            }
            (Scheme::CompressedTensors { .. }, Some((module, "weight"))) if lead.dtype == Dtype::I8 => {
                weight(module, compressed::bytes(module, lead, all)?)
            }
            (Scheme::CompressedTensors { groups }, Some((module, "weight_packed"))) => {
                weight(module, compressed::packed(module, lead, all, groups)?)
            }
            (&Scheme::Gptq { bits, stored_less, group }, Some((module, "qweight"))) => {
                weight(module, gptq::gptq(module, lead, all, (bits, stored_less, group))?)
            }
            (Scheme::Awq, Some((module, "qweight"))) => weight(module, gptq::awq(module, lead, all)?),
            (Scheme::Bundle, _) => match name.strip_suffix(BUNDLED) {
                Some(module) => weight(module, torchao::bundled(module, lead, all)?),
                None => Ok(None),
            },
            (Scheme::Mxfp4, _) => match name.strip_suffix("_blocks") {
                Some(name) => Ok(Some((name.to_owned(), fp4::mxfp4(name, lead, all)?))),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Rows and columns that share a scale, if the config states them.
    fn block(&self) -> Option<[usize; 2]> {
        if let Scheme::Fp8 { block } = self { *block } else { None }
    }
}

fn bits(config: &Fields<'_>, key: &str, known: &[usize]) -> Result<usize> {
    let found = config.size(key)?;
    if known.contains(&found) {
        return Ok(found);
    }
    let known: Vec<_> = known.iter().map(usize::to_string).collect();
    Err(config.error(key, known.join(", ")))
}
