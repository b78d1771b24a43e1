//! The payload's header: four unchecked bytes, `MLX0`, then offset and length of the legacy
//! constant area. The offset is the end of the FlatBuffer, and the length is always 0.

use crate::error::Error;

pub(super) const SIZE: usize = 24;
const MAGIC: &[u8; 4] = b"MLX0";

/// Extracts the FlatBuffer of a payload, with up to 15 trailing zeros.
pub(super) fn strip(payload: &[u8]) -> Result<&[u8], Error> {
    let present = payload.len() as u64;
    let Some(head) = payload.first_chunk::<SIZE>() else {
        return Err(Error::Truncated { format: super::FORMAT, what: "the header", expected: SIZE as u64, present });
    };
    let [_, _, _, _, m0, m1, m2, m3, d0, d1, d2, d3, d4, d5, d6, d7, ..] = *head;
    if [m0, m1, m2, m3] != *MAGIC {
        let found = format!("`{}`", [m0, m1, m2, m3].escape_ascii());
        return Err(Error::Unrecognized { format: super::FORMAT, found, expected: "MLX0" });
    }
    let end = u64::from_le_bytes([d0, d1, d2, d3, d4, d5, d6, d7]);
    if end <= SIZE as u64 {
        let problem = format!("the graph ends at byte {end}, inside the header of {SIZE} bytes");
        return Err(Error::Malformed { format: super::FORMAT, offset: 8, path: "header.data_offset".into(), problem });
    }
    let bytes = usize::try_from(end).ok().and_then(|end| payload.get(SIZE..end));
    bytes.ok_or(Error::Truncated { format: super::FORMAT, what: "the graph", expected: end, present })
}

/// Wraps a FlatBuffer into a payload.
pub(super) fn wrap(flat: &[u8]) -> Vec<u8> {
    let end = (SIZE + flat.len()).next_multiple_of(16);
    let mut payload = Vec::with_capacity(end);
    payload.extend_from_slice(&[0; 4]);
    payload.extend_from_slice(MAGIC);
    payload.extend_from_slice(&(end as u64).to_le_bytes());
    payload.extend_from_slice(&0u64.to_le_bytes());
    payload.extend_from_slice(flat);
    payload.resize(end, 0);
    payload
}
