//! Prompt cache on disk: snapshots of texts in a folder, for later processes to continue.

mod file;
mod index;

use std::{
    fmt,
    fs::{self, DirBuilder, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use flambeau_runtime::map_file;
use flambeau_tensor::{Bytes, Tensor};

use self::{
    file::{Encoded, FileError, Fingerprint, read_any, read_ids, read_snapshot},
    index::{Contents, Index, Name},
};
use super::{
    adapters::{Adapters, Text},
    model::Model,
    snapshot::Snapshot,
};

/// Lock file, held by the process that uses the folder.
const LOCK: &str = ".lock";

/// Prefix of unfinished files' names.
const UNFINISHED: &str = ".unfinished-";

/// Maximum number of snapshots waiting to be written. They take memory, and a longer queue does not
/// help a slow disk.
const QUEUE: usize = 4;

/// A folder of texts with snapshots of a model's caches. [Schedulers](super::Scheduler::with_disk)
/// continue these texts and write new ones.
///
/// One process at a time uses a folder. All models' files share one size limit; the least recently
/// used file is evicted first. The files hold the texts unencrypted. On Unix, only their owner can
/// read them. Damaged files and files of another version stay until they are evicted. A clone
/// refers to the same folder.
#[derive(Clone)]
pub struct DiskCache {
    folder: Arc<Folder>,
    jobs: SyncSender<Job>,
}

struct Folder {
    path: PathBuf,
    /// Maximum total size of the files in bytes.
    limit: u64,
    index: Mutex<Index>,
    warn: Box<dyn Fn(&str) + Send + Sync>,
    _lock: File,
}

/// A snapshot to be written.
struct Job {
    model: Fingerprint,
    can_truncate: bool,
    ids: Vec<u32>,
    snapshot: Snapshot,
}

/// The thread that writes the files of a [`DiskCache`].
#[derive(Debug)]
pub struct DiskWriter(JoinHandle<()>);

impl DiskWriter {
    /// Waits until all clones of the [`DiskCache`], including those in schedulers, are dropped and
    /// their snapshots are written.
    pub fn join(self) {
        // If the thread panicked, it wrote what it could.
        let _ = self.0.join();
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache").field("path", &self.folder.path).field("limit", &self.folder.limit).finish_non_exhaustive()
    }
}

impl DiskCache {
    /// Opens a folder, or creates it, for files of at most `limit` bytes in total. Calls `warn` for
    /// files that cannot be used or written.
    ///
    /// # Errors
    /// Fails if the folder cannot be used, if another process uses it, or if no thread can be
    /// started.
    pub fn open(
        path: impl Into<PathBuf>,
        limit: u64,
        warn: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<(DiskCache, DiskWriter)> {
        let path = path.into();
        make_private(&path)?;
        let lock = File::create(path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "another process uses the folder"),
            TryLockError::Error(error) => error,
        })?;
        let mut index = Index::default();
        for entry in fs::read_dir(&path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            } else if let Some(name) = Name::parse(name) {
                index.put(name, entry.metadata()?.len(), Contents::Unread);
            }
        }
        let folder = Arc::new(Folder { path, limit, index: Mutex::new(index), warn: Box::new(warn), _lock: lock });
        folder.remove(folder.index().make_room(limit, 0));
        let (jobs, taken) = sync_channel(QUEUE);
        let own = Arc::clone(&folder);
        let writer = thread::Builder::new().name("disk cache".into()).spawn(move || own.write_all(&taken))?;
        Ok((DiskCache { folder, jobs }, DiskWriter(writer)))
    }

    /// Tokens and tensors in the bytes of a file, of whatever model. The fuzz target `disk_cache`
    /// reads files with it.
    ///
    /// # Errors
    /// Fails if the file is damaged.
    #[doc(hidden)]
    pub fn read_file(file: &Bytes) -> Result<(usize, Vec<Tensor>), String> {
        read_any(file).map(|snapshot| (snapshot.position, snapshot.state)).map_err(|error| error.to_string())
    }

    /// The cached texts of a model.
    pub(super) fn of(&self, model: &Model) -> DiskTexts {
        let texts = DiskTexts { cache: self.clone(), model: model.fingerprint(), can_truncate: model.can_truncate() };
        texts.read(&texts.model);
        texts
    }
}

/// The cached texts of a model in a [`DiskCache`].
pub(super) struct DiskTexts {
    cache: DiskCache,
    /// The model without adapters.
    model: Fingerprint,
    can_truncate: bool,
}

impl DiskTexts {
    /// The model with these adapters, after the tokens of its new files are read.
    fn model(&self, adapters: &Adapters) -> Fingerprint {
        let model = adapters.fingerprint(self.model);
        self.read(&model);
        model
    }

    /// Reads the tokens of a model's files that are not indexed yet.
    fn read(&self, model: &Fingerprint) {
        let folder = &self.cache.folder;
        let mut index = folder.index();
        for entry in index.unread(Name::model(model)) {
            let path = folder.path.join(entry.name.to_string());
            let ids = map_file(&path).map_err(FileError::from).and_then(|file| read_ids(&file, model));
            entry.contents = match ids {
                Ok(ids) => Contents::Text(ids),
                Err(error) => folder.unusable(&path, &error),
            };
        }
    }

    /// Length of the longest cached prefix of a prompt, in tokens.
    pub(super) fn reach(&self, prompt: Text<'_>) -> usize {
        let model = self.model(prompt.adapters);
        self.cache.folder.index().best(Name::model(&model), prompt.ids, self.can_truncate).map_or(0, |(_, reach)| reach)
    }

    /// Whether a cached text covers all of these tokens.
    pub(super) fn holds(&self, text: Text<'_>) -> bool {
        let model = self.model(text.adapters);
        self.cache.folder.index().holds(Name::model(&model), text.ids, self.can_truncate)
    }

    /// The snapshot with the longest prefix of a prompt, and this prefix's length in tokens.
    pub(super) fn best(&self, prompt: Text<'_>) -> Option<(Snapshot, usize)> {
        let (folder, model) = (&self.cache.folder, self.model(prompt.adapters));
        let (name, reach) = folder.index().best(Name::model(&model), prompt.ids, self.can_truncate)?;
        let path = folder.path.join(name.to_string());
        let snapshot = map_file(&path).map_err(FileError::from).and_then(|file| read_snapshot(&file, (&model, prompt.adapters)));
        let mut index = folder.index();
        // The file may have been evicted meanwhile.
        let entry = index.find(name)?;
        match snapshot {
            Ok(snapshot) => {
                let used = index.used(name);
                // If the rename fails, the file only appears less recently used.
                let _ = fs::rename(path, folder.path.join(used.to_string()));
                Some((snapshot, reach))
            }
            Err(error) => {
                entry.contents = folder.unusable(&path, &error);
                None
            }
        }
    }

    /// Queues a snapshot of these tokens for writing; drops it if the queue is full.
    pub(super) fn offer(&self, ids: &[u32], snapshot: &Snapshot) {
        let _ = self.cache.jobs.try_send(self.job(ids, snapshot));
    }

    /// Queues a snapshot of these tokens for writing; waits if the queue is full.
    pub(super) fn put(&self, ids: &[u32], snapshot: &Snapshot) {
        let _ = self.cache.jobs.send(self.job(ids, snapshot));
    }

    fn job(&self, ids: &[u32], snapshot: &Snapshot) -> Job {
        let model = snapshot.adapters.fingerprint(self.model);
        Job { model, can_truncate: self.can_truncate, ids: ids.to_vec(), snapshot: snapshot.clone() }
    }
}

impl Folder {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, names: Vec<Name>) {
        for name in names {
            // A file that another process removed counts as removed.
            let _ = fs::remove_file(self.path.join(name.to_string()));
        }
    }

    fn unusable(&self, path: &Path, error: &FileError) -> Contents {
        (self.warn)(&format!("{} is ignored: {error}", path.display()));
        Contents::Unusable
    }

    fn write_all(&self, jobs: &Receiver<Job>) {
        for job in jobs {
            if let Err(error) = self.write(&job) {
                (self.warn)(&format!("a text cannot be kept in {}: {error}", self.path.display()));
            }
        }
    }

    fn write(&self, Job { model, can_truncate, ids, snapshot }: &Job) -> io::Result<()> {
        let file = Encoded::new(model, ids, snapshot);
        let (of, size) = (Name::model(model), file.size());
        let gone = {
            let mut index = self.index();
            if size > self.limit || index.holds(of, ids, *can_truncate) {
                return Ok(());
            }
            let mut gone = index.drop_covered(of, ids, *can_truncate);
            gone.extend(index.make_room(self.limit, size));
            gone
        };
        self.remove(gone);
        // Files are not synced to disk; checksums detect what a power failure left incomplete.
        let mut unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.path)?;
        file.write(&mut io::BufWriter::new(&mut unfinished))?;
        let name = self.index().next(of);
        unfinished.persist(self.path.join(name.to_string()))?;
        self.index().put(name, size, Contents::Text(ids.clone()));
        Ok(())
    }
}

/// Creates a folder, readable by its owner only, unless it exists.
fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

#[cfg(test)]
mod tests;
