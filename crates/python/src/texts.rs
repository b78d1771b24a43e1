//! Models that read whole texts: encoders and classifiers.

use std::sync::{Mutex, PoisonError};

use flambeau::{
    runners::embed::{Classifier, Embedder},
    text::Tokenizer,
};
use flambeau_cli::library;
use pyo3::prelude::*;

use crate::{
    engines::{self, Home},
    errors::{self, InputError},
};

/// A text encoder with its tokenizer. Threads use it one at a time.
#[pyclass(frozen, module = "flambeau._native", name = "Encoder")]
pub(crate) struct PyEncoder {
    encoder: Mutex<Embedder>,
    tokenizer: Tokenizer,
    home: Home,
}

#[pymethods]
impl PyEncoder {
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>, engine: Vec<String>) -> PyResult<PyEncoder> {
        let engine = engines::engine(py, &engine)?;
        let loaded = py.detach(|| library::encoder(&flags, &engine)).map_err(|error| errors::load(&error))?;
        Ok(PyEncoder { encoder: Mutex::new(loaded.0), tokenizer: loaded.1, home: Home::here() })
    }

    /// The model's prompts by name.
    fn prompts(&self) -> Vec<(String, String)> {
        let encoder = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        encoder.prompts().iter().map(|(name, text)| (name.clone(), text.clone())).collect()
    }

    /// Computes a vector for each text, by the flags of `flambeau embed`.
    fn embed(&self, py: Python<'_>, texts: Vec<String>, flags: Vec<String>) -> PyResult<Vec<Vec<f32>>> {
        self.home.check("the model")?;
        py.detach(|| {
            let mut encoder = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
            library::vectors(&mut encoder, &self.tokenizer, &texts, &flags).map_err(input)
        })
    }
}

/// A classifier with its tokenizer. Threads use it one at a time.
#[pyclass(frozen, module = "flambeau._native", name = "Classifier")]
pub(crate) struct PyClassifier {
    classifier: Mutex<Classifier>,
    tokenizer: Tokenizer,
    home: Home,
}

#[pymethods]
impl PyClassifier {
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>, engine: Vec<String>) -> PyResult<PyClassifier> {
        let engine = engines::engine(py, &engine)?;
        let loaded = py.detach(|| library::classifier(&flags, &engine)).map_err(|error| errors::load(&error))?;
        Ok(PyClassifier { classifier: Mutex::new(loaded.0), tokenizer: loaded.1, home: Home::here() })
    }

    /// The relevance of each document to a query, from 0 to 1.
    fn relevance(&self, py: Python<'_>, query: &str, documents: Vec<String>, instruction: Option<&str>) -> PyResult<Vec<f32>> {
        self.home.check("the model")?;
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        py.detach(|| {
            let mut classifier = self.classifier.lock().unwrap_or_else(PoisonError::into_inner);
            library::relevance(&mut classifier, &self.tokenizer, query, &documents, instruction).map_err(input)
        })
    }
}

fn input(error: anyhow::Error) -> PyErr {
    InputError::new_err(library::message(&error))
}
