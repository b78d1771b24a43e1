//! Codes of quantized values: bit streams, and the values of 8-bit codes.

/// The value of an E4M3 code, with 4 bits of exponent (bias 7) and 3 of mantissa. The format has no
/// infinities; its two NaN codes read as ±480, as in MLX.
#[inline]
pub fn e4m3(code: u8) -> f32 {
    let bits = u32::from(code & 0x7f) << 20 | u32::from(code & 0x80) << 24;
    // The exponent's bias is 7 instead of 127; the product is exact, for subnormal codes too.
    f32::from_bits(bits) * f32::from_bits((127 + 120) << 23)
}

/// Joins codes of `bits` bits into one little-endian stream: code `j` takes bits
/// `[j * bits, (j + 1) * bits)` of `out`. Bits of a code above its width must be zero. A row of `K`
/// codes fills `K * bits / 32` u32 words, so rows need no padding.
///
/// # Panics
/// If `bits` is above 8, or `codes` and `out` are not whole groups of eight codes and `bits` bytes.
pub fn pack_codes(codes: &[u8], bits: usize, out: &mut [u8]) {
    assert_eq!(codes.len() * bits, out.len() * 8, "codes fill the stream");
    match bits {
        8 => out.copy_from_slice(codes),
        4 => out.iter_mut().zip(codes.as_chunks::<2>().0).for_each(|(byte, [low, high])| *byte = low | high << 4),
        2 => out.iter_mut().zip(codes.as_chunks::<4>().0).for_each(|(byte, [a, b, c, d])| *byte = a | b << 2 | c << 4 | d << 6),
        // Eight codes of any width fill `bits` whole bytes.
        _ => codes.as_chunks::<8>().0.iter().zip(out.chunks_exact_mut(bits)).for_each(|(codes, out)| {
            let stream = codes.iter().rev().fold(0u64, |stream, &code| stream << bits | u64::from(code));
            out.copy_from_slice(&stream.to_le_bytes()[..bits]);
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_are_the_published_ones() {
        for (code, value) in [(0, 0.0), (0x01, 2f32.powi(-9)), (0x08, 2f32.powi(-6)), (0x38, 1.0), (0xb9, -1.125), (0x7e, 448.0)] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        for code in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let magnitude = if exponent == 0 { mantissa * 2f32.powi(-9) } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
            assert_eq!(e4m3(code), if code & 0x80 == 0 { magnitude } else { -magnitude }, "{code:#x}");
        }
    }

    /// Code `i` of a stream, bit by bit.
    fn code_at(stream: &[u8], bits: usize, i: usize) -> u8 {
        (0..bits).fold(0, |code, b| {
            let at = i * bits + b;
            code | (stream[at / 8] >> (at % 8) & 1) << b
        })
    }

    #[test]
    fn every_width_is_one_bit_stream() {
        for bits in 1..=8 {
            let codes: Vec<u8> = (0..64u32).map(|i| (i * 37 + 11) as u8 & u8::MAX >> (8 - bits)).collect();
            let mut stream = vec![0; 8 * bits];
            pack_codes(&codes, bits, &mut stream);
            for (i, &code) in codes.iter().enumerate() {
                assert_eq!(code_at(&stream, bits, i), code, "{bits} bits, code {i}");
            }
        }
    }
}
