//! The memory of changes that watches resume from.
//!
//! Invariant 7 (`docs/internals/invariants.md`): watches are ordered, without gaps or repeats, resumable, and say so when
//! history is gone. All of it rests on one number pair, the [`Position`]: every change has its own, a
//! reader keeps the last one that it has seen, and [`History::read`] goes on right behind it, on any
//! node and after any pause, or refuses.
//!
//! - No repeats: only what is *behind* the position is read.
//! - No gaps: a revision is remembered in whole or not at all, and a reader learns by
//!   [`Page::through`] how far was looked, so that it never takes "nothing matched" for "nothing is there".
//! - No guesses: a position whose successor may be gone is refused ([`Compacted`]).
//!
//! Deliberately absent: readers. Who watches, and how it is woken, is the server's; the simulator reads
//! the very same memory.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use lowkey_core::limits::HISTORY_EVENTS_MAX;
use lowkey_core::{Change, LockName, NamePrefix, mutants};

/// Where a change happened, or how far a reader has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The entry of the log.
    pub revision: u64,
    /// Which of that entry's changes, over all locks, from 0.
    pub ordinal: u32,
}

impl Position {
    /// Behind everything that happened at a revision. To read *from* a revision is to read after the
    /// end of the one before.
    pub const fn end_of(revision: u64) -> Self {
        Self { revision, ordinal: u32::MAX }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.revision, self.ordinal)
    }
}

/// A change and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Where: unique among all changes, and rising.
    pub position: Position,
    /// What.
    pub change: Change,
}

/// Which locks a reader wants to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The one of this name.
    Name(LockName),
    /// Those whose names begin with this.
    Prefix(NamePrefix),
}

impl Filter {
    /// True if the reader wants to know of this lock.
    pub fn matches(&self, lock: &LockName) -> bool {
        match self {
            Self::Name(name) => name == lock,
            Self::Prefix(prefix) => prefix.covers(lock),
        }
    }
}

/// What one look into the history has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// What matched, in order.
    pub events: Vec<Arc<Recorded>>,
    /// Everything that matched up to here is in this page or in those before it: read on after this.
    pub through: Position,
}

/// The history no longer reaches back to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The last revision that is not remembered.
    pub floor: u64,
}

impl fmt::Display for Compacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what happened up to revision {} is no longer remembered", self.floor)
    }
}

impl std::error::Error for Compacted {}

/// The last changes, as many as are kept.
#[derive(Clone, Debug)]
pub struct History {
    /// Positions rise strictly. Every revision in `floor + 1 ..= applied` is here with all its changes.
    events: VecDeque<Arc<Recorded>>,
    /// Nothing is known of what happened up to and including this revision; `<= applied`.
    floor: u64,
    /// How many changes the revision `floor` had; not known if they were never here.
    floor_events: Option<u32>,
    /// The last revision that was recorded.
    applied: u64,
    /// `events` is never longer.
    events_max: usize,
    /// About what `events` takes; at most [`BYTES_MAX`].
    bytes: usize,
}

/// About what the history may take: values are up to 4 KiB, and 100,000 of those would be 400 MB.
const BYTES_MAX: usize = 64 * 1024 * 1024;

impl History {
    /// A history that begins behind `floor`: what happened up to and including it is not known.
    pub fn new(floor: u64) -> Self {
        Self::with_events_max(floor, HISTORY_EVENTS_MAX)
    }

    /// The same, with room for another number of changes than [`HISTORY_EVENTS_MAX`]: for tests.
    pub fn with_events_max(floor: u64, events_max: usize) -> Self {
        Self { events: VecDeque::new(), floor, floor_events: None, applied: floor, events_max, bytes: 0 }
    }

    /// Records what happened at the next revision, which may be nothing, and gives it back with its
    /// positions. Every revision is recorded, Raft's own entries too: a missing one could have been a gap.
    ///
    /// # Panics
    /// If it is not the next revision.
    pub fn record(&mut self, revision: u64, changes: impl IntoIterator<Item = Change>) -> Vec<Arc<Recorded>> {
        assert_eq!(
            revision,
            self.applied + 1,
            "revision {revision} was recorded after revision {}: watches would miss something",
            self.applied
        );
        self.applied = revision;
        let recorded: Vec<_> = (0..)
            .zip(changes)
            .map(|(ordinal, change)| Arc::new(Recorded { position: Position { revision, ordinal }, change }))
            .collect();
        self.bytes += recorded.iter().map(|recorded| size(&recorded.change)).sum::<usize>();
        self.events.extend(recorded.iter().cloned());
        self.evict();
        recorded
    }

    /// Forgets the oldest revisions until there is room. One that is too large all by itself is gone too.
    fn evict(&mut self) {
        while self.events.len() > self.events_max || self.bytes > BYTES_MAX {
            let Some(oldest) = self.events.front().map(|oldest| oldest.position.revision) else { return };
            // From the front, which is near: to look for the end by halves would touch memory all over.
            let count = self.events.iter().take_while(|event| event.position.revision == oldest).count();
            self.bytes -= self.events.drain(..count).map(|event| size(&event.change)).sum::<usize>();
            self.floor = oldest;
            self.floor_events = u32::try_from(count).ok();
        }
    }

    /// Forgets everything, and begins anew behind `floor`: a snapshot took the place of what led to it.
    pub fn reset(&mut self, floor: u64) {
        *self = Self::with_events_max(floor, self.events_max);
    }

    /// The last revision that was recorded.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The last revision that is not remembered: everything behind it is.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// How many changes there may be.
    pub fn events_max(&self) -> usize {
        self.events_max
    }

    /// How many changes are remembered that happened after a position.
    pub fn count_after(&self, after: Position) -> usize {
        self.events.len() - self.first_after(after)
    }

    /// Looks for what happened after a position, in order. Finds at most `count_max` changes and looks at no
    /// more than `scan_max`, both at least 1.
    ///
    /// A position that was not reached yet has nothing behind it, and stays where it is.
    pub fn read(
        &self,
        after: Position,
        filter: &Filter,
        count_max: usize,
        scan_max: usize,
    ) -> Result<Page, Compacted> {
        assert!(count_max > 0 && scan_max > 0, "a look at nothing never gets any further");
        if self.is_compacted(after) && !mutants::A_COMPACTED_POSITION_IS_NOT_REFUSED.is_active() {
            return Err(Compacted { floor: self.floor });
        }
        let mut page = Page { events: Vec::new(), through: after };
        for (scanned, event) in self.events.range(self.first_after(after)..).enumerate() {
            if scanned == scan_max || page.events.len() == count_max {
                return Ok(page);
            }
            page.through = event.position;
            if filter.matches(&event.change.lock) {
                page.events.push(Arc::clone(event));
            }
        }
        // All that is there was looked at, and a revision is recorded in whole.
        page.through = after.max(Position::end_of(self.applied));
        Ok(page)
    }

    /// True if something that happened after this position may be gone.
    ///
    /// Behind the last change of the floor's own revision nothing is: a reader that saw it may go on,
    /// though it is gone itself.
    fn is_compacted(&self, after: Position) -> bool {
        let is_at_its_end =
            |ordinal| ordinal == u32::MAX || self.floor_events.is_some_and(|count| ordinal + 1 >= count);
        after.revision < self.floor || (after.revision == self.floor && !is_at_its_end(after.ordinal))
    }

    /// Which of the changes is the first after a position.
    fn first_after(&self, after: Position) -> usize {
        if mutants::A_RESUMED_WATCH_REPEATS_AN_EVENT.is_active() {
            return self.events.partition_point(|event| event.position < after);
        }
        let after = match mutants::A_WATCH_SKIPS_THE_REST_OF_A_REVISION.is_active() {
            false => after,
            true => Position::end_of(after.revision),
        };
        self.events.partition_point(|event| event.position <= after)
    }
}

/// About what a change takes in memory.
fn size(change: &Change) -> usize {
    let actor = change.actor.as_ref().map_or(0, |actor| actor.as_str().len());
    let texts = [change.lock.as_str(), change.owner.as_str(), change.value.as_str()];
    size_of::<Recorded>() + texts.map(str::len).iter().sum::<usize>() + actor
}

#[cfg(test)]
mod tests {
    use lowkey_core::{ChangeKind, LeaseId, Mode, OwnerId, Scope, Value};
    use proptest::collection::vec;
    use proptest::prelude::{Strategy, any};
    use proptest::test_runner::TestCaseError;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    const ALL: usize = usize::MAX;

    fn change(lock: &str) -> Change {
        Change {
            kind: ChangeKind::Waiting,
            lock: LockName::parse(lock).unwrap(),
            owner: OwnerId::parse("me").unwrap(),
            lease: LeaseId(1),
            token: None,
            mode: Mode::Exclusive,
            scope: Scope::Name,
            value: Value::default(),
            since_unix_ms: 0,
            at_unix_ms: 0,
            actor: None,
        }
    }

    fn record(history: &mut History, revision: u64, locks: &[&str]) {
        history.record(revision, locks.iter().map(|lock| change(lock)));
    }

    #[test]
    fn long_values_are_forgotten_before_they_take_too_much() {
        let mut history = History::new(0);
        let value = Value::parse(&"v".repeat(4096)).unwrap();
        for revision in 1..=20_000 {
            history.record(revision, [Change { value: value.clone(), ..change("a") }]);
            assert!(history.bytes <= BYTES_MAX);
        }
        assert!((10_000..17_000).contains(&history.events.len()), "{}", history.events.len());
        assert_eq!(history.floor() as usize, 20_000 - history.events.len());
        for revision in 20_001..=60_000 {
            record(&mut history, revision, &["a"]);
        }
        assert_eq!(history.bytes, history.events.iter().map(|event| size(&event.change)).sum::<usize>());
    }

    fn at(revision: u64, ordinal: u32) -> Position {
        Position { revision, ordinal }
    }

    fn name(text: &str) -> Filter {
        Filter::Name(LockName::parse(text).unwrap())
    }

    fn prefix(text: &str) -> Filter {
        Filter::Prefix(NamePrefix::parse(text).unwrap())
    }

    fn positions(page: &Page) -> Vec<Position> {
        page.events.iter().map(|event| event.position).collect()
    }

    #[test]
    fn a_filter_is_a_whole_name_or_the_beginning_of_one() {
        let lock = LockName::parse("a/bc").unwrap();
        for matching in [name("a/bc"), prefix("a/b"), prefix("a/bc"), prefix("")] {
            assert!(matching.matches(&lock), "{matching:?}");
        }
        for other in [name("a/b"), name("a/bcd"), prefix("b"), prefix("a/bcd")] {
            assert!(!other.matches(&lock), "{other:?}");
        }
    }

    #[test]
    fn ordinals_count_the_changes_of_a_revision_over_all_names() {
        let mut history = History::new(7);
        record(&mut history, 8, &["a", "b", "a"]);
        record(&mut history, 9, &[]);
        record(&mut history, 10, &["a"]);
        let page = history.read(Position::end_of(7), &name("a"), ALL, ALL).unwrap();
        assert_eq!(positions(&page), [at(8, 0), at(8, 2), at(10, 0)]);
        assert_eq!(page.through, Position::end_of(10));
    }

    #[test]
    fn reading_goes_on_in_the_middle_of_a_revision() {
        let mut history = History::new(0);
        record(&mut history, 1, &["a", "a", "a"]);
        let page = history.read(at(1, 0), &name("a"), 1, ALL).unwrap();
        assert_eq!((positions(&page), page.through), (vec![at(1, 1)], at(1, 1)));
        let page = history.read(page.through, &name("a"), 1, ALL).unwrap();
        assert_eq!((positions(&page), page.through), (vec![at(1, 2)], Position::end_of(1)));
    }

    #[test]
    fn a_look_that_found_nothing_still_gets_further() {
        let mut history = History::new(0);
        record(&mut history, 1, &["a", "a", "a", "b"]);
        let page = history.read(Position::end_of(0), &name("b"), ALL, 2).unwrap();
        assert_eq!((positions(&page), page.through), (vec![], at(1, 1)));
        let page = history.read(page.through, &name("b"), ALL, 2).unwrap();
        assert_eq!((positions(&page), page.through), (vec![at(1, 3)], Position::end_of(1)));
    }

    #[test]
    fn a_position_that_was_not_reached_yet_stays_where_it_is() {
        let mut history = History::new(0);
        record(&mut history, 1, &["a"]);
        let ahead = Position::end_of(5);
        assert_eq!(history.read(ahead, &name("a"), ALL, ALL), Ok(Page { events: vec![], through: ahead }));
        assert_eq!(history.count_after(ahead), 0);
    }

    #[test]
    fn a_revision_is_remembered_in_whole_or_not_at_all() {
        let mut history = History::with_events_max(0, 3);
        record(&mut history, 1, &["a", "a"]);
        record(&mut history, 2, &["a"]);
        assert_eq!(history.floor(), 0);
        record(&mut history, 3, &["a"]);
        assert_eq!((history.floor(), history.count_after(Position::end_of(0))), (1, 2));
        // One that has no room all by itself leaves nothing, and says so.
        record(&mut history, 4, &["a"; 4]);
        assert_eq!((history.floor(), history.applied()), (4, 4));
        assert_eq!(history.read(Position::end_of(3), &name("a"), ALL, ALL), Err(Compacted { floor: 4 }));
        assert!(history.read(Position::end_of(4), &name("a"), ALL, ALL).is_ok());
    }

    #[test]
    fn a_position_is_refused_once_what_comes_after_it_may_be_gone() {
        let mut history = History::with_events_max(0, 1);
        record(&mut history, 1, &["a", "a"]);
        record(&mut history, 2, &["a"]);
        let read =
            |history: &History, after| history.read(after, &name("a"), ALL, ALL).map(|page| positions(&page));
        assert_eq!(history.floor(), 1);
        assert_eq!(read(&history, Position::end_of(0)), Err(Compacted { floor: 1 }));
        assert_eq!(read(&history, at(1, 0)), Err(Compacted { floor: 1 }));
        // The last change of the floor was seen: nothing is missing.
        assert_eq!(read(&history, at(1, 1)), Ok(vec![at(2, 0)]));
        assert_eq!(read(&history, Position::end_of(1)), Ok(vec![at(2, 0)]));
        // How many changes a snapshot's revision had is not known.
        history.reset(9);
        assert_eq!(read(&history, at(9, 1)), Err(Compacted { floor: 9 }));
        assert_eq!(read(&history, Position::end_of(9)), Ok(vec![]));
        assert_eq!((history.floor(), history.applied()), (9, 9));
    }

    #[test]
    #[should_panic(expected = "watches would miss something")]
    fn a_revision_that_was_left_out_is_not_passed_over() {
        let mut history = History::new(3);
        record(&mut history, 5, &["a"]);
    }

    /// All that ever happened, in the plainest form.
    struct Naive {
        start: u64,
        all: Vec<(Position, &'static str)>,
        applied: u64,
        events_max: usize,
    }

    impl Naive {
        /// The last revision of which something had to go.
        fn floor(&self) -> u64 {
            let too_many = |revision: &u64| {
                self.all.iter().filter(|(position, _)| position.revision >= *revision).count()
                    > self.events_max
            };
            self.all
                .iter()
                .map(|(position, _)| position.revision)
                .filter(too_many)
                .max()
                .unwrap_or(self.start)
        }

        fn read(&self, after: Position, filter: &Filter) -> Result<Vec<Position>, Compacted> {
            let floor = self.floor();
            let is_gone = |position: &Position| *position > after && position.revision <= floor;
            if after < Position::end_of(self.start) || self.all.iter().any(|(position, _)| is_gone(position))
            {
                return Err(Compacted { floor });
            }
            let matching = self.all.iter().filter(|(position, lock)| {
                *position > after && filter.matches(&LockName::parse(lock).unwrap())
            });
            Ok(matching.map(|(position, _)| *position).collect())
        }
    }

    const LOCKS: [&str; 4] = ["a", "a/b", "ab", "b"];

    fn revisions() -> impl Strategy<Value = Vec<Vec<&'static str>>> {
        let lock = (0..LOCKS.len()).prop_map(|at| LOCKS[at]);
        vec(vec(lock, 0..5), 0..20)
    }

    fn positions_near_the_start() -> impl Strategy<Value = Position> {
        let ordinal =
            any::<u8>().prop_map(|ordinal| if ordinal > 200 { u32::MAX } else { u32::from(ordinal) % 6 });
        (0..25_u64, ordinal).prop_map(|(revision, ordinal)| at(revision, ordinal))
    }

    /// Reads page by page, as a watch does.
    fn read_all(
        history: &History,
        mut after: Position,
        filter: &Filter,
        (count_max, scan_max): (usize, usize),
    ) -> Result<Result<Vec<Position>, Compacted>, TestCaseError> {
        let mut found = Vec::new();
        loop {
            let page = match history.read(after, filter, count_max, scan_max) {
                Ok(page) => page,
                Err(compacted) => return Ok(Err(compacted)),
            };
            prop_assert!(page.events.len() <= count_max);
            found.extend(positions(&page));
            if page.through >= Position::end_of(history.applied()) {
                return Ok(Ok(found));
            }
            prop_assert!(page.through > after, "{} after {after}", page.through);
            after = page.through;
        }
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_what_a_plain_list_has(
            start in 0..4_u64,
            revisions in revisions(),
            events_max in 0..12_usize,
            after in positions_near_the_start(),
            filter in 0..LOCKS.len(),
            by_prefix in any::<bool>(),
            maxima in (1..5_usize, 1..5_usize),
        ) {
            let mut history = History::with_events_max(start, events_max);
            let mut naive = Naive { start, all: Vec::new(), applied: start, events_max };
            let filter = if by_prefix { prefix(LOCKS[filter]) } else { name(LOCKS[filter]) };
            for locks in revisions {
                naive.applied += 1;
                let recorded = history.record(naive.applied, locks.iter().map(|lock| change(lock)));
                let told: Vec<_> = recorded.iter().map(|event| event.position).collect();
                let wanted: Vec<_> = (0..).zip(&locks).map(|(ordinal, _)| at(naive.applied, ordinal)).collect();
                prop_assert_eq!(&told, &wanted);
                naive.all.extend(wanted.into_iter().zip(locks));
                prop_assert_eq!(history.applied(), naive.applied);
                prop_assert_eq!(history.floor(), naive.floor());
                prop_assert!(history.count_after(Position::end_of(start)) <= events_max);
                prop_assert_eq!(read_all(&history, after, &filter, maxima)?, naive.read(after, &filter));
            }
        }
    }
}
