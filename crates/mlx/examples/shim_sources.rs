//! Writes the source of the C interface into a folder, for a look at it or for another compiler.
//! The file `digest` there has the digest of the source.
//!
//!     cargo run -p flambeau-mlx --example shim_sources -- FOLDER

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(env::args_os().nth(1).ok_or("name the folder to write into")?);
    fs::create_dir_all(&folder)?;
    for (name, text) in flambeau_mlx::shim_sources() {
        fs::write(folder.join(name), text)?;
    }
    fs::write(folder.join("digest"), flambeau_mlx::shim_digest())?;
    println!("wrote {}; compile shim.cpp as C++20 beside MLX's headers", folder.display());
    Ok(())
}
