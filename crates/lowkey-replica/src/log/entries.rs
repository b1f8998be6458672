//! The entries of the log in memory, in blocks that can be shared.
//!
//! The making of a snapshot needs every entry since the last one, and a cut gives as many back. Were they
//! copied or freed one by one, the replica would stand still for as long as there are many: so entries
//! live in blocks, a job gets the blocks, and what was cut is freed a little at a time.
//!
//! Entries are added to the last block. Once it is full it is *packed*: the bytes of all its entries become
//! one piece of memory, and of each entry only a few numbers are kept beside it. That is less than half of
//! what they take as `raft` has them, and with a large state the log is long.

use std::collections::VecDeque;
use std::sync::Arc;

use prost::bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};

/// Entries in a block. Block `n` holds those whose index divided by this is `n`.
const BLOCK_ENTRIES: u64 = 1024;
/// Blocks that are freed at a time.
const FREED_AT_A_TIME: usize = 4;

/// Some entries that follow one another. Invariant: at least one.
#[derive(Clone, Debug)]
enum Block {
    Open(Arc<Vec<Entry>>),
    Packed(Arc<Packed>),
}

#[derive(Debug)]
struct Packed {
    /// The index of the first entry.
    first: u64,
    heads: Vec<Head>,
    /// Of every entry its data, then its context.
    bytes: Bytes,
}

/// What is known of an entry beside its bytes. They begin where those of the one before it end.
#[derive(Clone, Copy, Debug)]
struct Head {
    term: u64,
    entry_type: EntryType,
    data_end: u32,
    context_end: u32,
}

impl Packed {
    fn new(entries: &[Entry]) -> Self {
        let mut bytes = Vec::with_capacity(entries.iter().map(content_bytes).sum());
        let end = |bytes: &Vec<u8>| u32::try_from(bytes.len()).expect("a block is much smaller");
        let heads = entries.iter().map(|entry| {
            bytes.extend_from_slice(&entry.data);
            let data_end = end(&bytes);
            bytes.extend_from_slice(&entry.context);
            Head { term: entry.term, entry_type: entry.entry_type, data_end, context_end: end(&bytes) }
        });
        let heads = heads.collect();
        Self { first: entries.first().map_or(0, |entry| entry.index), heads, bytes: bytes.into() }
    }

    fn begin(&self, place: usize) -> usize {
        place.checked_sub(1).map_or(0, |before| self.heads[before].context_end as usize)
    }

    fn entry(&self, place: usize) -> Entry {
        let Head { term, entry_type, data_end, context_end } = self.heads[place];
        let (data_end, context_end) = (data_end as usize, context_end as usize);
        Entry {
            entry_type,
            term,
            index: self.first + place as u64,
            data: self.bytes.slice(self.begin(place)..data_end),
            context: self.bytes.slice(data_end..context_end),
            ..Default::default()
        }
    }
}

impl Block {
    fn first(&self) -> u64 {
        match self {
            Self::Open(entries) => entries.first().map_or(0, |entry| entry.index),
            Self::Packed(packed) => packed.first,
        }
    }

    fn last(&self) -> u64 {
        self.first() + self.len() as u64 - 1
    }

    fn len(&self) -> usize {
        match self {
            Self::Open(entries) => entries.len(),
            Self::Packed(packed) => packed.heads.len(),
        }
    }

    fn entry(&self, place: usize) -> Entry {
        match self {
            Self::Open(entries) => entries[place].clone(),
            Self::Packed(packed) => packed.entry(place),
        }
    }

    fn term(&self, place: usize) -> u64 {
        match self {
            Self::Open(entries) => entries[place].term,
            Self::Packed(packed) => packed.heads[place].term,
        }
    }

    /// Of an entry's data and context.
    fn content_bytes(&self, place: usize) -> usize {
        match self {
            Self::Open(entries) => content_bytes(&entries[place]),
            Self::Packed(packed) => packed.heads[place].context_end as usize - packed.begin(place),
        }
    }

    /// The places of the entries behind one index, up to another.
    fn within(&self, after: u64, through: u64) -> std::ops::Range<usize> {
        let from = ((after + 1).saturating_sub(self.first()) as usize).min(self.len());
        let to = ((through + 1).saturating_sub(self.first()) as usize).clamp(from, self.len());
        from..to
    }

    fn pack(&mut self) {
        if let Self::Open(entries) = self {
            *self = Self::Packed(Arc::new(Packed::new(entries)));
        }
    }

    /// So that entries can be added and removed.
    fn open(&mut self) -> &mut Vec<Entry> {
        if let Self::Packed(packed) = self {
            let entries = (0..packed.heads.len()).map(|place| packed.entry(place));
            *self = Self::Open(Arc::new(entries.collect()));
        }
        match self {
            Self::Open(entries) => Arc::make_mut(entries),
            Self::Packed(_) => unreachable!("it was opened just now"),
        }
    }
}

fn content_bytes(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len()
}

/// Invariants:
/// - Indexes follow one another without gaps, across blocks.
/// - All blocks but the first begin at a multiple of [`BLOCK_ENTRIES`], and all but the last end before one.
/// - All blocks but the last are packed.
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
            Some(block) if !entry.index.is_multiple_of(BLOCK_ENTRIES) => block.open().push(entry),
            full => {
                full.into_iter().for_each(Block::pack);
                self.blocks.push_back(Block::Open(Arc::new(vec![entry])));
            }
        }
    }

    pub(crate) fn term(&self, index: u64) -> Option<u64> {
        self.place_of(index).map(|(block, place)| block.term(place))
    }

    fn place_of(&self, index: u64) -> Option<(&Block, usize)> {
        let block = self.blocks.get(self.block_of(index)?)?;
        let place = index.checked_sub(block.first())? as usize;
        (place < block.len()).then_some((block, place))
    }

    /// The place of the block that holds, or would hold, an index.
    fn block_of(&self, index: u64) -> Option<usize> {
        let first = self.blocks.front()?.first();
        (index / BLOCK_ENTRIES).checked_sub(first / BLOCK_ENTRIES).map(|place| place as usize)
    }

    /// The entries behind one index, up to another; those that are not there are left out.
    pub(crate) fn range(&self, after: u64, through: u64) -> impl Iterator<Item = Entry> {
        self.places(after, through).map(|(block, place)| block.entry(place))
    }

    /// How many bytes of data and context they have, the last one first.
    pub(crate) fn content_bytes_backwards(&self, after: u64, through: u64) -> impl Iterator<Item = usize> {
        self.places(after, through).rev().map(|(block, place)| block.content_bytes(place))
    }

    fn places(&self, after: u64, through: u64) -> impl DoubleEndedIterator<Item = (&Block, usize)> {
        let blocks = match (self.block_of(after + 1), self.block_of(through)) {
            (Some(from), Some(to)) if from <= to => from..self.blocks.len().min(to + 1),
            (None, Some(to)) => 0..self.blocks.len().min(to + 1),
            _ => 0..0,
        };
        let blocks = self.blocks.range(blocks.start.min(blocks.end)..blocks.end);
        blocks.flat_map(move |block| block.within(after, through).map(move |place| (block, place)))
    }

    /// The same entries, to be looked at elsewhere.
    pub(crate) fn share(&self, after: u64, through: u64) -> SharedEntries {
        let holds_some = |block: &&Block| block.last() > after && block.first() <= through;
        let blocks = self.blocks.iter().filter(holds_some).cloned().collect();
        SharedEntries { blocks, after, through }
    }

    /// Removes the entries behind an index.
    pub(crate) fn truncate(&mut self, last_kept: u64) {
        while let Some(block) = self.blocks.back_mut() {
            let first = block.first();
            if first <= last_kept {
                let kept = (last_kept - first + 1) as usize;
                if kept < block.len() {
                    block.open().truncate(kept);
                }
                return;
            }
            self.blocks.pop_back();
        }
    }

    /// Removes the blocks that hold nothing behind an index.
    pub(crate) fn cut(&mut self, through: u64) {
        while self.blocks.front().is_some_and(|block| block.last() <= through) {
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

/// Some entries of a log, as they were when they were shared.
#[derive(Clone, Debug)]
pub(crate) struct SharedEntries {
    blocks: Vec<Block>,
    after: u64,
    through: u64,
}

impl SharedEntries {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry> {
        let within = |block: &Block| block.within(self.after, self.through);
        self.blocks.iter().flat_map(move |block| within(block).map(|place| block.entry(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        let (data, context) = (format!("data {index}"), if index.is_multiple_of(3) { "mark" } else { "" });
        Entry { index, term, data: data.into(), context: context.into(), ..Default::default() }
    }

    fn filled(first: u64, last: u64) -> Entries {
        let mut entries = Entries::default();
        (first..=last).for_each(|index| entries.push(entry(index, 1)));
        entries
    }

    fn get(entries: &Entries, index: u64) -> Option<Entry> {
        entries.place_of(index).map(|(block, place)| block.entry(place))
    }

    fn indexes(entries: impl Iterator<Item = Entry>) -> Vec<u64> {
        entries.map(|entry| entry.index).collect()
    }

    #[test]
    fn what_was_put_in_is_found_by_its_index() {
        for first in [1, 5, 1023, 1024, 1025] {
            let (entries, last) = (filled(first, first + 3000), first + 3000);
            assert!(get(&entries, first - 1).is_none() && get(&entries, last + 1).is_none());
            assert!((first..=last).all(|index| get(&entries, index) == Some(entry(index, 1))));
            assert!((first..=last).all(|index| entries.term(index) == Some(1)));
            for (after, through) in
                [(first - 1, last), (first, first), (first + 900, last - 900), (0, last + 9)]
            {
                let expected: Vec<u64> = (first.max(after + 1)..=through.min(last)).collect();
                assert_eq!(indexes(entries.range(after, through)), expected);
                assert_eq!(indexes(entries.share(after, through).iter()), expected);
                let bytes = expected.into_iter().rev().map(|index| content_bytes(&entry(index, 1)));
                assert!(entries.content_bytes_backwards(after, through).eq(bytes));
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
        assert_eq!(get(&entries, 1500), Some(entry(1500, 1)));
        assert_eq!(get(&entries, 1501), Some(entry(1501, 2)));
        assert!(get(&entries, 1601).is_none());
        entries.truncate(0);
        assert!(get(&entries, 1).is_none());
    }

    #[test]
    fn a_block_that_was_full_can_be_cut_back_and_filled_again() {
        for last_kept in [1, 1000, 1023, 1024, 2047] {
            let mut entries = filled(1, 3000);
            entries.truncate(last_kept);
            assert_eq!(indexes(entries.range(0, 3000)), (1..=last_kept).collect::<Vec<_>>());
            (last_kept + 1..=3000).for_each(|index| entries.push(entry(index, 2)));
            let term = |index| if index > last_kept { 2 } else { 1 };
            assert!((1..=3000).all(|index| get(&entries, index) == Some(entry(index, term(index)))));
            let packed = |block: &Block| matches!(block, Block::Packed(_));
            assert_eq!(entries.blocks.iter().map(packed).collect::<Vec<_>>(), [true, true, false]);
        }
    }

    #[test]
    fn a_cut_frees_whole_blocks_a_few_at_a_time() {
        let mut entries = filled(1, 10_000);
        entries.cut(9_000);
        assert!(get(&entries, 9_001).is_some() && get(&entries, 8_000).is_none());
        assert_eq!(indexes(entries.range(9_000, 10_000)), (9_001..=10_000).collect::<Vec<_>>());
        assert_eq!(entries.cut_off.len(), 8);
        entries.free_some();
        assert_eq!(entries.cut_off.len(), 4);
        entries.clear();
        (0..9).for_each(|_| entries.free_some());
        assert!(entries.cut_off.is_empty() && get(&entries, 10_000).is_none());
        // The next one may have any index.
        entries.push(entry(20_000, 3));
        assert_eq!(indexes(entries.range(0, 30_000)), [20_000]);
    }
}
