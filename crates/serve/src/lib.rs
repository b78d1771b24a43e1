//! An HTTP server for language models, text encoders and speech models with OpenAI's protocol.
//!
//! [`Server`] binds an address and serves [models](AnyModel) on it. Each language model has a
//! thread for its [`Scheduler`](flambeau::runners::llm::Scheduler), each speech model has threads
//! for its [transcribers](flambeau::runners::speech::Transcriber). An asynchronous runtime handles
//! connections and requests.

#![forbid(unsafe_code)]

mod answer;
mod anthropic;
mod app;
mod audio;
mod batch;
mod config;
mod embeddings;
mod encoder;
mod error;
mod extras;
mod gaps;
mod hosted;
mod http;
mod ids;
mod infill;
mod json;
mod keys;
mod lora;
mod metrics;
mod model;
mod models;
mod offline;
mod ollama;
mod openai;
mod openapi;
mod page;
mod rates;
mod realtime;
mod reply;
mod rerank;
mod response_store;
mod responses;
mod routes;
mod server;
mod speech;
mod storage;
mod template;
mod time;
mod tools;
mod traces;
mod worker;

pub use config::Config;
pub use embeddings::EmbeddingList;
pub use encoder::NewEncoder;
pub use keys::Keys;
pub use model::NewModel;
pub use models::{AnyModel, Loader, ModelKind, ModelOnDemand, ModelSource};
pub use offline::{BatchFile, BatchFileError, Progress};
pub use rerank::{RerankList, entities_entry, label_entry};
pub use server::{Server, stop_signal};
pub use speech::NewSpeechModel;
pub use storage::BatchConfig;
pub use template::TemplateProbe;
