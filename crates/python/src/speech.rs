//! Speech transcription.

use std::{fs::File, io::Cursor, path::PathBuf};

use flambeau::{
    audio::{Pcm, Recording, Sample},
    runners::speech::{Progress, SAMPLE_RATE, Segment, Settings, SpeechModel, Transcriber, Transcript},
    tensor::{DType, Tensor},
};
use flambeau_cli::library;
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    convert,
    engines::Loaded,
    errors::{self, ExecutionError, InputError},
};

/// A speech model with its tokenizer.
#[pyclass(frozen, name = "SpeechModel", module = "flambeau._native")]
pub(crate) struct PySpeechModel(Loaded<SpeechModel>);

#[pymethods]
impl PySpeechModel {
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>, engine: Vec<String>) -> PyResult<PySpeechModel> {
        Loaded::new(py, (&flags, &engine), library::speech_model).map(PySpeechModel)
    }

    /// Transcribes a recording: a path, the bytes of a file, or an array of samples at `rate`.
    /// Returns JSON in the format of OpenAI's `verbose_json`. Calls `on_segment` with the start,
    /// end and text of each finished segment.
    #[pyo3(signature = (source, rate, flags, on_segment=None))]
    fn transcribe(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        rate: u32,
        flags: Vec<String>,
        on_segment: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        self.0.check()?;
        let settings = library::speech_settings(&flags).map_err(|error| errors::input(&error))?;
        let recording = open(source, rate)?;
        py.detach(|| self.listen(recording, settings, on_segment.as_ref()))
    }
}

impl PySpeechModel {
    fn listen(&self, mut recording: Recording, settings: Settings, on_segment: Option<&Py<PyAny>>) -> PyResult<String> {
        let mut model = self.0.lock();
        let task = settings.task;
        let failed = |error: flambeau::runners::Error| ExecutionError::new_err(error.to_string());
        let mut transcriber = Transcriber::new(&mut model, &self.0.tokenizer, settings).map_err(input)?;
        let mut segments = Vec::new();
        loop {
            Python::attach(|py| py.check_signals())?;
            match transcriber.step().map_err(failed)? {
                Progress::NeedsSamples => transcriber.feed(recording.next_block().map_err(input)?),
                Progress::Segments(new) => {
                    if let Some(call) = on_segment {
                        Python::attach(|py| new.iter().try_for_each(|segment: &Segment| tell(py, call, segment)))?;
                    }
                    segments.extend(new);
                }
                Progress::Finished => break,
            }
        }
        let language = transcriber.language().map(str::to_owned);
        Ok(Transcript { language, task, seconds: transcriber.seconds(), segments }.to_json().to_string())
    }
}

fn tell(py: Python<'_>, call: &Py<PyAny>, segment: &Segment) -> PyResult<()> {
    call.call1(py, (segment.start, segment.end, segment.text.trim())).map(drop)
}

fn input(error: impl std::fmt::Display) -> PyErr {
    InputError::new_err(error.to_string())
}

fn open(source: &Bound<'_, PyAny>, rate: u32) -> PyResult<Recording> {
    if let Ok(bytes) = source.cast::<PyBytes>() {
        return Recording::from_bytes(bytes.as_bytes().to_vec(), SAMPLE_RATE).map_err(input);
    }
    if let Some(samples) = convert::tensor_of(source)? {
        return of_samples(&samples, rate);
    }
    let path: PathBuf = source.extract()?;
    let file = File::open(&path).map_err(|error| InputError::new_err(format!("cannot read {}: {error}", path.display())))?;
    Recording::from_file(file, SAMPLE_RATE).map_err(|error| InputError::new_err(format!("{}: {error}", path.display())))
}

fn of_samples(samples: &Tensor, rate: u32) -> PyResult<Recording> {
    let sample = match samples.dtype() {
        DType::U8 => Sample::U8,
        DType::I16 => Sample::S16,
        DType::I32 => Sample::S32,
        DType::F32 => Sample::F32,
        DType::F64 => Sample::F64,
        other => return Err(InputError::new_err(format!("samples are {other}; expected f32, f64, i16, i32 or u8"))),
    };
    let channels = match *samples.shape() {
        [_] => 1,
        [_, channels] if channels <= 64 => channels as u16,
        ref shape => {
            return Err(InputError::new_err(format!(
                "samples have the shape {shape:?}; expected [samples] or [samples, channels]"
            )));
        }
    };
    let bytes = Cursor::new(samples.bytes().clone());
    Recording::from_pcm(bytes, Pcm { sample, rate, channels }, SAMPLE_RATE).map_err(input)
}
