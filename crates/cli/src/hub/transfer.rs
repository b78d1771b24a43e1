//! Download of one file: resumed, retried and verified.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Error, Result, anyhow, bail};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use ureq::{Body, http::Response};

use super::api::{Client, Part, Remote, asked_wait, is_busy};

/// Maximum number of consecutive failures without new bytes.
const TRIES: u32 = 5;

/// First delay before a retry; it doubles each time.
const WAIT: Duration = Duration::from_millis(500);

/// Maximum delay that a busy hub may request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Smallest number of missing bytes for which a file comes by several connections.
const SHORTEST: u64 = 64 << 20;

/// Downloads of a model's files.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) commit: &'a str,
    /// Total bytes of all files.
    pub(super) bar: &'a ProgressBar,
    /// Set when another file failed.
    pub(super) stop: &'a AtomicBool,
    /// Connections for each file.
    pub(super) connections: usize,
}

/// Why a try ended.
pub(super) enum Ended {
    /// Another try may succeed, after the wait that the hub asks for.
    Early(Error, Option<Duration>),
    /// A retry does not help.
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Failed(error)
    }
}

/// Failures of a transfer, which are tried again after a while.
#[derive(Default)]
pub(super) struct Patience {
    failures: u32,
}

impl Patience {
    /// Waits after a failed try, longer each time unless bytes arrived in between.
    ///
    /// # Errors
    /// The failure, if no other try helps or there were too many.
    pub(super) fn wait(&mut self, ended: Ended, remote: &Remote, progressed: bool) -> Result<()> {
        let (error, asked) = match ended {
            Ended::Early(error, asked) => (error, asked),
            Ended::Failed(error) => return Err(error),
        };
        self.failures = if progressed { 1 } else { self.failures + 1 };
        if self.failures >= TRIES {
            let place = format!("{}: the download broke off; run the command again to continue", remote.name);
            return Err(error.context(place));
        }
        thread::sleep(asked.unwrap_or(WAIT * 2_u32.pow(self.failures - 1)).min(LONGEST_WAIT));
        Ok(())
    }
}

impl Transfer<'_> {
    /// Completes the partial file `part`.
    ///
    /// # Errors
    /// Fails if the hub refuses, all retries fail, or the contents have another checksum.
    pub(super) fn run(&self, remote: &Remote, part: &Path) -> Result<()> {
        let begun = length(part) > 0;
        self.complete(remote, part)?;
        if matches(part, remote)? {
            return Ok(());
        }
        let remove = || fs::remove_file(part).with_context(|| format!("cannot remove {}", part.display()));
        remove()?;
        if begun {
            // The beginning may be what an interrupted machine left.
            self.bar.dec(remote.size.unwrap_or(0));
            self.complete(remote, part)?;
            if matches(part, remote)? {
                return Ok(());
            }
            remove()?;
        }
        bail!("{}: the bytes that arrived do not have the checksum that the hub states; run the command again", remote.name)
    }

    fn complete(&self, remote: &Remote, part: &Path) -> Result<()> {
        let mut patience = Patience::default();
        let mut counted = 0;
        let mut connections = self.connections;
        loop {
            let have = Some(length(part)).filter(|&have| remote.size.is_none_or(|size| have <= size)).unwrap_or(0);
            if remote.size == Some(have) && part.is_file() {
                self.count(&mut counted, have);
                return Ok(());
            }
            if let Some(size) = remote.size.filter(|size| connections > 1 && size - have >= SHORTEST) {
                self.count(&mut counted, have);
                if self.complete_by_pieces(remote, part, have..size)? {
                    return Ok(());
                }
                // The hub gives only whole files. Pieces may have changed the part's length.
                connections = 1;
                continue;
            }
            let ended = self.attempt(remote, part, have, &mut counted);
            if self.stop.load(Ordering::Relaxed) {
                bail!("{}: stopped", remote.name);
            }
            let ended = match ended {
                Ok(()) if remote.size.is_none_or(|size| size == length(part)) => return Ok(()),
                Ok(()) => {
                    let size = remote.size.unwrap_or(0);
                    Ended::Early(anyhow!("{} of {size} bytes arrived", length(part)), None)
                }
                Err(ended) => ended,
            };
            patience.wait(ended, remote, length(part) > have)?;
        }
    }

    /// Updates the progress bar with a file's present size.
    fn count(&self, counted: &mut u64, have: u64) {
        self.bar.inc(have.saturating_sub(*counted));
        self.bar.dec(counted.saturating_sub(have));
        *counted = have;
    }

    fn attempt(&self, remote: &Remote, part: &Path, have: u64, counted: &mut u64) -> Result<(), Ended> {
        let response = self.answer(remote, Part { from: have, end: None })?;
        let from = match response.status().as_u16() {
            200 => 0,
            206 => have,
            // The part is as long as the file, or longer.
            _ => {
                fs::remove_file(part).with_context(|| format!("cannot remove {}", part.display()))?;
                return Err(Ended::Early(anyhow!("the hub has no such range"), None));
            }
        };
        self.save(response, part, from, counted)
    }

    /// The answer to a request for a part of a file. Its status is 200 for the whole file, 206 for
    /// the part, or 416 if there is no such part.
    pub(super) fn answer(&self, remote: &Remote, part: Part) -> Result<Response<Body>, Ended> {
        let response = self.client.file(self.commit, &remote.name, part).map_err(|error| Ended::Early(error, None))?;
        match response.status().as_u16() {
            200 | 206 | 416 => Ok(response),
            status if is_busy(status) => {
                Err(Ended::Early(self.client.refusal(&response, Some(&remote.name)), asked_wait(&response)))
            }
            _ => Err(Ended::Failed(self.client.refusal(&response, Some(&remote.name)))),
        }
    }

    /// Appends a response to what is there already, or begins anew.
    fn save(&self, mut response: Response<Body>, part: &Path, from: u64, counted: &mut u64) -> Result<(), Ended> {
        let place = || format!("cannot write {}", part.display());
        let opened = OpenOptions::new().create(true).write(true).append(from > 0).truncate(from == 0).open(part);
        let mut file = opened.with_context(place)?;
        self.count(counted, from);
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 1 << 18];
        while !self.stop.load(Ordering::Relaxed) {
            let n = reader.read(&mut buffer).map_err(|error| Ended::Early(error.into(), None))?;
            if n == 0 {
                break;
            }
            file.write_all(&buffer[..n]).with_context(place)?;
            self.count(counted, *counted + n as u64);
        }
        Ok(file.sync_all().with_context(place)?)
    }
}

pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |facts| facts.len())
}

/// Whether a file has the remote file's checksum, if known.
pub(super) fn matches(path: &Path, remote: &Remote) -> Result<bool> {
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
