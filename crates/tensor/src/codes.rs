//! Codes of quantized values as bit streams.

/// Joins codes of `bits` bits into one little-endian stream: code `j` takes bits `[j * bits, (j + 1) * bits)` of `out`. Bits of
/// a code above its width must be zero. A row of `K` codes fills `K * bits / 32` u32 words, so rows need no padding.
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
