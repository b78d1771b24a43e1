//! Probes a loaded MLX with small computations of known results.

use flambeau_tensor::{DType, Tensor};

use crate::ffi::{Api, Array, Binary, Failure, QuantLayout, QuantizedMatrix, Result};

/// Whether MLX computes at all.
///
/// # Errors
/// MLX's message, or the wrong result.
pub(crate) fn computes(api: Api) -> Result<(), String> {
    let run = || {
        let x = array(api, &[1.5f32, -2.0], &[2])?;
        x.binary(Binary::Add, &x)?.to_tensor()
    };
    match run().map_err(|e| e.to_string())?.as_slice::<f32>() {
        Ok([3.0, -4.0]) => Ok(()),
        other => Err(format!("1.5 + 1.5 and -2 - 2 came out as {other:?}")),
    }
}

fn array(api: Api, values: &[f32], shape: &[usize]) -> Result<Array> {
    let tensor = Tensor::from_slice(values, shape).map_err(|e| Failure(e.to_string()))?;
    Array::from_tensor(api, &tensor)
}

/// Whether products with weights of each floating code agree with products with the unpacked
/// weights. Early versions of MLX support such products only on GPUs and return wrong numbers on a
/// CPU.
pub(crate) fn multiplies_float_codes(api: Api) -> bool {
    let layouts = [("nvfp4", 4, 16, 0x38), ("mxfp4", 4, 32, 127), ("mxfp8", 8, 32, 127)];
    layouts.iter().all(|&(mode, bits, group_size, one)| {
        let layout = QuantLayout { group_size, bits, mode };
        agrees(api, layout, one).unwrap_or(false)
    })
}

/// A product `[2, 64] x [32, 64]ᵀ`, directly and through unpacking; `one` is the scale 1.
fn agrees(api: Api, layout: QuantLayout, one: u8) -> Result<bool> {
    let (rows, columns) = (32, 64);
    let words = rows * columns * layout.bits as usize / 32;
    let codes: Vec<u32> = (0..words as u32).map(|i| i.wrapping_mul(0x9e37_79b9) & 0x3535_3535).collect();
    let codes = Tensor::from_slice(&codes, &[rows, words / rows]).map_err(|e| Failure(e.to_string()))?;
    let w = Array::from_tensor(api, &codes)?;
    let scales = Array::full(api, &[rows, columns / layout.group_size as usize], one.into(), DType::U8)?;
    let x: Vec<f32> = (0..2 * columns).map(|i| (i % 7) as f32 - 3.0).collect();
    let x = array(api, &x, &[2, columns])?;
    let matrix = QuantizedMatrix { w: &w, scales: &scales, biases: None, layout };
    let direct = x.quantized_matmul(matrix, true)?.to_tensor()?;
    let unpacked = Array::dequantize(api, matrix)?.cast(DType::F32)?;
    let product = x.binary(Binary::Matmul, &unpacked.transpose(&[1, 0])?)?.to_tensor()?;
    let (Ok(a), Ok(b)) = (direct.as_slice::<f32>(), product.as_slice::<f32>()) else { return Ok(false) };
    Ok(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs().max(1.0)))
}
