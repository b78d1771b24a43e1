//! Downloads: each file is fetched beside its place, continued if a part is there already,
//! verified, and renamed.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use ureq::{Agent, Body, http::Response};

use super::{Hub, ModelName, TIMEOUT, standard, target_path};
use crate::{failure::hint, progress};

/// A repository's answer about its files may have this many bytes.
const MAX_LISTING: u64 = 64 << 20;

/// A file of a repository.
struct Remote {
    name: String,
    size: Option<u64>,
    /// Checksum; only large files have one.
    sha256: Option<String>,
}

impl Hub {
    /// Downloads files of a model into a folder; those that are complete already stay.
    pub(crate) fn download(&self, name: &ModelName, folder: &Path, wanted: &[String]) -> Result<Vec<PathBuf>> {
        if self.offline {
            bail!("{} is not in the local cache, and the environment forbids the network", name.repository());
        }
        let config = Agent::config_builder().timeout_connect(Some(TIMEOUT)).timeout_recv_response(Some(TIMEOUT));
        let agent: Agent = config.http_status_as_error(false).build().into();
        let (commit, remotes) = self.list(&agent, name)?;
        let mut list = Vec::new();
        if wanted.is_empty() {
            let keep = standard(&remotes.iter().map(|remote| remote.name.as_str()).collect::<Vec<_>>());
            list.extend(remotes.into_iter().filter(|remote| keep(&remote.name)));
        } else {
            let mut remotes = remotes;
            for file in wanted {
                let at = remotes.iter().position(|remote| remote.name == *file);
                list.push(remotes.remove(at.with_context(|| format!("{} has no file {file}", name.repository()))?));
            }
        }
        if list.is_empty() {
            bail!("{} has no config, tokenizer or safetensors files", name.repository());
        }
        list.iter().map(|remote| self.fetch(&agent, name, &commit, remote, folder)).collect()
    }

    fn get(&self, agent: &Agent, url: &str, from: u64) -> Result<Response<Body>> {
        let mut request = agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|error| {
            let failed = anyhow::anyhow!("cannot reach {}: {error}", self.endpoint);
            hint(failed, "copy the model folder here by other means and pass its path, or set HF_ENDPOINT to a mirror")
        })
    }

    /// The commit of a revision, and the files in it.
    fn list(&self, agent: &Agent, name: &ModelName) -> Result<(String, Vec<Remote>)> {
        let revision = name.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, name.repository());
        let mut response = self.get(agent, &url, 0)?;
        match response.status().as_u16() {
            200 => {}
            401 | 403 => {
                let refused = anyhow::anyhow!("the hub refuses {}: it does not exist or needs a login", name.repository());
                return Err(hint(refused, "set HF_TOKEN to a token that may read it"));
            }
            404 => bail!("the hub has no model {} with revision {}", name.repository(), name.revision),
            status => bail!("the hub answered {status} for {}", name.repository()),
        }
        let mut text = Vec::new();
        response.body_mut().as_reader().take(MAX_LISTING).read_to_end(&mut text).context("the hub's file list broke off")?;
        let json: Json = serde_json::from_slice(&text).context("the hub's file list is no JSON")?;
        let commit = json["sha"].as_str().filter(|c| c.chars().all(|c| c.is_ascii_alphanumeric())).unwrap_or(&name.revision);
        let siblings = json["siblings"].as_array().context("the hub's answer lists no files")?;
        let remote = |entry: &Json| {
            Some(Remote {
                name: entry["rfilename"].as_str()?.to_owned(),
                size: entry["lfs"]["size"].as_u64().or_else(|| entry["size"].as_u64()),
                sha256: entry["lfs"]["sha256"].as_str().map(str::to_lowercase),
            })
        };
        Ok((commit.to_owned(), siblings.iter().filter_map(remote).collect()))
    }

    fn fetch(&self, agent: &Agent, name: &ModelName, commit: &str, remote: &Remote, folder: &Path) -> Result<PathBuf> {
        let target = target_path(folder, &remote.name)?;
        let length = |path: &Path| std::fs::metadata(path).map(|m| m.len()).ok();
        if remote.size.is_some() && length(&target) == remote.size && matches(&target, remote)? {
            return Ok(target);
        }
        // The commit in the name keeps a part of an older version from being continued.
        let file_name = target.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let part = target.with_file_name(format!(".{file_name}.{commit}.partial"));
        let have = length(&part).filter(|&have| remote.size.is_none_or(|size| have <= size)).unwrap_or(0);
        if remote.size != Some(have) || have == 0 {
            let url = format!("{}/{}/resolve/{commit}/{}", self.endpoint, name.repository(), remote.name);
            let response = self.get(agent, &url, have)?;
            let continued = match response.status().as_u16() {
                200 => false,
                206 => true,
                status => bail!("the hub answered {status} for {}", remote.name),
            };
            save(response, &part, remote, if continued { have } else { 0 })?;
        }
        let found = length(&part).unwrap_or(0);
        if let Some(size) = remote.size.filter(|&size| size != found) {
            bail!("{}: {found} of {size} bytes arrived; run the command again to continue", remote.name);
        }
        if !matches(&part, remote)? {
            std::fs::remove_file(&part).with_context(|| format!("cannot remove {}", part.display()))?;
            bail!("{}: the bytes that arrived do not have the checksum that the hub states; run the command again", remote.name);
        }
        std::fs::rename(&part, &target).with_context(|| format!("cannot write {}", target.display()))?;
        Ok(target)
    }
}

/// Appends a response to what is there already, or begins anew.
fn save(mut response: Response<Body>, part: &Path, remote: &Remote, from: u64) -> Result<()> {
    let place = || format!("cannot write {}", part.display());
    let mut file =
        OpenOptions::new().create(true).write(true).append(from > 0).truncate(from == 0).open(part).with_context(place)?;
    let bar = progress::bytes(remote.size.unwrap_or(0));
    bar.set_message(remote.name.clone());
    bar.set_position(from);
    let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n =
            reader.read(&mut buffer).with_context(|| format!("{}: the download broke off; run the command again", remote.name))?;
        if n == 0 {
            break;
        }
        file.write_all(&buffer[..n]).with_context(place)?;
        bar.inc(n as u64);
    }
    bar.finish_and_clear();
    file.sync_all().with_context(place)
}

/// Whether a file has the checksum of the remote one, where that is known.
fn matches(path: &Path, remote: &Remote) -> Result<bool> {
    let Some(expected) = &remote.sha256 else { return Ok(true) };
    let place = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(place)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
    loop {
        let n = file.read(&mut buffer).with_context(place)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(found == *expected)
}
