//! Reads a folder's quantization scheme from its config, and its quantized tensors.

use safetensors::Dtype;

use super::{
    Stored, bitnet, bitsandbytes, compressed, fp4, fp8, gptq,
    mlx::Packing,
    parts::Tensors,
    torchao::{self, BUNDLED},
};
use crate::{CheckpointTensor, Error, Result, fields::Fields};

/// Supported methods, for messages.
const METHODS: &str =
    "fp8, fbgemm_fp8, gptq, awq, auto-round, compressed-tensors, modelopt, bitnet, bitsandbytes, mxfp4 or MLX's own";

/// Supported formats of compressed-tensors. The parts of a tensor tell its format.
const FORMATS: [&str; 7] = [
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
];

/// A quantization scheme.
pub(super) enum Scheme<'a> {
    /// MLX's scheme, or none.
    Mlx(Packing<'a>),
    /// 8-bit floats in blocks with a shared scale.
    Fp8 {
        block: Option<[usize; 2]>,
    },
    Gptq(gptq::Settings),
    Awq,
    /// `groups` lists the possible numbers of inputs per scale; empty if all inputs share one.
    /// `block` is the size of a block of 8-bit floats with one scale.
    CompressedTensors {
        groups: Vec<usize>,
        block: Option<[usize; 2]>,
    },
    /// 8-bit floats and NVFP4 of NVIDIA's ModelOpt.
    ModelOpt,
    BitsAndBytes,
    BitNet(bitnet::Settings),
    /// gpt-oss's experts.
    Mxfp4,
    /// ExecuTorch's bundles of torchao tensors. Their names lack `model.`.
    Bundle,
}

impl<'a> Scheme<'a> {
    /// Reads the quantization entry of the config, or of its language model. `modelopt` is the
    /// separate file of ModelOpt.
    ///
    /// # Errors
    /// [`Error::Key`] for an unsupported method or variant.
    pub(super) fn new(f: &Fields<'a>, modelopt: Option<&Fields<'a>>) -> Result<Scheme<'a>> {
        let entry = |f: &Fields<'a>| f.child("quantization_config");
        let own = match (entry(f)?, f.child("text_config")?) {
            (None, Some(text)) => entry(&text)?,
            (own, _) => own,
        };
        let Some(config) = own else {
            return match modelopt.map(|file| file.child("quantization")).transpose()?.flatten() {
                Some(config) => Scheme::modelopt(&config),
                None => Ok(Scheme::Mlx(Packing::new(f)?)),
            };
        };
        let only = |key: &str, known: &[&str]| match config.text(key)? {
            Some(found) if !known.contains(&found) => Err(config.error(key, known.join(" or "))),
            _ => Ok(()),
        };
        match config.text("quant_method")? {
            None => Ok(Scheme::Mlx(Packing::new(f)?)),
            Some("fp8") => {
                only("fmt", &["e4m3", "float8_e4m3fn"])?;
                Ok(Scheme::Fp8 { block: block(&config, "weight_block_size")? })
            }
            Some("fbgemm_fp8") => Ok(Scheme::Fp8 { block: None }),
            Some("gptq") => {
                only("checkpoint_format", &["gptq", "gptq_v2"])?;
                let varies = config.child("dynamic")?.is_some_and(|dynamic| !dynamic.is_empty());
                let stored_less = u32::from(config.text("checkpoint_format")? != Some("gptq_v2"));
                Scheme::gptq(&config, stored_less, varies)
            }
            Some("auto-round" | "intel/auto-round") => {
                only("packing_format", &["auto_round:auto_gptq", "auto_round:auto_awq", "auto_round:gptq", "auto_round:awq"])?;
                let varies = config.child("extra_config")?.is_some_and(|extra| !extra.is_empty());
                match config.text("packing_format")? {
                    Some(form) if form.ends_with("awq") => {
                        bits(&config, "bits", &[4])?;
                        Ok(Scheme::Awq)
                    }
                    _ => Scheme::gptq(&config, 1, varies),
                }
            }
            Some("awq") => {
                only("version", &["gemm", "GEMM"])?;
                bits(&config, if config.get("bits").is_some() { "bits" } else { "w_bit" }, &[4])?;
                Ok(Scheme::Awq)
            }
            Some("compressed-tensors") => {
                only("format", &FORMATS)?;
                let mut found = Scheme::CompressedTensors { groups: Vec::new(), block: None };
                for (_, group) in config.get("config_groups").and_then(|groups| groups.as_object()).into_iter().flatten() {
                    found.add_group(&config, group)?;
                }
                Ok(found)
            }
            Some("modelopt") => Scheme::modelopt(&config),
            Some("bitnet") => Ok(Scheme::BitNet(bitnet::Settings::read(&config)?)),
            Some("bitsandbytes") => Ok(Scheme::BitsAndBytes),
            Some("mxfp4") => Ok(Scheme::Mxfp4),
            Some(method) => Err(Error::key("quantization_config.quant_method", METHODS, method)),
        }
    }

    fn gptq(config: &Fields<'_>, stored_less: u32, varies: bool) -> Result<Scheme<'a>> {
        let group = config.ints("group_size")?.first().and_then(|&size| usize::try_from(size).ok()).filter(|&size| size > 0);
        let bits = bits(config, "bits", &gptq::BITS)?;
        Ok(Scheme::Gptq(gptq::Settings { bits, stored_less, group, varies }))
    }

    fn modelopt(config: &Fields<'_>) -> Result<Scheme<'a>> {
        match config.text("quant_algo")? {
            Some("FP8" | "NVFP4" | "MIXED_PRECISION") => Ok(Scheme::ModelOpt),
            _ => Err(config.error("quant_algo", "FP8 or NVFP4")),
        }
    }

    /// Adds the settings of a group of modules of compressed-tensors.
    fn add_group(&mut self, config: &Fields<'_>, group: &serde_json::Value) -> Result<()> {
        let Scheme::CompressedTensors { groups, block } = self else { return Ok(()) };
        if group["format"].as_str().is_some_and(|format| !FORMATS.contains(&format)) {
            return Err(config.error("config_groups", FORMATS.join(" or ")));
        }
        let size = |value: &serde_json::Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        groups.extend(size(&group["weights"]["group_size"]));
        let sides = &group["weights"]["block_structure"];
        *block = block.or(size(&sides[0]).zip(size(&sides[1])).map(|(rows, cols)| [rows, cols]));
        Ok(())
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
            (Scheme::Fp8 { .. } | Scheme::CompressedTensors { .. } | Scheme::ModelOpt, Some((module, "weight")))
                if lead.dtype == Dtype::F8_E4M3 =>
            {
                weight(module, fp8::small_floats(module, lead, all, self.block())?)
            }
            (Scheme::CompressedTensors { .. }, Some((module, "weight"))) if lead.dtype == Dtype::I8 => {
                weight(module, compressed::bytes(module, lead, all)?)
            }
            (Scheme::CompressedTensors { .. }, Some((module, "weight_packed"))) if lead.dtype == Dtype::U8 => {
                weight(module, fp4::compressed(module, lead, all)?)
            }
            (Scheme::CompressedTensors { groups, .. }, Some((module, "weight_packed"))) => {
                weight(module, compressed::packed(module, lead, all, groups)?)
            }
            (Scheme::ModelOpt, Some((module, "weight"))) if lead.dtype == Dtype::U8 => {
                weight(module, fp4::modelopt(module, lead, all)?)
            }
            (Scheme::BitsAndBytes, Some((module, "weight"))) if lead.dtype == Dtype::U8 => {
                Ok(bitsandbytes::four_bits(module, lead, all)?.map(|tensor| (format!("{module}.weight"), tensor)))
            }
            (Scheme::BitsAndBytes, Some((module, "weight"))) if lead.dtype == Dtype::I8 => {
                weight(module, bitsandbytes::eight_bits(module, lead, all)?)
            }
            (Scheme::BitNet(settings), Some((module, "weight"))) => {
                Ok(settings.read_matrix(module, lead, all)?.map(|tensor| (format!("{module}.weight"), tensor)))
            }
            (Scheme::Gptq(settings), Some((module, "qweight"))) => weight(module, gptq::gptq(module, lead, all, settings)?),
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
        match self {
            Scheme::Fp8 { block } | Scheme::CompressedTensors { block, .. } => *block,
            _ => None,
        }
    }
}

/// Rows and columns of a block, under a key.
fn block(config: &Fields<'_>, key: &str) -> Result<Option<[usize; 2]>> {
    let block = config.ints(key)?;
    let block: Vec<usize> = block.iter().filter_map(|&n| usize::try_from(n).ok().filter(|&n| n > 0)).collect();
    match block[..] {
        [rows, cols] => Ok(Some([rows, cols])),
        [] => Ok(None),
        _ => Err(config.error(key, "rows and columns of a block")),
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
