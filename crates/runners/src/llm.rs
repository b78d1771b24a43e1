//! Language models.

mod adapters;
mod conversation;
mod disk;
mod draft;
mod draft_model;
mod evaluate;
mod generate;
mod generator;
mod lookup;
mod metadata;
mod model;
mod prefix;
mod sampling_inputs;
mod scheduler;
mod sequence;
mod session;
mod signature;
mod snapshot;
mod thinking;

pub use adapters::{AdapterFacts, Adapters};
pub use conversation::{Answer, Conversation, ConversationError};
pub use disk::{DiskCache, DiskWriter};
pub use evaluate::{Comparison, Evaluation, Mean, Windows, divergence, evaluate};
pub use generate::{FinishReason, Generation, Request, Stats, generate};
pub use generator::{GenerationStep, Generator, Logprobs};
pub use metadata::Metadata;
pub use model::{Model, ModelOptions};
pub use prefix::CachedTokens;
pub use scheduler::{Event, Job, JobId, Limits, Load, Scheduler};
pub use sequence::{PIPELINE_DEPTH, Sequence, TokenInput};
pub use session::Session;
pub use snapshot::Snapshot;
pub use thinking::{Part, ThinkingSplitter};
