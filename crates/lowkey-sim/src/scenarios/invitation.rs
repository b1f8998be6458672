//! A machine comes with an invitation, and others try to come with the same.
//!
//! Attacked: an invitation is a secret on its way from a person to a machine, and may be seen there. An identity may be
//! seen, too.
//! Must be true: it lets in one machine, whoever leads, also when that machine is gone again; its time is the leader's to
//! judge; and whoever knows an identity cannot change the key that belongs to it.

use lowkey_core::{Command, InvitationHash, KeyHash, MemberId, NodeInfo, Refusal, Reply};
use lowkey_replica::{Failure, Request, Response};

use super::script::{ANN, N1, Script, ScriptAnswer, ensure};
use crate::invariants::{Check, Violation};
use crate::node::node_info;

impl Script {
    /// Asks one machine for something as the operator would, and waits for the answer.
    pub(super) fn command(
        &mut self,
        node: usize,
        what: &str,
        command: Command,
    ) -> Result<ScriptAnswer, Violation> {
        self.tell(&format!("n{} is asked to {what}", node + 1));
        let heard = self.world.operator_heard.len();
        self.world.ask_as_operator(node, 0, Request::Command(command));
        self.until("the operator is answered", 2_000, |script| script.world.operator_heard.len() > heard)?;
        Ok(self.world.operator_heard[heard].1.clone())
    }

    fn comes_with(&mut self, node: usize, member: u64, number: u8) -> Result<ScriptAnswer, Violation> {
        let invitation = Some(InvitationHash([number; 32]));
        let command = Command::AddMember { node: Box::new(node_info(member)), invitation };
        self.command(node, &format!("let n{member} in with invitation {number}"), command)
    }

    fn invite(&mut self, node: usize, number: u8, lifetime_seconds: u64) -> Check {
        let invitation = InvitationHash([number; 32]);
        let command = Command::Invite { invitation, lifetime_seconds, since_unix_ms: 0 };
        let answer = self.command(node, &format!("make invitation {number}"), command)?;
        ensure(matches!(answer, Ok(Response::Applied(Reply::Invited { .. }))), || {
            format!("the invitation was answered {answer:?}")
        })
    }
}

fn is_used(answer: &ScriptAnswer) -> Check {
    ensure(matches!(answer, Err(Failure::Refused(Refusal::InvitationUsed))), || {
        format!("an invitation worked twice, or was answered {answer:?}")
    })
}

/// The fourth machine comes. A fifth tries to, before and after the lead changes; so does the fourth when it was removed.
pub(super) fn shown_again(script: &mut Script) -> Check {
    script.invite(N1, 7, 3600)?;
    let came = script.comes_with(N1, 4, 7)?;
    ensure(matches!(came, Ok(Response::Applied(Reply::MemberAdded { member: MemberId(4) }))), || {
        format!("the machine that was invited is answered {came:?}")
    })?;
    is_used(&script.comes_with(N1, 5, 7)?)?;
    let second = script.hand_over(N1)?;
    is_used(&script.comes_with(second, 5, 7)?)?;
    let again = script.comes_with(second, 4, 7)?;
    ensure(again.is_ok(), || format!("who asks again is answered {again:?}"))?;
    let removal = Command::RemoveMember { name: node_info(4).name, member: None };
    let removed = script.command(second, "remove n4", removal)?;
    ensure(removed.is_ok(), || format!("the removal is answered {removed:?}"))?;
    script.advance(500)?;
    is_used(&script.comes_with(second, 4, 7)?)?;
    script.take_lock(ANN, second, 2)?;
    script.end(1)
}

/// An invitation for a second is shown after two, and a key is to be changed by who knows the identity alone.
pub(super) fn too_late(script: &mut Script) -> Check {
    script.invite(N1, 8, 1)?;
    script.advance(2_000)?;
    let late = script.comes_with(N1, 4, 8)?;
    ensure(matches!(late, Err(Failure::InvitationExpired)), || format!("too late is answered {late:?}"))?;
    let stolen = NodeInfo { key_hash: Some(KeyHash([99; 32])), ..node_info(2) };
    for command in [
        Command::UpdateMember { member: MemberId(2), node: Box::new(stolen.clone()) },
        Command::AddMember { node: Box::new(stolen), invitation: None },
    ] {
        let answer = script.command(N1, "give n2 another key", command)?;
        ensure(matches!(answer, Err(Failure::Refused(Refusal::NodeKeyDiffers { .. }))), || {
            format!("another key is answered {answer:?}")
        })?;
    }
    script.take_lock(ANN, N1, 2)?;
    script.end(1)
}
