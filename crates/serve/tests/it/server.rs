//! Servers in this process, on real models.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    thread::JoinHandle,
    time::Duration,
};

use flambeau::{
    compile,
    engine::Engine,
    runners::llm::{Limits, Model, ModelOptions},
    runtime::{Program, map_file},
    text::{ChatTemplate, SamplingParams, Tokenizer, TokenizerFiles},
    zoo::{self, Checkpoint},
};
use flambeau_serve::{BatchConfig, Config, ModelSource, NewModel, NewSpeechModel, Server};
use flambeau_testcases::low_rank_adapter;
use tokio::sync::oneshot;

use crate::client::get;

/// A server that stops when it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn new(models: Vec<NewModel>, config: Config) -> Running {
        Running::of(models.into_iter().map(ModelSource::from).collect(), config)
    }

    /// A server of models of language and speech.
    pub(crate) fn with(models: Vec<NewModel>, speech: Vec<NewSpeechModel>, config: Config) -> Running {
        Running::of(models.into_iter().map(ModelSource::from).chain(speech.into_iter().map(ModelSource::from)).collect(), config)
    }

    /// A server of models of any kind.
    pub(crate) fn of(models: Vec<ModelSource>, config: Config) -> Running {
        Running::start(Server::bind("127.0.0.1:0".parse().unwrap(), config).unwrap(), models)
    }

    /// A server that keeps texts in a folder.
    pub(crate) fn keeping(folder: &Path, models: Vec<ModelSource>, config: Config) -> Running {
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), config).unwrap();
        Running::start(server.with_prompt_cache(folder, 1 << 30).unwrap(), models)
    }

    /// A server of files and batches in a folder.
    pub(crate) fn batching(batches: BatchConfig, models: Vec<ModelSource>, config: Config) -> Running {
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), config).unwrap();
        Running::start(server.with_batches(batches).unwrap(), models)
    }

    /// A server that sends traces to a collector.
    pub(crate) fn traced(collector: &str, models: Vec<ModelSource>, config: Config) -> Running {
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), config).unwrap();
        assert!(Server::bind("127.0.0.1:0".parse().unwrap(), Config::default()).unwrap().with_traces("nowhere").is_err());
        Running::start(server.with_traces(collector).unwrap(), models)
    }

    fn start(server: Server, models: Vec<ModelSource>) -> Running {
        let address = server.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            let stopped = async {
                let _ = stopped.await;
            };
            server.run(models, stopped).unwrap();
        };
        Running { address, stop: Some(stop), thread: Some(std::thread::spawn(run)) }
    }

    /// Asks it to stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take();
    }

    /// Waits until it has stopped.
    pub(crate) fn wait(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends in peace");
        }
    }

    /// A counter of the first model.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.sample(&format!("flambeau_{name}{{"), "")
    }

    /// A metric of the first model under vLLM's name, with all labels after the model's.
    pub(crate) fn vllm_metric(&self, name: &str, labels: &str) -> u64 {
        self.sample(&format!("vllm:{name}{{"), &format!("{labels}}} "))
    }

    /// A counter of a model.
    pub(crate) fn metric_of(&self, model: &str, name: &str) -> u64 {
        self.sample(&format!("flambeau_{name}{{model=\"{model}\"}}"), "")
    }

    /// The first sample whose line starts with a name and holds `labels`.
    fn sample(&self, name: &str, labels: &str) -> u64 {
        let text = get(self.address, "/metrics").body;
        let line = text.lines().find(|line| line.starts_with(name) && line.contains(labels));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Waits until a counter of the first model has a value.
    pub(crate) fn await_metric(&self, name: &str, value: u64) {
        await_value(name, value, || self.metric(name));
    }

    /// Waits until a counter of a model has a value.
    pub(crate) fn await_metric_of(&self, model: &str, name: &str, value: u64) {
        await_value(name, value, || self.metric_of(model, name));
    }
}

fn await_value(name: &str, value: u64, read: impl Fn() -> u64) {
    for _ in 0..PATIENCE {
        if read() == value {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{name} is {} and never {value}", read());
}

impl Drop for Running {
    fn drop(&mut self) {
        self.wait();
    }
}

/// How often a counter is looked at before it is given up.
const PATIENCE: usize = 10_000;

pub(crate) fn config() -> Config {
    Config { metrics: true, grace: Duration::from_secs(20), ..Config::default() }
}

pub(crate) const LIMITS: Limits = Limits { running: 3, sequences: 4, waiting: 32, tokens: 100_000, kept_bytes: 64 << 20 };

pub(crate) fn cpu() -> Arc<dyn Engine> {
    flambeau::engines(Some(1), false).get("cpu").unwrap()
}

fn tiny_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../flambeau/examples/data/tiny-llama")
}

/// A Llama of one layer with random weights.
static TINY: LazyLock<Program> = LazyLock::new(|| {
    let model = built(&tiny_checkpoint());
    let mut file = Vec::new();
    compile::compile(&model.programs(), &compile::Options::default(), &*cpu()).unwrap().write(&mut file).unwrap();
    Program::from_bytes(file).unwrap()
});

fn tiny_checkpoint() -> Checkpoint {
    let read = |name: &str| (name.to_owned(), map_file(tiny_folder().join(name)).unwrap());
    Checkpoint::from_folder(["config.json", "model.safetensors", "tokenizer.json"].map(read).to_vec()).unwrap()
}

fn built(checkpoint: &Checkpoint) -> zoo::Model {
    zoo::build(checkpoint, &zoo::Options { max_seq_len: Some(512), ..zoo::Options::default() }).unwrap()
}

/// The Llama with these adapters at run time, each with a seed and a default scale.
pub(crate) fn adapted(adapters: &[(&str, u64, f32)]) -> NewModel {
    let mut checkpoint = tiny_checkpoint();
    for &(name, seed, scale) in adapters {
        let modules = [("model.layers.0.self_attn.q_proj", [32, 32]), ("model.layers.0.mlp.down_proj", [32, 64])];
        let files = low_rank_adapter(&modules, seed).into_iter().map(|(name, bytes)| (name, bytes.into())).collect();
        checkpoint.attach(name, &zoo::Adapter::from_folder(files).unwrap(), scale).unwrap();
    }
    let mut file = Vec::new();
    zoo::compile(&built(&checkpoint), compile::Options::default(), &*cpu()).unwrap().write(&mut file).unwrap();
    of_tiny(&Program::from_bytes(file).unwrap())
}

/// The words that the Llama knows, besides special tokens.
pub(crate) const WORDS: [&str; 13] = ["user", "assistant", ":", "the", "cat", "sat", "on", "mat", "where", "is", "?", "a", "dog"];

pub(crate) fn tiny() -> NewModel {
    of_tiny(&TINY)
}

fn of_tiny(program: &Program) -> NewModel {
    let read = |name: &str| std::fs::read(tiny_folder().join(name)).unwrap();
    let (tokenizer, settings) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let files = TokenizerFiles { tokenizer: &tokenizer, tokenizer_config: Some(&settings), ..TokenizerFiles::default() };
    let tokenizer = Tokenizer::from_files(&files).unwrap();
    let template = ChatTemplate::from_files(&files, tokenizer.special(), None).unwrap();
    // Prompts are cut into several chunks.
    let options = ModelOptions { chunk: Some(8), ..ModelOptions::default() };
    let model = Model::load(program, &cpu(), &options).unwrap();
    new_model("tiny", model, tokenizer, template)
}

/// A model that answers with these pieces of text.
pub(crate) fn script(pieces: &[&str], template: &str) -> NewModel {
    scripted(flambeau_testcases::script(pieces, 4096, true), template, &cpu())
}

/// A model that answers with these pieces, some of which are control tokens.
pub(crate) fn script_with_control(pieces: &[&str], control: &[&str], template: &str) -> NewModel {
    let (program, tokenizer) = flambeau_testcases::script(pieces, 4096, true);
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
    for word in control {
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["content"], token["id"]) = ((*word).into(), tokenizer["model"]["vocab"][*word].clone());
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
    scripted((program, tokenizer.to_string().into_bytes()), template, &cpu())
}

/// A model that never ends.
pub(crate) fn endless(pieces: &[&str], engine: &Arc<dyn Engine>) -> NewModel {
    let mut model = scripted(flambeau_testcases::script(pieces, 1 << 20, false), PLAIN, engine);
    model.limits.tokens = usize::MAX;
    model
}

pub(crate) fn scripted((program, tokenizer): (Vec<u8>, Vec<u8>), template: &str, engine: &Arc<dyn Engine>) -> NewModel {
    let tokenizer = Tokenizer::from_json(&tokenizer).unwrap();
    let template = ChatTemplate::new(template, tokenizer.special()).unwrap();
    let model = Model::load(&Program::from_bytes(program).unwrap(), engine, &ModelOptions::default()).unwrap();
    new_model("script", model, tokenizer, Some(template))
}

/// A template that knows messages alone.
pub(crate) const PLAIN: &str = "{% for m in messages %}{{ m.content }} {% endfor %}";

fn new_model(name: &str, model: Model, tokenizer: Tokenizer, template: Option<ChatTemplate>) -> NewModel {
    NewModel {
        name: name.into(),
        aliases: Vec::new(),
        model,
        tokenizer,
        template: Ok(template),
        sampling: SamplingParams::default(),
        limits: LIMITS,
        thinks: false,
        prompt_lookup: false,
        shift: None,
    }
}
