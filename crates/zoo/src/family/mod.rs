//! One file a family: what its config means.

mod llama;
mod phi3;
mod qwen2;
mod qwen3;

use crate::{Config, Family, Result, fields::Fields, keys::Keys};

/// The config of a Hugging Face checkpoint.
///
/// # Errors
/// [`crate::Error::Family`] for another family, [`crate::Error::Key`] for a key that does not fit.
pub(crate) fn config(f: &Fields) -> Result<Config> {
    let name = f.text("model_type")?.ok_or_else(|| f.error("model_type", "the name of a family"))?;
    match Family::from_name(name, &Family::ALL)? {
        Family::Llama => llama::config(f),
        Family::Qwen2 => qwen2::config(f),
        Family::Qwen3 => qwen3::config(f),
        Family::Phi3 => phi3::config(f),
    }
}
