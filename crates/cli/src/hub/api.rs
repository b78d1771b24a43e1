//! Requests to the hub: list of files, contents, and explanations of errors.

use std::{io::Read, thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use ureq::{Agent, Body, http::Response};

use super::{Hub, ModelName};
use crate::failure::hint;

/// Maximum size of a file list in bytes.
const MAX_LISTING: u64 = 64 << 20;

/// Waits before a busy hub is asked for a list again, unless it states its own.
const WAITS: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// Longest wait for a list.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Statuses of a busy or broken server, which may answer later.
const BUSY: [u16; 6] = [408, 429, 500, 502, 503, 504];

/// Whether a request with this status may be tried again.
pub(super) fn is_busy(status: u16) -> bool {
    BUSY.contains(&status)
}

/// The wait that a busy hub asks for.
pub(super) fn asked_wait(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get("Retry-After")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) size: Option<u64>,
    /// Checksum; only large files have one.
    pub(super) sha256: Option<String>,
    /// Name of its blob in the cache.
    pub(super) etag: String,
}

/// A model's files at a commit.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Remote>,
}

/// A part of a file's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub(super) from: u64,
    /// The byte after the last one; without it, the part ends with the file.
    pub(super) end: Option<u64>,
}

/// A connection to the hub about one model.
pub(super) struct Client<'a> {
    hub: &'a Hub,
    name: &'a ModelName,
    agent: Agent,
}

impl<'a> Client<'a> {
    pub(super) fn new(hub: &'a Hub, name: &'a ModelName) -> Client<'a> {
        let wait = Some(hub.timeout);
        let config = Agent::config_builder().timeout_connect(wait).timeout_recv_response(wait).timeout_per_read(wait);
        Client { hub, name, agent: config.http_status_as_error(false).build().into() }
    }

    /// The answer to a request, of all bytes or of a part of them.
    fn get(&self, url: &str, part: Part) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.hub.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(end) = part.end {
            request = request.header("Range", format!("bytes={}-{}", part.from, end - 1));
        } else if part.from > 0 {
            request = request.header("Range", format!("bytes={}-", part.from));
        }
        request.call()
    }

    /// A part of a file, whatever the status.
    pub(super) fn file(&self, commit: &str, file: &str, part: Part) -> Result<Response<Body>> {
        let url = format!("{}/{}/resolve/{commit}/{}", self.hub.endpoint, self.name.repository(), escape(file));
        self.get(&url, part).map_err(|error| self.unreachable(&error))
    }

    /// The files of the model's revision.
    ///
    /// # Errors
    /// Fails if the hub is unreachable or refuses.
    pub(super) fn list(&self) -> Result<Listing> {
        let revision = self.name.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.hub.endpoint, self.name.repository());
        let mut response = self.get_patiently(&url)?;
        if response.status().as_u16() != 200 {
            return Err(self.refusal(&response, None));
        }
        let mut text = Vec::new();
        response.body_mut().as_reader().take(MAX_LISTING).read_to_end(&mut text).context("the hub's file list broke off")?;
        let json: Json = serde_json::from_slice(&text).context("the hub's file list is no JSON")?;
        let is_commit = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
        let commit = json["sha"].as_str().filter(is_commit).unwrap_or(&self.name.revision).to_owned();
        let siblings = json["siblings"].as_array().context("the hub's answer lists no files")?;
        Ok(Listing { files: siblings.iter().filter_map(|entry| self.remote(entry, &commit)).collect(), commit })
    }

    /// The answer to a request for all bytes. A busy hub is asked again.
    fn get_patiently(&self, url: &str) -> Result<Response<Body>> {
        for wait in WAITS {
            let response = self.get(url, Part::default()).map_err(|error| self.unreachable(&error))?;
            if !is_busy(response.status().as_u16()) {
                return Ok(response);
            }
            thread::sleep(asked_wait(&response).unwrap_or(wait).min(LONGEST_WAIT));
        }
        self.get(url, Part::default()).map_err(|error| self.unreachable(&error))
    }

    fn remote(&self, entry: &Json, commit: &str) -> Option<Remote> {
        let name = entry["rfilename"].as_str()?.to_owned();
        let is_hash = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
        let sha256 = entry["lfs"]["sha256"].as_str().filter(is_hash).map(str::to_lowercase);
        let stated = sha256.as_deref().or_else(|| entry["blobId"].as_str().filter(is_hash)).map(str::to_owned);
        // A mirror may state no blobs.
        let etag = stated.unwrap_or_else(|| {
            let digest = Sha256::digest(format!("{}/{commit}/{name}", self.name.repository()));
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        });
        let size = entry["lfs"]["size"].as_u64().or_else(|| entry["size"].as_u64());
        Some(Remote { name, size, sha256, etag })
    }

    fn unreachable(&self, error: &ureq::Error) -> anyhow::Error {
        let failed = anyhow!("cannot reach {}: {error}", self.hub.endpoint);
        if matches!(error, ureq::Error::Timeout(_)) {
            return hint(failed, "HF_HUB_DOWNLOAD_TIMEOUT sets a longer wait, in seconds");
        }
        hint(failed, "copy the model folder here by other means and pass its path, or set HF_ENDPOINT to a mirror")
    }

    /// Explains a refusal by the hub's error code or by the status.
    pub(super) fn refusal(&self, response: &Response<Body>, file: Option<&str>) -> anyhow::Error {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (repository, status) = (self.name.repository(), response.status().as_u16());
        let page = format!("{}/{repository}", self.hub.endpoint);
        let has_token = self.hub.token.is_some();
        match (header("X-Error-Code"), status) {
            (Some("GatedRepo"), _) if has_token => {
                let refused = anyhow!("{repository} is gated, and the account of your token has no access");
                hint(refused, format!("ask for it or accept the licence on {page}"))
            }
            (Some("GatedRepo"), _) => hint(
                anyhow!("{repository} is gated: the hub gives it to accounts that accept its licence"),
                format!("accept the licence on {page}, then set HF_TOKEN to a token of that account"),
            ),
            (Some("RevisionNotFound"), _) => anyhow!("{repository} has no revision {}", self.name.revision),
            (Some("EntryNotFound"), _) => anyhow!("{repository} has no file {}", file.unwrap_or("of that name")),
            (Some("DisabledRepo"), _) => anyhow!("the hub has disabled {repository}"),
            (Some("RepoNotFound"), _) | (None, 401 | 403) => {
                let advice = if has_token {
                    "check the name, and the access of your token"
                } else {
                    "check the name; for a private model, set HF_TOKEN to a token that may read it"
                };
                hint(anyhow!("the hub refuses {repository}: it does not exist or needs a login"), advice)
            }
            (None, 404) if file.is_none() => anyhow!("the hub has no model {repository} with revision {}", self.name.revision),
            (code, _) => {
                let reason = header("X-Error-Message").or(code).map(|text| format!(": {text}")).unwrap_or_default();
                anyhow!("the hub answered {status} for {}{reason}", file.unwrap_or(&repository))
            }
        }
    }
}

/// Percent-encodes a path.
fn escape(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    path.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped() {
        assert_eq!(escape("a/b-c_1.5.gguf"), "a/b-c_1.5.gguf");
        assert_eq!(escape("a b#?é"), "a%20b%23%3F%C3%A9");
    }
}
