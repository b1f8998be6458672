//! The bytes of a batch: header, records, padding. `docs/internals/log-format.md` draws them.
//!
//! Every byte is under a check: the header under its own CRC, each record under one of its own, the
//! padding must be zero. So a batch either comes back exactly as it was written or not at all, and
//! the only question left, answered in `recovery.rs`, is what it means that it did not.

use lowkey_record::GroupId;

use crate::record::{Kind, RecordRef};

/// `LKWB` as the file shows it.
const MAGIC: u32 = u32::from_le_bytes(*b"LKWB");
const VERSION: u16 = 1;
/// The log goes on in the next segment.
const FLAG_END: u16 = 1;
/// Batches begin, and are padded, at multiples of this.
pub(crate) const ALIGN_BYTES: usize = 8;
pub(crate) const HEADER_BYTES: usize = 72;
const HEADER_CRC_AT: usize = 68;
const RECORD_HEADER_BYTES: usize = 24;
const RECORD_CRC_AT: usize = 20;
/// What the batch without records takes that ends a segment; every segment keeps this much free.
pub(crate) const END_BYTES: u64 = HEADER_BYTES as u64;

/// What a batch says about itself and about the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The log goes on in the next segment.
    pub(crate) is_end: bool,
    pub(crate) identity: [u8; 16],
    pub(crate) segment: u64,
    /// 1, 2, 3… over the whole life of the log.
    pub(crate) sequence: u64,
    /// The last batch known to be on disk when this one was written; < `sequence`.
    pub(crate) synced_through: u64,
    /// The lowest segment still needed, judged by what was synced; <= `segment`.
    pub(crate) first_live: u64,
    /// The length of the file that this batch lies in.
    pub(crate) segment_bytes: u32,
}

/// A batch that checks out.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) header: Header,
    pub(crate) records: Vec<RecordRef<'a>>,
    /// All of it, with padding.
    pub(crate) total_bytes: usize,
}

/// Why the bytes at some place are no batch.
#[derive(Debug)]
pub(crate) enum Flaw {
    /// A check fails. Torn by a crash, damaged later, or never written: the bytes cannot tell.
    Broken {
        what: String,
        /// How far the batch would reach, if its header can be trusted.
        extent_bytes: Option<usize>,
    },
    /// Every check passes, and still it makes no sense. No crash does that.
    Wrong { what: String },
    /// The header is whole, of a version that is not known here.
    Version { found: u16 },
}

/// What a record takes inside a batch.
pub(crate) fn record_bytes(payload_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES + payload_bytes) as u64
}

/// What a batch takes whose records take `records_bytes`.
pub(crate) fn batch_bytes(records_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + records_bytes).next_multiple_of(ALIGN_BYTES as u64)
}

/// Writes a batch into the buffer, in place of what was there.
pub(crate) fn encode<'a>(
    buffer: &mut Vec<u8>,
    header: &Header,
    records: impl Iterator<Item = RecordRef<'a>>,
) {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
    let mut record_count: u32 = 0;
    for record in records {
        encode_record(buffer, record);
        record_count += 1;
    }
    let payload_bytes = (buffer.len() - HEADER_BYTES) as u32;
    buffer.resize(buffer.len().next_multiple_of(ALIGN_BYTES), 0);

    let flags = if header.is_end { FLAG_END } else { 0 };
    let head = &mut buffer[..HEADER_BYTES];
    head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6..8].copy_from_slice(&flags.to_le_bytes());
    head[8..24].copy_from_slice(&header.identity);
    head[24..32].copy_from_slice(&header.segment.to_le_bytes());
    head[32..40].copy_from_slice(&header.sequence.to_le_bytes());
    head[40..48].copy_from_slice(&header.synced_through.to_le_bytes());
    head[48..56].copy_from_slice(&header.first_live.to_le_bytes());
    head[56..60].copy_from_slice(&header.segment_bytes.to_le_bytes());
    head[60..64].copy_from_slice(&payload_bytes.to_le_bytes());
    head[64..68].copy_from_slice(&record_count.to_le_bytes());
    let crc = crc32c::crc32c(&head[..HEADER_CRC_AT]);
    head[HEADER_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
}

fn encode_record(buffer: &mut Vec<u8>, record: RecordRef<'_>) {
    let start = buffer.len();
    buffer.extend_from_slice(&record.group.0.to_le_bytes());
    buffer.extend_from_slice(&[record.kind as u8, 0, 0, 0]);
    buffer.extend_from_slice(&record.index.to_le_bytes());
    buffer.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
    let crc = record_crc(&buffer[start..], record.payload);
    buffer.extend_from_slice(&crc.to_le_bytes());
    buffer.extend_from_slice(record.payload);
}

fn record_crc(head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), payload)
}

/// Reads the batch that begins at the first byte. It says nothing about whether it belongs there.
pub(crate) fn parse(bytes: &[u8]) -> Result<Batch<'_>, Flaw> {
    let broken = |what: &str| Flaw::Broken { what: what.to_string(), extent_bytes: None };
    let Some(head) = bytes.get(..HEADER_BYTES) else {
        return Err(broken("there is no room for a batch header"));
    };
    if u32_at(head, 0) != MAGIC {
        return Err(broken("no batch begins here"));
    }
    if u32_at(head, HEADER_CRC_AT) != crc32c::crc32c(&head[..HEADER_CRC_AT]) {
        return Err(broken("a batch header fails its checksum"));
    }
    let version = u16_at(head, 4);
    if version != VERSION {
        return Err(Flaw::Version { found: version });
    }
    let flags = u16_at(head, 6);
    if flags & !FLAG_END != 0 {
        return Err(wrong(format!("a batch header has unknown flags {flags:#x}")));
    }
    let mut identity = [0; 16];
    identity.copy_from_slice(&head[8..24]);
    let header = Header {
        is_end: flags & FLAG_END != 0,
        identity,
        segment: u64_at(head, 24),
        sequence: u64_at(head, 32),
        synced_through: u64_at(head, 40),
        first_live: u64_at(head, 48),
        segment_bytes: u32_at(head, 56),
    };
    if header.synced_through >= header.sequence {
        return Err(wrong("a batch calls itself synced"));
    }
    if header.first_live == 0 || header.first_live > header.segment {
        return Err(wrong("a batch calls its own segment needless"));
    }

    let payload_end = HEADER_BYTES + u32_at(head, 60) as usize;
    let total_bytes = payload_end.next_multiple_of(ALIGN_BYTES);
    if total_bytes > bytes.len() {
        return Err(wrong("a batch reaches beyond the end of its file"));
    }
    let records = parse_records(bytes, payload_end, u32_at(head, 64), total_bytes)?;
    if bytes[payload_end..total_bytes].iter().any(|byte| *byte != 0) {
        return Err(Flaw::Broken {
            what: "the padding of a batch is not zero".to_string(),
            extent_bytes: Some(total_bytes),
        });
    }
    Ok(Batch { header, records, total_bytes })
}

/// Reads the records between the header and `payload_end`: exactly `count` of them, nothing between.
fn parse_records(
    bytes: &[u8],
    payload_end: usize,
    count: u32,
    total_bytes: usize,
) -> Result<Vec<RecordRef<'_>>, Flaw> {
    let mut records = Vec::new();
    let mut at = HEADER_BYTES;
    for number in 1..=count {
        let fails = || Flaw::Broken {
            what: format!("record {number} of {count} in a batch fails its checksum"),
            extent_bytes: Some(total_bytes),
        };
        let payload_at = at + RECORD_HEADER_BYTES;
        if payload_at > payload_end {
            return Err(fails());
        }
        let head = &bytes[at..payload_at];
        let record_end = payload_at + u32_at(head, 16) as usize;
        if record_end > payload_end {
            return Err(fails());
        }
        let payload = &bytes[payload_at..record_end];
        if u32_at(head, RECORD_CRC_AT) != record_crc(&head[..RECORD_CRC_AT], payload) {
            return Err(fails());
        }
        if head[5..8] != [0, 0, 0] {
            return Err(wrong(format!("record {number} has unknown flags")));
        }
        let Some(kind) = Kind::from_byte(head[4]) else {
            return Err(wrong(format!("record {number} is of unknown kind {}", head[4])));
        };
        records.push(RecordRef { group: GroupId(u32_at(head, 0)), kind, index: u64_at(head, 8), payload });
        at = record_end;
    }
    if at != payload_end {
        return Err(wrong("the records of a batch do not fill it"));
    }
    Ok(records)
}

fn wrong(what: impl Into<String>) -> Flaw {
    Flaw::Wrong { what: what.into() }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            is_end: false,
            identity: *b"0123456789abcdef",
            segment: 3,
            sequence: 17,
            synced_through: 16,
            first_live: 2,
            segment_bytes: 4096,
        }
    }

    fn records() -> Vec<RecordRef<'static>> {
        vec![
            RecordRef { group: GroupId(1), kind: Kind::Entry, index: 9, payload: b"an entry" },
            RecordRef { group: GroupId(u32::MAX), kind: Kind::HardState, index: 0, payload: b"" },
            RecordRef { group: GroupId(0), kind: Kind::Compaction, index: u64::MAX, payload: b"odd" },
        ]
    }

    #[test]
    fn a_batch_comes_back_as_it_was_written() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &header(), records().into_iter());
        let sum: u64 = records().iter().map(|r| record_bytes(r.payload.len())).sum();
        assert_eq!(bytes.len() as u64, batch_bytes(sum));
        let batch = parse(&bytes).unwrap();
        assert_eq!(batch.header, header());
        assert_eq!(batch.records, records());
        assert_eq!(batch.total_bytes, bytes.len());
    }

    #[test]
    fn no_changed_byte_goes_unseen() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &header(), records().into_iter());
        for at in 0..bytes.len() {
            for change in 1..=255 {
                bytes[at] ^= change;
                assert!(parse(&bytes).is_err(), "byte {at} changed by {change:#x}");
                bytes[at] ^= change;
            }
        }
    }

    #[test]
    fn no_cut_batch_is_whole() {
        let mut bytes = Vec::new();
        encode(&mut bytes, &header(), records().into_iter());
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "cut to {len}");
            let mut zeroed = bytes.clone();
            zeroed[len..].fill(0);
            // The padding is zero anyway.
            assert_eq!(parse(&zeroed).is_err(), zeroed != bytes, "zeroed from {len}");
        }
    }
}
