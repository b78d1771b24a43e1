//! Language models: prompts in, pieces of text out.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use flambeau::{
    runners::llm::{Adapters, FinishReason, Generation, Generator, Model, Request, Session, Windows, evaluate},
    text::{ChatInput, ChatTemplate, Clock, Constraint, GrammarCompiler, SamplingParams, Tokenizer},
};
use flambeau_cli::library;
use pyo3::{prelude::*, types::PyDict};
use serde_json::{Map, Value as Json};

use crate::{
    engines::{self, Home},
    errors::{self, ExecutionError, InputError},
};

/// A language model with its tokenizer. Each running answer has its own sequence, so threads do not
/// wait for each other's answers.
#[pyclass(frozen, module = "flambeau._native")]
pub(crate) struct LanguageModel {
    model: Model,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Unused sequences with the cached text of earlier prompts, most recently used last.
    idle: Mutex<Vec<Session>>,
    home: Home,
}

/// A caller's generation options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Wish {
    max_new_tokens: usize,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    seed: Option<u64>,
    stop: Vec<String>,
    ignore_eos: bool,
    schema: Option<String>,
    /// Names and scales; all at their default scales without it.
    adapters: Option<Vec<(String, f32)>>,
}

#[pymethods]
impl LanguageModel {
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>, engine: Vec<String>) -> PyResult<LanguageModel> {
        let engine = engines::engine(py, &engine)?;
        let loaded = py.detach(|| library::language_model(&flags, &engine)).map_err(|error| errors::load(&error))?;
        let library::LanguageModel { model, tokenizer, template } = loaded;
        Ok(LanguageModel { model, tokenizer, template, idle: Mutex::default(), home: Home::here() })
    }

    /// Maximum number of tokens of prompt and answer together, if the program states it.
    #[getter]
    fn context(&self) -> Option<usize> {
        self.model.metadata().context
    }

    /// Names and default scales of the adapters.
    fn adapters(&self) -> Vec<(String, f32)> {
        self.model.metadata().adapters.iter().map(|adapter| (adapter.name.clone(), adapter.scale)).collect()
    }

    /// Whether the model has a chat template.
    #[getter]
    fn has_template(&self) -> bool {
        self.template.is_some()
    }

    fn encode(&self, text: &str, special: bool) -> PyResult<Vec<u32>> {
        self.tokenizer.encode(text, special).map_err(input)
    }

    fn decode(&self, ids: Vec<u32>, skip_special: bool) -> PyResult<String> {
        self.tokenizer.decode(&ids, skip_special).map_err(input)
    }

    /// Renders a conversation as a prompt: messages, tool descriptions and further template
    /// variables, each as JSON.
    fn render(&self, messages: &str, tools: Option<&str>, variables: &str) -> PyResult<String> {
        let template = self.template.as_ref();
        let template =
            template.ok_or_else(|| InputError::new_err("the model has no chat template; use generate() with the whole prompt"))?;
        let chat = ChatInput {
            messages: json(messages)?,
            tools: tools.map(json).transpose()?,
            extra: json::<Map<String, Json>>(variables)?,
            add_generation_prompt: true,
            now: Some(Clock::now()),
            ..ChatInput::default()
        };
        template.render(&chat).map_err(input)
    }

    /// Starts an answer to a tokenized prompt.
    fn begin(slf: &Bound<'_, Self>, prompt: Vec<u32>, wish: Wish) -> PyResult<Answer> {
        let model = slf.get();
        model.home.check("the model")?;
        let request = model.request(prompt, wish)?;
        let start = Instant::now();
        let began = slf.py().detach(|| -> Result<_, flambeau::runners::Error> {
            let idle = model.idle().pop();
            let mut session = idle.map_or_else(|| model.model.sequence().map(Session::new), Ok)?;
            match session.begin(&model.tokenizer, request, &|| start.elapsed()) {
                Ok(generator) => Ok((session, generator)),
                Err(error) => {
                    model.idle().push(session);
                    Err(error)
                }
            }
        });
        let (session, generator) = began.map_err(input)?;
        let running = Running { session, generator, start };
        Ok(Answer { model: slf.clone().unbind(), running: Mutex::new(Some(running)), generation: Mutex::new(None) })
    }

    /// Evaluates the model on a text: perplexity, its standard error, and the numbers of
    /// predictions and windows.
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        window: usize,
        windows: Option<usize>,
        adapters: Option<Vec<(String, f32)>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.home.check("the model")?;
        let adapters = self.adapter_scales(adapters)?;
        let ids = self.tokenizer.encode(text, true).map_err(input)?;
        let bos = self.tokenizer.bos_id().filter(|bos| ids.first() == Some(bos));
        let most = windows.map_or(ids.len(), |windows| ids.len().min(windows.saturating_mul(window)));
        let parts = Windows::new(&ids[..most], window, bos).map_err(input)?;
        let (cancelled, mut interrupted) = (AtomicBool::new(false), None);
        let evaluation = py.detach(|| {
            let mut sequence = self.model.sequence()?;
            sequence.set_adapters(&adapters)?;
            evaluate(&mut sequence, None, &parts, &cancelled, &mut |_, _| {
                if let Err(error) = Python::attach(|py| py.check_signals()) {
                    cancelled.store(true, Ordering::Relaxed);
                    interrupted = Some(error);
                }
            })
        });
        if let Some(error) = interrupted {
            return Err(error);
        }
        let evaluation = evaluation.map_err(|error| ExecutionError::new_err(error.to_string()))?;
        let figures = PyDict::new(py);
        figures.set_item("perplexity", evaluation.perplexity())?;
        figures.set_item("perplexity_standard_error", evaluation.perplexity() * evaluation.loss.error())?;
        figures.set_item("predictions", evaluation.loss.count())?;
        figures.set_item("windows", parts.count())?;
        Ok(figures)
    }
}

fn input(error: impl std::fmt::Display) -> PyErr {
    InputError::new_err(error.to_string())
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(input)
}

impl LanguageModel {
    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, prompt: Vec<u32>, wish: Wish) -> PyResult<Request> {
        let nanoseconds = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as u64);
        let sampling = SamplingParams {
            temperature: wish.temperature,
            top_k: wish.top_k,
            top_p: wish.top_p,
            min_p: wish.min_p,
            repetition_penalty: wish.repetition_penalty,
            seed: wish.seed.unwrap_or_else(nanoseconds),
            ..SamplingParams::default()
        };
        sampling.validate().map_err(input)?;
        Ok(Request {
            prompt,
            adapters: self.adapter_scales(wish.adapters)?,
            max_new_tokens: wish.max_new_tokens,
            sampling,
            stop: wish.stop,
            stop_ids: self.model.metadata().eos.clone(),
            ignore_eos: wish.ignore_eos,
            constraint: wish.schema.map(|schema| self.constraint(&schema)).transpose()?,
            ..Request::default()
        })
    }

    fn adapter_scales(&self, adapters: Option<Vec<(String, f32)>>) -> PyResult<Adapters> {
        let Some(adapters) = adapters else { return Ok(self.model.default_adapters()) };
        let scales: Vec<(&str, f32)> = adapters.iter().map(|(name, scale)| (name.as_str(), *scale)).collect();
        library::adapters(&self.model, &scales).map_err(input)
    }

    fn constraint(&self, schema: &str) -> PyResult<Constraint> {
        let mut eos = self.model.metadata().eos.clone();
        eos.extend(self.tokenizer.eos_ids());
        let compiler = GrammarCompiler::new(&self.tokenizer, &eos).map_err(input)?;
        compiler.json_schema(json(schema)?).map_err(input)
    }
}

struct Running {
    session: Session,
    generator: Generator,
    start: Instant,
}

impl Running {
    fn now(&self) -> impl Fn() -> Duration + use<> {
        let start = self.start;
        move || start.elapsed()
    }

    /// Ends the answer early and returns the sequence.
    fn end(self) -> (Session, Generation) {
        let now = self.now();
        let Running { mut session, generator, .. } = self;
        let generation = session.end(generator, &now);
        (session, generation)
    }
}

/// A running answer: an iterator over pieces of text.
#[pyclass(frozen, module = "flambeau._native")]
pub(crate) struct Answer {
    model: Py<LanguageModel>,
    running: Mutex<Option<Running>>,
    generation: Mutex<Option<Generation>>,
}

impl Answer {
    /// Takes steps until there is text; `None` at the end.
    fn step(&self) -> PyResult<Option<String>> {
        let mut slot = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Ctrl-C ends an answer between two tokens.
            Python::attach(|py| py.check_signals()).inspect_err(|_| self.close(&mut slot, true))?;
            let Some(running) = slot.as_mut() else { return Ok(None) };
            let now = running.now();
            let step = match running.session.step(&mut running.generator, &now) {
                Ok(step) => step,
                Err(error) => {
                    self.close(&mut slot, false);
                    return Err(ExecutionError::new_err(error.to_string()));
                }
            };
            if step.finish.is_some() {
                self.close(&mut slot, false);
            }
            if !step.text.is_empty() {
                return Ok(Some(step.text));
            }
        }
    }

    fn close(&self, slot: &mut Option<Running>, cancel: bool) {
        let Some(mut running) = slot.take() else { return };
        if cancel {
            // The withheld text is lost with the answer.
            let _ = running.generator.cancel();
        }
        let (session, generation) = running.end();
        let model = self.model.get();
        if model.home.check("the model").is_ok() {
            model.idle().push(session);
        }
        *self.generation.lock().unwrap_or_else(PoisonError::into_inner) = Some(generation);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut slot = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.close(&mut slot, true);
    }
}

#[pymethods]
impl Answer {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.model.get().home.check("the model")?;
        py.detach(|| self.step())
    }

    /// Generates the rest of the answer and returns its text.
    fn rest(&self, py: Python<'_>) -> PyResult<String> {
        self.model.get().home.check("the model")?;
        py.detach(|| {
            let mut text = String::new();
            while let Some(piece) = self.step()? {
                text.push_str(&piece);
            }
            Ok(text)
        })
    }

    /// Ends the answer early.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| {
            let mut slot = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            self.close(&mut slot, true);
        });
    }

    /// Finish reason and statistics of the answer; `None` while it is running.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(generation) = generation.as_ref() else { return Ok(None) };
        let summary = PyDict::new(py);
        let finish = match generation.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::Context => "length",
            FinishReason::Cancelled => "cancelled",
        };
        summary.set_item("finish_reason", finish)?;
        summary.set_item("ids", generation.ids.clone())?;
        summary.set_item("prompt_tokens", generation.stats.prompt_tokens)?;
        summary.set_item("generated_tokens", generation.stats.generated_tokens)?;
        summary.set_item("prompt_tokens_per_second", generation.stats.prefill_rate())?;
        summary.set_item("generated_tokens_per_second", generation.stats.decode_rate())?;
        Ok(Some(summary))
    }
}
