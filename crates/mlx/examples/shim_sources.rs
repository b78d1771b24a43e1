//! Writes the source of the C interface into a folder, for a look at it or for another compiler.
//!
//!     cargo run -p flambeau-mlx --example shim_sources -- FOLDER

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("name the folder to write into")?);
    fs::create_dir_all(&folder)?;
    for (name, text) in flambeau_mlx::shim_sources() {
        fs::write(folder.join(name), text)?;
    }
    println!("wrote {}; compile shim.cpp as C++20 beside MLX's headers", folder.display());
    Ok(())
}
