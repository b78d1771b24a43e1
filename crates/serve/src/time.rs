//! Times in responses.

use std::time::{Duration, SystemTime};

use flambeau::text::Clock;

/// A time after 1970 as RFC 3339 writes it, in UTC.
pub(crate) fn rfc3339(since_1970: Duration) -> String {
    let clock = Clock::utc(since_1970.as_secs() as i64);
    format!("{}.{:09}Z", clock.format("%Y-%m-%dT%H:%M:%S"), since_1970.subsec_nanos())
}

/// The present.
pub(crate) fn now() -> String {
    rfc3339_after(Duration::ZERO)
}

/// The time after a span.
pub(crate) fn rfc3339_after(span: Duration) -> String {
    rfc3339(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_add(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_rfc_3339() {
        assert_eq!(rfc3339(Duration::new(1_700_000_000, 5)), "2023-11-14T22:13:20.000000005Z");
    }
}
