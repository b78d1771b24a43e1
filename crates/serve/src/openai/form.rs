//! The requested form of an answer: JSON of a schema, or a text of a grammar.

use flambeau::text::{check_schema, lark_rule, spaced};
use serde_json::{Value as Json, json};

use crate::{
    error::{ApiError, Result},
    json::{Fields, wrong},
};

const FORMAT: &str = "response_format";
/// llama.cpp's fields.
const GRAMMAR: &str = "grammar";
const SCHEMA: &str = "json_schema";
/// vLLM's field.
const OUTPUTS: &str = "structured_outputs";

/// The requested form of an answer.
#[derive(Debug)]
pub(crate) struct Form {
    /// The field that requests it.
    pub(super) param: &'static str,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Schema(Json),
    /// A grammar in Lark's notation or in GBNF.
    Grammar(String),
    /// A regular expression of the whole answer.
    Regex(String),
    /// The possible answers.
    Choice(Vec<String>),
}

impl Form {
    /// Takes the fields that request a form.
    ///
    /// # Errors
    /// The error names an invalid or unsupported field, or a second one.
    pub(super) fn read(fields: &mut Fields) -> Result<Option<Form>> {
        let forms = [
            (FORMAT, response_schema(fields)?.map(Kind::Schema)),
            (GRAMMAR, fields.text(GRAMMAR)?.map(Kind::Grammar)),
            (SCHEMA, fields.object(SCHEMA)?.map(|schema| Kind::Schema(Json::Object(schema)))),
            (OUTPUTS, structured_outputs(fields)?),
        ];
        let mut forms = forms.into_iter().filter_map(|(param, kind)| Some(Form { param, kind: kind? }));
        let form = forms.next();
        match (&form, forms.next()) {
            (Some(first), Some(second)) => {
                let message = format!("`{}` and `{}` cannot both constrain an answer", first.param, second.param);
                Err(ApiError::value(second.param, message))
            }
            _ => Ok(form),
        }
    }

    /// The body of the answer's rule in Lark's notation.
    ///
    /// # Errors
    /// Fails if the schema or the grammar is invalid.
    pub(super) fn rule(&self) -> Result<String> {
        match &self.kind {
            Kind::Schema(schema) => {
                check_schema(schema).map_err(|error| self.error(error))?;
                Ok(format!("%json {}", spaced(schema.clone())))
            }
            Kind::Grammar(grammar) => lark_rule(grammar).map_err(|error| self.error(error)),
            Kind::Regex(pattern) => Ok(format!("/{}/", pattern.replace("\\/", "/").replace('/', "\\/").replace('\n', "\\n"))),
            Kind::Choice(texts) => Ok(texts.iter().map(|text| json!(text).to_string()).collect::<Vec<_>>().join(" | ")),
        }
    }

    pub(super) fn error(&self, error: impl ToString) -> ApiError {
        ApiError::value(self.param, error.to_string())
    }
}

/// The JSON schema of `response_format`.
fn response_schema(fields: &mut Fields) -> Result<Option<Json>> {
    let Some(format) = fields.object(FORMAT)?.map(Json::Object) else { return Ok(None) };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({ "type": "object" }))),
        Some("json_schema") => match &format["json_schema"]["schema"] {
            schema @ (Json::Object(_) | Json::Bool(_)) => Ok(Some(schema.clone())),
            other => Err(wrong(FORMAT, "json_schema with its `schema`", other)),
        },
        _ => {
            let message = format!("`{FORMAT}` {} is not supported: it can be text, json_object or json_schema", format["type"]);
            Err(ApiError::unsupported(FORMAT, message))
        }
    }
}

/// The form of `structured_outputs`, which has one of the keys `json`, `regex`, `choice` and
/// `grammar`.
fn structured_outputs(fields: &mut Fields) -> Result<Option<Kind>> {
    let Some(outputs) = fields.object(OUTPUTS)? else { return Ok(None) };
    let mut given = outputs.into_iter().filter(|(_, value)| !value.is_null());
    let (Some((key, value)), None) = (given.next(), given.next()) else {
        return Err(ApiError::value(OUTPUTS, format!("`{OUTPUTS}` needs one of `json`, `regex`, `choice` and `grammar`")));
    };
    let kind = match (key.as_str(), &value) {
        ("json", Json::Object(_)) => Kind::Schema(value),
        ("regex", Json::String(pattern)) => Kind::Regex(pattern.clone()),
        ("grammar", Json::String(grammar)) => Kind::Grammar(grammar.clone()),
        ("choice", Json::Array(texts)) if !texts.is_empty() => {
            let text = |text: &Json| text.as_str().map(str::to_owned).ok_or_else(|| wrong(OUTPUTS, "texts in `choice`", text));
            Kind::Choice(texts.iter().map(text).collect::<Result<_>>()?)
        }
        _ => return Err(ApiError::value(OUTPUTS, format!("`{OUTPUTS}.{key}` is not supported with this value"))),
    };
    Ok(Some(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Json) -> Result<Option<Form>> {
        Form::read(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn rule(body: Json) -> String {
        read(body).unwrap().unwrap().rule().unwrap()
    }

    #[test]
    fn fields_of_other_servers_become_rules() {
        assert_eq!(
            rule(json!({ "json_schema": { "type": "null" } })),
            rule(json!({ "structured_outputs": { "json": { "type": "null" } } }))
        );
        assert_eq!(rule(json!({ "grammar": "start: \"a\"" })), "%lark {\nstart: \"a\"\n}");
        assert_eq!(rule(json!({ "grammar": "root ::= \"a\"" })), "%lark {\nstart: rule_0\nrule_0: (/\\x{61}/)\n\n}");
        assert_eq!(rule(json!({ "structured_outputs": { "regex": "a/b\\/c" } })), "/a\\/b\\/c/");
        assert_eq!(rule(json!({ "structured_outputs": { "choice": ["yes", "\"no\""] } })), "\"yes\" | \"\\\"no\\\"\"");
        assert!(read(json!({ "grammar": null, "response_format": { "type": "text" } })).unwrap().is_none());
    }

    #[test]
    fn wrong_forms_are_refused_by_name() {
        for (body, param) in [
            (json!({ "grammar": 1 }), GRAMMAR),
            (json!({ "grammar": "start: \"a\"", "json_schema": {} }), SCHEMA),
            (json!({ "structured_outputs": {} }), OUTPUTS),
            (json!({ "structured_outputs": { "json": {}, "regex": "a" } }), OUTPUTS),
            (json!({ "structured_outputs": { "choice": [] } }), OUTPUTS),
            (json!({ "structured_outputs": { "choice": [1] } }), OUTPUTS),
            (json!({ "structured_outputs": { "structural_tag": "a" } }), OUTPUTS),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        let error = read(json!({ "grammar": "root ::= (" })).unwrap().unwrap().rule().unwrap_err();
        assert_eq!(error.param.as_deref(), Some(GRAMMAR));
    }
}
