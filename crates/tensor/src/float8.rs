//! Floats of 8 bits, as bytes: the values of codes, and the code nearest to a number.

use crate::DType;

/// The number behind a code of an 8-bit float type; `None` for another type. E5M2 has infinities,
/// E4M3 and E8M0 have only NaN.
pub(crate) fn decoder(dtype: DType) -> Option<fn(u8) -> f32> {
    match dtype {
        DType::F8E4M3 => Some(|code| if code & 0x7f == 0x7f { f32::NAN } else { crate::e4m3(code) }),
        // The upper half of an f16.
        DType::F8E5M2 => Some(|code| half::f16::from_bits(u16::from(code) << 8).to_f32()),
        DType::F8E8M0 => Some(|code| if code == 0xff { f32::NAN } else { 2f32.powi(i32::from(code) - 127) }),
        _ => None,
    }
}

/// The nearest code, ties to the even one. Values that are too large become the largest number in
/// E4M3 and infinity in E5M2, as in PyTorch.
pub(crate) fn encoder(dtype: DType) -> Option<fn(f32) -> u8> {
    match dtype {
        DType::F8E4M3 => Some(|v| encode(if v.is_nan() { v } else { v.clamp(-448.0, 448.0) }, 0x7f, 480.0, crate::e4m3)),
        DType::F8E5M2 => Some(|v| match v.is_nan() {
            true => 0x7f,
            false => encode(v, 0x7c, 65536.0, |code| half::f16::from_bits(u16::from(code) << 8).to_f32()),
        }),
        _ => None,
    }
}

/// `last` is the code for values that are too large; it counts as `beyond`. Codes without sign have
/// the order of their values.
fn encode(value: f32, last: u8, beyond: f32, decode: fn(u8) -> f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let number = |code: u8| if code >= last { beyond } else { decode(code) };
    let magnitude = value.abs();
    if magnitude.is_nan() || magnitude >= beyond {
        return sign | last;
    }
    // The largest code whose number is not above.
    let (mut low, mut high) = (0, last);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if number(middle) <= magnitude { low = middle } else { high = middle }
    }
    let (below, above) = (magnitude - number(low), number(high) - magnitude);
    let up = above < below || (above == below && low & 1 == 1);
    sign | if up { high } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest() {
        let check = |dtype, value: f32, code: u8| assert_eq!(encoder(dtype).unwrap()(value), code, "{dtype} {value}");
        for (value, code) in [(0.0, 0), (-0.0, 0x80), (1.0, 0x38), (1.0625, 0x38), (1.1875, 0x3a), (-448.0, 0xfe), (464.0, 0x7e)] {
            check(DType::F8E4M3, value, code);
        }
        for (value, code) in
            [(464.1, 0x7e), (f32::NAN, 0x7f), (f32::INFINITY, 0x7e), (2f32.powi(-10), 0), (2f32.powi(-10) * 1.01, 1)]
        {
            check(DType::F8E4M3, value, code);
        }
        for (value, code) in [(1.0, 0x3c), (57344.0, 0x7b), (61440.0, 0x7c), (1e9, 0x7c), (-1.25, 0xbd), (f32::NAN, 0x7f)] {
            check(DType::F8E5M2, value, code);
        }
    }

    #[test]
    fn every_number_has_its_own_code() {
        for dtype in [DType::F8E4M3, DType::F8E5M2] {
            for code in 0..=u8::MAX {
                let value = decoder(dtype).unwrap()(code);
                if !value.is_nan() {
                    assert_eq!(encoder(dtype).unwrap()(value), code, "{dtype}");
                }
            }
        }
    }
}
