//! Archives that contain the fuzzer's bytes, and readers of their weights.

use std::io::{Cursor, Write};

use flambeau_pt2::{Exported, Weight};
use flambeau_tensor::Bytes;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// A small archive of `torch.export`.
const ARCHIVE: &[u8] = include_bytes!("../../crates/testcases/cases/write.cache/model.pt2");

type Writer = ZipWriter<Cursor<Vec<u8>>>;

fn write(archive: &mut Writer, name: &str, contents: &[u8]) {
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    archive.start_file(name, stored).expect("a new member");
    archive.write_all(contents).expect("memory is written");
}

fn finish(archive: Writer) -> Vec<u8> {
    archive.finish().expect("the archive ends").into_inner()
}

/// A zip file with these members, not compressed.
pub fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Writer::new(Cursor::default());
    members.iter().for_each(|(name, contents)| write(&mut archive, name, contents));
    finish(archive)
}

/// An archive of `torch.export` in which the member `name` has these contents.
pub fn archive_with(name: &str, contents: &[u8]) -> Bytes {
    let mut original = ZipArchive::new(Cursor::new(ARCHIVE)).expect("the archive is whole");
    let mut archive = Writer::new(Cursor::default());
    for i in 0..original.len() {
        let member = original.by_index_raw(i).expect("a member");
        if member.name().is_ok_and(|found| found != name) {
            archive.raw_copy_file(member).expect("the member is copied");
        }
    }
    write(&mut archive, name, contents);
    finish(archive).into()
}

/// Reads every tensor of a program.
pub fn read_weights(program: &Exported) {
    for weight in program.weights.values().chain(program.constants.values()) {
        match weight {
            Weight::Subclass(subclass) => subclass.tensors.values().for_each(|view| drop(view.tensor())),
            other => drop(other.tensor()),
        }
    }
}
