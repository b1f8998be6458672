//! A log behind an HTTP service: axum, the layer, and a value in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use lowkey_fence::http::{FenceLayer, Fenced, STALE_TOKEN, write_headers};
use lowkey_fence::{Fence, Marks, MemoryFence, Refusal, Resource, Token};
use reqwest::{Client, RequestBuilder, StatusCode};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{Entry, Holder, Stop, Store, Way, pass};
use crate::Failure;
use crate::servers::choose_crypto;

/// One resource of the service.
type Log = MemoryFence<Vec<Entry>>;

#[derive(Clone, Default)]
struct Logs(Arc<Mutex<HashMap<String, Arc<Log>>>>);

impl Logs {
    fn of(&self, resource: &str) -> Arc<Log> {
        let mut logs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let resource = Resource::parse(resource).expect("the experiment names it");
            Arc::new(MemoryFence::new(resource, Vec::new()))
        };
        Arc::clone(logs.entry(resource.to_owned()).or_insert_with(made))
    }
}

pub(super) struct Service {
    address: String,
    /// One for all holders: each reads the certificates of the system anew.
    client: Client,
    server: AbortHandle,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Service {
    pub(super) async fn new() -> Result<Self, Failure> {
        choose_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let written = Router::new()
            .route("/{resource}/claim", post(claim))
            .route("/{resource}/write/{id}", post(write))
            .layer(FenceLayer::required());
        let read = Router::new().route("/{resource}/log", get(log)).route("/{resource}/marks", get(marks));
        let router = written.merge(read).with_state(Logs::default());
        let server = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        Ok(Self { address, client: Client::new(), server })
    }
}

async fn claim(
    State(logs): State<Logs>,
    Path(resource): Path<String>,
    Fenced(fence): Fenced,
) -> Result<(), Refusal> {
    logs.of(&resource).claim(&fence)
}

async fn write(
    State(logs): State<Logs>,
    Path((resource, id)): Path<(String, u64)>,
    Fenced(fence): Fenced,
) -> Result<(), Refusal> {
    logs.of(&resource).write(&fence, |log| log.push(Entry::new(id, &fence)))
}

async fn log(State(logs): State<Logs>, Path(resource): Path<String>) -> String {
    logs.of(&resource).read(|log| log.iter().map(|entry| format!("{entry}\n")).collect())
}

async fn marks(State(logs): State<Logs>, Path(resource): Path<String>) -> Json<[u64; 2]> {
    let marks = logs.of(&resource).marks();
    Json([marks.exclusive.0, marks.shared.0])
}

impl Store for Service {
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>> {
        async move {
            let base = format!("{}/{}", self.address, resource.replace('/', "-"));
            Ok(Box::new(HttpHolder { client: self.client.clone(), base }) as Box<dyn Holder>)
        }
        .boxed()
    }
}

struct HttpHolder {
    client: Client,
    base: String,
}

impl HttpHolder {
    async fn send(&self, request: RequestBuilder, fence: &Fence) -> Result<bool, Failure> {
        let mut headers = reqwest::header::HeaderMap::new();
        write_headers(fence, &mut headers);
        let answer = request.headers(headers).send().await?;
        let (status, body) = (answer.status(), answer.text().await?);
        match status {
            StatusCode::OK => Ok(true),
            StatusCode::CONFLICT if body.contains(STALE_TOKEN) && body.contains(Refusal::ADVICE) => Ok(false),
            _ => Err(format!("{status}: {body}").into()),
        }
    }
}

impl Holder for HttpHolder {
    fn claim<'a>(&'a mut self, fence: &'a Fence) -> BoxFuture<'a, Result<bool, Failure>> {
        self.send(self.client.post(format!("{}/claim", self.base)), fence).boxed()
    }

    fn write<'a>(
        &'a mut self,
        fence: &'a Fence,
        id: u64,
        way: Way,
        stop: Stop,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        async move {
            if way == Way::Naive {
                return Err("a value behind the layer has no unchecked way in".into());
            }
            pass(&mut Some(stop)).await?;
            self.send(self.client.post(format!("{}/write/{id}", self.base)), fence).await
        }
        .boxed()
    }

    fn log(&mut self) -> BoxFuture<'_, Result<Vec<Entry>, Failure>> {
        async move {
            let text = self.client.get(format!("{}/log", self.base)).send().await?.text().await?;
            text.lines().map(str::parse).collect()
        }
        .boxed()
    }

    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>> {
        async move {
            let answer = self.client.get(format!("{}/marks", self.base)).send().await?;
            let [exclusive, shared]: [u64; 2] = answer.json().await?;
            Ok(Marks { exclusive: Token(exclusive), shared: Token(shared) })
        }
        .boxed()
    }
}
