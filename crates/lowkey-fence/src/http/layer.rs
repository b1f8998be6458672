//! The tower layer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use tower_layer::Layer;
use tower_service::Service;

use super::{InvalidHeaders, encode, error_body, read_headers};

/// `INVALID_ARGUMENT` of gRPC.
const INVALID_ARGUMENT: i32 = 3;

/// Reads the headers of every request into a [`Fence`](lowkey_token::Fence) among its extensions.
///
/// A request with headers that make no sense is answered with status 400, or `INVALID_ARGUMENT` in gRPC. So is one
/// without any, if they are required.
///
/// ```
/// use lowkey_fence::http::FenceLayer;
/// let layer = FenceLayer::required(); // axum: Router::layer(layer); tonic: Server::builder().layer(layer)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FenceLayer {
    is_required: bool,
}

impl FenceLayer {
    /// Every request must present a token.
    pub fn required() -> Self {
        Self { is_required: true }
    }

    /// A request may come without one: for services of which only some calls write.
    pub fn optional() -> Self {
        Self { is_required: false }
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, is_required: self.is_required }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Clone, Copy, Debug)]
pub struct FenceService<S> {
    inner: S,
    is_required: bool,
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<Either<R, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let problem = match read_headers(request.headers()) {
            Ok(Some(fence)) => {
                request.extensions_mut().insert(fence);
                None
            }
            Ok(None) => self.is_required.then_some(InvalidHeaders::Missing),
            Err(invalid) => Some(invalid),
        };
        if let Some(problem) = problem {
            let answer = if is_grpc(&request) { grpc_answer(problem) } else { http_answer(problem) };
            return Box::pin(async move { Ok(answer.map(Either::Right)) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(Either::Left)) })
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

fn http_answer(problem: InvalidHeaders) -> Response<Full<Bytes>> {
    let body = error_body(INVALID_ARGUMENT, problem.reason(), &problem.to_string());
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// An answer without messages, whose status is in the headers.
fn grpc_answer(problem: InvalidHeaders) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(INVALID_ARGUMENT));
    if let Ok(message) = HeaderValue::try_from(encode(&problem.to_string())) {
        headers.insert("grpc-message", message);
    }
    answer
}
