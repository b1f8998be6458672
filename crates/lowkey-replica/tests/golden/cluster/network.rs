//! A network of queues: what is under way, and which ways are cut.

use lowkey_core::MemberId;
use lowkey_replica::wire::{self, Said};
use lowkey_replica::{Input, Message, MessageType, ReceivedSnapshot, Report};

use super::{Cluster, Done, GROUP, message_words};

/// A message under way; one that names a snapshot has it with it.
pub(crate) struct Letter {
    pub(crate) message: Message,
    pub(crate) snapshot: Option<Vec<u8>>,
}

impl Cluster {
    pub(super) fn send(&mut self, message: Message) -> Done {
        let (from, to) = (message.from, message.to);
        let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
        if self.cut.contains(&(from, to)) {
            if is_snapshot {
                self.reports.push_back((from, Input::SnapshotSent { to: MemberId(to), delivered: false }));
            }
            return Ok(());
        }
        let index = message.get_snapshot().get_metadata().index;
        let snapshot = match is_snapshot {
            true => Some(self.node(from)?.disk.snapshot(index).ok_or("a snapshot that is not on disk")?),
            false => None,
        };
        let message = decode(&wire::encode_message(GROUP, message));
        self.network.entry((from, to)).or_default().push_back(Letter { message, snapshot });
        Ok(())
    }

    pub(crate) fn queued(&self) -> Vec<Message> {
        self.network.values().flatten().map(|letter| letter.message.clone()).collect()
    }

    /// Takes the first message of a queue that is of the kind, if one is named.
    pub(crate) fn take(&mut self, from: u64, to: u64, kind: Option<&str>) -> Option<Letter> {
        let queue = self.network.get_mut(&(from, to))?;
        let wanted = |message: &Message| {
            kind.is_none_or(|kind| format!("{:?}", message.get_msg_type()) == format!("Msg{kind}"))
        };
        let at = queue.iter().position(|letter| wanted(&letter.message))?;
        queue.remove(at)
    }

    /// Puts a message back as if it came later.
    pub(crate) fn resend(&mut self, letter: Letter) {
        self.network.entry((letter.message.from, letter.message.to)).or_default().push_back(letter);
    }

    /// Hands a message to its addressee, which does not take a turn yet.
    pub(crate) fn hand(&mut self, to: u64, letter: Letter, show: bool) -> Done {
        let Letter { message, snapshot } = letter;
        let from = message.from;
        if show || self.settings.show_messages {
            self.tell(message_words(&message));
        }
        let addressee = self.nodes.get(&to).and_then(|node| node.replica.as_ref());
        let up = addressee.is_some();
        // A node that was removed is told so, and nothing else, as it is at a real node's door.
        if addressee.is_some_and(|replica| replica.status().has_removed(MemberId(from))) {
            if self.told_removed.insert(from) {
                self.tell(format!("n{to} tells n{from} that it was removed"));
            }
            return Ok(());
        }
        let Some(payload) = snapshot else {
            return if up { self.step(to, Input::Message(Box::new(message))) } else { Ok(()) };
        };
        let received = ReceivedSnapshot::read(message, payload);
        if let Err(error) = &received {
            self.tell(format!("n{to} refuses it: {error}"));
        }
        let delivered = up && received.is_ok();
        if up && let Ok(received) = received {
            self.step(to, Input::Snapshot(Box::new(received)))?;
        }
        if self.live().contains(&from) {
            self.step(from, Input::SnapshotSent { to: MemberId(to), delivered })?;
        }
        Ok(())
    }

    pub(crate) fn lose(&mut self, message: &Message) -> Done {
        self.tell(format!("lost: {}", message_words(message)));
        if message.get_msg_type() == MessageType::MsgSnapshot && self.live().contains(&message.from) {
            let input = Input::SnapshotSent { to: MemberId(message.to), delivered: false };
            self.step(message.from, input)?;
        }
        Ok(())
    }

    /// Takes turns and delivers until nothing moves any more.
    pub(crate) fn stabilize(&mut self) -> Done {
        for _ in 0..10_000 {
            for id in self.live() {
                self.run(id)?;
            }
            let queues: Vec<(u64, u64)> =
                self.network.iter().filter(|(_, queue)| !queue.is_empty()).map(|(key, _)| *key).collect();
            if queues.is_empty() && self.said.is_empty() {
                // A tick would tell what is committed; scripts that deliver everything want it told.
                for id in self.live() {
                    self.replica(id)?.tell_commit();
                }
                if !self.live().iter().any(|id| self.replica(*id).is_ok_and(|replica| replica.has_work())) {
                    return Ok(());
                }
                continue;
            }
            for report in std::mem::take(&mut self.said) {
                self.deliver_report(report)?;
            }
            for (from, to) in queues {
                while let Some(letter) = self.take(from, to, None) {
                    self.hand(to, letter, false)?;
                }
            }
        }
        Err("it never comes to rest".into())
    }

    fn deliver_report(&mut self, report: Report) -> Done {
        let Report { from, to, .. } = report;
        let is_up = self.nodes.get(&to.0).is_some_and(|node| node.replica.is_some());
        if !is_up || self.cut.contains(&(from.0, to.0)) {
            return Ok(());
        }
        let (_, said) = wire::decode(&wire::encode_report(GROUP, report))?;
        assert_eq!(said, Said::Report(report));
        self.step(to.0, said.into())
    }

    /// Cuts the way from one node to another; what is under way is lost.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
        self.network.remove(&(from, to));
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }
}

fn decode(bytes: &[u8]) -> Message {
    let (group, message) = wire::decode_message(bytes).expect("what a replica sent can be read");
    assert_eq!(group, GROUP);
    message
}
