//! Sets linker arguments. macOS must leave Python's symbols undefined. ExecuTorch's backend asks
//! for the module by its name.

use std::env;

/// The name that the linker records in libraries over this module.
const NAME: &str = "libflambeau_python";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    pyo3_build_config::add_extension_module_link_args();
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/{NAME}.dylib"),
        Ok("windows") => {}
        _ => println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{NAME}.so"),
    }
}
