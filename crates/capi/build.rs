//! Names the shared library: programs ask for `libflambeau` with the version of its binary
//! interface.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Not the arguments of shared libraries only: Cargo hands those on to libraries that use this
    // crate.
    // As `ABI_VERSION` in `src/version.rs`. Tests link by this name with the version of the header.
    let version = 1;
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => {
            println!("cargo:rustc-link-arg=-Wl,-install_name,@rpath/libflambeau.{version}.dylib");
        }
        Ok("windows") => {}
        _ => {
            println!("cargo:rustc-link-arg=-Wl,-soname,libflambeau.so.{version}");
            // Some linked crates export C functions. The library must not re-export them.
            println!("cargo:rustc-link-arg=-Wl,--exclude-libs,ALL");
        }
    }
}
