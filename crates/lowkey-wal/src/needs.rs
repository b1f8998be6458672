//! Which group needs which segment, and which one keeps what all others have done with.
//!
//! A segment is needed for as long as some group has an entry in it that it has not compacted. Segments go from the
//! front only. So a group that is idle, with one old entry that nobody compacts, keeps every later segment as well,
//! however much the other groups write and compact: it *pins* the log, and should make a snapshot.
//!
//! Invariant: every segment from the first one needed to the active one is here, also if it holds no entry.

use std::collections::BTreeMap;

use lowkey_record::GroupId;

/// What one group has in one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// The highest index of its entries.
    highest: u64,
    /// What they take.
    bytes: u64,
}

/// By segment, what each group has in it.
#[derive(Debug, Default)]
pub(crate) struct Needs(BTreeMap<u64, BTreeMap<GroupId, Share>>);

impl Needs {
    /// A segment begins.
    pub(crate) fn begin(&mut self, segment: u64) {
        self.0.entry(segment).or_default();
    }

    /// A segment got an entry of a group, of so many bytes.
    pub(crate) fn add(&mut self, segment: u64, group: GroupId, index: u64, bytes: u64) {
        let share = self.0.entry(segment).or_default().entry(group).or_default();
        share.highest = share.highest.max(index);
        share.bytes += bytes;
    }

    /// The first segment up to `last` that a group needs, or `last`.
    pub(crate) fn first_needed(&self, last: u64, compacted: impl Fn(GroupId) -> u64) -> u64 {
        let is_needed = |shares: &BTreeMap<GroupId, Share>| {
            shares.iter().any(|(group, share)| share.highest > compacted(*group))
        };
        let needed = self.0.range(..last).find(|(_, shares)| is_needed(shares));
        needed.map_or(last, |(segment, _)| *segment)
    }

    /// Forgets the lowest segment, if it is below this one.
    pub(crate) fn forget_below(&mut self, segment: u64) -> Option<u64> {
        let lowest = self.0.first_entry().filter(|lowest| *lowest.key() < segment)?;
        Some(lowest.remove_entry().0)
    }

    /// The group that keeps the oldest segment, if because of it more than so many bytes are kept that their own groups
    /// have done with. One group alone pins nothing: what it has done with goes.
    pub(crate) fn pinned_by(&self, bytes_max: u64, compacted: impl Fn(GroupId) -> u64) -> Option<GroupId> {
        let is_needed = |(group, share): &(&GroupId, &Share)| share.highest > compacted(**group);
        let needless = self.0.values().flatten().filter(|share| !is_needed(share));
        if needless.map(|(_, share)| share.bytes).sum::<u64>() <= bytes_max {
            return None;
        }
        self.0.values().find_map(|shares| shares.iter().find(is_needed)).map(|(group, _)| *group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GroupId = GroupId(1);
    const B: GroupId = GroupId(2);

    /// `A` has an entry in the first segment, `B` fills four.
    fn needs() -> Needs {
        let mut needs = Needs::default();
        needs.add(1, A, 1, 10);
        for segment in 1..=4 {
            needs.add(segment, B, segment * 10, 1000);
        }
        needs.begin(5);
        needs
    }

    #[test]
    fn a_segment_is_needed_until_every_group_has_done_with_it() {
        let needs = needs();
        let first = |a, b| needs.first_needed(5, |group| if group == A { a } else { b });
        assert_eq!([first(0, 0), first(1, 0), first(0, 40), first(1, 25), first(1, 40)], [1, 1, 1, 3, 5]);
    }

    #[test]
    fn a_group_pins_the_log_when_much_is_kept_for_its_sake() {
        let needs = needs();
        let pins = |a, b, max| needs.pinned_by(max, |group| if group == A { a } else { b });
        assert_eq!(pins(0, 30, 2999), Some(A));
        assert_eq!(pins(0, 30, 3000), None, "not so much yet");
        assert_eq!(pins(0, 0, 0), None, "all of it is needed");
        assert_eq!(pins(1, 0, 9), Some(B), "what the other has done with is little, but it counts");
        assert_eq!(pins(1, 40, 0), None, "nobody needs anything");
    }

    #[test]
    fn one_group_alone_pins_nothing() {
        let mut needs = Needs::default();
        (1..=9).for_each(|segment| needs.add(segment, A, segment * 10, 1000));
        while needs.forget_below(needs.first_needed(9, |_| 55)).is_some() {}
        assert_eq!(needs.pinned_by(0, |_| 55), None);
    }
}
