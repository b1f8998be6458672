//! How patient the nodes of a cluster are with each other.
//!
//! On a busy machine heartbeats and their answers come late, and nodes that are alive are taken for dead: the lead
//! changes for nothing, and each change gives the leases of dead clients another time to live. So all that waits for a
//! sign of life is stretched by one *factor*, from 1 to 4, the same in the whole cluster:
//!
//! - The leader derives it from how late its own ticks are, and the answers of the quorum that it needs. It raises the
//!   factor at once, and takes it back one by one while nothing needs it.
//! - It tells the factor with its heartbeats. Others keep the last one that they heard, 1 after a start. A new leader
//!   begins with the one that it had.
//! - What is stretched: the ticks that `raft` sees, and with them its election timeout, its check of the quorum, the
//!   time in which votes are refused, and the order of candidates (`elections.rs`); and after how long a silent member
//!   does not answer (`contact.rs`).
//! - What is not: the replica's own tick, and with it deadlines, cancellations and R8; and heartbeats, which leave every
//!   50 ms.
//!
//! All of this is said for the shortest [`RaftTick`], which is the usual one. With a longer one everything here is so many
//! times longer, heartbeats and what counts as late too: the same picture on another scale. Factor and tick together are
//! the *stretch*.
//!
//! No rule R1–R10 reads factor or stretch. One that is old or wrong costs time, and nothing else.
//!
//! A node whose own ticks were late may have heartbeats on their way to it that it had no time to read. It listens for a
//! moment before it stands for election.

use lowkey_core::mutants;

use crate::raft_tick::RaftTick;
use crate::time::{MILLISECOND, Nanos};

/// The factor of a cluster whose machines could hardly be slower.
pub(crate) const FACTOR_MAX: u32 = 4;
/// Between two ticks of the replica.
const TICK_NANOS: u64 = RaftTick::STEP_NANOS;
/// Between a leader's heartbeats.
const HEARTBEAT_NANOS: u64 = 50 * MILLISECOND;
/// So late may everything be before the factor is 2.
const LATE_NANOS: u64 = 80 * MILLISECOND;
/// And so much later for each factor above that.
const STEP_NANOS: u64 = 60 * MILLISECOND;
/// Who was silent for longer has been replaced, or will be: no factor would have helped.
const LOST_NANOS: u64 = 800 * MILLISECOND;
/// A factor that nothing needed for so long is lowered by one.
const CALM_NANOS: u64 = 5_000 * MILLISECOND;
/// A node whose ticks were further apart was starved.
const STARVED_NANOS: u64 = 50 * MILLISECOND;
/// So long it listens then: two heartbeats.
const LISTEN_NANOS: u64 = 100 * MILLISECOND;

/// The factor, and what it comes from.
#[derive(Debug)]
pub(super) struct Timing {
    /// How many ticks of the replica make one of `raft` while all is calm. It never changes.
    steps: u32,
    /// From 1 to [`FACTOR_MAX`].
    factor: u32,
    /// When `raft` last saw a tick.
    raft_ticked: Nanos,
    /// When this leader last sent heartbeats.
    heartbeat: Nanos,
    /// When this leader had last heard from a quorum, as of the last tick.
    quorum_heard: Nanos,
    /// When the present factor was last needed.
    needed: Nanos,
    /// When this node's own tick was last late.
    starved: Option<Nanos>,
    /// Until when it listens before it stands for election. It does so once for each time that it stands: a node that is
    /// always late must stand in the end.
    listens_until: Option<Nanos>,
}

impl Timing {
    pub(super) fn new(raft_tick: RaftTick) -> Self {
        Self {
            steps: raft_tick.steps(),
            factor: 1,
            raft_ticked: Nanos(0),
            heartbeat: Nanos(0),
            quorum_heard: Nanos(0),
            needed: Nanos(0),
            starved: None,
            listens_until: None,
        }
    }

    pub(super) fn factor(&self) -> u32 {
        self.factor
    }

    /// How many times longer than with the shortest tick, in calm, one waits for a sign of life.
    pub(super) fn stretch(&self) -> u32 {
        self.steps * self.factor
    }

    /// A span of the shortest tick, as long as it is with this one.
    fn scaled(&self, nanos: u64) -> u64 {
        nanos * u64::from(self.steps)
    }

    /// A new term or role: what was measured before says nothing of this one. The factor stays.
    pub(super) fn begin(&mut self, now: Nanos) {
        (self.heartbeat, self.quorum_heard, self.needed) = (now, now, now);
    }

    /// The leader of this term says how patient all are to be.
    pub(super) fn hear(&mut self, factor: u32) {
        self.factor = factor;
    }

    /// A tick came so long after the last.
    pub(super) fn tick(&mut self, now: Nanos, gap_nanos: u64) {
        if gap_nanos > STARVED_NANOS {
            self.starved = Some(now);
        }
    }

    /// As a leader: raises the factor to what is needed now, or lowers it when it was not needed for long.
    pub(super) fn adapt(&mut self, now: Nanos, gap_nanos: u64, quorum_heard: Option<Nanos>) {
        let needed = match quorum_heard {
            // Only an answer that came says how late answers are. A leader that hears nobody is to step down, not to be
            // patient.
            Some(heard) => {
                let answers_nanos =
                    heard.since(self.quorum_heard).saturating_sub(self.scaled(HEARTBEAT_NANOS));
                self.quorum_heard = self.quorum_heard.max(heard);
                let late_nanos = answers_nanos.max(gap_nanos.saturating_sub(TICK_NANOS));
                factor_for(late_nanos / u64::from(self.steps))
            }
            // It needs nobody, and nobody waits for it.
            None => {
                self.quorum_heard = now;
                1
            }
        };
        if needed >= self.factor {
            self.factor = needed;
            self.needed = now;
        } else if now.since(self.needed) >= CALM_NANOS
            && !mutants::THE_TIMING_FACTOR_IS_NEVER_TAKEN_BACK.is_active()
        {
            self.factor -= 1;
            self.needed = now;
        }
    }

    /// True if `raft` is to see this tick. Not before it would be due: ticks that come late need no stretching.
    pub(super) fn passes_on(&mut self, now: Nanos) -> bool {
        let due_nanos = u64::from(self.stretch()) * TICK_NANOS - TICK_NANOS / 2;
        let passes = self.stretch() == 1 || now.since(self.raft_ticked) >= due_nanos;
        if passes {
            self.raft_ticked = now;
        }
        passes
    }

    /// True if a node that would stand for election with this tick has to listen first.
    pub(super) fn must_listen(&mut self, now: Nanos, would_stand: bool) -> bool {
        if !would_stand {
            self.listens_until = None;
            return false;
        }
        let starved = self.starved.unwrap_or_default();
        let listen_nanos = self.scaled(LISTEN_NANOS);
        let until = *self.listens_until.get_or_insert(starved.after(listen_nanos));
        if now >= until {
            (self.starved, self.listens_until) = (None, None);
        }
        now < until
    }

    /// True if a leader has to send heartbeats now, whatever `raft` does.
    pub(super) fn is_heartbeat_due(&mut self, now: Nanos, has_just_sent: bool) -> bool {
        let is_due = now.since(self.heartbeat) >= self.scaled(HEARTBEAT_NANOS);
        if is_due || has_just_sent {
            self.heartbeat = now;
        }
        is_due && !has_just_sent
    }
}

/// How patient to be where everything is so late, on the scale of the shortest tick.
fn factor_for(late_nanos: u64) -> u32 {
    let steps = (late_nanos.min(LOST_NANOS) + STEP_NANOS).saturating_sub(LATE_NANOS) / STEP_NANOS;
    match late_nanos {
        ..=LOST_NANOS => (1 + steps as u32).min(FACTOR_MAX),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000 * MILLISECOND;

    /// A leader whose ticks come so far apart for so long; answers come in time.
    fn ticks(timing: &mut Timing, now: &mut Nanos, gap_ms: u64, for_ms: u64) {
        for _ in 0..for_ms / gap_ms {
            *now = now.after(gap_ms * MILLISECOND);
            timing.adapt(*now, gap_ms * MILLISECOND, Some(*now));
        }
    }

    #[test]
    fn the_factor_follows_how_late_things_are() {
        let factors = [0, 79, 80, 139, 140, 199, 200, 800].map(|ms| factor_for(ms * MILLISECOND));
        assert_eq!(factors, [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(factor_for(LOST_NANOS + 1), 1, "a leader that slept so long is to find out soon");
        assert_eq!(factor_for(u64::MAX), 1);
    }

    #[test]
    fn late_ticks_raise_the_factor_at_once_and_calm_takes_it_back_one_by_one() {
        let (mut timing, mut now) = (Timing::new(RaftTick::default()), Nanos(SECOND));
        timing.begin(now);
        ticks(&mut timing, &mut now, 300, 300);
        assert_eq!(timing.factor(), 4);
        for factor in [3, 2, 1] {
            ticks(&mut timing, &mut now, 10, 4_990);
            assert_eq!(timing.factor(), factor + 1);
            ticks(&mut timing, &mut now, 10, 10);
            assert_eq!(timing.factor(), factor);
        }
        ticks(&mut timing, &mut now, 10, 20_000);
        assert_eq!(timing.factor(), 1);
    }

    #[test]
    fn a_factor_that_is_needed_stays() {
        let (mut timing, mut now) = (Timing::new(RaftTick::default()), Nanos(SECOND));
        timing.begin(now);
        for _ in 0..10 {
            ticks(&mut timing, &mut now, 100, 100);
            ticks(&mut timing, &mut now, 10, 4_000);
            assert_eq!(timing.factor(), 2);
        }
    }

    #[test]
    fn late_answers_raise_the_factor_and_missing_ones_do_not() {
        let (mut timing, began) = (Timing::new(RaftTick::default()), Nanos(SECOND));
        timing.begin(began);
        let at = |ms: u64| began.after(ms * MILLISECOND);
        timing.adapt(at(50), TICK_NANOS, Some(at(50)));
        timing.adapt(at(700), TICK_NANOS, Some(at(50)));
        assert_eq!(timing.factor(), 1, "nobody answered");
        timing.adapt(at(710), TICK_NANOS, Some(at(705)));
        assert_eq!(timing.factor(), 4, "an answer came after 655 ms");
    }

    #[test]
    fn who_needs_nobody_has_nobody_be_patient() {
        let (mut timing, began) = (Timing::new(RaftTick::default()), Nanos(SECOND));
        timing.begin(began);
        timing.adapt(began.after(2 * SECOND), 2 * SECOND, None);
        // The first other voter, which was heard from as a learner.
        timing.adapt(began.after(2 * SECOND + 5), TICK_NANOS, Some(began.after(2 * SECOND + 3)));
        assert_eq!(timing.factor(), 1);
    }

    #[test]
    fn raft_sees_as_many_ticks_less_as_the_factor_says_unless_they_are_late_anyway() {
        let mut timing = Timing::new(RaftTick::default());
        timing.hear(4);
        let seen = |timing: &mut Timing, gap_ms: u64, from_s: u64| {
            let at = |tick: u64| Nanos(from_s * SECOND + tick * gap_ms * MILLISECOND);
            (1..=40).filter(|tick| timing.passes_on(at(*tick))).count()
        };
        assert_eq!(seen(&mut timing, 10, 0), 10);
        assert_eq!(seen(&mut timing, 45, 10), 40);
        timing.hear(1);
        assert_eq!(seen(&mut timing, 10, 20), 40);
    }

    #[test]
    fn with_a_longer_tick_everything_is_the_same_on_a_larger_scale() {
        let long = RaftTick::from_millis(50).unwrap();
        let mut timing = Timing::new(long);
        timing.begin(Nanos(0));
        let at = |tick: u64| Nanos(tick * TICK_NANOS);
        let seen: Vec<u64> = (1..=20).filter(|tick| timing.passes_on(at(*tick))).collect();
        assert_eq!(seen, [5, 10, 15, 20]);
        let sent: Vec<u64> = (1..=60).filter(|tick| timing.is_heartbeat_due(at(*tick), false)).collect();
        assert_eq!(sent, [25, 50], "a heartbeat every 250 ms");
        assert_eq!((timing.factor(), timing.stretch()), (1, 5));
        let mut now = Nanos(SECOND);
        timing.begin(now);
        ticks(&mut timing, &mut now, 400, 400);
        assert_eq!(timing.factor(), 1, "390 ms late are less than a heartbeat and a half");
        ticks(&mut timing, &mut now, 410, 410);
        assert_eq!((timing.factor(), timing.stretch()), (2, 10), "as 80 ms are with the shortest tick");
    }

    #[test]
    fn who_was_starved_listens_for_two_heartbeats_of_its_tick() {
        let mut timing = Timing::new(RaftTick::from_millis(30).unwrap());
        let at = |ms: u64| Nanos(SECOND + ms * MILLISECOND);
        timing.tick(at(60), 60 * MILLISECOND);
        assert!(timing.must_listen(at(60), true) && timing.must_listen(at(359), true));
        assert!(!timing.must_listen(at(360), true));
    }

    #[test]
    fn who_was_starved_listens_once_before_it_stands() {
        let mut timing = Timing::new(RaftTick::default());
        let at = |ms: u64| Nanos(SECOND + ms * MILLISECOND);
        timing.tick(at(0), 10 * MILLISECOND);
        assert!(!timing.must_listen(at(0), true), "its ticks are in time");
        timing.tick(at(60), 60 * MILLISECOND);
        assert!(timing.must_listen(at(60), true) && timing.must_listen(at(159), true));
        timing.tick(at(165), 60 * MILLISECOND);
        assert!(!timing.must_listen(at(165), true), "it has listened, though it was late again");
    }

    #[test]
    fn who_heard_a_leader_meanwhile_listens_anew_the_next_time() {
        let mut timing = Timing::new(RaftTick::default());
        let at = |ms: u64| Nanos(SECOND + ms * MILLISECOND);
        timing.tick(at(60), 60 * MILLISECOND);
        assert!(timing.must_listen(at(60), true) && !timing.must_listen(at(70), false));
        timing.tick(at(500), 300 * MILLISECOND);
        assert!(timing.must_listen(at(500), true));
    }

    #[test]
    fn heartbeats_leave_every_50_ms_whatever_raft_sends() {
        let mut timing = Timing::new(RaftTick::default());
        timing.begin(Nanos(0));
        let sent: Vec<u64> =
            (1..=20).filter(|tick| timing.is_heartbeat_due(Nanos(tick * TICK_NANOS), *tick == 7)).collect();
        assert_eq!(sent, [5, 12, 17]);
    }
}
