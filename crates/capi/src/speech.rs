//! Models of speech: recordings in, segments of text out.

use std::{
    ffi::{CString, c_char, c_void},
    fs::File,
    io::{self, Cursor, Read},
    ptr,
    sync::Mutex,
};

use flambeau::{
    audio::{MAX_CHANNELS, Pcm, Recording, Sample},
    runners::speech::{Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Transcriber, Transcript},
    tensor::{DType, Tensor},
    text::Tokenizer,
};
use flambeau_cli::library;

use crate::{
    border::{self, Out, Prefixed},
    engine::EngineHandle,
    failure::{Failure, Kind},
    tensor::{self, TensorHandle},
    text, value,
};

/// The object behind `flb_speech_model`.
pub(crate) struct SpeechModelHandle {
    model: Mutex<SpeechModel>,
    tokenizer: Tokenizer,
}

/// `flb_on_segment`: a segment was heard. Another number than 0 ends the transcription.
type OnSegment = Option<unsafe extern "C" fn(context: *mut c_void, segment: *const RawSegment) -> i32>;

/// `flb_segment`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawSegment {
    struct_size: usize,
    start: f64,
    end: f64,
    text: *const c_char,
    words: *const RawWord,
    word_count: usize,
}

// SAFETY: `repr(C)`, the size comes first, and six fields of eight bytes leave no padding; numbers
// and pointers take all bytes.
unsafe impl Prefixed for RawSegment {}

/// `flb_word`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawWord {
    start: f64,
    end: f64,
    text: *const c_char,
}

/// A segment with the texts that its C form points to.
struct CSegment {
    start: f64,
    end: f64,
    text: CString,
    words: Vec<RawWord>,
    /// The texts of `words`.
    _texts: Vec<CString>,
}

// SAFETY: the pointers in `words` lead to texts that the same object owns and never changes.
unsafe impl Send for CSegment {}
// SAFETY: shared readers only read the texts behind `words`, which never change.
unsafe impl Sync for CSegment {}

impl CSegment {
    fn new(segment: &Segment) -> CSegment {
        let texts: Vec<CString> = segment.words.iter().map(|word| text::c_string(word.text.trim().to_owned())).collect();
        let words = segment.words.iter().zip(&texts);
        let words = words.map(|(word, text)| RawWord { start: word.start, end: word.end, text: text.as_ptr() }).collect();
        let text = text::c_string(segment.text.trim().to_owned());
        CSegment { start: segment.start, end: segment.end, text, words, _texts: texts }
    }

    fn raw(&self) -> RawSegment {
        RawSegment {
            struct_size: size_of::<RawSegment>(),
            start: self.start,
            end: self.end,
            text: self.text.as_ptr(),
            words: self.words.as_ptr(),
            word_count: self.words.len(),
        }
    }
}

/// The object behind `flb_transcript`.
struct TranscriptHandle {
    text: CString,
    language: Option<CString>,
    json: CString,
    seconds: f64,
    segments: Vec<CSegment>,
}

impl TranscriptHandle {
    fn new(transcript: &Transcript) -> TranscriptHandle {
        TranscriptHandle {
            text: text::c_string(transcript.text()),
            language: transcript.language.clone().map(text::c_string),
            json: text::c_string(transcript.to_json().to_string()),
            seconds: transcript.seconds,
            segments: transcript.segments.iter().map(CSegment::new).collect(),
        }
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<SpeechModelHandle>();
    shared::<TranscriptHandle>();
};

/// Transcribes a recording. `on_segment` gets each segment and says whether to go on.
fn listen(
    model: &SpeechModelHandle,
    mut recording: Recording,
    settings: Settings,
    on_segment: &mut dyn FnMut(&Segment) -> bool,
) -> Result<Transcript, Failure> {
    let mut speech = border::lock(&model.model, "model")?;
    let task = settings.task;
    let mut transcriber = Transcriber::new(&mut speech, &model.tokenizer, settings).map_err(Failure::input)?;
    let mut segments = Vec::new();
    let mut is_wanted = true;
    while is_wanted {
        match transcriber.step()? {
            Progress::NeedsSamples => transcriber.feed(recording.next_block().map_err(Failure::input)?),
            Progress::Segments(new) => {
                is_wanted = new.iter().all(&mut *on_segment);
                segments.extend(new);
            }
            Progress::Finished => break,
        }
    }
    let language = transcriber.language().map(str::to_owned);
    Ok(Transcript { language, task, seconds: transcriber.seconds(), segments })
}

/// Storage of samples of an element type.
fn sample_of(dtype: DType) -> Result<Sample, Failure> {
    match dtype {
        DType::U8 => Ok(Sample::U8),
        DType::I16 => Ok(Sample::S16),
        DType::I32 => Ok(Sample::S32),
        DType::F32 => Ok(Sample::F32),
        DType::F64 => Ok(Sample::F64),
        other => Err(Failure::input(format!("samples are {other}; expected f32, f64, i16, i32 or u8"))),
    }
}

/// A recording of samples of the shape [samples] or [samples, channels].
fn of_samples(samples: &Tensor, rate: u32) -> Result<Recording, Failure> {
    let sample = sample_of(samples.dtype())?;
    let channels = match *samples.shape() {
        [_] => Some(1),
        [_, channels] => u16::try_from(channels).ok().filter(|&channels| usize::from(channels) <= MAX_CHANNELS),
        _ => None,
    };
    let wrong =
        || Failure::input(format!("samples have the shape {:?}; expected [samples] or [samples, channels]", samples.shape()));
    let pcm = Pcm { sample, rate, channels: channels.ok_or_else(wrong)? };
    Recording::from_pcm(Cursor::new(samples.bytes().clone()), pcm, SAMPLE_RATE).map_err(Failure::input)
}

/// `flb_read`: fills memory with samples and returns the number of bytes; 0 ends the recording.
type Fill = Option<unsafe extern "C" fn(context: *mut c_void, data: *mut c_void, size: usize) -> usize>;

/// Samples that a callback reads.
struct Stream {
    fill: unsafe extern "C" fn(context: *mut c_void, data: *mut c_void, size: usize) -> usize,
    context: *mut c_void,
}

// SAFETY: a recording is read and dropped inside of the call that made it, on the thread of that
// call.
unsafe impl Send for Stream {}
// SAFETY: only `read` uses the pointers, and it takes the stream exclusively.
unsafe impl Sync for Stream {}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        // SAFETY: the caller gave both for this use; the memory lives during the call.
        let count = unsafe { (self.fill)(self.context, buffer.as_mut_ptr().cast(), buffer.len()) };
        if count > buffer.len() {
            return Err(io::Error::other(format!("`read` returned {count} bytes, and there was room for {}", buffer.len())));
        }
        Ok(count)
    }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_speech_model_load(
    engine: *const EngineHandle,
    model: *const c_char,
    flags: *const *const c_char,
    flag_count: usize,
    out: *mut *mut SpeechModelHandle,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, engine) = unsafe { (Out::handle(out, "out")?, border::object(engine, "engine")?) };
        // SAFETY: the caller keeps what the header asks of arguments.
        let (model, mut flags) = unsafe { (border::text(model, "model")?, border::texts(flags, flag_count, "flags")?) };
        flags.push(format!("--model={model}"));
        let (model, tokenizer) = library::speech_model(&flags, &engine.engine).map_err(|error| Failure::load(&error))?;
        out.give(SpeechModelHandle { model: Mutex::new(model), tokenizer });
        Ok(())
    })
}

/// # Safety
/// `model` is null or a model that was not freed, and is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_speech_model_free(model: *mut SpeechModelHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(model) }
}

/// The entry that transcribes a recording, with C's model, flags, callback and place for the
/// result.
///
/// # Safety
/// The pointers are as the header says.
unsafe fn transcribe(
    model: *const SpeechModelHandle,
    (flags, flag_count): (*const *const c_char, usize),
    (on_segment, context): (OnSegment, *mut c_void),
    out: *mut *mut TranscriptHandle,
    recording: impl FnOnce() -> Result<Recording, Failure>,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, model) = unsafe { (Out::handle(out, "out")?, border::object(model, "model")?) };
        let recording = recording()?;
        // SAFETY: the caller keeps what the header asks of lists of texts.
        let flags = unsafe { border::texts(flags, flag_count, "flags")? };
        let settings = library::speech_settings(&flags).map_err(|error| Failure::new(Kind::Input, library::message(&error)))?;
        let transcript = listen(model, recording, settings, &mut |segment| {
            let heard = CSegment::new(segment);
            // SAFETY: the caller gave both for this use; the segment lives during the call.
            on_segment.is_none_or(|call| unsafe { call(context, &heard.raw()) } == 0)
        })?;
        out.give(TranscriptHandle::new(&transcript));
        Ok(())
    })
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcribe_file(
    model: *const SpeechModelHandle,
    path: *const c_char,
    flags: *const *const c_char,
    flag_count: usize,
    on_segment: OnSegment,
    context: *mut c_void,
    out: *mut *mut TranscriptHandle,
) -> *mut Failure {
    let recording = || {
        // SAFETY: the caller keeps what the header asks of texts.
        let path = unsafe { border::text(path, "path")? };
        let file = File::open(path).map_err(|error| Failure::input(format!("cannot read {path}: {error}")))?;
        Recording::from_file(file, SAMPLE_RATE).map_err(|error| Failure::input(format!("{path}: {error}")))
    };
    // SAFETY: the caller keeps what the header asks of arguments.
    unsafe { transcribe(model, (flags, flag_count), (on_segment, context), out, recording) }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcribe_samples(
    model: *const SpeechModelHandle,
    samples: *const TensorHandle,
    rate: u32,
    flags: *const *const c_char,
    flag_count: usize,
    on_segment: OnSegment,
    context: *mut c_void,
    out: *mut *mut TranscriptHandle,
) -> *mut Failure {
    // SAFETY: the caller keeps what the header asks of handles.
    let recording = || of_samples(unsafe { border::object(samples, "samples")? }.tensor(), rate);
    // SAFETY: the caller keeps what the header asks of arguments.
    unsafe { transcribe(model, (flags, flag_count), (on_segment, context), out, recording) }
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcribe_stream(
    model: *const SpeechModelHandle,
    sample: i32,
    rate: u32,
    channels: u32,
    read: Fill,
    flags: *const *const c_char,
    flag_count: usize,
    on_segment: OnSegment,
    context: *mut c_void,
    out: *mut *mut TranscriptHandle,
) -> *mut Failure {
    let recording = || {
        let sample = sample_of(tensor::dtype(sample)?)?;
        let channels = u16::try_from(channels).map_err(|_| Failure::input(format!("there are no {channels} channels")))?;
        let fill = read.ok_or_else(|| Failure::input("`read` is NULL"))?;
        Recording::from_pcm(Stream { fill, context }, Pcm { sample, rate, channels }, SAMPLE_RATE).map_err(Failure::input)
    };
    // SAFETY: the caller keeps what the header asks of arguments.
    unsafe { transcribe(model, (flags, flag_count), (on_segment, context), out, recording) }
}

/// # Safety
/// `transcript` is null or was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_text(transcript: *const TranscriptHandle) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { transcript.as_ref() }.map_or(c"", |transcript| &transcript.text).as_ptr()
}

/// # Safety
/// As [`flb_transcript_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_language(transcript: *const TranscriptHandle) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    let language = unsafe { transcript.as_ref() }.and_then(|transcript| transcript.language.as_ref());
    language.map_or(ptr::null(), |language| language.as_ptr())
}

/// # Safety
/// As [`flb_transcript_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_json(transcript: *const TranscriptHandle) -> *const c_char {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { transcript.as_ref() }.map_or(c"", |transcript| &transcript.json).as_ptr()
}

/// # Safety
/// As [`flb_transcript_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_seconds(transcript: *const TranscriptHandle) -> f64 {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { transcript.as_ref() }.map_or(0.0, |transcript| transcript.seconds)
}

/// # Safety
/// As [`flb_transcript_text`].
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_segment_count(transcript: *const TranscriptHandle) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { transcript.as_ref() }.map_or(0, |transcript| transcript.segments.len())
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_segment(
    transcript: *const TranscriptHandle,
    index: usize,
    segment: *mut RawSegment,
) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let segments = unsafe { &border::object(transcript, "transcript")?.segments };
        let found = segments.get(index).ok_or_else(|| value::no_place("segment", index, segments.len()))?;
        // SAFETY: the caller keeps what the header asks of arguments.
        unsafe { border::write_prefixed(segment, &found.raw(), "segment") }
    })
}

/// # Safety
/// As [`flb_transcript_text`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_transcript_free(transcript: *mut TranscriptHandle) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(transcript) }
}
