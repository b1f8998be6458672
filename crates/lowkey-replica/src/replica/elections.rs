//! When a node becomes a candidate: its election timeout.
//!
//! Raft draws the timeout at random, so that two nodes seldom stand at once. But two that do split the votes, and all wait
//! for another round. Here every node can tell whose turn it is: those that could lead line up, in another order in every
//! term, and stand one after the other, each with time enough to win before the next one does.
//!
//! Two may still stand at once: messages may take longer than one waits for the other, or a node does not know who the
//! others are or which term it is. So a node that stood in vain draws its next timeout at random, from the whole range:
//! nodes that keep an order might split the votes again.
//!
//! None of this decides who may win. Raft does.

use raft::Raft;

use super::mix::mix;
use crate::config::Config;
use crate::input::DiskRoom;
use crate::log::LogStore;

/// The shortest time without a leader, in ticks, after which a node stands for election; the longest is just below twice
/// that.
pub(crate) const ELECTION_TICKS: usize = 20;
/// The first waits so much longer: until then the others may hold that there is a leader, and would not hear it.
const MARGIN_TICKS: usize = 2;

/// After how many ticks without a leader this node stands for election.
pub(super) fn election_ticks(raft: &Raft<LogStore>, config: &Config, disk: DiskRoom) -> usize {
    let member = config.member.0;
    let stood_in_vain = raft.vote == member && raft.leader_id == raft::INVALID_ID;
    if stood_in_vain {
        return ticks_after_split(member, raft.term, config.seed);
    }
    let voters = raft.prs().conf().voters().ids();
    let ticks = ticks_in_line(member, raft.term, raft.leader_id, voters.iter());
    // A leader without room refuses new grants for everybody. Not so one whose disk takes nothing at all: if another led,
    // it could not even take what makes that one a leader.
    if disk == DiskRoom::Reserve { ticks_behind_the_line(ticks) } else { ticks }
}

/// After how many ticks without a leader a member stands for election.
///
/// `voters` are all who vote, and `leader` is the one who is missed, as far as that is known.
fn ticks_in_line(member: u64, term: u64, leader: u64, voters: impl Iterator<Item = u64>) -> usize {
    let (mut others, mut before) = (0, 0);
    for other in voters.filter(|voter| *voter != leader && *voter != member) {
        others += 1;
        before += usize::from(other < member);
    }
    let contenders = others + 1;
    // Another one begins in every term. Not simply the next: as often as not the one who led is among the others then, and
    // some would never have their turn.
    let first = (mix(0, term) % contenders as u64) as usize;
    let ahead = (before + first) % contenders;
    ELECTION_TICKS + MARGIN_TICKS + (ELECTION_TICKS - MARGIN_TICKS) * ahead / contenders
}

/// The same for one that had better not lead, and would be in line at that time: later than most, in the same order.
fn ticks_behind_the_line(ticks: usize) -> usize {
    const FIRST: usize = ELECTION_TICKS + MARGIN_TICKS;
    const LATE: usize = 2 * ELECTION_TICKS - 5;
    LATE + ticks.saturating_sub(FIRST) * (2 * ELECTION_TICKS - LATE) / (2 * ELECTION_TICKS - FIRST)
}

/// The same for one that stood for election and got too few votes.
fn ticks_after_split(member: u64, term: u64, seed: u64) -> usize {
    let drawn = mix(mix(seed, member), term);
    ELECTION_TICKS + (drawn % ELECTION_TICKS as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whoever_could_lead_stands_at_a_time_of_its_own(
            voters in prop::collection::btree_set(any::<u64>(), 1..8),
            term: u64,
            leads in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let leader = leads.map_or(raft::INVALID_ID, |leads| *leads.get(&voters.iter().copied().collect::<Vec<_>>()));
            let contenders: Vec<u64> = voters.iter().copied().filter(|voter| *voter != leader).collect();
            let mut ticks: Vec<usize> = contenders
                .iter()
                .map(|member| ticks_in_line(*member, term, leader, voters.iter().copied()))
                .collect();
            ticks.sort_unstable();
            // What `raft` asks for.
            prop_assert!(ticks.iter().all(|ticks| (ELECTION_TICKS..2 * ELECTION_TICKS).contains(ticks)), "{ticks:?}");
            // A vote is over within a tick or two.
            let apart = if contenders.len() <= 2 { 6 } else { 2 };
            prop_assert!(ticks.windows(2).all(|pair| pair[1] - pair[0] >= apart), "{ticks:?}");
        }
    }

    #[test]
    fn who_had_better_not_lead_stands_later_and_not_too_late() {
        for voters in 1..=7 {
            let in_line: Vec<usize> =
                (0..voters).map(|member| ticks_in_line(member, 3, raft::INVALID_ID, 0..voters)).collect();
            for ticks in &in_line {
                let late = ticks_behind_the_line(*ticks);
                assert!(late < 2 * ELECTION_TICKS && late >= *ticks, "{ticks} becomes {late}");
                let before = in_line.iter().filter(|other| **other < late).count();
                assert!(before + 2 >= in_line.len(), "{late} in {in_line:?}");
            }
        }
    }

    #[test]
    fn each_is_the_first_in_its_turn() {
        let ticks = |member, term| ticks_in_line(member, term, raft::INVALID_ID, [4, 5, 9].into_iter());
        for member in [4, 5, 9] {
            let is_first =
                |term: &u64| [4, 5, 9].into_iter().min_by_key(|other| ticks(*other, *term)) == Some(member);
            let times_first = (0..300).filter(is_first).count();
            assert!((60..140).contains(&times_first), "{member}: {times_first} of 300");
        }
    }

    #[test]
    fn two_that_stood_at_once_do_not_keep_doing_so() {
        let ticks = |member: u64, term| ticks_after_split(member, term, 1000 * member);
        let together = (0..300).filter(|term| ticks(1, *term).abs_diff(ticks(2, *term)) <= 3).count();
        assert!(together < 150, "{together} of 300");
    }
}
