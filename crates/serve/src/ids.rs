//! Unique identifiers of requests, answers and files.

/// A new identifier: the prefix and 24 random hexadecimal digits.
pub(crate) fn unique_id(prefix: &str) -> String {
    format!("{prefix}{:024x}", fastrand::u128(..) >> 32)
}
