//! The entries of the log in memory, in blocks that can be shared.
//!
//! The making of a snapshot needs every entry since the last one, and a cut gives as many back. Were they
//! copied or freed one by one, the replica would stand still for as long as there are many: so entries
//! live in blocks, a job gets the blocks, and what was cut is freed a little at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use raft::eraftpb::Entry;

/// Entries in a block. Block `n` holds those whose index divided by this is `n`.
const BLOCK_ENTRIES: u64 = 1024;
/// Blocks that are freed at a time.
const FREED_AT_A_TIME: usize = 4;

type Block = Arc<Vec<Entry>>;

/// Invariants:
/// - Indexes follow one another without gaps, across blocks.
/// - All blocks but the first begin at a multiple of [`BLOCK_ENTRIES`], and all but the last end before one.
#[derive(Default)]
pub(crate) struct Entries {
    blocks: VecDeque<Block>,
    /// Cut off, and not freed yet.
    cut_off: VecDeque<Block>,
}

impl Entries {
    /// Adds an entry; the first one may have any index, the others follow.
    pub(crate) fn push(&mut self, entry: Entry) {
        match self.blocks.back_mut() {
            Some(block) if !entry.index.is_multiple_of(BLOCK_ENTRIES) => Arc::make_mut(block).push(entry),
            _ => self.blocks.push_back(Arc::new(vec![entry])),
        }
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        let block = self.blocks.get(self.block_of(index)?)?;
        block.get(index.checked_sub(block.first()?.index)? as usize)
    }

    /// The place of the block that holds, or would hold, an index.
    fn block_of(&self, index: u64) -> Option<usize> {
        let first = self.blocks.front()?.first()?.index;
        (index / BLOCK_ENTRIES).checked_sub(first / BLOCK_ENTRIES).map(|place| place as usize)
    }

    /// The entries behind one index, up to another, both ways; those that are not there are left out.
    pub(crate) fn range(&self, after: u64, through: u64) -> impl DoubleEndedIterator<Item = &Entry> {
        let blocks = match (self.block_of(after + 1), self.block_of(through)) {
            (Some(from), Some(to)) if from <= to => from..self.blocks.len().min(to + 1),
            (None, Some(to)) => 0..self.blocks.len().min(to + 1),
            _ => 0..0,
        };
        let blocks = self.blocks.range(blocks.start.min(blocks.end)..blocks.end);
        blocks.flat_map(move |block| within(block, after, through))
    }

    /// The same entries, to be looked at elsewhere.
    pub(crate) fn share(&self, after: u64, through: u64) -> SharedEntries {
        let holds_some = |block: &&Block| {
            let last = block.last().map_or(0, |entry| entry.index);
            last > after && block.first().is_some_and(|entry| entry.index <= through)
        };
        let blocks = self.blocks.iter().filter(holds_some).cloned().collect();
        SharedEntries { blocks, after, through }
    }

    /// Removes the entries behind an index.
    pub(crate) fn truncate(&mut self, last_kept: u64) {
        while let Some(block) = self.blocks.back_mut() {
            let Some(first) = block.first().map(|entry| entry.index) else { return };
            if first <= last_kept {
                let kept = (last_kept - first + 1) as usize;
                if kept < block.len() {
                    Arc::make_mut(block).truncate(kept);
                }
                return;
            }
            self.blocks.pop_back();
        }
    }

    /// Removes the blocks that hold nothing behind an index.
    pub(crate) fn cut(&mut self, through: u64) {
        while self.blocks.front().is_some_and(|block| block.last().is_none_or(|last| last.index <= through)) {
            self.cut_off.extend(self.blocks.pop_front());
        }
    }

    pub(crate) fn clear(&mut self) {
        self.cut_off.append(&mut self.blocks);
    }

    /// Frees some of what was cut off.
    pub(crate) fn free_some(&mut self) {
        self.cut_off.drain(..FREED_AT_A_TIME.min(self.cut_off.len()));
    }
}

fn within(block: &[Entry], after: u64, through: u64) -> std::slice::Iter<'_, Entry> {
    let first = block.first().map_or(0, |entry| entry.index);
    let from = ((after + 1).saturating_sub(first) as usize).min(block.len());
    let to = ((through + 1).saturating_sub(first) as usize).clamp(from, block.len());
    block[from..to].iter()
}

/// Some entries of a log, as they were when they were shared.
#[derive(Clone, Debug)]
pub(crate) struct SharedEntries {
    blocks: Vec<Block>,
    after: u64,
    through: u64,
}

impl SharedEntries {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.blocks.iter().flat_map(|block| within(block, self.after, self.through))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, ..Default::default() }
    }

    fn filled(first: u64, last: u64) -> Entries {
        let mut entries = Entries::default();
        (first..=last).for_each(|index| entries.push(entry(index, 1)));
        entries
    }

    fn indexes<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<u64> {
        entries.map(|entry| entry.index).collect()
    }

    #[test]
    fn what_was_put_in_is_found_by_its_index() {
        for first in [1, 5, 1023, 1024, 1025] {
            let (entries, last) = (filled(first, first + 3000), first + 3000);
            assert!(entries.get(first - 1).is_none() && entries.get(last + 1).is_none());
            assert!((first..=last).all(|index| entries.get(index).is_some_and(|entry| entry.index == index)));
            for (after, through) in
                [(first - 1, last), (first, first), (first + 900, last - 900), (0, last + 9)]
            {
                let expected: Vec<u64> = (first.max(after + 1)..=through.min(last)).collect();
                assert_eq!(indexes(entries.range(after, through)), expected);
                assert_eq!(indexes(entries.share(after, through).iter()), expected);
                let backwards: Vec<u64> = expected.into_iter().rev().collect();
                assert_eq!(indexes(entries.range(after, through).rev()), backwards);
            }
        }
        assert_eq!(indexes(Entries::default().range(0, 10)), [0; 0]);
    }

    #[test]
    fn what_was_shared_stays_as_it_was() {
        let mut entries = filled(1, 3000);
        let shared = entries.share(10, 2000);
        entries.truncate(1500);
        (1501..=1600).for_each(|index| entries.push(entry(index, 2)));
        assert!(shared.iter().all(|entry| entry.term == 1));
        assert_eq!(indexes(shared.iter()), (11..=2000).collect::<Vec<_>>());
        assert_eq!(entries.get(1500).map(|entry| entry.term), Some(1));
        assert_eq!(entries.get(1501).map(|entry| entry.term), Some(2));
        assert!(entries.get(1601).is_none());
        entries.truncate(0);
        assert!(entries.get(1).is_none());
    }

    #[test]
    fn a_cut_frees_whole_blocks_a_few_at_a_time() {
        let mut entries = filled(1, 10_000);
        entries.cut(9_000);
        assert!(entries.get(9_001).is_some() && entries.get(8_000).is_none());
        assert_eq!(indexes(entries.range(9_000, 10_000)), (9_001..=10_000).collect::<Vec<_>>());
        assert_eq!(entries.cut_off.len(), 8);
        entries.free_some();
        assert_eq!(entries.cut_off.len(), 4);
        entries.clear();
        (0..9).for_each(|_| entries.free_some());
        assert!(entries.cut_off.is_empty() && entries.get(10_000).is_none());
        // The next one may have any index.
        entries.push(entry(20_000, 3));
        assert_eq!(indexes(entries.range(0, 30_000)), [20_000]);
    }
}
