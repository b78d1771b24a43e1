//! `/infill` of llama.cpp's server: completes the text between a prefix and a suffix.

mod answer;

use std::sync::Arc;

use axum::{Extension, body::Body, extract::State, http::Request, response::Response};
use serde_json::{Value as Json, json};

use self::answer::InfillAnswer;
use crate::{
    app::{App, Prepared},
    error::{ApiError, Result},
    gaps::Gap,
    json::{Fields, wrong},
    keys::Caller,
    model::Handle,
    openai::{HARMLESS, params::Params},
    openapi::BodyKind,
};

/// Ignored fields of editor plugins, including time limits.
const EDITORS: [&str; 5] = ["n_indent", "response_fields", "samplers", "t_max_predict_ms", "t_max_prompt_ms"];

/// The body of a request.
pub(crate) const BODY: BodyKind =
    BodyKind::Read(|| json!({ "input_prefix": "", "input_suffix": "" }), |fields, model| drop(prepare(fields, model.clone())));

/// `POST /infill`: completes the text between a prefix and a suffix.
pub(crate) async fn infill(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response> {
    let (fields, model) = app.open(request).await?;
    let handle = model.clone();
    let prepared = app.offload(move || prepare(fields, handle)).await?;
    app.reply(&model, caller, prepared).await
}

fn prepare(mut fields: Fields, model: Handle) -> Result<Prepared<InfillAnswer>> {
    let mut text = |name: &str| fields.text(name).map(Option::unwrap_or_default);
    let (before, after, begun) = (text("input_prefix")?, text("input_suffix")?, text("prompt")?);
    let files = fields.list("input_extra")?.unwrap_or_default();
    let gap = Gap { before, after, begun, files: files.iter().enumerate().map(file).collect::<Result<_>>()? };
    let streams = fields.flag("stream")?.unwrap_or(false);
    let mut params = Params::read(&mut fields, &model, 1)?;
    EDITORS.iter().for_each(|name| drop(fields.take(name)));
    fields.finish(HARMLESS)?;
    let ids = model.fill(&gap, "input_suffix", &mut params)?;
    let jobs = params.jobs(&ids, &model);
    let answer = InfillAnswer::new(model, ids.len(), params.stop.clone());
    Ok(Prepared { streams, jobs, answer, dropped: Vec::new() })
}

fn file((i, file): (usize, &Json)) -> Result<(String, String)> {
    let text = |name: &str| file[name].as_str().map(str::to_owned);
    let named = text("text").map(|content| (text("filename").unwrap_or_else(|| "file".into()), content));
    named.ok_or_else(|| wrong(&format!("input_extra[{i}]"), "an object with `filename` and `text`", file))
}

impl crate::model::Served {
    /// Tokens of a fill-in-the-middle prompt; `param` names the requesting field. Also sets the
    /// tokens that end the middle.
    ///
    /// # Errors
    /// Fails if the model does not fill gaps, or if the prompt exceeds the context or cannot be
    /// encoded.
    pub(crate) fn fill(&self, gap: &Gap, param: &str, params: &mut Params) -> Result<Vec<u32>> {
        let missing = || {
            let message = format!("the tokenizer of {:?} has no tokens for texts with a gap", self.name);
            ApiError::unsupported(param, message)
        };
        let infill = self.infill.as_ref().ok_or_else(missing)?;
        self.check_bytes(gap.bytes())?;
        params.end_ids.clone_from(&infill.ends);
        infill.prompt(&self.tokenizer, gap).map_err(|error| ApiError::value(param, error.to_string()))
    }
}
