//! Language models.

mod generate;
mod metadata;
mod model;

pub use generate::{FinishReason, Generation, Request, Stats, generate};
pub use metadata::Metadata;
pub use model::{LanguageModel, ModelOptions, PIPELINE_DEPTH};
