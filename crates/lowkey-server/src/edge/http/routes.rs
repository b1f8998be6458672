//! The calls of the table, each at its route.
//!
//! A POST has everything in its body, a GET in its parameters, a DELETE in its path: see [`decode`].

use std::sync::Arc;

use ::http::{HeaderMap, HeaderName};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::{self, MethodRouter};
use axum::{RequestPartsExt as _, Router};
use lowkey_api::{ApiError, v1};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{body, error_response, given, json, query, respond, taking};
use crate::call::calls;
use crate::edge::{Call, Node, Shown};

/// The header that may carry a request's id instead of its body.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A call of this port.
pub(super) trait Routed: Call<Response: Serialize> + DeserializeOwned + 'static {
    const METHOD: Method;
    const PATH: &str;
    /// An example of a body, for clients that sent none; or the parameters that must be given.
    const EXAMPLE: &str;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::upper_case_acronyms, reason = "they are written so everywhere")]
pub(super) enum Method {
    GET,
    POST,
    DELETE,
}

impl Method {
    /// What a client that uses another method is told.
    fn taken(self) -> &'static str {
        match self {
            Self::GET => "GET or HEAD",
            Self::POST => "POST",
            Self::DELETE => "DELETE",
        }
    }
}

macro_rules! routed {
    ($($service:ident { $(
        $Name:ident($Request:ty) -> $Response:ty {
            node: $_node:tt
            grpc: $_grpc:tt
            http: { $($METHOD:ident $path:literal $example:literal)? }
            session: $_session:tt
        }
    )* })*) => {
        $($($(
            impl Routed for $Request {
                const METHOD: Method = Method::$METHOD;
                const PATH: &str = $path;
                const EXAMPLE: &str = $example;
            }
        )?)*)*

        /// The routes of all calls.
        pub(super) fn routes<N: Node>() -> Router<Arc<N>> {
            let mut routes = Routes(Vec::new());
            $($($( routes.add::<$Request>($path); )?)*)*
            routes.into_router()
        }

        /// What all calls are asked for by.
        pub(super) const ROUTES: &[Route] = &[$($($(
            Route {
                service: stringify!($service),
                name: stringify!($Name),
                method: Method::$METHOD,
                path: $path,
                example: $example,
                request: message_name(stringify!($Request)),
                response: message_name(stringify!($Response)),
            },
        )?)*)*];
    };
}
calls!(routed);

/// How a call of the table is asked for over HTTP.
pub(super) struct Route {
    pub(super) service: &'static str,
    pub(super) name: &'static str,
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// As [`Routed::EXAMPLE`].
    pub(super) example: &'static str,
    /// The messages, by their names in the proto file.
    pub(super) request: &'static str,
    pub(super) response: &'static str,
}

/// The name of a message, without the module that its type is in.
const fn message_name(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut at = bytes.len();
    while at > 0 && bytes[at - 1] != b':' && bytes[at - 1] != b' ' {
        at -= 1;
    }
    path.split_at(at).1
}

/// A path may have one wrong letter in this many and still be taken for a route.
const LETTERS_PER_TYPO: usize = 6;
/// A path with more bytes than this resembles no route.
const PATH_BYTES_MAX: usize = 64;

/// What all calls are asked for by, each with an example of what it is told.
pub(super) fn all() -> impl Iterator<Item = (String, &'static str)> {
    ROUTES.iter().map(|route| (format!("{:?} {}", route.method, route.path), route.example))
}

/// The route that an unknown path was probably meant for, as its caller should have written it.
pub(super) fn nearest(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/');
    let path = if path.starts_with("/v1") { path.to_owned() } else { format!("/v1{path}") };
    let typos = |known: &str| strsim::damerau_levenshtein(&path, known);
    let is_near = |known: &str| {
        path.len() <= PATH_BYTES_MAX
            && known.split('/').count() == path.split('/').count()
            && typos(known) * LETTERS_PER_TYPO <= path.len()
    };
    let near = ROUTES.iter().filter(|route| is_near(route.path)).min_by_key(|route| typos(route.path));
    match near {
        Some(Route { method: Method::GET, path, example, .. }) if !example.is_empty() => {
            Some(format!("GET {path}?{example}"))
        }
        Some(Route { method, path, .. }) => Some(format!("{method:?} {path}")),
        None => named_in_path(&path),
    }
}

/// The route that takes as a parameter what this path contains.
fn named_in_path(path: &str) -> Option<String> {
    ROUTES.iter().filter(|route| route.method == Method::GET).find_map(|route| {
        let name = path.strip_prefix(route.path)?.strip_prefix('/').filter(|name| !name.is_empty())?;
        let (parameter, _) = route.example.split_once('=')?;
        Some(format!("GET {}?{parameter}={name}", route.path))
    })
}

/// Routes by their paths, with what the first call of each path takes.
struct Routes<N>(Vec<(&'static str, Method, MethodRouter<Arc<N>>)>);

impl<N: Node> Routes<N> {
    fn add<C: Routed>(&mut self, path: &'static str) {
        let route = match C::METHOD {
            Method::GET => routing::get(answer::<N, C>),
            Method::POST => routing::post(answer::<N, C>),
            Method::DELETE => routing::delete(answer::<N, C>),
        };
        match self.0.iter_mut().find(|(known, ..)| *known == path) {
            Some((_, _, routes)) => *routes = std::mem::take(routes).merge(route),
            None => self.0.push((path, C::METHOD, route)),
        }
    }

    fn into_router(self) -> Router<Arc<N>> {
        let router = Router::new();
        self.0
            .into_iter()
            .fold(router, |router, (path, method, routes)| router.route(path, taking(method.taken(), routes)))
    }
}

/// Decodes a call, has it answered, and encodes the answer.
async fn answer<N: Node, C: Routed>(State(node): State<Arc<N>>, request: Request) -> Response {
    let shown = Shown::of(request.extensions());
    let call = decode::<C>(request).await.and_then(|call| node.guard().permit(&shown, call));
    match call {
        Ok(call) => respond(node.call(call).await),
        Err(error) => error_response(&error),
    }
}

async fn decode<C: Routed>(request: Request) -> Result<C, ApiError> {
    let (mut head, body) = request.into_parts();
    let mut call: C = match C::METHOD {
        Method::GET => return query::parse(&head.uri),
        Method::POST => {
            let bytes = body::read(&head.headers, body).await?;
            query::none(&head.uri)?;
            json::parse(&bytes)?
        }
        Method::DELETE => {
            body::drain(body).await;
            query::none(&head.uri)?;
            let field = C::PATH.split(['{', '}']).nth(1).unwrap_or_default();
            let Ok(Path(text)) = head.extract().await else {
                return Err(ApiError::invalid(field, "must be UTF-8"));
            };
            given::message([(field, text)])?
        }
    };
    if let Some(request_id) = call.request_id_mut() {
        name_by_header(&head.headers, request_id)?;
    }
    Ok(call)
}

/// Takes the request's id from the header if the body has none.
fn name_by_header(headers: &HeaderMap, request_id: &mut String) -> Result<(), ApiError> {
    const FIELD: &str = "request_id";
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(()) };
    if keys.next().is_some() {
        return Err(ApiError::invalid(FIELD, "the header Idempotency-Key must be given once"));
    }
    let Ok(key) = std::str::from_utf8(key.as_bytes()) else {
        return Err(ApiError::invalid(FIELD, "the header Idempotency-Key must be UTF-8"));
    };
    if key.is_empty() {
        let problem = "the header Idempotency-Key is empty: leave it out, or give 1 to 64 bytes";
        return Err(ApiError::invalid(FIELD, problem));
    }
    if request_id.is_empty() {
        key.clone_into(request_id);
    } else if request_id.as_str() != key {
        let problem = "the body and the header Idempotency-Key differ: give one, or the same";
        return Err(ApiError::invalid(FIELD, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_a_route_is_told_the_one_that_was_meant() {
        for (path, meant) in [
            ("/v1/lock/aquire", Some("POST /v1/lock/acquire")),
            ("/v1/locks/acquire", Some("POST /v1/lock/acquire")),
            ("/lock/acquire", Some("POST /v1/lock/acquire")),
            ("/v1/lease/renew/", Some("POST /v1/lease/renew")),
            ("/v1/leader", None),
            ("/v1/statsu", Some("GET /v1/status")),
            ("/v1/lock/jobs/nightly", Some("GET /v1/lock?name=jobs/nightly")),
            ("/v1/lock/a", Some("GET /v1/lock?name=a")),
            ("/v1/lease/7", Some("GET /v1/lease?lease_id=7")),
            ("/v1/election/leader/scheduler", Some("GET /v1/election/leader?election=scheduler")),
            ("/v1", None),
            ("/", None),
            ("/favicon.ico", None),
            ("/v1/nonsense", None),
        ] {
            assert_eq!(nearest(path).as_deref(), meant, "{path}");
        }
    }

    #[test]
    fn every_example_of_a_body_is_a_valid_one() {
        fn check<C: Routed>(example: &str) {
            if C::METHOD == Method::POST {
                assert!(json::parse::<C>(example.as_bytes()).is_ok(), "{example}");
            }
        }
        macro_rules! examples {
            ($($_service:ident { $(
                $_name:ident($Request:ty) -> $_response:ty {
                    node: $_node:tt
                    grpc: $_grpc:tt
                    http: { $($_method:ident $_path:literal $example:literal)? }
                    session: $_session:tt
                }
            )* })*) => {
                $($($( check::<$Request>($example); )?)*)*
            };
        }
        calls!(examples);
    }
}
