//! The page to chat on.

use axum::{
    Router,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

/// Its files: paths, types and contents.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
    ("/markdown.js", "text/javascript; charset=utf-8", include_str!("../page/markdown.js")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
];

/// The page runs only this server's scripts and connects only to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whether a path is the page's.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|(known, ..)| *known == path)
}

/// The routes of its files.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| router.route(path, get(async move || file(kind, text))))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
