//! Lets the module leave Python's functions open on macOS, where linkers want to be told.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
