//! Reads ahead in a thread, so that the writer of a pipe does not block.

use std::{
    io::{self, Cursor, ErrorKind, Read},
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

/// Maximum block size in bytes and maximum number of unread blocks: 16 MiB, or 43 seconds of stereo
/// at 48 kHz in `f32`.
const BLOCK: usize = 16 << 10;
const WAITING: usize = 1024;

/// Bytes of another reader, read ahead by a thread.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    // An uncontended lock: decoders need a reader that threads could share.
    blocks: Mutex<Receiver<io::Result<Vec<u8>>>>,
    block: Cursor<Vec<u8>>,
}

impl ReadAhead {
    /// Starts the thread. It ends with its source, or when the receiver is dropped.
    ///
    /// # Errors
    /// Fails if the thread cannot start.
    pub(crate) fn new(source: impl Read + Send + 'static) -> io::Result<ReadAhead> {
        let (sender, blocks) = sync_channel(WAITING);
        thread::Builder::new().name("read-ahead".into()).spawn(move || send_blocks(source, &sender))?;
        Ok(ReadAhead::of(blocks))
    }

    /// Reader over the received blocks.
    pub(crate) fn of(blocks: Receiver<io::Result<Vec<u8>>>) -> ReadAhead {
        ReadAhead { blocks: Mutex::new(blocks), block: Cursor::default() }
    }
}

fn send_blocks(mut source: impl Read, to: &SyncSender<io::Result<Vec<u8>>>) {
    let mut bytes = vec![0; BLOCK];
    loop {
        let block = match source.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => Ok(bytes[..count].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = block.is_err();
        if to.send(block).is_err() || is_last {
            return;
        }
    }
}

impl Read for ReadAhead {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.block.position() == self.block.get_ref().len() as u64 {
            let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.block = Cursor::new(blocks.recv().unwrap_or_else(|_| Ok(Vec::new()))?);
        }
        self.block.read(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a byte a call, then fails, and says so when it goes.
    struct Failing {
        left: u32,
        gone: SyncSender<()>,
    }

    impl Read for Failing {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            if self.left == 0 {
                return Err(io::Error::other("unplugged"));
            }
            self.left -= 1;
            to[0] = self.left as u8;
            Ok(1)
        }
    }

    impl Drop for Failing {
        fn drop(&mut self) {
            let _ = self.gone.send(());
        }
    }

    #[test]
    fn a_source_is_read_to_its_end_before_anybody_asks() {
        let (gone, is_gone) = sync_channel(1);
        let mut reader = ReadAhead::new(Failing { left: 100, gone }).unwrap();
        is_gone.recv().unwrap();
        let mut bytes = Vec::new();
        let error = reader.read_to_end(&mut bytes).unwrap_err();
        assert_eq!((bytes, error.to_string()), ((0..100).rev().collect(), "unplugged".into()));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nothing follows an error");
    }

    #[test]
    fn blocks_are_read_in_their_order_and_the_thread_ends_with_the_reader() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 5).map(|i| (i * 7 % 251) as u8).collect();
        let mut read = Vec::new();
        ReadAhead::new(Cursor::new(bytes.clone())).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        let (gone, is_gone) = sync_channel(1);
        drop(ReadAhead::new(Failing { left: u32::MAX, gone }).unwrap());
        is_gone.recv().unwrap();
    }
}
