//! `GET /openapi.json`: it has every route and every field, invents none, and equals the file in the documents.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use serde_json::Value;

use crate::support::Edge;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");

#[tokio::test]
async fn the_file_in_the_documents_is_what_nodes_serve() {
    let edge = Edge::start().await;
    let served = edge.get("/openapi.json").await;
    assert_eq!((served.status, served.header("content-type")), (200, "application/json"));
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::write(FILE, &served.body).unwrap();
    }
    let file = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        file == served.body,
        "docs/reference/openapi.json differs from what nodes serve; write it anew with: \
         UPDATE_GOLDENFILES=1 cargo test -p lowkey-server --test edge openapi"
    );
}

#[tokio::test]
async fn every_route_is_in_it_with_its_example() {
    let edge = Edge::start().await;
    let document = edge.get("/openapi.json").await.json();
    let welcome = edge.get("/").await.json();
    let calls = welcome["calls"].as_object().unwrap();
    assert!(calls.len() > 10);
    for (call, example) in calls {
        let (method, path) = call.split_once(' ').unwrap();
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(operation.is_object(), "{call}");
        let example = example.as_str().unwrap();
        match method {
            "POST" => {
                let example: Value = serde_json::from_str(example).unwrap();
                assert_eq!(
                    operation["requestBody"]["content"]["application/json"]["example"], example,
                    "{call}"
                );
            }
            "GET" => {
                let needed: BTreeSet<&str> =
                    example.split('&').filter_map(|pair| pair.split('=').next()).collect();
                let needed: BTreeSet<&str> = needed.into_iter().filter(|name| !name.is_empty()).collect();
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let required = parameters.filter(|parameter| parameter["required"] == true);
                let required: BTreeSet<&str> =
                    required.filter_map(|parameter| parameter["name"].as_str()).collect();
                assert_eq!(required, needed, "{call}");
            }
            _ => assert_eq!(operation["parameters"][0]["in"], "path", "{call}"),
        }
    }
    // What is no call of the table stands in the router's own lines.
    let router = include_str!("../../src/edge/http.rs");
    let others: Vec<&str> =
        router.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(others.contains(&"/openapi.json") && others.contains(&"/v1/watch"), "{others:?}");
    for path in others {
        assert!(document["paths"][path]["get"].is_object(), "{path}");
    }
}

#[tokio::test]
async fn it_has_no_route_that_is_not_there() {
    let edge = Edge::start().await;
    let document = edge.get("/openapi.json").await.json();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            // Without parameters and body most are refused, but none for its path or method; streams would go on.
            let answer = match method.as_str() {
                _ if path == "/v1/watch" => edge.get("/v1/watch?from=none").await,
                "get" => edge.get(path).await,
                "post" => edge.post(path, "").await,
                "delete" => edge.delete(&path.replace("{node_id}", "nobody")).await,
                other => panic!("{other} {path}"),
            };
            let is_unknown =
                answer.status == 405 || (answer.status == 404 && answer.reason() == "NO_SUCH_ROUTE");
            assert!(!is_unknown, "{method} {path}: {}", answer.body);
        }
    }
}

#[tokio::test]
async fn every_field_of_every_message_is_in_it() {
    let edge = Edge::start().await;
    let document = edge.get("/openapi.json").await.json();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let set = FileDescriptorSet::decode(lowkey_api::FILE_DESCRIPTOR_SET).unwrap();
    let messages = set.file.iter().flat_map(|file| &file.message_type);
    let mut seen = 0;
    for message in messages.filter(|message| schemas.contains_key(message.name())) {
        let properties = schemas[message.name()]["properties"].as_object().unwrap();
        let here: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        let fields: BTreeSet<&str> = message.field.iter().map(|field| field.json_name()).collect();
        assert_eq!(here, fields, "{}", message.name());
        for (name, schema) in properties {
            assert!(schema["description"].is_string(), "{}.{name} has no comment", message.name());
        }
        seen += 1;
    }
    assert!(seen > 25, "{seen}");
}

#[tokio::test]
async fn every_reference_leads_somewhere_and_every_operation_says_what_it_does() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(key, value)| match (key.as_str(), value.as_str()) {
                    ("$ref", Some(reference)) => found.push(reference),
                    _ => references(value, found),
                })
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let edge = Edge::start().await;
    let document = edge.get("/openapi.json").await.json();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 40);
    for reference in found {
        let there = document.pointer(reference.strip_prefix('#').unwrap());
        assert!(there.is_some(), "{reference}");
    }
    let mut names = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for operation in operations.as_object().unwrap().values() {
            let summary = operation["summary"].as_str().unwrap_or_default();
            assert!(summary.ends_with('.') && !summary.contains("HTTP:"), "{path}: {summary:?}");
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{path}");
        }
    }
}
