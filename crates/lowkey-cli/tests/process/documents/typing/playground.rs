//! Three nodes to play with, and a terminal beside them.

use serde_json::Value;

use super::terminal::{Curl, Job, Terminal};
use crate::harness::http;

/// `lowkey dev`, and a terminal beside it.
pub(crate) struct Playground {
    pub(crate) terminal: Terminal,
    dev: Job,
    text: String,
}

impl Playground {
    pub(crate) fn start() -> Self {
        Self::typed("lowkey dev")
    }

    pub(crate) fn typed(command: &str) -> Self {
        let terminal = Terminal::new(Curl::best());
        let dev = terminal.start(command);
        let text = dev.wait_until_printed("/v1/locks\n", || {});
        Self { terminal, dev, text }
    }

    /// Tells commands by the environment where the nodes are: they may not have the usual ports.
    pub(crate) fn with_endpoints(mut self) -> Self {
        self.terminal.set("LOWKEY_ENDPOINTS", self.endpoints());
        self.terminal.set("LOWKEY_HTTP", format!("http://127.0.0.1:{}", self.http_port()));
        self.terminal.redirect(8080, self.http_port());
        self
    }

    pub(crate) fn endpoints(&self) -> String {
        self.told("gRPC ")
    }

    /// Where its first node speaks HTTP.
    pub(crate) fn http_port(&self) -> u16 {
        let first = self.told("HTTP/JSON ").split(',').next().unwrap().to_owned();
        first.rsplit(':').next().unwrap().parse().unwrap()
    }

    fn told(&self, what: &str) -> String {
        let line = self.text.lines().find_map(|line| line.trim().strip_prefix(what));
        line.expect("it says where it is").trim().to_owned()
    }

    /// Asks its first node, and expects that it is done.
    pub(crate) fn post(&self, path: &str, body: &str) -> Value {
        let (status, text) = http(self.http_port(), "POST", path, body).expect("an answer");
        assert_eq!(status, 200, "{path} {body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// What it says to try.
    pub(crate) fn to_try(&self) -> Vec<String> {
        let lines = self.text.lines().skip_while(|line| !line.contains("Try, in another terminal:")).skip(1);
        lines.map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    pub(crate) fn end(self) {
        let done = self.dev.ctrl_c();
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(
            std::fs::read_dir(self.terminal.path("tmp")).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }
}
