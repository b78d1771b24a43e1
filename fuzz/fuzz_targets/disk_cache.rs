//! Files of the prompt cache on disk: as they are, and with the checksum that their head needs.

#![no_main]

use flambeau_runners::llm::DiskCache;
use flambeau_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

// Ends of the magic number, of the length of the head, and of all fields before the head.
const MAGIC: usize = 8;
const LENGTH: usize = 16;
const START: usize = 24;

fuzz_target!(|bytes: &[u8]| {
    let read = |file: &[u8]| {
        if let Ok((_, state)) = DiskCache::read_file(&Bytes::copy_from_slice(file)) {
            assert!(state.iter().map(|tensor| tensor.bytes().len()).sum::<usize>() <= file.len());
        }
    };
    read(bytes);
    let length = bytes.get(MAGIC..LENGTH).and_then(|field| field.first_chunk()).map(|field| u64::from_le_bytes(*field));
    let end = length.and_then(|length| START.checked_add(usize::try_from(length).ok()?));
    if let Some(head) = end.and_then(|end| bytes.get(START..end)) {
        let mut file = bytes.to_vec();
        file[LENGTH..LENGTH + 4].copy_from_slice(&crc32fast::hash(head).to_le_bytes());
        read(&file);
    }
});
