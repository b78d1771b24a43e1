//! GGUF's block formats as packed affine weights: codes, one scale and one bias per group.

use flambeau_tensor::{AlignedBytes, DType, Tensor, f16};

use crate::QuantPart;

/// A block format whose weights are `scale * code + bias` with unsigned codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gguf {
    Q4_0,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

/// One unpacked block.
struct Block {
    codes: Vec<u8>,
    /// (scale, bias) of each group.
    groups: Vec<(f32, f32)>,
}

impl Gguf {
    /// The format of that name, in any case.
    pub fn from_name(name: &str) -> Option<Gguf> {
        let name = name.to_ascii_lowercase();
        let all = [("q4_0", Gguf::Q4_0), ("q8_0", Gguf::Q8_0), ("q4_k", Gguf::Q4K), ("q5_k", Gguf::Q5K), ("q6_k", Gguf::Q6K)];
        all.into_iter().find(|(n, _)| *n == name).map(|(_, format)| format)
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Gguf::Q4_0 => 18,
            Gguf::Q8_0 => 34,
            Gguf::Q4K => 144,
            Gguf::Q5K => 176,
            Gguf::Q6K => 210,
        }
    }

    /// Weights of a block.
    pub fn block_len(self) -> usize {
        match self {
            Gguf::Q4_0 | Gguf::Q8_0 => 32,
            _ => 256,
        }
    }

    /// Bits of a code.
    pub fn bits(self) -> u8 {
        match self {
            Gguf::Q4_0 | Gguf::Q4K => 4,
            Gguf::Q5K => 5,
            Gguf::Q6K => 6,
            Gguf::Q8_0 => 8,
        }
    }

    /// Weights that share a scale.
    pub fn group_size(self) -> usize {
        if self == Gguf::Q6K { 16 } else { 32 }
    }

    /// Codes as u32 words, or scales or biases as f32, of all blocks in order.
    pub(crate) fn part(self, blocks: &[u8], part: QuantPart, shape: &[usize]) -> Result<Tensor, String> {
        if !blocks.len().is_multiple_of(self.block_bytes()) {
            return Err(format!("{} bytes are no whole number of {}-byte blocks", blocks.len(), self.block_bytes()));
        }
        let blocks = blocks.chunks_exact(self.block_bytes()).map(|b| self.unpack(b));
        let made = match part {
            QuantPart::Codes => {
                let bytes: Vec<u8> = blocks.flat_map(|b| packed(&b.codes, self.bits())).collect();
                Tensor::new(DType::U32, shape, AlignedBytes::copy_of(&bytes).into_bytes())
            }
            QuantPart::Scales => Tensor::from_slice(&blocks.flat_map(|b| b.groups).map(|g| g.0).collect::<Vec<_>>(), shape),
            QuantPart::Biases => Tensor::from_slice(&blocks.flat_map(|b| b.groups).map(|g| g.1).collect::<Vec<_>>(), shape),
        };
        made.map_err(|e| e.to_string())
    }

    fn unpack(self, b: &[u8]) -> Block {
        match self {
            Gguf::Q4_0 => {
                let d = half_at(b, 0);
                let codes = b[2..].iter().map(|q| q & 15).chain(b[2..].iter().map(|q| q >> 4)).collect();
                Block { codes, groups: vec![(d, -8.0 * d)] }
            }
            Gguf::Q8_0 => {
                let d = half_at(b, 0);
                Block { codes: b[2..].iter().map(|q| q.wrapping_add(128)).collect(), groups: vec![(d, -128.0 * d)] }
            }
            Gguf::Q4K => k_block(b, None, &b[16..]),
            Gguf::Q5K => k_block(b, Some(&b[16..48]), &b[48..]),
            Gguf::Q6K => q6_block(b),
        }
    }
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Scale and minimum of sub-block `j` among twelve bytes of 6-bit numbers.
fn scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4))
    }
}

/// Eight sub-blocks of 32 weights: `d * scale * code - dmin * min`; the fifth bits of codes stand apart.
fn k_block(b: &[u8], high: Option<&[u8]>, low: &[u8]) -> Block {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let mut codes = Vec::with_capacity(256);
    let mut groups = Vec::with_capacity(8);
    for s in 0..8 {
        let (scale, min) = scale_min(&b[4..16], s);
        groups.push((d * f32::from(scale), -dmin * f32::from(min)));
        codes.extend((0..32).map(|l| {
            let byte = low[32 * (s / 2) + l];
            let nibble = if s % 2 == 0 { byte & 15 } else { byte >> 4 };
            nibble | high.map_or(0, |h| ((h[l] >> s) & 1) << 4)
        }));
    }
    Block { codes, groups }
}

/// Sixteen groups of 16 weights: `d * scale * (code - 32)`.
fn q6_block(b: &[u8]) -> Block {
    let (ql, qh, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    let scale = |g: usize| d * f32::from(scales[g] as i8);
    let code = |i: usize| {
        let (h, g, l) = (i / 128, (i / 32) % 4, i % 32);
        let byte = ql[64 * h + 32 * (g % 2) + l];
        let low = if g < 2 { byte & 15 } else { byte >> 4 };
        low | (((qh[32 * h + l] >> (2 * g)) & 3) << 4)
    };
    Block { codes: (0..256).map(code).collect(), groups: (0..16).map(|g| (scale(g), -32.0 * scale(g))).collect() }
}

/// Codes as a little-endian stream of `bits` each.
fn packed(codes: &[u8], bits: u8) -> Vec<u8> {
    let mut out = vec![0u8; codes.len() * usize::from(bits) / 8];
    for (i, &code) in codes.iter().enumerate() {
        let (byte, shift) = (i * usize::from(bits) / 8, i * usize::from(bits) % 8);
        let wide = u16::from(code) << shift;
        out[byte] |= wide as u8;
        if let Some(next) = out.get_mut(byte + 1) {
            *next |= (wide >> 8) as u8;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weight `i` of the only block, through codes, scales and biases.
    fn weight(format: Gguf, block: &[u8], i: usize) -> f32 {
        let block = format.unpack(block);
        let (scale, bias) = block.groups[i / format.group_size()];
        scale * f32::from(block.codes[i]) + bias
    }

    fn check(format: Gguf, bytes: &[(usize, u8)], i: usize, want: f32) {
        let mut block = vec![0u8; format.block_bytes()];
        bytes.iter().for_each(|&(at, b)| block[at] = b);
        assert_eq!(weight(format, &block, i), want, "{format:?} weight {i}");
    }

    /// 1.0 as a half: its second byte.
    const ONE: u8 = 0x3c;

    #[test]
    fn weights_follow_the_block_layouts() {
        check(Gguf::Q4_0, &[(1, ONE), (2, 0x7f)], 0, 7.0);
        check(Gguf::Q4_0, &[(1, ONE), (2, 0x7f)], 16, -1.0);
        check(Gguf::Q8_0, &[(1, ONE), (5, 0xfe)], 3, -2.0);
        check(Gguf::Q4K, &[(1, ONE), (3, ONE), (5, 2), (9, 3), (16, 0x50)], 32, 7.0);
        check(Gguf::Q4K, &[(1, ONE), (3, ONE), (8, 0x40), (12, 0x21), (16 + 64, 9)], 128, -9.0);
        check(Gguf::Q5K, &[(1, ONE), (4, 1), (16, 1), (48, 3)], 0, 19.0);
        check(Gguf::Q6K, &[(209, ONE), (192, 2), (0, 5), (128, 3)], 0, 42.0);
    }

    #[test]
    fn codes_are_packed_as_a_bit_stream() {
        assert_eq!(packed(&[1, 2, 3, 4, 5, 6, 7, 8], 4), [0x21, 0x43, 0x65, 0x87]);
        assert_eq!(packed(&[0x3f, 0, 0x3f, 0], 6), [0x3f, 0xf0, 0x03]);
    }
}
