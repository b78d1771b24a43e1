//! Archives of `torch.export`: a whole archive, or one with the fuzzer's bytes as its program,
//! table of weights or table of constants.

#![no_main]

use flambeau_pt2::Archive;
use flambeau_tensor::Bytes;
use libfuzzer_sys::fuzz_target;

/// Members selected by the first byte. The other bytes are the member's contents.
const MEMBERS: [&str; 3] = [
    "archive/models/model.json",
    "archive/data/weights/model_weights_config.json",
    "archive/data/constants/model_constants_config.json",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, contents)) = bytes.split_first() else { return };
    let archive = match MEMBERS.get(usize::from(choice)) {
        Some(member) => flambeau_fuzz::archive_with(member, contents),
        None => Bytes::copy_from_slice(contents),
    };
    let Ok(archive) = Archive::open(archive) else { return };
    for name in archive.program_names() {
        let Ok(program) = archive.program(&name) else { continue };
        flambeau_fuzz::read_weights(&program);
        program.graph.nodes.iter().for_each(|node| drop(node.source()));
        let _ = program.to_string();
    }
});
