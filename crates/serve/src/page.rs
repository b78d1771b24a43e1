//! The chat page.

use std::io::Read as _;

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use flate2::read::GzDecoder;

/// A file of the page.
#[derive(Debug)]
struct File {
    path: &'static str,
    kind: &'static str,
    /// Entity tag, derived from the contents.
    tag: &'static str,
    /// Whether the bytes are compressed with gzip.
    is_packed: bool,
    bytes: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Content security policy: only this server's scripts and connections; HTML is written through the
/// sanitizer; images come from the server or from data URLs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types dompurify";

/// Whether a path belongs to the page.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// Routes of the files.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| router.route(file.path, get(async |headers: HeaderMap| file.answer(&headers))))
}

impl File {
    /// The response to a request with these headers.
    fn answer(&self, asked: &HeaderMap) -> Response {
        const COMMON: [(HeaderName, &str); 4] = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
        ];
        let headers = (COMMON, [(header::CONTENT_TYPE, self.kind), (header::ETAG, self.tag)]);
        if list(asked, header::IF_NONE_MATCH).any(|tag| tag.trim_start_matches("W/") == self.tag) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        if !self.is_packed {
            return (headers, self.bytes).into_response();
        }
        if list(asked, header::ACCEPT_ENCODING).any(takes_gzip) {
            let packed = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
            return (headers, packed, self.bytes).into_response();
        }
        let mut plain = Vec::new();
        match GzDecoder::new(self.bytes).read_to_end(&mut plain) {
            Ok(_) => (headers, plain).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

/// Entries of a list header.
fn list(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',').map(str::trim))
}

/// Whether an entry of `accept-encoding` allows gzip.
fn takes_gzip(entry: &str) -> bool {
    let (name, quality) = entry.split_once(';').unwrap_or((entry, "q=1"));
    let quality = quality.trim().strip_prefix("q=").and_then(|value| value.parse::<f32>().ok());
    name.trim() == "gzip" && quality.is_some_and(|value| value > 0.0)
}
