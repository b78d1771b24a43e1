//! `/openapi.json`: describes the routes as they are added. Request schemas are recorded from the
//! parsers.

use std::sync::Arc;

use axum::{
    Router,
    handler::Handler as AxumHandler,
    routing::{delete, get, post},
};
use serde_json::{Map, Value as Json, json};

use crate::{app::App, json::Fields, model::Handle, openai::FINGERPRINT};

/// Parses a request's fields.
type FieldReader = fn(Fields, &Handle);

/// The body of a request.
#[derive(Clone, Copy)]
pub(crate) enum BodyKind {
    None,
    /// A form with a recording.
    Form,
    /// An object with these fields and others.
    Object(&'static [&'static str]),
    /// A list of objects with these fields.
    List(&'static [&'static str]),
    /// An object that the parser accepts. The sample's fields are required.
    Read(fn() -> Json, FieldReader),
}

/// An operation of the API.
#[derive(Clone)]
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    body: BodyKind,
}

/// Routes with their descriptions.
pub(crate) struct Routes {
    pub(crate) router: Router<Arc<App>>,
    operations: Vec<Operation>,
}

impl Routes {
    pub(crate) fn new() -> Routes {
        Routes { router: Router::new(), operations: Vec::new() }
    }

    pub(crate) fn get<H, T>(mut self, path: &'static str, summary: &'static str, handler: H) -> Routes
    where
        H: AxumHandler<T, Arc<App>>,
        T: 'static,
    {
        self.operations.push(Operation { method: "get", path, summary, body: BodyKind::None });
        Routes { router: self.router.route(path, get(handler)), ..self }
    }

    pub(crate) fn delete<H, T>(mut self, path: &'static str, summary: &'static str, handler: H) -> Routes
    where
        H: AxumHandler<T, Arc<App>>,
        T: 'static,
    {
        self.operations.push(Operation { method: "delete", path, summary, body: BodyKind::None });
        Routes { router: self.router.route(path, delete(handler)), ..self }
    }

    pub(crate) fn post<H, T>(mut self, path: &'static str, summary: &'static str, body: BodyKind, handler: H) -> Routes
    where
        H: AxumHandler<T, Arc<App>>,
        T: 'static,
    {
        self.operations.push(Operation { method: "post", path, summary, body });
        Routes { router: self.router.route(path, post(handler)), ..self }
    }

    /// The router and its API description.
    pub(crate) fn finish(self) -> (Router<Arc<App>>, Description) {
        (self.router, Description { operations: self.operations.into() })
    }
}

/// The API description.
#[derive(Clone)]
pub(crate) struct Description {
    operations: Arc<[Operation]>,
}

impl Description {
    /// The OpenAPI 3.1 document. Without a model, it lists only required fields.
    pub(crate) fn to_json(&self, model: Option<&Handle>, needs_key: bool) -> Json {
        let mut paths = Map::new();
        for operation in &*self.operations {
            let path = operation.path.replace("{*", "{");
            let methods = paths.entry(path.clone()).or_insert_with(|| json!({}));
            methods[operation.method] = operation.to_json(&path, model);
        }
        let mut document = json!({
            "openapi": "3.1.0",
            "info": { "title": "Flambeau", "version": env!("CARGO_PKG_VERSION"), "description": FINGERPRINT },
            "paths": paths,
        });
        if needs_key {
            document["components"] = json!({ "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } });
            document["security"] = json!([{ "key": [] }]);
        }
        document
    }
}

impl Operation {
    fn to_json(&self, path: &str, model: Option<&Handle>) -> Json {
        let mut operation = json!({
            "summary": self.summary,
            "responses": { "200": { "description": "The result" }, "default": { "description": "An error" } },
        });
        let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameters = names.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
        let parameters: Vec<Json> = parameters.collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some((kind, schema)) = self.body.schema(model) {
            operation["requestBody"] = json!({ "required": true, "content": { kind: { "schema": schema } } });
        }
        operation
    }
}

impl BodyKind {
    /// Content type and schema of a body.
    fn schema(self, model: Option<&Handle>) -> Option<(&'static str, Json)> {
        const KIND: &str = "application/json";
        match self {
            BodyKind::None => None,
            BodyKind::Form => {
                let file = json!({ "type": "string", "contentMediaType": "application/octet-stream" });
                let properties = json!({ "file": file, "model": { "type": "string" } });
                Some(("multipart/form-data", json!({ "type": "object", "properties": properties, "required": ["file"] })))
            }
            BodyKind::Object(required) => Some((KIND, json!({ "type": "object", "required": required }))),
            BodyKind::List(required) => {
                Some((KIND, json!({ "type": "array", "items": { "type": "object", "required": required } })))
            }
            BodyKind::Read(sample, read) => {
                let sample = sample().as_object().cloned().unwrap_or_default();
                let required: Vec<String> = sample.keys().cloned().collect();
                let mut properties = Map::new();
                properties.insert("model".into(), json!({ "type": "string" }));
                if let Some(model) = model {
                    let (fields, record) = Fields::recorded(sample);
                    read(fields, model);
                    properties.extend(record.schemas());
                }
                Some((KIND, json!({ "type": "object", "properties": properties, "required": required })))
            }
        }
    }
}
