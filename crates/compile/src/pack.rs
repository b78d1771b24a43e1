//! Packed layouts of quantized weights.
//!
//! A row of codes is one little-endian bit stream: code `j` occupies bits `[j * bits, (j + 1) * bits)`, so that a row of `K`
//! codes is `K * bits / 32` u32 words.

use flambeau_tensor::{AlignedBytes, Bytes, DType, Tensor, cast};

/// Signed codes i8 `[.., K]`, each offset by half the range, as words u32 `[.., K * bits / 32]`.
pub(crate) fn pack_signed(codes: &Tensor, bits: u8) -> Result<Bytes, String> {
    let codes = codes.as_slice::<i8>().map_err(|e| e.to_string())?;
    let offset = 1u8 << (bits - 1);
    Ok(pack(codes.len(), bits, |i| (codes[i] as u8).wrapping_add(offset)))
}

/// `n` codes as a bit stream. Rows need no padding, because a row's bits fill whole words.
pub(crate) fn pack(n: usize, bits: u8, code: impl Fn(usize) -> u8) -> Bytes {
    let mut out = AlignedBytes::zeroed(n * usize::from(bits) / 8);
    pack_into(bits, code, out.as_mut_slice());
    out.into_bytes()
}

/// As many codes as fill `bytes`.
pub(crate) fn pack_into(bits: u8, code: impl Fn(usize) -> u8, bytes: &mut [u8]) {
    match bits {
        8 => bytes.iter_mut().enumerate().for_each(|(i, b)| *b = code(i)),
        4 => bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (code(2 * i) & 15) | (code(2 * i + 1) << 4)),
        2 => bytes.iter_mut().enumerate().for_each(|(i, b)| {
            *b = (0..4).fold(0, |byte, j| byte | ((code(4 * i + j) & 3) << (2 * j)));
        }),
        // Eight codes of any width fill `bits` whole bytes.
        _ => bytes.chunks_exact_mut(usize::from(bits)).enumerate().for_each(|(i, chunk)| {
            let mask = (1u64 << bits) - 1;
            let stream = (0..8).fold(0u64, |s, j| s | ((u64::from(code(8 * i + j)) & mask) << (j * usize::from(bits))));
            chunk.copy_from_slice(&stream.to_le_bytes()[..usize::from(bits)]);
        }),
    }
}

/// `-scale * (zero_point + 2^(bits-1))`, computed and rounded in the scale's type.
pub(crate) fn affine_bias(scale: &Tensor, zero_point: Option<&Tensor>, bits: u8) -> Result<Tensor, String> {
    let text = |e: flambeau_tensor::Error| e.to_string();
    let dtype = scale.dtype();
    let offset = f32::from(1u8 << (bits - 1));
    let scales = cast(scale, DType::F32).map_err(text)?;
    // The zero point takes the scale's type first, as the program's own arithmetic would have it.
    let zeros = zero_point.map(|z| cast(&cast(z, dtype)?, DType::F32)).transpose().map_err(text)?;
    let zeros = zeros.as_ref().map(|z| z.as_slice::<f32>()).transpose().map_err(text)?;
    let scales = scales.as_slice::<f32>().map_err(text)?;
    let bias = |(i, s): (usize, &f32)| -s * (zeros.map_or(0.0, |z| z[i]) + offset);
    if zeros.is_some_and(|z| z.len() != scales.len()) {
        return Err("scales and zero points differ in number".to_owned());
    }
    let values: Vec<f32> = scales.iter().enumerate().map(bias).collect();
    Tensor::from_slice(&values, scale.shape()).and_then(|t| cast(&t, dtype)).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads code `i` of a bit stream, bit by bit.
    fn unpack(bytes: &[u8], bits: u8, i: usize) -> u8 {
        (0..usize::from(bits)).fold(0, |v, b| {
            let at = i * usize::from(bits) + b;
            v | (((bytes[at / 8] >> (at % 8)) & 1) << b)
        })
    }

    #[test]
    fn every_width_is_one_bit_stream() {
        for bits in [2u8, 3, 4, 5, 6, 8] {
            let code = |i: usize| ((i * 37 + 11) as u8) & (u8::MAX >> (8 - bits));
            let bytes = pack(64, bits, code);
            assert_eq!(bytes.len(), 8 * usize::from(bits));
            for i in 0..64 {
                assert_eq!(unpack(&bytes, bits, i), code(i), "{bits} bits, code {i}");
            }
        }
    }

    #[test]
    fn the_bias_undoes_the_offset() {
        let scale = Tensor::from_slice(&[0.5f32, 2.0], &[1, 2]).unwrap();
        let zero = Tensor::from_slice(&[1i8, -3], &[1, 2]).unwrap();
        let bias = affine_bias(&scale, Some(&zero), 4).unwrap();
        assert_eq!(bias.as_slice::<f32>().unwrap(), [-4.5, -10.0]);
    }
}
