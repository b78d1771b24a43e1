//! `unsafe` occurs only in listed folders and files; all other code forbids it.

use flambeau_tidy::rust_sources;

/// Folders (with a final `/`) and files that may use `unsafe`.
const ROOMS: [&str; 5] =
    ["crates/capi/src/", "crates/kernels/", "crates/mlx/src/ffi/", "crates/python/src/dlpack.rs", "crates/runtime/src/map.rs"];

/// Crate roots that deny `unsafe` instead of forbidding it, because one of their modules allows it.
const DENYING: [&str; 3] = ["crates/mlx/src/lib.rs", "crates/python/src/lib.rs", "crates/runtime/src/lib.rs"];

fn is_room(path: &str) -> bool {
    ROOMS.iter().any(|room| if room.ends_with('/') { path.starts_with(room) } else { path == *room })
}

#[test]
fn unsafe_stands_in_its_rooms() {
    for file in rust_sources().iter().filter(|file| !is_room(&file.path)) {
        let found = file.tokens.iter().find(|token| token.text == "unsafe");
        assert!(found.is_none(), "{}:{}: `unsafe` outside of {ROOMS:?}", file.path, found.map_or(0, |token| token.line));
    }
}

#[test]
fn every_other_root_forbids_it() {
    for file in rust_sources().iter().filter(|file| is_root(&file.path) && !is_room(&file.path)) {
        let level = if DENYING.contains(&file.path.as_str()) { "deny" } else { "forbid" };
        assert!(file.text.contains(&format!("#![{level}(unsafe_code)]")), "{}: no #![{level}(unsafe_code)]", file.path);
    }
}

/// Whether a file is the root of a library or a command.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["crates", _, "src", "lib.rs" | "main.rs"] | ["crates", _, "src", "bin", _])
}
