//! Tensor subclasses that hold a quantized weight as fields, and their dequantizing operators.

use flambeau_lower::{Arg, Refuse};
use flambeau_pt2::{Attribute, Subclass};
use flambeau_tensor::{DType, Expr};

/// An operator's target with its non-tensor arguments.
type Scalars = (&'static str, Vec<(String, Arg)>);

/// The dequantizing operator of a class, with its non-tensor arguments.
///
/// # Errors
/// If the class has no dequantizing operator.
pub(crate) fn dequantization(weight: &Subclass) -> Result<Scalars, Refuse> {
    let dtype = weight.dtype.dtype().map_or(DType::F32, |d| d);
    let int = |name: &str, default: i64| match weight.attributes.get(name) {
        Some(Attribute::Int(v)) => *v,
        _ => default,
    };
    let text = |name: &str| match weight.attributes.get(name) {
        Some(Attribute::Text(s) | Attribute::DType(s)) => s.clone(),
        _ => String::new(),
    };
    if let Some(Attribute::Object(how)) = weight.attributes.get("act_quant_kwargs") {
        let reason = format!("its weight is a {} whose activations are quantized as the program runs ({how})", weight.class);
        return Err(Refuse::Unsupported(reason));
    }
    let mut args = vec![("output_dtype", Arg::DType(dtype))];
    let number = |v: i64| Arg::Int(Expr::Int(v));
    let target = match weight.class.as_str() {
        "IntxUnpackedToInt8Tensor" => {
            let bits = text("target_dtype").strip_prefix("int").and_then(|b| b.parse::<u32>().ok()).filter(|b| (2..=8).contains(b));
            let bits = bits.ok_or_else(|| Refuse::Unsupported(format!("codes of type {}", text("target_dtype"))))?;
            let half = 1i64 << (bits - 1);
            args.push(("block_size", block_size(weight)));
            args.extend([("quant_min", number(-half)), ("quant_max", number(half - 1))]);
            "torchao.dequantize_affine.default"
        }
        "Int8Tensor" | "Float8Tensor" => {
            args.push(("block_size", block_size(weight)));
            "torchao.dequantize_affine.default"
        }
        "NVFP4Tensor" => {
            let swizzled = matches!(weight.attributes.get("is_swizzled_scales"), Some(Attribute::Bool(true)));
            args.extend([("block_size", number(int("block_size", 16))), ("is_swizzled", Arg::Bool(swizzled))]);
            "torchao.dequantize_nvfp4.default"
        }
        "ExportableInt4Tensor" => {
            args.push(("group_size", number(int("group_size", 32))));
            "torchao.dequantize_int4_tensor.default"
        }
        "ExportableNVFP4Tensor" => {
            args.push(("block_size", number(int("block_size", 16))));
            "torchao.dequantize_nvfp4.default"
        }
        "ExportableMXTensor" => {
            let element = match text("elem_dtype").as_str() {
                "float8_e4m3fn" => DType::F8E4M3,
                "float8_e5m2" => DType::F8E5M2,
                other => return Err(Refuse::Unsupported(format!("MX elements of type {other}"))),
            };
            args.extend([("elem_dtype", Arg::DType(element)), ("block_size", number(int("block_size", 32)))]);
            "torchao.dequantize_mx.default"
        }
        "ExportableGGUFTensor" => {
            args.push(("ggml_type", Arg::Str(text("ggml_type"))));
            "torchao.dequantize_gguf.default"
        }
        other => return Err(Refuse::Unsupported(format!("a weight of class {other} has no dequantization here"))),
    };
    Ok((target, args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect()))
}

fn block_size(weight: &Subclass) -> Arg {
    let size = |a: &Attribute| if let Attribute::Int(v) = a { Expr::Int(*v) } else { Expr::Int(0) };
    match weight.attributes.get("block_size") {
        Some(Attribute::List(list)) => Arg::Ints(list.iter().map(size).collect()),
        _ => Arg::None,
    }
}

/// The operator's parameter for a field.
pub(crate) fn parameter<'f>(target: &str, field: &'f str) -> &'f str {
    match (target, field) {
        ("torchao.dequantize_affine.default", "qdata") => "input",
        ("torchao.dequantize_gguf.default", "raw") => "weight",
        _ => field,
    }
}
