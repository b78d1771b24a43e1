//! Language models.

mod conversation;
mod draft;
mod draw;
mod evaluate;
mod generate;
mod metadata;
mod model;
mod prefix;
mod session;
mod thinking;

pub use conversation::{Answer, Conversation, ConversationError};
pub use evaluate::{Comparison, Evaluation, Mean, Windows, evaluate};
pub use generate::{FinishReason, Generation, Request, Stats, generate};
pub use metadata::Metadata;
pub use model::{LanguageModel, ModelOptions, PIPELINE_DEPTH};
pub use prefix::{CachedTokens, Refill};
pub use session::Session;
pub use thinking::{Part, ThinkingSplitter};
