//! Text for C.

use std::ffi::CString;

/// Text for C: it ends before its first zero byte.
pub(crate) fn c_string(text: String) -> CString {
    let mut bytes = text.into_bytes();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_before_its_first_zero_byte() {
        assert_eq!(c_string("a\0b".into()).as_c_str(), c"a");
    }
}
