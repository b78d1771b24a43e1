//! Access checks: host name, origin of the web page, and API key.

use std::net::{IpAddr, SocketAddr};

use crate::{
    config::Config,
    error::{ApiError, Result},
    keys::{Caller, Keys},
    page,
};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version, header},
};

/// Paths of health checks, which need no key.
const OPEN: [&str; 4] = ["/health", "/livez", "/ready", "/readyz"];

/// Path of the metrics, which may need no key.
pub(crate) const METRICS: &str = "/metrics";

/// Marks a request that states its length twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct TwoLengths;

/// Checks on a request: key, host name and origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Granted(Caller),
    /// Respond to a CORS preflight.
    Preflight,
}

/// Access rules of a listening address.
#[derive(Debug)]
pub(crate) struct Guard {
    keys: Keys,
    hosts: Vec<String>,
    origins: Vec<String>,
    public_metrics: bool,
    /// The address, if it is a loopback address.
    local: Option<IpAddr>,
}

impl Guard {
    pub(crate) fn new(config: &Config, address: SocketAddr) -> Guard {
        Guard {
            keys: config.keys.clone(),
            hosts: config.hosts.clone(),
            origins: config.origins.clone(),
            public_metrics: config.public_metrics,
            local: address.ip().is_loopback().then_some(address.ip()),
        }
    }

    /// Checks a request, or recognizes a CORS preflight.
    ///
    /// # Errors
    /// Fails if access is denied.
    pub(crate) fn check(&self, request: &Request<Body>) -> Result<Admission> {
        let headers = request.headers();
        check_target(request)?;
        self.check_host(headers)?;
        // These paths reveal no data and run no model.
        let path = request.uri().path();
        let is_open = OPEN.contains(&path) || page::has(path) || self.public_metrics && path == METRICS;
        match (self.origin(headers)?, self.caller(headers)) {
            // Browsers send a preflight request without a key.
            (Some(_), _) if request.method() == Method::OPTIONS => Ok(Admission::Preflight),
            (_, Some(caller)) => Ok(Admission::Granted(caller)),
            _ if is_open => Ok(Admission::Granted(Caller::default())),
            _ => {
                let message = "the request brings no valid API key: send it as `Authorization: Bearer KEY`";
                let code = Some("invalid_api_key");
                Err(ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", code, message))
            }
        }
    }

    /// Adds CORS headers for another origin. All requested headers are allowed, since clients of
    /// this protocol send many of their own.
    pub(crate) fn allow_origin(&self, origin: Option<HeaderValue>, wanted: Option<HeaderValue>, headers: &mut HeaderMap) {
        if let Some(origin) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
            let usual = || HeaderValue::from_static("authorization, content-type, x-api-key");
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or_else(usual));
        }
    }

    /// Rejects DNS rebinding: a web page can point its own host name at this machine, but the
    /// request still carries that name.
    fn check_host(&self, headers: &HeaderMap) -> Result<()> {
        if self.local.is_none() && self.hosts.is_empty() {
            return Ok(());
        }
        let given = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let name = host_name(given);
        let is_own = self.local.is_some_and(|local| [local.to_string(), format!("[{local}]")].contains(&name.to_owned()));
        let mut known = ["localhost", "127.0.0.1", "[::1]"].into_iter().chain(self.hosts.iter().map(String::as_str));
        if is_own || known.any(|host| host.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        let message = format!("the server is not called {name:?}; --allowed-host adds names");
        Err(ApiError::new(StatusCode::FORBIDDEN, "invalid_request_error", Some("host_not_allowed"), message))
    }

    /// The origin of the web page behind a request, if it is not the server's own.
    ///
    /// # Errors
    /// Fails if that origin is not allowed.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>> {
        let Some(value) = headers.get(header::ORIGIN) else { return Ok(None) };
        let origin = value.to_str().unwrap_or("null");
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_own = origin.split_once("://").is_some_and(|(_, name)| name.eq_ignore_ascii_case(host));
        if is_own {
            return Ok(None);
        }
        if self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin)) {
            return Ok(Some(value.clone()));
        }
        let message = format!("pages of {origin:?} may not use this server; --allowed-origin adds origins");
        Err(ApiError::new(StatusCode::FORBIDDEN, "invalid_request_error", Some("origin_not_allowed"), message))
    }

    /// Identifies the caller by its key.
    fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let given = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
        // Browsers can send no other header with a WebSocket.
        self.keys.caller(given.or_else(|| browser_key(headers)).unwrap_or_default())
    }
}

/// The key that browsers send as a WebSocket sub-protocol.
fn browser_key(headers: &HeaderMap) -> Option<&str> {
    let listed = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    listed.flat_map(|list| list.split(',')).find_map(|name| name.trim().strip_prefix("openai-insecure-api-key."))
}

/// Checks that a request names one host and states one length, as RFC 9112 §3.2 and §6.3 ask.
/// Proxies and caches may choose another one of several.
///
/// # Errors
/// Status 400: no `Host`, several, or one that differs from the host in the request line; both
/// `Transfer-Encoding` and `Content-Length`.
fn check_target(request: &Request<Body>) -> Result<()> {
    let malformed = |message: &str| Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", None, message));
    if request.extensions().get::<TwoLengths>().is_some() {
        return malformed("the request has both Transfer-Encoding and Content-Length");
    }
    let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
    match (&hosts[..], request.uri().authority()) {
        ([], _) if request.version() >= Version::HTTP_11 => malformed("the request has no Host header"),
        ([_, _, ..], _) => malformed("the request has several Host headers"),
        ([host], Some(target)) if !host.as_bytes().eq_ignore_ascii_case(target.as_str().as_bytes()) => {
            malformed("the host in the request line differs from the Host header")
        }
        _ => Ok(()),
    }
}

/// Removes the port from a host.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) && !port.is_empty() => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str, change: impl FnOnce(&mut Config)) -> Guard {
        let mut config = Config::default();
        change(&mut config);
        Guard::new(&config, address.parse().unwrap())
    }

    fn ask(guard: &Guard, method: Method, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match guard.check(&request.body(Body::empty()).unwrap()) {
            Ok(Admission::Granted(_)) => 200,
            Ok(Admission::Preflight) => 204,
            Err(error) => error.status.as_u16(),
        }
    }

    #[test]
    fn hosts_are_those_of_this_machine_unless_others_are_named() {
        let get = |guard: &Guard, host: &str| ask(guard, Method::GET, "/v1/models", &[("host", host)]);
        let local = guard("127.0.0.1:8080", |_| ());
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:8080", "[::1]:8080"] {
            assert_eq!(get(&local, host), 200, "{host}");
        }
        for host in ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost:80a"] {
            assert_eq!(get(&local, host), 403, "{host}");
        }
        assert_eq!(get(&guard("127.0.0.1:8080", |c| c.hosts = vec!["box.lan".into()]), "box.lan:8080"), 200);
        assert_eq!(get(&guard("0.0.0.0:8080", |_| ()), "box.lan:8080"), 200);
        assert_eq!(get(&guard("0.0.0.0:8080", |c| c.hosts = vec!["box.lan".into()]), "other.lan"), 403);
    }

    #[test]
    fn requests_name_one_host() {
        let guard = guard("0.0.0.0:8080", |_| ());
        let get = |target: &str, headers: &[(&str, &str)]| ask(&guard, Method::GET, target, headers);
        let local = ("host", "localhost:8080");
        assert_eq!(get("/health", &[local]), 200);
        assert_eq!(get("http://localhost:8080/health", &[local]), 200);
        assert_eq!(get("http://evil.example/health", &[local]), 400);
        assert_eq!(get("/health", &[local, ("host", "evil.example")]), 400);
        assert_eq!(get("/health", &[]), 400);
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let post = |guard: &Guard, origin: &str| {
            ask(guard, Method::POST, "/v1/chat/completions", &[("host", "localhost:8080"), ("origin", origin)])
        };
        let local = guard("127.0.0.1:8080", |_| ());
        assert_eq!(post(&local, "http://localhost:8080"), 200);
        for origin in ["null", "http://localhost:8081", "https://evil.example", "localhost:8080"] {
            assert_eq!(post(&local, origin), 403, "{origin}");
        }
        let open = guard("127.0.0.1:8080", |c| c.origins = vec!["https://app.example".into()]);
        assert_eq!((post(&open, "https://app.example"), post(&open, "https://evil.example")), (200, 403));
        let headers = [("host", "localhost:8080"), ("origin", "https://app.example")];
        assert_eq!(ask(&open, Method::OPTIONS, "/v1/chat/completions", &headers), 204);
        let (mut told, value) = (HeaderMap::new(), HeaderValue::from_static);
        open.allow_origin(Some(value("https://app.example")), Some(value("x-stainless-lang")), &mut told);
        assert_eq!(told[header::ACCESS_CONTROL_ALLOW_HEADERS], "x-stainless-lang");
    }

    #[test]
    fn keys_are_asked_for_wherever_something_is_done() {
        let guard = guard("127.0.0.1:8080", |c| c.keys = Keys::new(vec!["one".into(), "two".into()]));
        let get = |path: &str, header: (&str, &str)| ask(&guard, Method::GET, path, &[("host", "localhost"), header]);
        for header in [("authorization", "Bearer one"), ("authorization", "bearer two"), ("x-api-key", "two")] {
            assert_eq!(get("/v1/models", header), 200, "{header:?}");
        }
        assert_eq!(get("/v1/models", ("sec-websocket-protocol", "realtime, openai-insecure-api-key.two")), 200);
        for header in [
            ("a", "b"),
            ("sec-websocket-protocol", "openai-insecure-api-key.three"),
            ("authorization", "Bearer"),
            ("authorization", "Bearer "),
            ("authorization", "Bearer on"),
            ("authorization", "Basic one"),
        ] {
            assert_eq!(get("/v1/models", header), 401, "{header:?}");
        }
        assert_eq!((get("/version", ("a", "b")), get("/v1/models?api_key=one", ("a", "b"))), (401, 401));
        assert_eq!(get(METRICS, ("a", "b")), 401);
        let public = self::guard("127.0.0.1:8080", |c| (c.keys, c.public_metrics) = (Keys::new(vec!["one".into()]), true));
        let ask = |path: &str| ask(&public, Method::GET, path, &[("host", "localhost")]);
        assert_eq!((ask(METRICS), ask("/metrics/x"), ask("/v1/models")), (200, 401, 401));
        for probe in OPEN {
            assert_eq!(get(probe, ("a", "b")), 200, "{probe}");
        }
    }
}
