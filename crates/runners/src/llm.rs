//! Language models.

mod generate;
mod metadata;
mod model;

pub use generate::{Finish, Generation, Request, Stats, generate};
pub use metadata::Metadata;
pub use model::{LanguageModel, ModelOptions, STEPS_AHEAD};
