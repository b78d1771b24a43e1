//! Base64 with padding.

/// The value of a digit.
fn digit(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// The bytes that `text` stands for; `None` if it is no base64.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (groups, []) = text.as_chunks::<4>() else { return None };
    let mut out = Vec::with_capacity(groups.len() * 3);
    for (i, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|&&b| b == b'=').count();
        if padding > 2 || padding > 0 && i + 1 < groups.len() {
            return None;
        }
        let bits = group[..4 - padding].iter().try_fold(0, |bits, &b| Some(bits << 6 | digit(b)?))?;
        let bytes = (bits << (6 * padding)).to_be_bytes();
        out.extend_from_slice(&bytes[1..4 - padding]);
    }
    Some(out)
}
