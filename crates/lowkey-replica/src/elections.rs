//! When a node stands for election.
//!
//! Raft draws the time at random, so that two nodes seldom stand at once; but two that do split the votes, and all wait for
//! another round. Here everybody can tell whose turn it is: those who could lead line up, in another order in every
//! term, and stand one after the other, each with time enough to win before the next does. A node that does not know who
//! the others are, or which term it is, may still stand at the same time as another; that is settled as it ever was.
//!
//! Nothing of this decides who may win. Raft does.

use crate::replica::mix;

/// The shortest time without a leader, in ticks, after which a node stands for election; the longest is just below twice
/// that.
pub(crate) const ELECTION_TICKS: usize = 20;
/// The first waits so much longer: until then the others may hold that there is a leader, and would not hear it.
const MARGIN_TICKS: usize = 2;

/// After how many ticks without a leader a member stands for election.
///
/// `voters` are all who vote, and `leader` is the one who is missed, as far as that is known. `seed` spreads a little those
/// who do not know enough to line up.
pub(crate) fn patience_ticks(
    member: u64,
    term: u64,
    leader: u64,
    voters: impl Iterator<Item = u64>,
    seed: u64,
) -> usize {
    let (mut others, mut before) = (0, 0);
    for other in voters.filter(|voter| *voter != leader && *voter != member) {
        others += 1;
        before += usize::from(other < member);
    }
    let contenders = others + 1;
    // Another one begins in every term.
    let ahead = (before + (term % contenders as u64) as usize) % contenders;
    let span = ELECTION_TICKS - MARGIN_TICKS;
    let apart = span / contenders;
    let drawn = mix(mix(seed, member), term) as usize % (apart / 3).max(1);
    ELECTION_TICKS + MARGIN_TICKS + span * ahead / contenders + drawn
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
            seed: u64,
        ) {
            let leader = leads.map_or(raft::INVALID_ID, |leads| *leads.get(&voters.iter().copied().collect::<Vec<_>>()));
            let contenders: Vec<u64> = voters.iter().copied().filter(|voter| *voter != leader).collect();
            let mut ticks: Vec<usize> = contenders
                .iter()
                .map(|member| patience_ticks(*member, term, leader, voters.iter().copied(), seed ^ member))
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
    fn each_is_the_first_in_its_turn() {
        let ticks = |member, term| patience_ticks(member, term, raft::INVALID_ID, [4, 5, 9].into_iter(), 7);
        let first = |term| [4, 5, 9].into_iter().min_by_key(|member| ticks(*member, term));
        assert_eq!([6, 7, 8, 9].map(first), [Some(4), Some(9), Some(5), Some(4)]);
    }
}
