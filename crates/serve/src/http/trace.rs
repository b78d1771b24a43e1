//! The trace of a request, by W3C Trace Context.

use axum::http::HeaderMap;

/// Trace ID of the header `traceparent`: `VERSION-TRACE-PARENT-FLAGS` in lower-case hexadecimal.
/// `None` if it is malformed.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<String> {
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may have more parts.
    let ends = version != "00" || parts.next().is_none();
    let fits = is_hex(version, 2) && version != "ff" && is_identifier(trace, 32) && is_identifier(parent, 16) && is_hex(flags, 2);
    (ends && fits).then(|| trace.to_owned())
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Identifiers with only zeros are invalid.
fn is_identifier(text: &str, digits: usize) -> bool {
    is_hex(text, digits) && text.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(value: &str) -> Option<String> {
        trace_id(&HeaderMap::from_iter([("traceparent".parse().unwrap(), HeaderValue::from_str(value).unwrap())]))
    }

    #[test]
    fn only_well_formed_traces_are_read() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let zeros = "0".repeat(32);
        assert_eq!(read(&format!("00-{trace}-{parent}-01")).as_deref(), Some(trace));
        assert_eq!(read(&format!("01-{trace}-{parent}-01-more")).as_deref(), Some(trace));
        for wrong in [
            format!("00-{trace}-{parent}-01-more"),
            format!("00-{trace}-{parent}"),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{zeros}-{parent}-01"),
            format!("00-{trace}-{}-01", &zeros[..16]),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            "\"quoted\"".to_owned(),
        ] {
            assert_eq!(read(&wrong), None, "{wrong}");
        }
    }
}
