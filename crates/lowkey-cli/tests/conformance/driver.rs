//! One driver: a process that does with an SDK what it is told.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};

use crate::harness::PATIENCE;

/// What a driver has said.
#[derive(Default)]
struct Said {
    answers: HashMap<u64, Value>,
    events: Vec<Value>,
    is_over: bool,
}

#[derive(Default)]
struct Ear {
    said: Mutex<Said>,
    news: Condvar,
}

pub(crate) struct Driver {
    child: Child,
    stdin: ChildStdin,
    ear: Arc<Ear>,
    last_id: u64,
    /// What its clients show and trust: fields of `client.new`.
    credentials: Map<String, Value>,
    /// What the names of their owners begin with: where access is required, the principal and a slash.
    pub(crate) owners_below: String,
}

impl Driver {
    /// Starts it, and waits until it is ready.
    pub(crate) fn start(command: &[String], credentials: Map<String, Value>) -> Self {
        let (program, arguments) = command.split_first().unwrap();
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let ear = Arc::new(Ear::default());
        let listening = Arc::clone(&ear);
        std::thread::spawn(move || listen(BufReader::new(stdout), &listening));
        let mut driver = Self { child, stdin, ear, last_id: 0, credentials, owners_below: String::new() };
        let ready = driver.event("it is ready", |event| event["event"] == "ready");
        assert_eq!(ready["protocol"], 1, "{ready}");
        driver
    }

    /// Gives a command, and does not wait. Gives its id.
    pub(crate) fn send(&mut self, mut command: Value) -> u64 {
        self.last_id += 1;
        command["id"] = self.last_id.into();
        writeln!(self.stdin, "{command}").unwrap();
        self.stdin.flush().unwrap();
        self.last_id
    }

    /// Waits for the answer to a command.
    pub(crate) fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let answer = self.wait(&format!("command {id} is answered"), |said| said.answers.remove(&id));
        match answer {
            Value::Object(mut fields) if fields.contains_key("ok") => {
                Ok(fields.remove("ok").unwrap_or_default())
            }
            mut answer => Err(answer["error"].take()),
        }
    }

    /// Gives a command, and waits for its answer.
    pub(crate) fn ask(&mut self, command: Value) -> Result<Value, Value> {
        let id = self.send(command);
        self.answer(id)
    }

    /// The same, for what must not fail.
    pub(crate) fn does(&mut self, command: Value) -> Value {
        let asked = command.to_string();
        self.ask(command).unwrap_or_else(|error| panic!("{asked}: {error}"))
    }

    /// The same, for what must fail in this way.
    pub(crate) fn fails(&mut self, command: Value, kind: &str) -> Value {
        let asked = command.to_string();
        match self.ask(command) {
            Err(error) if error["kind"] == kind => error,
            other => panic!("{asked}: wanted {kind}, got {other:?}"),
        }
    }

    /// Waits for an event, and takes it.
    pub(crate) fn event(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        self.wait(what, |said| {
            let place = said.events.iter().position(&is_it)?;
            Some(said.events.remove(place))
        })
    }

    /// True if such an event has come so far.
    pub(crate) fn has_event(&self, is_it: impl Fn(&Value) -> bool) -> bool {
        let said = self.ear.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.events.iter().any(is_it)
    }

    fn wait<T>(&mut self, what: &str, mut take: impl FnMut(&mut Said) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut said = self.ear.said.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(taken) = take(&mut said) {
                return taken;
            }
            assert!(!said.is_over, "the driver ended, and waited in vain: {what}");
            assert!(Instant::now() < deadline, "waited in vain: {what}; events: {:?}", said.events);
            let step = Duration::from_millis(100);
            said = self.ear.news.wait_timeout(said, step).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The process of the driver.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// A client with these endpoints.
    pub(crate) fn client(&mut self, endpoints: &[String], owner: &str) {
        let owner = format!("{}{owner}", self.owners_below);
        let mut command = json!({"op": "client.new", "client": "c", "endpoints": endpoints, "owner": owner});
        command.as_object_mut().unwrap().extend(self.credentials.clone());
        self.does(command);
    }

    /// A session with this many seconds to live.
    pub(crate) fn session(&mut self, ttl_seconds: u64) -> u64 {
        let made = self
            .does(json!({"op": "session.new", "client": "c", "session": "s", "ttl_seconds": ttl_seconds}));
        number(&made["lease_id"])
    }

    /// An acquire of a lock, whose handle is its name.
    pub(crate) fn acquire(name: &str, wait_ms: Option<u64>) -> Value {
        json!({"op": "lock.acquire", "session": "s", "lock": name, "name": name, "wait_ms": wait_ms})
    }

    pub(crate) fn is_held(&mut self, name: &str) -> bool {
        self.does(json!({"op": "lock.held", "lock": name}))["held"] == true
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A 64-bit number, which is a text in JSON.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no number: {value}"))
}

fn listen(lines: impl BufRead, ear: &Ear) {
    for line in lines.lines() {
        let Ok(line) = line else { break };
        let value: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let mut said = ear.said.lock().unwrap_or_else(PoisonError::into_inner);
        match value["id"].as_u64() {
            Some(id) => assert!(said.answers.insert(id, value).is_none(), "two answers: {line}"),
            None => said.events.push(value),
        }
        ear.news.notify_all();
    }
    ear.said.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
    ear.news.notify_all();
}
