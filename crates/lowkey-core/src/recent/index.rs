//! A hash index over a queue that stores no keys; callers compare the candidates.
//!
//! There are two kinds. A [`SlotTable`] finds most keys with one cache miss, where a [`Tree`] takes five. But hashes are no
//! secret: a client can choose many keys whose search begins at one slot of a table (hash flooding), so a table is for few
//! keys. In a tree only keys with the very same 64 bits collide.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::num::NonZeroU32;

/// The places of a FIFO queue, by hash.
pub(crate) trait Index: Clone + Debug + Default {
    /// Adds an entry at the end.
    fn push(&mut self, hash: u64);

    /// Removes the entry at the front; it has this hash.
    fn pop(&mut self, hash: u64);

    /// The places, from the front, of all that may have this hash.
    fn places(&self, hash: u64) -> impl Iterator<Item = usize>;
}

/// They are numbered as they come, and kept by hash and number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The number of what stands at the front.
    oldest: u64,
    numbers: BTreeSet<(u64, u64)>,
}

impl Index for Tree {
    fn push(&mut self, hash: u64) {
        self.numbers.insert((hash, self.oldest + self.numbers.len() as u64));
    }

    fn pop(&mut self, hash: u64) {
        assert!(self.numbers.remove(&(hash, self.oldest)), "what stands at the front is in the index");
        self.oldest += 1;
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = usize> {
        let numbers = self.numbers.range((hash, 0)..=(hash, u64::MAX));
        numbers.map(|(_, number)| (number - self.oldest) as usize)
    }
}

/// How many slots there are at first, at least twice as many as are used.
const SLOTS_MIN: usize = 32;

/// A table with open addressing: a hash names the slot where the search begins. On insertion the entry that is further from
/// its own slot goes first (Robin Hood hashing), so that no search is much longer than the others.
///
/// Invariants:
/// - The length of `slots` is 0 or a power of two, and at most half of them are used.
/// - From the slot where the search for one begins to the one that it is in, none is free, and none is taken by one that
///   is nearer to where its own search begins.
/// - The numbers in `slots` are `oldest ..`, one each, as many as the queue is long. They may wrap: there are never
///   nearly as many at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotTable {
    slots: Vec<Option<Slot>>,
    /// The number of what stands at the front.
    oldest: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Never 0, so that a free slot takes no more room.
    hash: NonZeroU32,
    number: u32,
}

/// The bit that is set in every hash; where a search begins it does not count.
const ALWAYS: NonZeroU32 = NonZeroU32::new(1 << 31).unwrap();

impl Index for SlotTable {
    fn push(&mut self, hash: u64) {
        let is_full = self.len as usize * 2 >= self.slots.len();
        if is_full {
            let slots = vec![None; (self.slots.len() * 2).max(SLOTS_MIN)];
            let old = std::mem::replace(&mut self.slots, slots);
            old.into_iter().flatten().for_each(|slot| self.put(slot));
        }
        self.put(Slot { hash: short(hash), number: self.oldest.wrapping_add(self.len) });
        self.len += 1;
    }

    fn pop(&mut self, hash: u64) {
        let front = Slot { hash: short(hash), number: self.oldest };
        let found = self.search(front.hash).find(|at| self.slots[*at] == Some(front));
        let mut free = found.expect("what stands at the front is in the index");
        // Who is behind comes nearer, as far as that is nearer.
        loop {
            let next = self.after(free);
            let moved = self.slots[next].filter(|slot| self.distance(slot.hash, next) > 0);
            self.slots[free] = moved;
            if moved.is_none() {
                break;
            }
            free = next;
        }
        self.oldest = self.oldest.wrapping_add(1);
        self.len -= 1;
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = usize> {
        let hash = short(hash);
        let slots = self.search(hash).filter_map(|at| self.slots[at]);
        slots.filter(move |slot| slot.hash == hash).map(|slot| slot.number.wrapping_sub(self.oldest) as usize)
    }
}

impl SlotTable {
    /// The slots where one of this hash may be.
    fn search(&self, hash: NonZeroU32) -> impl Iterator<Item = usize> {
        let slots = std::iter::successors(Some(self.begin(hash)), |at| Some(self.after(*at)));
        let may_follow = move |at: &usize| {
            self.slots
                .get(*at)
                .copied()
                .flatten()
                .is_some_and(|slot| self.distance(slot.hash, *at) >= self.distance(hash, *at))
        };
        slots.take_while(may_follow)
    }

    fn put(&mut self, mut slot: Slot) {
        let mut at = self.begin(slot.hash);
        while let Some(other) = self.slots[at] {
            if self.distance(other.hash, at) < self.distance(slot.hash, at) {
                self.slots[at] = Some(std::mem::replace(&mut slot, other));
            }
            at = self.after(at);
        }
        self.slots[at] = Some(slot);
    }

    /// Where the search for a hash begins.
    fn begin(&self, hash: NonZeroU32) -> usize {
        hash.get() as usize & self.mask()
    }

    /// How far a slot is from there.
    fn distance(&self, hash: NonZeroU32, at: usize) -> usize {
        at.wrapping_sub(hash.get() as usize) & self.mask()
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & self.mask()
    }

    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }
}

fn short(hash: u64) -> NonZeroU32 {
    ALWAYS | hash as u32
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Their search begins at a few slots, most of them side by side, and at the last one.
    const HASHES: [u64; 8] = [0, 1, 2, 30, 31, 63, 64, u64::MAX];

    /// Puts hashes into a queue, and takes some out again, and looks for all of them after each step.
    fn finds_all(mut index: impl Index, steps: &[(bool, u64)]) -> Result<(), TestCaseError> {
        let mut queue = VecDeque::new();
        for (is_pop, hash) in steps {
            match queue.front() {
                Some(&front) if *is_pop => {
                    index.pop(front);
                    queue.pop_front();
                }
                _ => {
                    index.push(*hash);
                    queue.push_back(*hash);
                }
            }
            for asked in HASHES.into_iter().chain([7]) {
                let mut found: Vec<usize> = index.places(asked).collect();
                found.sort_unstable();
                let wanted: Vec<usize> = (0..queue.len()).filter(|place| queue[*place] == asked).collect();
                prop_assert_eq!(found, wanted);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn whatever_stands_in_the_queue_is_found_and_nothing_else(
            steps in prop::collection::vec((any::<bool>(), prop::sample::select(&HASHES)), 0..400)
        ) {
            finds_all(SlotTable { oldest: u32::MAX - 20, ..SlotTable::default() }, &steps)?;
            finds_all(Tree::default(), &steps)?;
        }
    }

    #[test]
    fn no_search_is_long_where_many_were_made_to_begin_side_by_side() {
        let mut table = SlotTable::default();
        let within = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x3fff;
        (0..0x4000).for_each(|number| table.push(within(number)));
        assert_eq!(table.slots.len(), 0x8000, "half of the slots are free");
        let longest = (0_u64..0x4000).map(|hash| table.search(short(hash)).count()).max();
        // If it only ended at a free slot it would go through thousands.
        assert!(longest < Some(64), "{longest:?}");
    }
}
