//! Sets linker arguments for macOS, where the module must leave Python's symbols undefined.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
