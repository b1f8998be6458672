//! Opening a log: what is left of it, and may it be believed?
//!
//! Recovery reads forward to the first batch that does not check out. That place is either the torn
//! tail of a crash, which is cut, or damage to something that was safe on disk, which must stop the
//! start. Every batch says which batches were synced when it was written, and that decides:
//!
//! - a later whole batch, in this or a later segment, calls the missing one synced: **corruption**;
//! - the clean-stop marker lies beyond it: **corruption**;
//! - segments were dropped that the log, cut there, would still need: **corruption**;
//! - otherwise nobody was ever told that it was safe: **a torn tail**.
//!
//! Where the log begins is known only from its end (`first_live` of the last batch), so the newest
//! whole batch is looked for first; if the log then turns out to be cut before it, the beginning is
//! corrected by the last batch that counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use lowkey_record::GroupId;

use crate::chain::{self, Chain, Survey};
use crate::clean_stop::CleanStop;
use crate::disk::Disk;
use crate::error::WalError;
use crate::record::GroupLog;
use crate::segment::{self, CLEAN_STOP};

/// What a log held when it was opened.
#[derive(Debug)]
pub struct Recovered {
    /// All groups of which there is any record.
    pub groups: BTreeMap<GroupId, GroupLog>,
    /// The log was closed, not killed.
    pub clean: bool,
    /// The torn tail that was cut, if there was one.
    pub cut: Option<Cut>,
}

/// Bytes that a crash left behind and that were wiped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The segment they were in.
    pub file: String,
    /// Where they began.
    pub offset: u64,
    /// How many there were.
    pub bytes: u64,
}

/// What was found, and what has to be put in order before the log may be written.
pub(crate) struct Findings {
    pub(crate) chain: Chain,
    pub(crate) clean: bool,
    pub(crate) cut: Option<Cut>,
    /// Segments after the active one that can be used as they are; rising, without gaps.
    pub(crate) spares: Vec<u64>,
    /// Segments after those, to be removed; rising.
    pub(crate) unfit: Vec<u64>,
    /// Segments in front that are no longer needed, and files that were never finished.
    pub(crate) leftovers: Vec<String>,
}

/// Reads the log and judges it. Changes nothing.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    identity: [u8; 16],
    segment_bytes: u64,
) -> Result<Findings, WalError> {
    let names = disk.list().map_err(|source| WalError::io("listing", "the data directory", source))?;
    let survey = Survey {
        disk: disk.as_ref(),
        identity,
        segment_bytes,
        numbers: names.iter().filter_map(|name| segment::parse_name(name)).collect(),
    };
    let Some(last) = survey.numbers.last().copied() else {
        return Err(WalError::Missing);
    };
    let clean_stop = CleanStop::read(disk.as_ref(), identity)?;

    let chain = read_from_its_beginning(&survey, clean_stop)?;
    for number in chain.start..=last {
        if !survey.numbers.contains(&number) {
            return Err(missing(number));
        }
    }
    let (spares, unfit) = sort_later_segments(&survey, &chain)?;
    let leftovers = names
        .into_iter()
        .filter(|name| {
            let is_needless = segment::parse_name(name).is_some_and(|n| n < chain.start);
            is_needless || segment::parse_temp_name(name).is_some()
        })
        .collect();
    Ok(Findings { cut: cut_of(&chain), clean: clean_stop.is_some(), chain, spares, unfit, leftovers })
}

fn missing(number: u64) -> WalError {
    WalError::MissingSegment { file: segment::file_name(number) }
}

/// Reads the log from the lowest segment that its own last batch calls needed.
fn read_from_its_beginning(survey: &Survey<'_>, clean_stop: Option<CleanStop>) -> Result<Chain, WalError> {
    let (mut start, damage) = find_newest(survey)?;
    loop {
        if !survey.numbers.contains(&start) {
            // Dropped segments prove that the batch which allowed it was on disk.
            return Err(match damage {
                Some((number, offset)) => {
                    let gone = segment::file_name(start);
                    let what =
                        format!("a batch fails its checks, and {gone}, needed without it, is already gone");
                    WalError::corrupt(&segment::file_name(number), offset, what)
                }
                None => missing(start),
            });
        }
        let chain = Chain::read(survey, start)?;
        if let Some(clean_stop) = clean_stop {
            check_clean_stop(&chain, clean_stop)?;
        }
        check_claims(survey, &chain)?;
        // The newest batch found may lie behind the cut; then an earlier one has the word.
        if chain.first_live >= start {
            chain.check_groups()?;
            return Ok(chain);
        }
        start = chain.first_live;
    }
}

/// Looks for the newest whole batch: which segment it calls the lowest needed, and the damage
/// around it, if any.
fn find_newest(survey: &Survey<'_>) -> Result<(u64, Option<(u64, u64)>), WalError> {
    let mut damage = None;
    let mut foreign = None;
    let mut version = None;
    for &number in survey.numbers.iter().rev() {
        let bytes = survey.read(number)?;
        let sight = chain::look(&bytes, survey, number, 0);
        damage = sight.damage.map(|offset| (number, offset)).or(damage);
        foreign = sight.foreign.map(|identity| (number, identity)).or(foreign);
        version = sight.version.map(|found| (number, found)).or(version);
        if let Some(first_live) = sight.first_live {
            return Ok((first_live, damage));
        }
    }
    if let Some((number, found)) = foreign {
        return Err(WalError::Foreign { file: segment::file_name(number), offset: 0, found });
    }
    if let Some((number, found)) = version {
        return Err(WalError::Version { file: segment::file_name(number), offset: 0, found });
    }
    let lowest = survey.numbers.first().copied().unwrap_or(segment::FIRST);
    Err(match damage {
        Some((number, offset)) => WalError::corrupt(
            &segment::file_name(number),
            offset,
            "there is no whole batch in the log at all",
        ),
        // Only zeros: a prepared segment, and what came before it is gone.
        None if lowest > segment::FIRST => missing(lowest - 1),
        None => WalError::corrupt(
            &segment::file_name(lowest),
            0,
            "the segment is empty, but a log is founded with its first batch in place",
        ),
    })
}

/// A log that was closed ends where its marker says.
fn check_clean_stop(chain: &Chain, clean_stop: CleanStop) -> Result<(), WalError> {
    let end = (chain.sequence, chain.segment, chain.offset);
    let expected = (clean_stop.sequence, clean_stop.segment, clean_stop.offset);
    if end == expected {
        return Ok(());
    }
    if chain.sequence < clean_stop.sequence {
        let what =
            format!("{}, but the log was closed with batch {} as its last", chain.flaw, clean_stop.sequence);
        let file = segment::file_name(chain.segment);
        return Err(WalError::corrupt(&file, chain.offset, what));
    }
    let what = format!(
        "it says that the log ends with batch {}, but it goes on to batch {}",
        clean_stop.sequence, chain.sequence
    );
    Err(WalError::corrupt(CLEAN_STOP, 0, what))
}

/// Refuses if any batch behind the end of the chain calls the missing one synced.
fn check_claims(survey: &Survey<'_>, chain: &Chain) -> Result<(), WalError> {
    let sight = chain::look(&chain.tail, survey, chain.segment, chain.offset);
    check_claim(chain, chain.segment, sight.synced_through)?;
    for &number in survey.numbers.range(chain.segment + 1..) {
        let bytes = survey.read(number)?;
        let sight = chain::look(&bytes, survey, number, 0);
        if let Some(found) = sight.foreign {
            return Err(WalError::Foreign { file: segment::file_name(number), offset: 0, found });
        }
        check_claim(chain, number, sight.synced_through)?;
    }
    Ok(())
}

fn check_claim(chain: &Chain, segment: u64, claim: Option<(u64, u64)>) -> Result<(), WalError> {
    match claim {
        Some((synced_through, offset)) if synced_through > chain.sequence => {
            let what = format!(
                "{}, but {} says at offset {offset} that it was on disk (batch {})",
                chain.flaw,
                segment::file_name(segment),
                chain.sequence + 1
            );
            let file = segment::file_name(chain.segment);
            Err(WalError::corrupt(&file, chain.offset, what))
        }
        _ => Ok(()),
    }
}

/// The segments after the end of the chain: those that can be used as they are, without gaps, and
/// the rest. None of them holds anything that was synced.
fn sort_later_segments(survey: &Survey<'_>, chain: &Chain) -> Result<(Vec<u64>, Vec<u64>), WalError> {
    let mut spares = Vec::new();
    let mut unfit = Vec::new();
    for &number in survey.numbers.range(chain.segment + 1..) {
        let bytes = survey.read(number)?;
        let is_fit = chain::used_bytes(&bytes) == 0 && bytes.len() as u64 == survey.segment_bytes;
        if is_fit && unfit.is_empty() {
            spares.push(number);
        } else {
            unfit.push(number);
        }
    }
    Ok((spares, unfit))
}

fn cut_of(chain: &Chain) -> Option<Cut> {
    let bytes = chain::used_bytes(&chain.tail[chain.offset as usize..]) as u64;
    (bytes > 0).then(|| Cut { file: segment::file_name(chain.segment), offset: chain.offset, bytes })
}

/// Logs that no crash and no flipped byte can make: every checksum is right, and still they are wrong.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::batch::{self, Header};
    use crate::record::{Kind, RecordRef};
    use crate::sim_disk::SimDisk;

    const IDENTITY: [u8; 16] = [9; 16];
    const SEGMENT_BYTES: u64 = 1024;

    /// A batch as the log would write it, for `change` to spoil.
    fn batch_of(
        segment: u64,
        sequence: u64,
        records: &[(Kind, u64)],
        change: impl Fn(&mut Header),
    ) -> Vec<u8> {
        let mut header = Header {
            is_end: false,
            identity: IDENTITY,
            segment,
            sequence,
            synced_through: sequence - 1,
            first_live: segment,
            segment_bytes: SEGMENT_BYTES as u32,
        };
        change(&mut header);
        let records = records.iter().map(|(kind, index)| RecordRef {
            group: GroupId::ROOT,
            kind: *kind,
            index: *index,
            payload: b"payload",
        });
        let mut bytes = Vec::new();
        batch::encode(&mut bytes, &header, records);
        bytes
    }

    fn recover_from(segments: &[(u64, &[Vec<u8>])]) -> Result<Findings, WalError> {
        let disk = SimDisk::new(1);
        for (number, batches) in segments {
            let mut content = batches.concat();
            content.resize(SEGMENT_BYTES as usize, 0);
            disk.set_content(&segment::file_name(*number), content);
        }
        recover(&disk.as_disk(), IDENTITY, SEGMENT_BYTES)
    }

    fn same(_: &mut Header) {}

    /// The second of two batches is refused where it stands.
    fn assert_second_refused(second: Vec<u8>) {
        let first = batch_of(1, 1, &[(Kind::Entry, 1)], same);
        let at = first.len() as u64;
        match recover_from(&[(1, &[first, second])]) {
            Err(WalError::Corrupt { file, offset, .. }) => {
                assert_eq!((file, offset), (segment::file_name(1), at));
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was believed"),
        }
    }

    #[test]
    fn a_log_that_is_right_is_read() {
        let first = batch_of(1, 1, &[(Kind::Entry, 1)], same);
        let second = batch_of(1, 2, &[(Kind::Entry, 2)], same);
        let findings = recover_from(&[(1, &[first, second])]).unwrap();
        assert_eq!(findings.chain.groups[&GroupId::ROOT].last_index(), 2);
    }

    #[test]
    fn a_record_that_does_not_continue_its_log_is_corruption() {
        for record in [(Kind::Entry, 3), (Kind::Entry, 0)] {
            assert_second_refused(batch_of(1, 2, &[record], same));
        }
        assert_second_refused(batch_of(1, 2, &[(Kind::Compaction, 5), (Kind::Compaction, 4)], same));
        assert_second_refused(batch_of(1, 2, &[(Kind::Compaction, 5), (Kind::Entry, 7)], same));
    }

    #[test]
    fn a_batch_that_cannot_stand_where_it_stands_is_corruption() {
        assert_second_refused(batch_of(1, 3, &[], same));
        assert_second_refused(batch_of(2, 2, &[], same));
        assert_second_refused(batch_of(1, 2, &[], |header| header.synced_through = 2));
        assert_second_refused(batch_of(1, 2, &[], |header| header.first_live = 2));
        assert_second_refused(batch_of(1, 2, &[], |header| header.first_live = 0));
    }

    #[test]
    fn entries_that_went_with_a_dropped_segment_must_be_compacted() {
        let opening = batch_of(5, 40, &[(Kind::Compaction, 10), (Kind::Entry, 21)], same);
        let covering = batch_of(5, 41, &[(Kind::Compaction, 20)], same);
        let findings = recover_from(&[(5, &[opening.clone(), covering])]).unwrap();
        assert_eq!(findings.chain.groups[&GroupId::ROOT].entries.len(), 1);

        let too_low = batch_of(5, 41, &[(Kind::Compaction, 19)], same);
        for batches in [vec![opening.clone()], vec![opening, too_low]] {
            let result = recover_from(&[(5, &batches)]);
            assert!(matches!(result, Err(WalError::Corrupt { offset: 0, .. })));
        }
    }

    #[test]
    fn the_segment_after_an_end_must_be_there() {
        let first = batch_of(1, 1, &[(Kind::Entry, 1)], same);
        let end = batch_of(1, 2, &[], |header| header.is_end = true);
        match recover_from(&[(1, &[first.clone(), end.clone()])]) {
            Err(WalError::MissingSegment { file }) => assert_eq!(file, segment::file_name(2)),
            _ => panic!("the end of a segment was not believed"),
        }
        let findings = recover_from(&[(1, &[first, end]), (2, &[])]).unwrap();
        assert_eq!((findings.chain.segment, findings.chain.offset), (2, 0));
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut first = batch_of(1, 1, &[], same);
        first[4] = 2;
        let crc = crc32c::crc32c(&first[..68]);
        first[68..72].copy_from_slice(&crc.to_le_bytes());
        let result = recover_from(&[(1, &[first])]);
        assert!(matches!(result, Err(WalError::Version { found: 2, .. })));
    }
}
