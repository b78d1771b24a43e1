//! The bytes of a large file by several connections at once.
//!
//! Each connection fetches a piece into memory, and pieces are appended in their order. So a broken
//! download leaves a beginning of the file, as one connection does.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    ops::Range,
    path::Path,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, Error, Result, anyhow};

use super::{
    api::{Part, Remote},
    transfer::{Ended, Patience, Transfer},
};

/// Bytes of a piece.
const PIECE: u64 = 32 << 20;

/// How far a file is.
struct Progress {
    file: File,
    /// First byte of the next piece to fetch.
    next: u64,
    /// First byte that is not in the file.
    written: u64,
    /// Whether the hub gave the whole file in the place of a piece.
    is_whole: bool,
    failure: Option<Error>,
}

impl Progress {
    fn has_ended(&self) -> bool {
        self.is_whole || self.failure.is_some()
    }
}

/// Why a piece did not come.
enum Missing {
    /// The hub gives only whole files.
    Whole,
    Failed(Error),
}

impl Transfer<'_> {
    /// Appends the bytes `rest` of a file to `part`. Gives false if the hub gives only whole files.
    ///
    /// # Errors
    /// As for [`Transfer::run`].
    pub(super) fn complete_by_pieces(&self, remote: &Remote, part: &Path, rest: Range<u64>) -> Result<bool> {
        let place = || format!("cannot write {}", part.display());
        let file = OpenOptions::new().create(true).append(true).open(part).with_context(place)?;
        file.set_len(rest.start).with_context(place)?;
        let start = Progress { file, next: rest.start, written: rest.start, is_whole: false, failure: None };
        let (progress, turn, ended) = (Mutex::new(start), Condvar::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..self.connections {
                scope.spawn(|| self.fetch(remote, rest.end, (&progress, &turn, &ended)));
            }
        });
        let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        progress.file.sync_all().with_context(place)?;
        match progress.failure {
            Some(failure) => Err(failure),
            None => Ok(!progress.is_whole),
        }
    }

    /// Fetches piece after piece until none is left. Sets `ended` when no connection needs to
    /// continue.
    fn fetch(&self, remote: &Remote, end: u64, (progress, turn, ended): (&Mutex<Progress>, &Condvar, &AtomicBool)) {
        let lock = || progress.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let piece = {
                let mut progress = lock();
                let start = progress.next;
                if start >= end || progress.has_ended() {
                    return;
                }
                progress.next = end.min(start + PIECE);
                start..progress.next
            };
            let mut bytes = Vec::with_capacity((piece.end - piece.start) as usize);
            let fetched = self.piece(remote, &piece, &mut bytes, ended);
            let mut progress: MutexGuard<'_, Progress> = lock();
            match fetched {
                Ok(()) => {
                    while progress.written < piece.start && !progress.has_ended() {
                        progress = turn.wait(progress).unwrap_or_else(PoisonError::into_inner);
                    }
                    if progress.has_ended() {
                        return;
                    }
                    match progress.file.write_all(&bytes) {
                        Ok(()) => progress.written = piece.end,
                        Err(error) => progress.failure = Some(Error::from(error).context("cannot write the file")),
                    }
                }
                Err(Missing::Whole) => progress.is_whole = true,
                // Only the first failure: it ends the others.
                Err(Missing::Failed(error)) if !progress.has_ended() => {
                    // The next run continues behind these bytes.
                    let kept = if progress.written == piece.start { progress.file.write_all(&bytes) } else { Ok(()) };
                    progress.failure =
                        Some(kept.err().map_or(error, |failed| Error::from(failed).context("cannot write the file")));
                }
                Err(Missing::Failed(_)) => {}
            }
            ended.fetch_or(progress.has_ended(), Ordering::Relaxed);
            turn.notify_all();
        }
    }

    /// Completes the bytes of a piece. The next try keeps those that arrived before a failure.
    fn piece(&self, remote: &Remote, piece: &Range<u64>, bytes: &mut Vec<u8>, ended: &AtomicBool) -> Result<(), Missing> {
        let mut patience = Patience::default();
        loop {
            let have = bytes.len();
            let early = match self.read_piece(remote, piece, bytes, ended) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Missing::Whole),
                Err(early) => early,
            };
            if self.is_stopped(ended) {
                return Err(Missing::Failed(anyhow!("{}: stopped", remote.name)));
            }
            patience.wait(early, remote, bytes.len() > have).map_err(Missing::Failed)?;
        }
    }

    /// Whether the connections must end, for this file or for all files.
    fn is_stopped(&self, ended: &AtomicBool) -> bool {
        self.stop.load(Ordering::Relaxed) || ended.load(Ordering::Relaxed)
    }

    /// Reads the rest of a piece. Gives false if the hub gives the whole file.
    fn read_piece(&self, remote: &Remote, piece: &Range<u64>, bytes: &mut Vec<u8>, ended: &AtomicBool) -> Result<bool, Ended> {
        let part = Part { from: piece.start + bytes.len() as u64, end: Some(piece.end) };
        let mut response = self.answer(remote, part)?;
        match response.status().as_u16() {
            206 => {}
            200 => return Ok(false),
            _ => return Err(Ended::Early(anyhow!("the hub has no such range"), None)),
        }
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader().take(piece.end - part.from);
        let mut buffer = vec![0; 1 << 18];
        while !self.is_stopped(ended) {
            let n = reader.read(&mut buffer).map_err(|error| Ended::Early(error.into(), None))?;
            if n == 0 {
                break;
            }
            bytes.extend_from_slice(&buffer[..n]);
            self.bar.inc(n as u64);
        }
        let (found, size) = (bytes.len() as u64, piece.end - piece.start);
        if found < size {
            return Err(Ended::Early(anyhow!("{found} of {size} bytes of a piece arrived"), None));
        }
        Ok(true)
    }
}
