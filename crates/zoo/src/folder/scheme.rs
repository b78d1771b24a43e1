//! Reads a folder's quantization scheme from its config, and its quantized tensors.

use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;
use safetensors::Dtype;

use super::{
    Stored, dtype,
    grouped::{Grouped, Layout, Regrouped, Reordered, Zeros},
    mlx::Packing,
    numbers::{Numbers, Scaled},
};
use crate::{
    CheckpointTensor, Error, Result,
    fields::Fields,
    source::{Codes, Mode},
};

/// The tensors of a folder by name.
pub(super) type Tensors = IndexMap<String, Stored>;

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

/// Suffix of the names of codes in a bundle.
pub(super) const BUNDLED: &str = "._weight_qdata";

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
                weight(module, self.small_floats(module, lead, all)?)
            }
            (Scheme::CompressedTensors { .. }, Some((module, "weight"))) if lead.dtype == Dtype::I8 => {
                weight(module, bytes(module, lead, all)?)
            }
            (Scheme::CompressedTensors { groups }, Some((module, "weight_packed"))) => {
                weight(module, packed(module, lead, all, groups)?)
            }
            (&Scheme::Gptq { bits, stored_less, group }, Some((module, "qweight"))) => {
                weight(module, gptq(module, lead, all, (bits, stored_less, group))?)
            }
            (Scheme::Awq, Some((module, "qweight"))) => weight(module, awq(module, lead, all)?),
            (Scheme::Bundle, _) => match name.strip_suffix(BUNDLED) {
                Some(module) => weight(module, bundled(module, lead, all)?),
                None => Ok(None),
            },
            (Scheme::Mxfp4, _) => match name.strip_suffix("_blocks") {
                Some(name) => Ok(Some((name.to_owned(), mxfp4(name, lead, all)?))),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// 8-bit floats [rows, cols] with one scale per block, per row or in total.
    fn small_floats(&self, module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
        let name = format!("{module}.weight");
        let [rows, cols] = matrix(&name, lead)?;
        let scales = ["weight_scale_inv", "weight_scale"].iter().find_map(|part| all.get(&format!("{module}.{part}")));
        let scales = scales.ok_or_else(|| Error::MissingTensor(format!("{module}.weight_scale_inv")))?;
        let block = match (self, scales.count()) {
            (_, 1) => [rows, cols],
            (Scheme::Fp8 { block: Some(block) }, _) => *block,
            (_, count) if count == rows => [1, cols],
            (_, count) => {
                return Err(Error::tensor(name, "a scale for each row or for all", format!("{count} scales of {rows} rows")));
            }
        };
        let want = rows.div_ceil(block[0]) * cols.div_ceil(block[1]);
        let scales = numbers(&format!("{name}_scale"), scales, want)?;
        Ok(CheckpointTensor::floats(vec![rows, cols], Scaled { bytes: lead.bytes.clone(), cols, block, scales }))
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

/// Sizes of a non-empty matrix.
fn matrix(name: &str, stored: &Stored) -> Result<[usize; 2]> {
    match stored.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => Ok([rows, cols]),
        _ => Err(Error::tensor(name, "a matrix", format!("shape {:?}", stored.shape))),
    }
}

/// A tensor of a module.
pub(super) fn part<'a>(module: &str, part: &str, all: &'a Tensors) -> Result<&'a Stored> {
    let name = format!("{module}.{part}");
    all.get(&name).ok_or(Error::MissingTensor(name))
}

/// Reads exactly `want` floats.
fn numbers(name: &str, stored: &Stored, want: usize) -> Result<Numbers> {
    let dtype = dtype(stored.dtype).filter(|dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32));
    match dtype {
        Some(dtype) if stored.count() == want => Ok(Numbers { dtype, bytes: stored.bytes.clone() }),
        _ => Err(Error::tensor(name, format!("{want} floats"), format!("{:?} of shape {:?}", stored.dtype, stored.shape))),
    }
}

/// Reads exactly `want` words of 32 bits.
fn words(name: &str, stored: &Stored, want: Option<usize>) -> Result<Bytes> {
    if matches!(stored.dtype, Dtype::I32 | Dtype::U32) && Some(stored.count()) == want {
        return Ok(stored.bytes.clone());
    }
    let found = format!("{:?} of shape {:?}", stored.dtype, stored.shape);
    Err(Error::tensor(name, want.map_or("whole words of codes".into(), |want| format!("{want} words of 32 bits")), found))
}

/// Number of words that hold `codes` codes, if it is an integer.
fn whole_words(codes: usize, bits: usize) -> Option<usize> {
    codes.checked_mul(bits).filter(|all| all.is_multiple_of(32)).map(|all| all / 32)
}

/// The tensor of a matrix with input groups `order`, or with consecutive groups.
fn finished(name: &str, stored: Grouped, order: Option<Vec<usize>>) -> Result<CheckpointTensor> {
    let (shape, size) = (stored.shape, stored.group);
    if let Some(groups) = order.filter(|list| list.iter().enumerate().any(|(i, &group)| group != i / size)) {
        return Ok(CheckpointTensor::floats(shape.to_vec(), Reordered { stored, groups }));
    }
    let cols = shape[1];
    let fits = |group: &usize| size.is_multiple_of(*group) && cols.is_multiple_of(*group);
    let group = [128, 64, 32, 16].into_iter().find(fits).ok_or_else(|| {
        Error::tensor(name, "groups of 16, 32, 64 or 128 inputs, or multiples of these", format!("groups of {size} of {cols}"))
    })?;
    CheckpointTensor::coded(name, shape, Regrouped { stored, group })
}

/// Number of inputs that share a scale. `groups` must divide the number of inputs.
fn stored_group(name: &str, cols: usize, groups: usize) -> Result<usize> {
    if groups > 0 && cols.is_multiple_of(groups) {
        return Ok(cols / groups);
    }
    Err(Error::tensor(name, format!("scales for equal groups of the {cols} inputs"), format!("{groups} groups")))
}

fn gptq(
    module: &str,
    lead: &Stored,
    all: &Tensors,
    (bits, stored_less, stated_group): (usize, u32, Option<usize>),
) -> Result<CheckpointTensor> {
    let name = format!("{module}.qweight");
    let [height, rows] = matrix(&name, lead)?;
    let cols = (height * 32).is_multiple_of(bits).then(|| height * 32 / bits).filter(|cols| cols.is_multiple_of(32));
    let cols =
        cols.ok_or_else(|| Error::tensor(&name, format!("whole inputs of {bits} bits"), format!("shape {:?}", lead.shape)))?;
    let scales = part(module, "scales", all)?;
    let groups = matrix(&format!("{module}.scales"), scales)?[0];
    let stored_group = stated_group.unwrap_or(cols);
    if cols.div_ceil(stored_group) != groups {
        let found = format!("{groups} for {cols} inputs in groups of {stored_group}");
        return Err(Error::tensor(format!("{module}.scales"), "scales for every group", found));
    }
    let zeros =
        words(&format!("{module}.qzeros"), part(module, "qzeros", all)?, whole_words(rows, bits).map(|width| groups * width))?;
    let middle = |word: [u8; 4]| u32::from_le_bytes(word) == middle_word(bits, stored_less);
    let all_middle = 32 % bits == 0 && zeros.as_chunks::<4>().0.iter().copied().all(middle);
    let by_input = all.get(&format!("{module}.g_idx")).map(|stored| input_groups(module, stored, cols, groups)).transpose()?;
    let stored = Grouped {
        name: "GPTQ",
        shape: [rows, cols],
        bits,
        layout: Layout::Down,
        words: words(&name, lead, whole_words(cols, bits).map(|width| width * rows))?,
        scales: numbers(&format!("{module}.scales"), scales, groups * rows)?,
        scales_along: false,
        zeros: if all_middle { Zeros::Middle } else { Zeros::Streams { words: zeros, less: stored_less } },
        group: stored_group,
    };
    finished(&name, stored, by_input)
}

/// A word of zero points that are all the middle code.
fn middle_word(bits: usize, less: u32) -> u32 {
    let code = (1u32 << (bits - 1)) - less;
    (0..32 / bits).fold(0, |word, i| word | code << (i * bits))
}

/// The group of each input, below the number of groups.
fn input_groups(module: &str, stored: &Stored, cols: usize, groups: usize) -> Result<Vec<usize>> {
    let name = format!("{module}.g_idx");
    let bytes = words(&name, stored, Some(cols))?;
    let group = |word: &[u8; 4]| usize::try_from(i32::from_le_bytes(*word)).ok().filter(|&group| group < groups);
    let list: Option<Vec<usize>> = bytes.as_chunks::<4>().0.iter().map(group).collect();
    list.ok_or_else(|| Error::tensor(name, format!("groups below {groups}"), "others"))
}

fn awq(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}.qweight");
    let [cols, width] = matrix(&name, lead)?;
    let rows = width.saturating_mul(8);
    let scales = part(module, "scales", all)?;
    let groups = matrix(&format!("{module}.scales"), scales)?[0];
    let stored_group = stored_group(&name, cols, groups)?;
    let stored = Grouped {
        name: "AWQ",
        shape: [rows, cols],
        bits: 4,
        layout: Layout::Across,
        words: words(&name, lead, Some(cols * width))?,
        scales: numbers(&format!("{module}.scales"), scales, groups * rows)?,
        scales_along: false,
        zeros: Zeros::Across(words(&format!("{module}.qzeros"), part(module, "qzeros", all)?, Some(groups * width))?),
        group: stored_group,
    };
    finished(&name, stored, None)
}

/// compressed-tensors' integers of 4 or 8 bits in words.
fn packed(module: &str, lead: &Stored, all: &Tensors, known: &[usize]) -> Result<CheckpointTensor> {
    let name = format!("{module}.weight_packed");
    let [rows, width] = matrix(&name, lead)?;
    let stated = part(module, "weight_shape", all)?.integers();
    let cols = match stated[..] {
        [r, c] if r == rows as i64 => usize::try_from(c).ok().filter(|&c| c > 0 && (width * 32).is_multiple_of(c)),
        _ => None,
    };
    let cols = cols.ok_or_else(|| {
        Error::tensor(format!("{module}.weight_shape"), format!("{rows} rows of codes in {width} words"), format!("{stated:?}"))
    })?;
    let bits = width * 32 / cols;
    if !matches!(bits, 4 | 8) {
        return Err(Error::tensor(name, "4 or 8 bits", format!("{bits} bits")));
    }
    let by_input = all.get(&format!("{module}.weight_g_idx"));
    let scales = part(module, "weight_scale", all)?;
    let groups = scales.count().checked_div(rows).filter(|&groups| groups > 0).unwrap_or(1);
    let stored_group = stored_group(&name, cols, groups)?;
    if groups > 1 && !known.contains(&stored_group) {
        return Err(Error::tensor(name, format!("groups of {known:?} inputs, as the config has it"), stored_group.to_string()));
    }
    let order = by_input.map(|stored| input_groups(module, stored, cols, groups)).transpose()?;
    let zeros = match all.get(&format!("{module}.weight_zero_point")) {
        None => Zeros::Middle,
        Some(stored) => {
            Zeros::Down(words(&format!("{module}.weight_zero_point"), stored, Some((rows * bits).div_ceil(32) * groups))?)
        }
    };
    let stored = Grouped {
        name: "compressed-tensors",
        shape: [rows, cols],
        bits,
        layout: Layout::Along,
        words: words(&name, lead, Some(rows * width))?,
        scales: numbers(&format!("{module}.weight_scale"), scales, rows * groups)?,
        scales_along: true,
        zeros,
        group: stored_group,
    };
    finished(&name, stored, order)
}

/// compressed-tensors' signed bytes with one scale per row or group.
fn bytes(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}.weight");
    let [rows, cols] = matrix(&name, lead)?;
    if all.contains_key(&format!("{module}.weight_zero_point")) {
        return Err(Error::tensor(name, "symmetric bytes", "zero points"));
    }
    let scales = part(module, "weight_scale", all)?;
    let groups = scales.count() / rows;
    let stored_group = stored_group(&name, cols, groups)?;
    let stored = Grouped {
        name: "compressed-tensors",
        shape: [rows, cols],
        bits: 8,
        layout: Layout::Bytes,
        words: lead.bytes.clone(),
        scales: numbers(&format!("{module}.weight_scale"), scales, rows * groups)?,
        scales_along: true,
        zeros: Zeros::Middle,
        group: stored_group,
    };
    finished(&name, stored, None)
}

/// torchao's integers. Nibbles [out, in/2] have scales and zero points [groups, out], and signed
/// bytes [out, in] have them as [out, groups].
fn bundled(module: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let name = format!("{module}{BUNDLED}");
    let [rows, width] = matrix(&name, lead)?;
    let [scales, zeros] = ["_weight_scale", "_weight_zero_point"].map(|name| part(module, name, all));
    let (scales, zeros) = (scales?, zeros?);
    let groups = scales.count() / rows;
    let (nibbles, cols) = match lead.dtype {
        Dtype::U8 => (true, width.saturating_mul(2)),
        Dtype::I8 => (false, width),
        _ => return Err(Error::tensor(name, "nibbles or signed bytes", format!("{:?}", lead.dtype))),
    };
    let shape = if nibbles { [groups, rows] } else { [rows, groups] };
    if scales.shape != shape || zeros.shape != shape {
        let found = format!("{:?} and {:?}", scales.shape, zeros.shape);
        return Err(Error::tensor(name, format!("scales and zero points of shape {shape:?}"), found));
    }
    let numbers_of = |name: &str, stored| numbers(&format!("{module}.{name}"), stored, rows * groups);
    let stored_group = stored_group(&name, cols, groups)?;
    let stored = Grouped {
        name: "torchao",
        shape: [rows, cols],
        bits: if nibbles { 4 } else { 8 },
        layout: if nibbles { Layout::Along } else { Layout::Bytes },
        words: lead.bytes.clone(),
        scales: numbers_of("_weight_scale", scales)?,
        scales_along: !nibbles,
        zeros: match zeros.dtype {
            Dtype::I8 if !nibbles => Zeros::Bytes(zeros.bytes.clone()),
            _ => Zeros::Floats(numbers_of("_weight_zero_point", zeros)?),
        },
        group: stored_group,
    };
    finished(&name, stored, None)
}

/// gpt-oss's blocks [.., cols/32, 16] with scales [.., cols/32], as MLX packs them.
fn mxfp4(name: &str, lead: &Stored, all: &Tensors) -> Result<CheckpointTensor> {
    let scales = format!("{name}_scales");
    let scales = all.get(&scales).ok_or(Error::MissingTensor(scales))?;
    let (Dtype::U8, Dtype::U8, [lead_shape @ .., groups, 16]) = (lead.dtype, scales.dtype, &lead.shape[..]) else {
        return Err(Error::tensor(name, "bytes of blocks and scales", format!("{:?} of shape {:?}", lead.dtype, lead.shape)));
    };
    let shape = lead_shape.iter().copied().chain([groups.saturating_mul(32)]).collect();
    let codes = Codes { mode: Mode::Mxfp4, bits: 4, group: 32 };
    CheckpointTensor::packed(name, shape, [lead.bytes.clone(), scales.bytes.clone()], None, DType::U8, codes)
}
