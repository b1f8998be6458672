//! `GET /openapi.json`: the HTTP API as an OpenAPI 3.1 document, for tools that generate clients or show an API.
//!
//! Nothing in it is written twice. Paths, methods and examples come from the table of calls; schemas and their
//! texts from the proto file's descriptors, comments included. Only what is in neither is written here: the two
//! streams, the routes for probes, and the form of errors. `docs/reference/openapi.json` is the same document.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use lowkey_api::{FILE_DESCRIPTOR_SET, Reason};
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use serde_json::{Map, Value, json};

use super::query;
use super::routes::{Method, ROUTES, Route};

/// The document, made at the first request for it.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let mut text = serde_json::to_vec_pretty(&document()).unwrap_or_default();
    text.push(b'\n');
    text.into()
});

pub(super) fn bytes() -> Bytes {
    DOCUMENT.clone()
}

/// A stream, which the table of calls does not have: service, method, path, whether the parameter must be given.
const STREAMS: [(&str, &str, &str, &[&str]); 2] = [
    ("LockService", "Watch", "/v1/watch", &[]),
    ("ElectionService", "Observe", "/v1/election/observe", &["election"]),
];

/// What is no call: path, name, what it answers, and as what.
const OTHERS: [(&str, &str, &str, &str); 6] = [
    ("/", "Welcome", "What this is, and the routes with an example of each.", "application/json"),
    ("/healthz", "Healthz", "`ok` while the process runs.", "text/plain"),
    (
        "/readyz",
        "Readyz",
        "`ok` if the node knows a leader, or leads and serves; otherwise 503, and a line that says why.",
        "text/plain",
    ),
    (
        "/metrics",
        "Metrics",
        "What the node counts about itself, as Prometheus reads it.",
        "application/openmetrics-text",
    ),
    ("/openapi.json", "OpenApi", "This document.", "application/json"),
    ("/ui/", "Dashboard", "The dashboard: a page for people, made of this API.", "text/html"),
];

const ABOUT: &str = "A distributed lock and leader-election service. Any node answers any call. Names are in camel \
                     case here; requests may use snake case as well. 64-bit integers are strings in answers, and \
                     strings or numbers in requests. In a request `null` stands for an absent field, and a field \
                     that is not known is refused.";

fn document() -> Value {
    let proto = Proto::read();
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, operation: Value| {
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation;
    };
    for route in ROUTES {
        let method = format!("{:?}", route.method).to_lowercase();
        add(route.path, &method, proto.operation(route));
    }
    for (service, name, path, required) in STREAMS {
        add(path, "get", proto.stream(service, name, required));
    }
    for (path, name, about, kind) in OTHERS {
        let answer = json!({ "description": about, "content": { kind: {} } });
        let mut responses = json!({ "200": answer });
        if path == "/readyz" {
            responses["503"] = json!({ "description": "Not ready.", "content": { kind: {} } });
        }
        let operation =
            json!({ "operationId": name, "tags": ["Node"], "summary": about, "responses": responses });
        add(path, "get", operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "lowkey",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "At most one holder per lock, and a fencing token that proves it.",
            "description": ABOUT,
            "license": { "name": "MIT", "identifier": "MIT" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": proto.schemas(),
            "responses": { "Error": error_response() },
        },
    })
}

/// The proto file, with its comments.
struct Proto {
    file: FileDescriptorProto,
}

impl Proto {
    fn read() -> Self {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap_or_default();
        let file = set.file.into_iter().find(|file| file.package() == "lowkey.v1");
        Self { file: file.unwrap_or_default() }
    }

    fn operation(&self, route: &Route) -> Value {
        let mut operation = self.described(route.service, route.name);
        let request = self.message(route.request);
        let parameters = match route.method {
            Method::GET => {
                let is_required = |name: &str| query::pairs(route.example).any(|(needed, _)| needed == name);
                self.parameters(request, "query", is_required, |_| true)
            }
            Method::DELETE => {
                let is_in_path =
                    |field: &FieldDescriptorProto| route.path.contains(&format!("{{{}}}", field.name()));
                self.parameters(request, "path", |_| true, is_in_path)
            }
            Method::POST => {
                let example: Value = serde_json::from_str(route.example).unwrap_or_default();
                let schema = reference(route.request);
                operation["requestBody"] = json!({
                    "required": true,
                    "content": { "application/json": { "schema": schema, "example": example } },
                });
                Vec::new()
            }
        };
        let takes_id =
            request.is_some_and(|request| request.field.iter().any(|field| field.name() == "request_id"));
        let key = (takes_id && route.method != Method::GET).then(idempotency_key);
        let parameters: Vec<Value> = parameters.into_iter().chain(key).collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation["responses"] = responses("application/json", &reference(route.response));
        operation
    }

    fn stream(&self, service: &str, name: &str, required: &[&str]) -> Value {
        let mut operation = self.described(service, name);
        let request = self.message(&format!("{name}Request"));
        let mut parameters = self.parameters(request, "query", |name| required.contains(&name), |_| true);
        if name == "Watch" {
            parameters.push(json!({
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The `id:` of the last event that was seen. It counts instead of from and after.",
                "schema": { "type": "string" },
            }));
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        let events = json!({
            "type": "string",
            "description": "Server-sent events. The data of each is one JSON object.",
            "contentMediaType": "application/json",
            "contentSchema": reference(&format!("{name}Event")),
        });
        operation["responses"] = responses("text/event-stream", &events);
        operation
    }

    /// What every operation begins with.
    fn described(&self, service: &str, name: &str) -> Value {
        let comment = self.comment_of_method(service, name);
        let (summary, description) = comment.split_once("\n\n").unwrap_or((&comment, ""));
        let summary = summary.split(" HTTP: ").next().unwrap_or_default();
        let mut operation = json!({ "operationId": name, "tags": [service], "summary": summary });
        if !description.is_empty() {
            operation["description"] = description.into();
        }
        operation
    }

    fn parameters(
        &self,
        request: Option<&DescriptorProto>,
        place: &str,
        is_required: impl Fn(&str) -> bool,
        is_wanted: impl Fn(&FieldDescriptorProto) -> bool,
    ) -> Vec<Value> {
        let fields = request.into_iter().flat_map(|request| &request.field).filter(|field| is_wanted(field));
        fields
            .map(|field| {
                let name = query::parameter(field.name());
                json!({
                    "name": name,
                    "in": place,
                    "required": is_required(name),
                    "description": self.comment_of_field(request, field),
                    "schema": schema_of(field, true),
                })
            })
            .collect()
    }

    /// All messages and enums that HTTP has a use for, and the form of errors.
    fn schemas(&self) -> Value {
        let requests = ROUTES.iter().filter(|route| route.method == Method::POST).map(|route| route.request);
        let streams = STREAMS.iter().map(|(_, name, ..)| format!("{name}Event"));
        let answers = ROUTES.iter().map(|route| route.response.to_owned()).chain(streams);
        let asked = self.reached(requests.map(str::to_owned).collect());
        let answered = self.reached(answers.collect());
        let mut schemas = Map::new();
        for name in asked.union(&answered) {
            let schema = match self.message(name) {
                Some(message) => self.schema_of_message(message, asked.contains(name)),
                None => self.schema_of_enum(name),
            };
            schemas.insert(name.clone(), schema);
        }
        schemas.insert("Error".to_owned(), error());
        schemas.into()
    }

    /// These messages, and all that they are made of.
    fn reached(&self, mut names: Vec<String>) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        while let Some(name) = names.pop() {
            let fields = self.message(&name).into_iter().flat_map(|message| &message.field);
            let parts = fields
                .filter(|field| !field.type_name().is_empty())
                .map(|field| last_part(field.type_name()));
            let parts: Vec<String> = parts.map(str::to_owned).collect();
            if reached.insert(name) {
                names.extend(parts);
            }
        }
        reached
    }

    fn schema_of_message(&self, message: &DescriptorProto, is_request: bool) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in &message.field {
            let mut schema = schema_of(field, is_request);
            let comment = self.comment_of_field(Some(message), field);
            if !comment.is_empty() {
                schema["description"] = comment.into();
            }
            let may_be_absent = field.proto3_optional()
                || (field.r#type() == Type::Message && field.label() != Label::Repeated);
            if !may_be_absent {
                required.push(field.json_name());
            }
            properties.insert(field.json_name().to_owned(), schema);
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        if is_request {
            schema["additionalProperties"] = false.into();
        } else if !required.is_empty() {
            // Zero values are written out.
            schema["required"] = required.into();
        }
        let comment = self.comment_of_message(message);
        if !comment.is_empty() {
            schema["description"] = comment.into();
        }
        schema
    }

    fn schema_of_enum(&self, name: &str) -> Value {
        let found = self.file.enum_type.iter().position(|candidate| candidate.name() == name);
        let Some(number) = found else { return json!({}) };
        let values: Vec<&str> = self.file.enum_type[number].value.iter().map(|value| value.name()).collect();
        let mut text = self.comment(&[5, index(number)]);
        for (at, value) in values.iter().enumerate() {
            text.push_str(&format!("\n- `{value}`: {}", self.comment(&[5, index(number), 2, index(at)])));
        }
        json!({ "type": "string", "enum": values, "description": text })
    }

    fn message(&self, name: &str) -> Option<&DescriptorProto> {
        self.file.message_type.iter().find(|message| message.name() == name)
    }

    fn comment_of_method(&self, service: &str, method: &str) -> String {
        let at = self.file.service.iter().position(|candidate| candidate.name() == service);
        let methods = at.map(|at| &self.file.service[at].method);
        let number = methods.and_then(|methods| methods.iter().position(|known| known.name() == method));
        match (at, number) {
            (Some(at), Some(number)) => self.comment(&[6, index(at), 2, index(number)]),
            _ => String::new(),
        }
    }

    fn comment_of_message(&self, message: &DescriptorProto) -> String {
        let at = self.file.message_type.iter().position(|known| known.name() == message.name());
        at.map(|at| self.comment(&[4, index(at)])).unwrap_or_default()
    }

    fn comment_of_field(&self, message: Option<&DescriptorProto>, field: &FieldDescriptorProto) -> String {
        let Some(message) = message else { return String::new() };
        let at = self.file.message_type.iter().position(|known| known.name() == message.name());
        let number = message.field.iter().position(|known| known.number() == field.number());
        match (at, number) {
            (Some(at), Some(number)) => self.comment(&[4, index(at), 2, index(number)]),
            _ => String::new(),
        }
    }

    /// The comment in front of what stands at a path of the descriptor. Its paragraphs stay apart, and each is one line.
    fn comment(&self, path: &[i32]) -> String {
        let locations = self.file.source_code_info.iter().flat_map(|info| &info.location);
        let comment =
            locations.filter(|location| location.path == path).map(|location| location.leading_comments());
        let comment: String = comment.collect();
        let paragraphs = comment.split("\n\n").map(|paragraph| {
            paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
        });
        paragraphs.filter(|paragraph| !paragraph.is_empty()).collect::<Vec<_>>().join("\n\n")
    }
}

/// A place in a list of the descriptor.
fn index(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schema_of(field: &FieldDescriptorProto, is_request: bool) -> Value {
    // Requests may have any integer as a number or as a string.
    let integer = |kinds: Value, format: &str| {
        let kinds = if is_request { json!(["integer", "string"]) } else { kinds };
        json!({ "type": kinds, "format": format })
    };
    let schema = match field.r#type() {
        Type::Message | Type::Enum => reference(last_part(field.type_name())),
        Type::Bool => json!({ "type": "boolean" }),
        Type::Int64 => integer(json!("string"), "int64"),
        Type::Uint64 | Type::Fixed64 => integer(json!("string"), "uint64"),
        Type::Int32 => integer(json!("integer"), "int32"),
        Type::Uint32 => integer(json!("integer"), "uint32"),
        _ => json!({ "type": "string" }),
    };
    match field.label() {
        Label::Repeated => json!({ "type": "array", "items": schema }),
        _ => schema,
    }
}

fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The request id, if it is not in the body: makes the call safe to repeat.",
        "schema": { "type": "string", "minLength": 1, "maxLength": 64 },
    })
}

fn responses(kind: &str, schema: &Value) -> Value {
    let headers = json!({
        "lowkey-cluster": {
            "description": "The cluster's id. Remember the first one, and stop when another one comes.",
            "schema": { "type": "string" },
        },
    });
    json!({
        "200": { "description": "Done.", "headers": headers, "content": { kind: { "schema": schema } } },
        "default": { "$ref": "#/components/responses/Error" },
    })
}

fn error_response() -> Value {
    json!({
        "description": "Refused, or not certain: `reason` says why.",
        "headers": {
            "Retry-After": {
                "description": "After how many seconds asking again may help.",
                "schema": { "type": "integer" },
            },
        },
        "content": { "application/json": { "schema": reference("Error") } },
    })
}

fn error() -> Value {
    let reasons: Vec<&str> = Reason::all().map(Reason::as_str).collect();
    json!({
        "type": "object",
        "required": ["code", "reason", "message", "details"],
        "properties": {
            "code": { "type": "integer", "description": "The code of gRPC." },
            "reason": {
                "type": "string",
                "description": "Why. Decide by this, never by the message. Later versions may have more.",
                "examples": reasons,
            },
            "message": { "type": "string", "description": "The same for a person." },
            "details": {
                "type": "array",
                "items": { "type": "object" },
                "description": "A google.rpc.ErrorInfo, whose metadata has the particulars; sometimes a RetryInfo.",
            },
        },
    })
}
