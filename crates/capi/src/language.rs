//! Language models in C: generate text from prompts and conversations, piece by piece.

use std::{
    ffi::{CString, c_char, c_void},
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use flambeau::{
    runners::llm::{FinishReason, Generation, Generator, Model, Request, Session},
    text::{ChatInput, ChatTemplate, Clock, Constraint, GrammarCompiler, SamplingParams, Tokenizer, message},
};
use flambeau_cli::library;

use crate::{
    border::{self, Out, Prefixed},
    engine::EngineHandle,
    failure::Failure,
    text,
};

/// The object behind `flb_language_model`. Each running generation has its own sequence.
pub(crate) struct LanguageModelHandle {
    model: Model,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Idle sequences with their earlier texts, in order of last use.
    idle: Mutex<Vec<Session>>,
}

/// `flb_on_text`: receives a piece of text. A nonzero result ends the generation.
type OnText = Option<unsafe extern "C" fn(context: *mut c_void, text: *const c_char) -> i32>;

/// `flb_generation_options`. Zero selects the default of a field.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawOptions {
    struct_size: usize,
    max_new_tokens: usize,
    seed: u64,
    top_k: usize,
    stop: *const *const c_char,
    stop_count: usize,
    schema: *const c_char,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    ignore_eos: i32,
    reserved: i32,
    adapters: *const c_char,
}

// SAFETY: `repr(C)`, the size comes first, numbers and pointers take all bytes, and the four-byte
// fields before the last pointer are even in number.
unsafe impl Prefixed for RawOptions {}

impl RawOptions {
    const DEFAULT: RawOptions = RawOptions {
        struct_size: size_of::<RawOptions>(),
        max_new_tokens: 0,
        seed: 0,
        top_k: 0,
        stop: ptr::null(),
        stop_count: 0,
        schema: ptr::null(),
        temperature: 0.0,
        top_p: 0.0,
        min_p: 0.0,
        repetition_penalty: 0.0,
        ignore_eos: 0,
        reserved: 0,
        adapters: ptr::null(),
    };
}

/// `flb_message`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawMessage {
    role: *const c_char,
    content: *const c_char,
}

/// The object behind `flb_generation`.
struct GenerationHandle {
    text: CString,
    generation: Generation,
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<LanguageModelHandle>();
    shared::<GenerationHandle>();
};

/// Time since the epoch.
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl LanguageModelHandle {
    /// # Safety
    /// The pointers in `options` are as the header says.
    unsafe fn request(&self, prompt: Vec<u32>, options: &RawOptions) -> Result<Request, Failure> {
        let or = |number: f32, default| if number == 0.0 { default } else { number };
        let sampling = SamplingParams {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: or(options.top_p, 1.0),
            min_p: options.min_p,
            repetition_penalty: or(options.repetition_penalty, 1.0),
            seed: if options.seed == 0 { since_epoch().as_nanos() as u64 } else { options.seed },
            ..SamplingParams::default()
        };
        sampling.validate().map_err(Failure::input)?;
        // SAFETY: passed on to the caller.
        let stop = unsafe { border::texts(options.stop, options.stop_count, "options->stop")? };
        let schema = (!options.schema.is_null())
            // SAFETY: passed on to the caller.
            .then(|| unsafe { border::text(options.schema, "options->schema") }.and_then(|schema| self.constraint(schema)))
            .transpose()?;
        let adapters = match options.adapters.is_null() {
            true => self.model.default_adapters(),
            false => {
                // SAFETY: passed on to the caller.
                let text = unsafe { border::text(options.adapters, "options->adapters")? };
                library::adapters_by_text(&self.model, text).map_err(|error| Failure::input(library::message(&error)))?
            }
        };
        Ok(Request {
            prompt,
            adapters,
            max_new_tokens: if options.max_new_tokens == 0 { 256 } else { options.max_new_tokens },
            sampling,
            stop,
            stop_ids: self.model.metadata().eos.clone(),
            ignore_eos: options.ignore_eos != 0,
            constraint: schema,
            ..Request::default()
        })
    }

    fn constraint(&self, schema: &str) -> Result<Constraint, Failure> {
        let mut eos = self.model.metadata().eos.clone();
        eos.extend(self.tokenizer.eos_ids());
        let schema = serde_json::from_str(schema).map_err(|error| Failure::input(format!("`options->schema`: {error}")))?;
        let compiler = GrammarCompiler::new(&self.tokenizer, &eos).map_err(Failure::input)?;
        compiler.json_schema(schema).map_err(Failure::input)
    }

    /// The prompt of a conversation.
    fn render(&self, messages: &[(&str, &str)]) -> Result<Vec<u32>, Failure> {
        let missing = || Failure::input("the model has no chat template: use flb_generate with the whole prompt");
        let template = self.template.as_ref().ok_or_else(missing)?;
        let chat = ChatInput {
            messages: messages.iter().map(|(role, content)| message(role, content)).collect(),
            add_generation_prompt: true,
            now: Some(Clock::now()),
            ..ChatInput::default()
        };
        let prompt = template.render(&chat).map_err(Failure::input)?;
        self.tokenizer.encode(&prompt, false).map_err(Failure::input)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        // The lock is held for single calls on the list, which leave it whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Generates an answer. `on_text` receives the text of each step; `false` ends the generation.
    fn answer(&self, request: Request, on_text: &mut dyn FnMut(String) -> bool) -> Result<Generation, Failure> {
        let start = Instant::now();
        let now = || start.elapsed();
        let idle = self.idle().pop();
        let mut session = idle.map_or_else(|| self.model.sequence().map(Session::new), Ok)?;
        let result = session.begin(&self.tokenizer, request, &now).map_err(Failure::input);
        let result = result.and_then(|generator| drive(&mut session, generator, &now, on_text));
        self.idle().push(session);
        result
    }
}

fn drive(
    session: &mut Session,
    mut generator: Generator,
    now: &dyn Fn() -> Duration,
    on_text: &mut dyn FnMut(String) -> bool,
) -> Result<Generation, Failure> {
    loop {
        let step = session.step(&mut generator, now)?;
        let is_wanted = on_text(step.text);
        if step.finish.is_some() {
            break;
        }
        if !is_wanted {
            // A stopped answer drops text that was held back as the possible start of a stop text.
            let _ = generator.cancel();
            break;
        }
    }
    Ok(session.end(generator, now))
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_language_model_load(
    engine: *const EngineHandle,
    model: *const c_char,
    flags: *const *const c_char,
    flag_count: usize,
    out: *mut *mut LanguageModelHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, engine) = unsafe { (Out::handle(out, "out")?, border::object(engine, "engine")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let (model, mut flags) = unsafe { (border::text(model, "model")?, border::texts(flags, flag_count, "flags")?) };
        // A name may begin with a dash.
        flags.extend(["--".to_owned(), model.to_owned()]);
        let loaded = library::language_model(&flags, &engine.engine).map_err(|error| Failure::load(&error))?;
        let library::LanguageModel { model, tokenizer, template } = loaded;
        out.give(LanguageModelHandle { model, tokenizer, template, idle: Mutex::default() });
        Ok(())
    })
}

/// # Safety
/// `model` is null or a model that was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_language_model_context(model: *const LanguageModelHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { model.as_ref() }.and_then(|model| model.model.metadata().context).unwrap_or(0)
}

/// # Safety
/// As [`flb_language_model_context`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_language_model_can_chat(model: *const LanguageModelHandle) -> i32 {
    // SAFETY: the caller keeps what the header asks of handles.
    i32::from(unsafe { model.as_ref() }.is_some_and(|model| model.template.is_some()))
}

/// # Safety
/// As [`flb_language_model_context`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_language_model_free(model: *mut LanguageModelHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(model) }
}

/// The entry that writes the answer to a prompt, with C's model, options, callback and place for
/// the result.
///
/// # Safety
/// The pointers are as the header says.
unsafe fn generate(
    model: *const LanguageModelHandle,
    options: *const RawOptions,
    (on_text, context): (OnText, *mut c_void),
    out: *mut *mut GenerationHandle,
    prompt: impl FnOnce(&LanguageModelHandle) -> Result<Vec<u32>, Failure>,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, model) = unsafe { (Out::handle(out, "out")?, border::object(model, "model")?) };
        let prompt = prompt(model)?;
        // SAFETY: the caller keeps what the header asks of sized structs.
        let options = unsafe { border::read_prefixed(options, RawOptions::DEFAULT, "options")? };
        // SAFETY: the options' pointers are as the header says.
        let request = unsafe { model.request(prompt, &options)? };
        let generation = model.answer(request, &mut |text| {
            let text = text::c_string(text);
            // SAFETY: the caller gave both for this use; the text lives during the call.
            on_text.is_none_or(|call| unsafe { call(context, text.as_ptr()) } == 0)
        })?;
        out.give(GenerationHandle { text: text::c_string(generation.text.clone()), generation });
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generate(
    model: *const LanguageModelHandle,
    prompt: *const c_char,
    options: *const RawOptions,
    on_text: OnText,
    context: *mut c_void,
    out: *mut *mut GenerationHandle,
) -> *mut Failure {
    let prompt = |model: &LanguageModelHandle| {
        // SAFETY: the caller keeps what the header asks of texts.
        let text = unsafe { border::text(prompt, "prompt")? };
        model.tokenizer.encode(text, true).map_err(Failure::input)
    };
    // SAFETY: the caller keeps what the header asks of arguments.
    unsafe { generate(model, options, (on_text, context), out, prompt) }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_chat(
    model: *const LanguageModelHandle,
    messages: *const RawMessage,
    message_count: usize,
    options: *const RawOptions,
    on_text: OnText,
    context: *mut c_void,
    out: *mut *mut GenerationHandle,
) -> *mut Failure {
    let prompt = |model: &LanguageModelHandle| {
        // SAFETY: the caller keeps what the header asks of arrays.
        let messages = unsafe { border::array(messages, message_count, "messages")? };
        // SAFETY: the texts of messages are as the header says.
        let text = |pointer| unsafe { border::text(pointer, "messages") };
        let messages = messages.iter().map(|raw| Ok((text(raw.role)?, text(raw.content)?)));
        model.render(&messages.collect::<Result<Vec<_>, Failure>>()?)
    };
    // SAFETY: the caller keeps what the header asks of arguments.
    unsafe { generate(model, options, (on_text, context), out, prompt) }
}

/// # Safety
/// `generation` is null or was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_text(generation: *const GenerationHandle) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { generation.as_ref() }.map_or(c"", |handle| &handle.text).as_ptr()
}

/// # Safety
/// As [`flb_generation_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_finish(generation: *const GenerationHandle) -> u32 {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { generation.as_ref() }.map_or(0, |handle| match handle.generation.finish {
        FinishReason::Stop => 1,
        FinishReason::Length => 2,
        FinishReason::Context => 3,
        FinishReason::Cancelled => 4,
    })
}

/// # Safety
/// As [`flb_generation_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_tokens(generation: *const GenerationHandle) -> *const u32 {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { generation.as_ref() }.map_or(ptr::null(), |handle| handle.generation.ids.as_ptr())
}

/// # Safety
/// As [`flb_generation_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_token_count(generation: *const GenerationHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { generation.as_ref() }.map_or(0, |handle| handle.generation.ids.len())
}

/// # Safety
/// As [`flb_generation_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_prompt_count(generation: *const GenerationHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { generation.as_ref() }.map_or(0, |handle| handle.generation.stats.prompt_tokens)
}

/// # Safety
/// As [`flb_generation_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_tokens_per_second(generation: *const GenerationHandle) -> f64 {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { generation.as_ref() }.and_then(|handle| handle.generation.stats.decode_rate()).unwrap_or(0.0)
}

/// # Safety
/// As [`flb_generation_text`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_generation_free(generation: *mut GenerationHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(generation) }
}
