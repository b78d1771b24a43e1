//! Models that read whole texts: encoders and classifiers.

use flambeau::runners::embed::{Classifier, Embedder};
use flambeau_cli::library;
use pyo3::prelude::*;

use crate::{engines::Loaded, errors};

/// A text encoder with its tokenizer.
#[pyclass(frozen, module = "flambeau._native", name = "Encoder")]
pub(crate) struct PyEncoder {
    loaded: Loaded<Embedder>,
    /// Prompts by name. They are read without the lock on the model.
    prompts: Vec<(String, String)>,
}

#[pymethods]
impl PyEncoder {
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>, engine: Vec<String>) -> PyResult<PyEncoder> {
        let loaded = Loaded::new(py, (&flags, &engine), library::encoder)?;
        let prompts = loaded.lock().prompts().texts().iter().map(|(name, text)| (name.clone(), text.clone())).collect();
        Ok(PyEncoder { loaded, prompts })
    }

    /// The model's prompts by name.
    fn prompts(&self) -> Vec<(String, String)> {
        self.prompts.clone()
    }

    /// Computes a vector for each text, by the flags of `flambeau embed`.
    fn embed(&self, py: Python<'_>, texts: Vec<String>, flags: Vec<String>) -> PyResult<Vec<Vec<f32>>> {
        self.loaded.check()?;
        py.detach(|| {
            let vectors = library::vectors(&mut self.loaded.lock(), &self.loaded.tokenizer, &texts, &flags);
            vectors.map_err(|error| errors::input(&error))
        })
    }
}

/// A classifier with its tokenizer.
#[pyclass(frozen, module = "flambeau._native", name = "Classifier")]
pub(crate) struct PyClassifier(Loaded<Classifier>);

#[pymethods]
impl PyClassifier {
    #[new]
    fn new(py: Python<'_>, flags: Vec<String>, engine: Vec<String>) -> PyResult<PyClassifier> {
        Loaded::new(py, (&flags, &engine), library::classifier).map(PyClassifier)
    }

    /// The relevance of each document to a query, from 0 to 1.
    fn relevance(&self, py: Python<'_>, query: &str, documents: Vec<String>, instruction: Option<&str>) -> PyResult<Vec<f32>> {
        self.0.check()?;
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        py.detach(|| {
            let relevance = library::relevance(&mut self.0.lock(), &self.0.tokenizer, query, &documents, instruction);
            relevance.map_err(|error| errors::input(&error))
        })
    }
}
