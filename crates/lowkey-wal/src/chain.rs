//! Reading the log forward, batch after batch, as far as it holds together.
//!
//! A batch belongs to the chain if it checks out, was written by this node, for this segment, and
//! has the next sequence number. The first place where that ends is all this file finds; what it
//! means is decided in `recovery.rs`. But a batch that passes every checksum and yet cannot stand
//! where it stands is corruption at once: segments hold only zeros before they are written, so no
//! crash can leave such a thing behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lowkey_record::GroupId;

use crate::batch::{self, ALIGN_BYTES, Batch, Flaw, Header};
use crate::disk::Disk;
use crate::error::WalError;
use crate::needs::Needs;
use crate::record::{GroupLog, Kind};
use crate::segment;

/// The directory as recovery sees it.
pub(crate) struct Survey<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) identity: [u8; 16],
    /// The length of new segments.
    pub(crate) segment_bytes: u64,
    /// The segments that are there.
    pub(crate) numbers: BTreeSet<u64>,
}

impl Survey<'_> {
    pub(crate) fn read(&self, number: u64) -> Result<Vec<u8>, WalError> {
        let name = segment::file_name(number);
        self.disk.read(&name).map_err(|source| WalError::io("reading", &name, source))
    }
}

/// A batch that was read and that no later batch calls synced: it may be in the page cache alone.
pub(crate) struct Unproven {
    pub(crate) sequence: u64,
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// The very bytes that were checked: a second look may show others.
    pub(crate) bytes: Vec<u8>,
}

/// The log as far as it holds together.
pub(crate) struct Chain {
    /// The segment it begins with.
    pub(crate) start: u64,
    pub(crate) groups: BTreeMap<GroupId, GroupLog>,
    /// Its segments, and who needs them.
    pub(crate) needs: Needs,
    /// The last batch.
    pub(crate) sequence: u64,
    /// The segment that holds it.
    pub(crate) last_segment: u64,
    /// What it says of the lowest segment still needed.
    pub(crate) first_live: u64,
    /// The last batch that some batch calls synced.
    pub(crate) claimed: u64,
    /// All batches after that one.
    pub(crate) unproven: VecDeque<Unproven>,
    /// The last batch that is more than a mark.
    pub(crate) last_data_sequence: u64,
    /// Where the next batch would begin: segment, offset, and the bytes of that segment's file.
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) tail: Vec<u8>,
    /// Why there is no next batch.
    pub(crate) flaw: String,
}

impl Chain {
    /// Reads the log from a segment on.
    pub(crate) fn read(survey: &Survey<'_>, start: u64) -> Result<Chain, WalError> {
        let mut chain = Chain {
            start,
            groups: BTreeMap::new(),
            needs: Needs::default(),
            sequence: 0,
            last_segment: start,
            first_live: start,
            claimed: 0,
            unproven: VecDeque::new(),
            last_data_sequence: 0,
            segment: start,
            offset: 0,
            tail: Vec::new(),
            flaw: String::new(),
        };
        loop {
            if !survey.numbers.contains(&chain.segment) {
                return Err(WalError::MissingSegment { file: segment::file_name(chain.segment) });
            }
            let bytes = survey.read(chain.segment)?;
            let goes_on = chain.read_segment(survey, &bytes)?;
            if !goes_on {
                chain.tail = bytes;
                break;
            }
            chain.segment += 1;
            chain.offset = 0;
        }
        Ok(chain)
    }

    /// Reads the batches of the present segment; true if the log goes on in the next.
    fn read_segment(&mut self, survey: &Survey<'_>, bytes: &[u8]) -> Result<bool, WalError> {
        let name = segment::file_name(self.segment);
        self.needs.begin(self.segment);
        loop {
            let corrupt = |what: String| WalError::corrupt(&name, self.offset, what);
            let batch = match batch::parse(&bytes[self.offset as usize..]) {
                Ok(batch) => batch,
                Err(Flaw::Version { found }) => {
                    return Err(WalError::Version { file: name, offset: self.offset, found });
                }
                Err(Flaw::Wrong { what }) => return Err(corrupt(what)),
                Err(Flaw::Broken { what, .. }) => {
                    if self.sequence == 0 {
                        // Its first batch was on disk before the segment became the first one needed.
                        let what = format!("{what}, where the log must begin");
                        return Err(corrupt(what));
                    }
                    self.check_unread_length(survey, &name, bytes.len() as u64)?;
                    self.flaw = what;
                    return Ok(false);
                }
            };
            self.check_place(survey, &name, &batch, bytes.len() as u64)?;
            let from = self.offset as usize;
            self.absorb(&name, &batch)?;
            self.doubt(&batch.header, from as u64, &bytes[from..from + batch.total_bytes]);
            if batch.header.is_end {
                return Ok(true);
            }
        }
    }

    /// A segment without batches has the length that new ones have, or that its predecessor had.
    fn check_unread_length(&self, survey: &Survey<'_>, name: &str, found_bytes: u64) -> Result<(), WalError> {
        let is_new = self.offset == 0;
        if !is_new || found_bytes == survey.segment_bytes {
            return Ok(());
        }
        let before_bytes = survey.read(self.last_segment)?.len() as u64;
        if found_bytes == before_bytes {
            return Ok(());
        }
        let what = format!("the file is {found_bytes} bytes long, not {before_bytes}");
        Err(WalError::corrupt(name, found_bytes.min(before_bytes), what))
    }

    /// A whole batch must be this node's, of this segment, and the next in order.
    fn check_place(
        &self,
        survey: &Survey<'_>,
        name: &str,
        batch: &Batch<'_>,
        file_bytes: u64,
    ) -> Result<(), WalError> {
        let header = &batch.header;
        if header.identity != survey.identity {
            return Err(WalError::Foreign {
                file: name.to_string(),
                offset: self.offset,
                found: header.identity,
            });
        }
        let corrupt = |what: String| Err(WalError::corrupt(name, self.offset, what));
        if header.segment != self.segment {
            let what = format!("a batch of segment {} stands here", header.segment);
            return corrupt(what);
        }
        let expected_bytes = u64::from(header.segment_bytes);
        if expected_bytes != file_bytes {
            let what = format!("the file is {file_bytes} bytes long, not {expected_bytes}");
            let offset = file_bytes.min(expected_bytes);
            return Err(WalError::corrupt(name, offset, what));
        }
        let is_first_ever = self.sequence == 0 && self.segment == segment::FIRST;
        let is_next = header.sequence == self.sequence + 1;
        if !is_next && (self.sequence != 0 || is_first_ever) {
            return corrupt(format!(
                "batch {} stands where batch {} must be",
                header.sequence,
                self.sequence + 1
            ));
        }
        let takes_back = header.synced_through < self.claimed || header.first_live < self.first_live;
        if takes_back && self.sequence != 0 {
            return corrupt("a batch takes back what an earlier one said".to_string());
        }
        Ok(())
    }

    fn absorb(&mut self, name: &str, batch: &Batch<'_>) -> Result<(), WalError> {
        let header = &batch.header;
        let has_forgotten = self.start > segment::FIRST;
        for record in &batch.records {
            let group = self.groups.entry(record.group).or_default();
            group.replay(*record, has_forgotten).map_err(|what| {
                let what = format!("group {}: {what}", record.group);
                WalError::corrupt(name, self.offset, what)
            })?;
            if record.kind == Kind::Entry {
                let bytes = batch::record_bytes(record.payload.len());
                self.needs.add(self.segment, record.group, record.index, bytes);
            }
        }
        self.sequence = header.sequence;
        self.last_segment = self.segment;
        self.first_live = header.first_live;
        self.claimed = header.synced_through;
        if header.is_end || !batch.records.is_empty() {
            self.last_data_sequence = header.sequence;
        }
        self.offset += batch.total_bytes as u64;
        Ok(())
    }

    /// Keeps the batch that was just read, and lets go of those that it calls synced.
    fn doubt(&mut self, header: &Header, offset: u64, bytes: &[u8]) {
        while self.unproven.front().is_some_and(|earlier| earlier.sequence <= header.synced_through) {
            self.unproven.pop_front();
        }
        self.unproven.push_back(Unproven {
            sequence: header.sequence,
            segment: header.segment,
            offset,
            bytes: bytes.to_vec(),
        });
    }

    /// After the last batch: every group's entries are all there.
    pub(crate) fn check_groups(&self) -> Result<(), WalError> {
        for (number, group) in &self.groups {
            group.check_whole().map_err(|what| {
                let what = format!("group {number}: {what}");
                WalError::corrupt(&segment::file_name(self.start), 0, what)
            })?;
        }
        Ok(())
    }
}

/// What a look through a part of a segment shows, over all damage.
#[derive(Default)]
pub(crate) struct Sight {
    /// The highest `first_live` of this node's whole batches.
    pub(crate) first_live: Option<u64>,
    /// The highest `synced_through` of this node's whole batches, and where it stands.
    pub(crate) synced_through: Option<(u64, u64)>,
    /// Where something begins that is neither zeros nor a batch of this node and segment.
    pub(crate) damage: Option<u64>,
    /// The other node whose batch stands at the very beginning.
    pub(crate) foreign: Option<[u8; 16]>,
    /// The unknown format version of the batch at the very beginning.
    pub(crate) version: Option<u16>,
}

/// Looks for whole batches from an offset on, wherever one may begin.
pub(crate) fn look(bytes: &[u8], survey: &Survey<'_>, number: u64, from: u64) -> Sight {
    let mut sight = Sight::default();
    let end = from as usize + used_bytes(&bytes[from as usize..]);
    let mut at = from as usize;
    while at < end {
        let mut step_bytes = ALIGN_BYTES;
        match batch::parse(&bytes[at..]) {
            Ok(batch) if batch.header.identity != survey.identity => {
                if at == 0 {
                    sight.foreign = Some(batch.header.identity);
                }
                sight.damage.get_or_insert(at as u64);
            }
            Ok(batch) if batch.header.segment == number => {
                let header = &batch.header;
                sight.first_live = sight.first_live.max(Some(header.first_live));
                sight.synced_through = sight.synced_through.max(Some((header.synced_through, at as u64)));
                step_bytes = batch.total_bytes;
            }
            Err(Flaw::Broken { extent_bytes: Some(extent_bytes), .. }) => {
                // Its header is whole, so what lies inside is its payload, even if it looks like a batch.
                sight.damage.get_or_insert(at as u64);
                step_bytes = extent_bytes;
            }
            Err(Flaw::Version { found }) => {
                if at == 0 {
                    sight.version = Some(found);
                }
                sight.damage.get_or_insert(at as u64);
            }
            Ok(_) | Err(_) => {
                sight.damage.get_or_insert(at as u64);
            }
        }
        at += step_bytes;
    }
    sight
}

/// The bytes up to the last one that is not zero.
pub(crate) fn used_bytes(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}
