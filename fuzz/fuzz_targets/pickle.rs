//! Pickled weights: the fuzzer's bytes are the program of pickle's stack machine.

#![no_main]

use flambeau_pt2::Archive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let weights = flambeau_fuzz::zip(&[("weights/data.pkl", bytes), ("weights/data/0", &[0; 64]), ("weights/version", b"3\n")]);
    let archive = flambeau_fuzz::archive_with("archive/data/weights/model.pt", &weights);
    let archive = Archive::open(archive).expect("the archive is whole");
    if let Ok(program) = archive.only_program() {
        flambeau_fuzz::read_weights(&program);
    }
});
