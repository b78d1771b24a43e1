//! The folder of files and batches. Records are small JSON files next to the contents. All survive
//! a restart.

pub(crate) mod record;
mod sums;

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use self::record::{BatchRecord, FileRecord, Status};
use crate::{
    error::{ApiError, Result},
    keys::Caller,
    model::now,
};

/// Maximum number of files, and of batches.
const MAX_RECORDS: usize = 10_000;

/// Maximum number of unfinished batches.
const MAX_ACTIVE: usize = 64;

const LOCK: &str = "lock";
/// File name suffixes of records and contents.
const RECORD: &str = "json";
const CONTENTS: &str = "data";
/// ID prefixes of batches in OpenAI's format, and in Anthropic's.
pub(crate) const BATCH_PREFIX: &str = "batch_";
pub(crate) const MESSAGES_PREFIX: &str = "msgbatch_";

/// Location and limits of the store.
#[derive(Clone, Debug)]
pub struct BatchConfig {
    /// The folder, locked against other processes.
    pub folder: PathBuf,
    /// Maximum total size of all files in bytes.
    pub bytes: u64,
    /// Maximum size of one file in bytes.
    pub file_bytes: usize,
    /// Maximum number of concurrent requests of all batches, at least 1.
    pub at_once: usize,
}

/// Files and batches of all callers. Callers see only their own.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) config: BatchConfig,
    state: Mutex<State>,
    /// Notifies of batch changes.
    changes: watch::Sender<()>,
    /// Lock on the folder.
    _lock: File,
}

/// Records in order of creation.
#[derive(Debug, Default)]
struct State {
    files: Vec<FileRecord>,
    batches: Vec<BatchRecord>,
    /// Size of unfinished outputs in bytes.
    unfinished: u64,
}

impl State {
    fn bytes(&self) -> u64 {
        self.files.iter().fold(self.unfinished, |sum, file| sum.saturating_add(file.bytes))
    }

    fn uses(&self, file: &str) -> Option<&BatchRecord> {
        self.batches.iter().find(|batch| batch.input_file_id == file && !batch.status.is_final())
    }
}

impl Store {
    /// Opens or creates a folder, and deletes contents without a record.
    ///
    /// # Errors
    /// Fails if the folder is unusable or locked by another process.
    pub(crate) fn open(config: BatchConfig) -> io::Result<Store> {
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(&config.folder)?;
        let lock = File::create(config.folder.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "another process uses the folder"),
            TryLockError::Error(error) => error,
        })?;
        let mut state = State::default();
        let mut contents = Vec::new();
        for entry in fs::read_dir(&config.folder)? {
            let path = entry?.path();
            let Some((name, end)) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.rsplit_once('.')) else {
                continue;
            };
            match end {
                CONTENTS => contents.push((name.to_owned(), path.clone())),
                RECORD if [BATCH_PREFIX, MESSAGES_PREFIX].iter().any(|prefix| name.starts_with(prefix)) => {
                    state.batches.extend(read(&path))
                }
                RECORD => state.files.extend(read(&path)),
                _ => {}
            }
        }
        state.files.sort_by_key(|file| file.created_at);
        state.batches.sort_by_key(|batch| batch.created_at);
        for (name, path) in contents {
            let active = |batch: &BatchRecord| !batch.status.is_final() && (batch.output_id == name || batch.error_id == name);
            if state.files.iter().any(|file| file.id == name) {
                continue;
            } else if state.batches.iter().any(active) {
                state.unfinished += fs::metadata(&path)?.len();
            } else {
                fs::remove_file(path)?;
            }
        }
        Ok(Store { config, state: Mutex::new(state), changes: watch::Sender::new(()), _lock: lock })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to batch changes.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn contents(&self, id: &str) -> PathBuf {
        self.config.folder.join(format!("{id}.{CONTENTS}"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.config.folder.join(format!("{id}.{RECORD}"))
    }

    /// Writes a record atomically.
    fn save(&self, id: &str, record: &impl Serialize) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".new").tempfile_in(&self.config.folder)?;
        serde_json::to_writer(&mut file, record)?;
        file.flush()?;
        file.persist(self.record(id))?;
        Ok(())
    }

    /// Stores a copy of a file.
    ///
    /// # Errors
    /// Fails if the store is full or on an I/O error.
    pub(crate) fn add_file(&self, file: FileRecord, contents: &mut File) -> Result<FileRecord> {
        self.sweep();
        {
            let state = self.state();
            if state.files.len() >= MAX_RECORDS {
                return Err(full(format!("the server keeps {MAX_RECORDS} files and no more")));
            }
            let room = self.config.bytes.saturating_sub(state.bytes());
            if file.bytes > room {
                return Err(full(format!("the file has {} bytes, and the server has room for {room}", file.bytes)));
            }
        }
        let mut copy = || {
            contents.rewind()?;
            let mut kept = tempfile::Builder::new().prefix(".new").tempfile_in(&self.config.folder)?;
            io::copy(contents, &mut kept)?;
            kept.persist(self.contents(&file.id))?;
            self.save(&file.id, &file)
        };
        copy().map_err(unwritten)?;
        self.state().files.push(file.clone());
        Ok(file)
    }

    /// The caller's files, oldest first.
    pub(crate) fn files(&self, owner: Caller) -> Vec<FileRecord> {
        self.sweep();
        self.state().files.iter().filter(|file| file.owner == owner.number()).cloned().collect()
    }

    /// A file of the caller.
    ///
    /// # Errors
    /// Fails if the caller has no such file.
    pub(crate) fn file(&self, owner: Caller, id: &str) -> Result<FileRecord> {
        self.sweep();
        let state = self.state();
        let found = state.files.iter().find(|file| file.id == id && file.owner == owner.number());
        found.cloned().ok_or_else(|| missing("file", id))
    }

    /// Opens the contents of a file.
    ///
    /// # Errors
    /// Fails if the caller has no such file, or on an I/O error.
    pub(crate) fn open_file(&self, owner: Caller, id: &str) -> Result<File> {
        self.file(owner, id)?;
        File::open(self.contents(id)).map_err(unwritten)
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// Fails if the caller has no such file or a batch needs it.
    pub(crate) fn delete_file(&self, owner: Caller, id: &str) -> Result<()> {
        self.file(owner, id)?;
        let mut state = self.state();
        if let Some(batch) = state.uses(id) {
            return Err(ApiError::value("file_id", format!("the batch {:?} still reads the file {id:?}", batch.id)));
        }
        state.files.retain(|file| file.id != id);
        self.remove(id);
        Ok(())
    }

    /// Deletes a record before its contents, so that no record lacks contents.
    fn remove(&self, id: &str) {
        for path in [self.record(id), self.contents(id)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("{} cannot be removed: {error}", path.display());
                }
                _ => {}
            }
        }
    }

    /// Deletes expired files.
    fn sweep(&self) {
        let now = now();
        let mut state = self.state();
        let is_over = |file: &FileRecord| file.expires_at.is_some_and(|end| end <= now);
        let over: Vec<String> = state.files.iter().filter(|file| is_over(file)).map(|file| file.id.clone()).collect();
        for id in over {
            if state.uses(&id).is_none() {
                state.files.retain(|file| file.id != id);
                self.remove(&id);
            }
        }
    }

    /// Creates a batch. If the store is full, the oldest finished batch is deleted.
    ///
    /// # Errors
    /// Fails if too many batches are unfinished, or on an I/O error.
    pub(crate) fn add_batch(&self, batch: BatchRecord) -> Result<BatchRecord> {
        let mut state = self.state();
        let active = state.batches.iter().filter(|batch| !batch.status.is_final()).count();
        if active >= MAX_ACTIVE {
            return Err(ApiError::busy(format!("{active} batches have not ended yet")));
        }
        if state.batches.len() >= MAX_RECORDS
            && let Some(at) = state.batches.iter().position(|batch| batch.status.is_final())
        {
            let oldest = state.batches.remove(at);
            self.remove(&oldest.id);
        }
        self.save(&batch.id, &batch).map_err(unwritten)?;
        state.batches.push(batch.clone());
        drop(state);
        self.changes.send_replace(());
        Ok(batch)
    }

    /// The caller's batches, oldest first.
    pub(crate) fn batches(&self, owner: Caller) -> Vec<BatchRecord> {
        self.state().batches.iter().filter(|batch| batch.owner == owner.number()).cloned().collect()
    }

    /// A batch of the caller.
    ///
    /// # Errors
    /// Fails if the caller has no such batch.
    pub(crate) fn batch(&self, owner: Caller, id: &str) -> Result<BatchRecord> {
        let state = self.state();
        let found = state.batches.iter().find(|batch| batch.id == id && batch.owner == owner.number());
        found.cloned().ok_or_else(|| missing("batch", id))
    }

    /// Unfinished batches.
    pub(crate) fn active(&self) -> Vec<BatchRecord> {
        self.state().batches.iter().filter(|batch| !batch.status.is_final()).cloned().collect()
    }

    /// Cancels a batch.
    ///
    /// # Errors
    /// Fails if the caller has no such batch, it is finished, or on an I/O error.
    pub(crate) fn cancel(&self, owner: Caller, id: &str) -> Result<BatchRecord> {
        let batch = self.batch(owner, id)?;
        match batch.status {
            Status::Validating | Status::InProgress => {
                self.change(id, |batch| batch.enter(Status::Cancelling, now())).map_err(unwritten)
            }
            Status::Cancelling => Ok(batch),
            _ => Err(ApiError::invalid(format!("the batch {id:?} has ended, and cannot be cancelled"))),
        }
    }

    /// Deletes a batch that has ended, with its files.
    ///
    /// # Errors
    /// Fails if the caller has no such batch, or if it has not ended.
    pub(crate) fn delete_batch(&self, owner: Caller, id: &str) -> Result<()> {
        let batch = self.batch(owner, id)?;
        if !batch.status.is_final() {
            return Err(ApiError::invalid(format!("the batch {id:?} has not ended: cancel it first")));
        }
        let mut state = self.state();
        state.batches.retain(|batch| batch.id != id);
        self.remove(id);
        let mut files = vec![batch.output_id, batch.error_id];
        // Another batch may still read the input.
        if state.uses(&batch.input_file_id).is_none() {
            files.push(batch.input_file_id);
        }
        state.files.retain(|file| !files.contains(&file.id));
        files.iter().for_each(|id| self.remove(id));
        Ok(())
    }

    /// Changes a batch and saves its record.
    ///
    /// # Errors
    /// Fails if the batch does not exist, or on an I/O error.
    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut BatchRecord)) -> io::Result<BatchRecord> {
        let mut state = self.state();
        let found = state.batches.iter_mut().find(|batch| batch.id == id).ok_or(io::ErrorKind::NotFound)?;
        change(found);
        let batch = found.clone();
        self.save(id, &batch)?;
        drop(state);
        self.changes.send_replace(());
        Ok(batch)
    }

    /// Updates a batch's progress in memory. A restart recounts it from the outputs.
    pub(crate) fn note(&self, id: &str, change: impl FnOnce(&mut BatchRecord)) {
        if let Some(batch) = self.state().batches.iter_mut().find(|batch| batch.id == id) {
            change(batch);
        }
    }

    /// Whether a batch is being cancelled.
    pub(crate) fn is_cancelled(&self, id: &str) -> bool {
        self.state().batches.iter().any(|batch| batch.id == id && batch.status == Status::Cancelling)
    }

    /// Opens a batch's output or error file for reading and appending.
    ///
    /// # Errors
    /// Fails on an I/O error.
    pub(crate) fn open_output(&self, id: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.create(true).read(true).append(true).open(self.contents(id))
    }

    /// Reserves space for an output; false if the store is full.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let fits = state.bytes().saturating_add(bytes) <= self.config.bytes;
        if fits {
            state.unfinished += bytes;
        }
        fits
    }

    /// Publishes a batch's output as a file; false if it is empty.
    ///
    /// # Errors
    /// Fails on an I/O error.
    pub(crate) fn finish_output(&self, batch: &BatchRecord, id: &str, filename: String) -> io::Result<bool> {
        let bytes = match fs::metadata(self.contents(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            found => found?.len(),
        };
        if bytes == 0 {
            self.remove(id);
            return Ok(false);
        }
        let created_at = now();
        let file = FileRecord {
            id: id.to_owned(),
            owner: batch.owner,
            bytes,
            created_at,
            filename,
            purpose: "batch_output".to_owned(),
            expires_at: Some(created_at.saturating_add(batch.output_seconds)),
        };
        self.save(id, &file)?;
        let mut state = self.state();
        state.unfinished = state.unfinished.saturating_sub(bytes);
        state.files.retain(|file| file.id != id);
        state.files.push(file);
        Ok(true)
    }
}

/// Reads a record; `None` if it is unreadable.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let record = fs::read(path).and_then(|text| Ok(serde_json::from_slice(&text)?));
    record.inspect_err(|error| tracing::warn!("{} cannot be read: {error}", path.display())).ok()
}

fn missing(what: &str, id: &str) -> ApiError {
    ApiError::missing(format!("the {what} {id:?} does not exist"))
}

fn full(message: String) -> ApiError {
    ApiError::new(axum::http::StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", Some("storage_full"), message)
}

/// Reports an I/O error without details to the client.
pub(crate) fn unwritten(error: impl Into<io::Error>) -> ApiError {
    tracing::error!("the folder of files and batches: {}", error.into());
    ApiError::internal("the server cannot use its folder of files")
}
