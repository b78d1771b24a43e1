//! Packed layouts of quantized weights.
//!
//! A row of codes is one little-endian bit stream. Code `j` occupies bits `[j * bits, (j + 1) *
//! bits)`, so a row of `K` codes is `K * bits / 32` u32 words.

use flambeau_tensor::{AlignedBytes, Bytes, DType, Tensor, cast, pack_codes};

use crate::error::ConstantError;

/// Number of codes offset and packed per step. They fill whole bytes at every width and fit in a
/// cache.
const RUN: usize = 1024;

/// Packs signed codes i8 `[.., K]`, each offset by half the range, into words u32 `[.., K * bits /
/// 32]`.
pub(crate) fn pack_signed(codes: &Tensor, bits: u8) -> Result<Bytes, ConstantError> {
    let codes = codes.as_slice::<i8>()?;
    let (offset, mask, bits) = (1u8 << (bits - 1), u8::MAX >> (8 - bits), usize::from(bits));
    let mut out = AlignedBytes::zeroed(codes.len() * bits / 8);
    let mut unsigned = [0; RUN];
    for (codes, out) in codes.chunks(RUN).zip(out.as_mut_slice().chunks_mut(RUN / 8 * bits)) {
        let unsigned = &mut unsigned[..codes.len()];
        unsigned.iter_mut().zip(codes).for_each(|(to, &code)| *to = (code as u8).wrapping_add(offset) & mask);
        pack_codes(unsigned, bits, out);
    }
    Ok(out.into_bytes())
}

/// `-scale * (zero_point + 2^(bits-1))`, computed and rounded in the scale's type.
pub(crate) fn affine_bias(scale: &Tensor, zero_point: Option<&Tensor>, bits: u8) -> Result<Tensor, ConstantError> {
    let dtype = scale.dtype();
    let offset = f32::from(1u8 << (bits - 1));
    let scales = cast(scale, DType::F32)?;
    // The zero point is first cast to the scale's type, as in the program's own arithmetic.
    let zeros = zero_point.map(|z| cast(&cast(z, dtype)?, DType::F32)).transpose()?;
    let zeros = zeros.as_ref().map(|z| z.as_slice::<f32>()).transpose()?;
    let scales = scales.as_slice::<f32>()?;
    let bias = |(i, s): (usize, &f32)| -s * (zeros.map_or(0.0, |z| z[i]) + offset);
    if zeros.is_some_and(|z| z.len() != scales.len()) {
        return Err(ConstantError::ZeroPoints);
    }
    let values: Vec<f32> = scales.iter().enumerate().map(bias).collect();
    Ok(cast(&Tensor::from_slice(&values, scale.shape())?, dtype)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_codes_are_offset_by_half_the_range() {
        let codes: Vec<i8> = (0..2048).map(|i| (i % 8) as i8 - 4).collect();
        let packed = pack_signed(&Tensor::from_slice(&codes, &[2, 1024]).unwrap(), 3).unwrap();
        // Codes 0 to 7 in three bits each, starting at the lowest bit.
        assert_eq!(packed.len(), 2048 / 8 * 3);
        assert!(
            packed.chunks(3).all(|bytes| bytes == [0o76543210u32 as u8, (0o76543210u32 >> 8) as u8, (0o76543210u32 >> 16) as u8])
        );
    }

    #[test]
    fn the_bias_undoes_the_offset() {
        let scale = Tensor::from_slice(&[0.5f32, 2.0], &[1, 2]).unwrap();
        let zero = Tensor::from_slice(&[1i8, -3], &[1, 2]).unwrap();
        let bias = affine_bias(&scale, Some(&zero), 4).unwrap();
        assert_eq!(bias.as_slice::<f32>().unwrap(), [-4.5, -10.0]);
    }
}
