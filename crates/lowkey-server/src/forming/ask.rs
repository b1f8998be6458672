//! Asks the other nodes, at every address that `--join` names.
//!
//! A name may have several addresses, each of another node: all of them are asked. One of them may be this node itself,
//! which is not noticed here and does no harm.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use lowkey_replica::forming::Statement;
use tokio::net::lookup_host;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::MESSAGE_BYTES_MAX;
use super::proto::forming_client::FormingClient;
use super::secret::FormSecret;
use super::wire::{self, Unreadable};
use crate::dial::Dialer;
use crate::random_bytes;

/// How long a name may take to be looked up.
const LOOKUP_WAIT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// How many addresses are asked: a name that has more is no name of a few nodes.
const ADDRESSES_MAX: usize = 64;

/// Where to ask: a name with its port, and one of its addresses.
type Place = (String, SocketAddr);

pub(super) struct Asking {
    dialer: Dialer,
    names: Vec<String>,
    secret: FormSecret,
    /// Connections are kept from one round to the next.
    channels: BTreeMap<Place, Channel>,
    /// What went wrong in the last round, by name or address.
    problems: BTreeMap<String, String>,
}

impl Asking {
    pub(super) fn new(dialer: Dialer, names: &[String], secret: FormSecret) -> Self {
        let (channels, problems) = (BTreeMap::new(), BTreeMap::new());
        Self { dialer, names: names.to_vec(), secret, channels, problems }
    }

    /// Asks all, and returns what those said that answered.
    pub(super) async fn ask_all(&mut self) -> Vec<Statement> {
        self.problems.clear();
        self.look_up().await;
        let secret = &self.secret;
        let asked = self.channels.iter().map(|((name, address), channel)| async move {
            (format!("{name} ({address})"), ask(secret, channel.clone()).await)
        });
        let mut heard = Vec::new();
        for (place, answer) in join_all(asked).await {
            match answer {
                Ok(statement) => heard.push(statement),
                Err(problem) => {
                    self.problems.insert(place, problem);
                }
            }
        }
        heard
    }

    /// Whom the last round did not reach, and why, for a person.
    pub(super) fn problems(&self) -> String {
        let problems: Vec<String> =
            self.problems.iter().map(|(place, problem)| format!("{place}: {problem}")).collect();
        problems.join("; ")
    }

    async fn look_up(&mut self) {
        let found = join_all(
            self.names
                .iter()
                .map(|name| async move { (name, timeout(LOOKUP_WAIT, lookup_host(name.as_str())).await) }),
        );
        let mut places = Vec::new();
        for (name, found) in found.await {
            match found {
                Ok(Ok(addresses)) => places.extend(addresses.map(|address| (name.clone(), address))),
                Ok(Err(error)) => {
                    self.problems.insert(name.clone(), format!("it cannot be looked up ({error})"));
                }
                Err(_) => {
                    self.problems.insert(name.clone(), "looking it up takes too long".into());
                }
            }
        }
        places.truncate(ADDRESSES_MAX);
        self.channels.retain(|place, _| places.contains(place));
        for (name, address) in places {
            if self.channels.contains_key(&(name.clone(), address)) {
                continue;
            }
            match self.dialer.at(&name, address, CONNECT_TIMEOUT) {
                Ok(channel) => {
                    self.channels.insert((name, address), channel);
                }
                Err(error) => {
                    self.problems.insert(name, format!("it is not HOST:PORT ({error})"));
                }
            }
        }
    }
}

async fn ask(secret: &FormSecret, channel: Channel) -> Result<Statement, String> {
    let key = secret.key();
    let number = random_bytes().map_err(|error| error.to_string())?;
    let mut client = FormingClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let answer = timeout(ANSWER_WAIT, client.ask(wire::seal_question(&key, number))).await;
    let sealed = answer.map_err(|_| "no answer".to_owned())?.map_err(|status| refused(&status))?;
    wire::open_answer(&key, number, sealed.get_ref()).map_err(|unreadable| {
        match unreadable {
            Unreadable::Seal => "it has another --form-secret-file",
            Unreadable::Words => "it is of a version that this node does not understand",
        }
        .to_owned()
    })
}

fn refused(status: &Status) -> String {
    match status.code() {
        Code::Unavailable => "nobody answers".to_owned(),
        Code::Unimplemented => {
            "the node there runs without --cluster-of; start it with the same flags as this one".to_owned()
        }
        _ => status.message().chars().take(200).collect(),
    }
}
