//! How a snapshot is transferred: it is offered first, then sent from where the receiver left off.
//!
//! ```text
//!   sender                                       receiver
//!   OfferSnapshot: index, size, checksum ──────► how much of it is there already?
//!   Snapshot: chunks from that byte on ────────► whole? checksum, state hash, decoded, to the replica
//! ```
//!
//! A connection that breaks costs only the bytes under way: the sender offers again. The receiver keeps one
//! unfinished snapshot of each group, in memory. The offer of another snapshot replaces it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowkey_core::MemberId;
use lowkey_replica::{Input, Message, ReceivedSnapshot, wire};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::complaints::{Rarely, name_of};
use super::link::Wire;
use super::proto::{SnapshotChunk, SnapshotId, SnapshotOffer};
use crate::lane::Lane;
use crate::lane::inbox::Event;
use crate::lane::snapshot_maker::lost;

const CHUNK_BYTES: usize = 64 * 1024;
/// The largest snapshot that is accepted.
const SNAPSHOT_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// How often a snapshot is offered again while nothing of it arrives.
const FRUITLESS_OFFERS_MAX: usize = 5;
/// The pause before a snapshot is offered again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a failure is reported: `raft` would want the next attempt at once.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// A snapshot to send.
pub(super) struct Outgoing {
    /// Names the snapshot. Its bytes are in the file of that index.
    pub(super) message: Message,
    pub(super) delivery: Delivery,
}

/// The replica that a snapshot belongs to. It tells that replica the outcome exactly once, also if its link
/// ends meanwhile: `raft` sends nothing to a peer until it hears of this.
pub(super) struct Delivery {
    lane: Arc<Lane>,
    to: MemberId,
    delivered: bool,
}

impl Delivery {
    pub(super) fn new(lane: Arc<Lane>, to: MemberId) -> Self {
        Self { lane, to, delivered: false }
    }

    fn done(mut self) {
        self.delivered = true;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let (to, delivered) = (self.to, self.delivered);
        self.lane.inbox.report(Event::Replica(Input::SnapshotSent { to, delivered }));
    }
}

/// Sends the snapshots of a link, one after the other.
pub(super) async fn send_snapshots(mut wire: Wire, queue: Arc<tokio::sync::Mutex<mpsc::Receiver<Outgoing>>>) {
    let mut queue = queue.lock().await;
    let mut complaints = Rarely::default();
    while let Some(Outgoing { message, delivery }) = queue.recv().await {
        let index = message.get_snapshot().get_metadata().index;
        let started = Instant::now();
        match send(&mut wire, &delivery.lane, index, message).await {
            Ok(Sent { size_bytes, offers }) => {
                let (node, took) = (name_of(wire.to, &wire.lanes), started.elapsed());
                tracing::info!(member = wire.to.0, node, index, size_bytes, offers, ?took, "sent a snapshot");
                delivery.done();
            }
            Err(cause) => {
                if complaints.is_news(&cause) {
                    let node = name_of(wire.to, &wire.lanes);
                    tracing::warn!(member = wire.to.0, node, index, cause, "a snapshot could not be sent");
                }
                sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

struct Sent {
    size_bytes: usize,
    offers: usize,
}

async fn send(wire: &mut Wire, lane: &Lane, index: u64, message: Message) -> Result<Sent, String> {
    let (files, group) = (lane.snapshot_files.clone(), lane.group);
    let read = spawn_blocking(move || {
        let payload = files.load(index).map_err(|error| error.to_string())?;
        let (size_bytes, crc32c) = (payload.len() as u64, crc32c::crc32c(&payload));
        Ok::<_, String>((
            Arc::new(payload),
            SnapshotId { index, size_bytes, crc32c, group: group.number_to_tell() },
        ))
    });
    // The file exists until there is a newer one. A file that cannot be read is made anew.
    let read = read.await.map_err(|error| error.to_string())?;
    let (payload, id) = read.inspect_err(|_| lost(lane, index))?;
    let message = wire::encode_message(group, message);
    let (mut offers, mut fruitless, mut arrived) = (0, 0, 0);
    loop {
        offers += 1;
        let offer = SnapshotOffer { id: Some(id), message: message.clone() };
        let status = match offer_and_send(wire, offer, id, &payload, &mut arrived, &mut fruitless).await {
            Ok(()) => return Ok(Sent { size_bytes: payload.len(), offers }),
            Err(status) => status,
        };
        wire.heed(&status);
        fruitless += 1;
        if is_final(&status) || fruitless > FRUITLESS_OFFERS_MAX {
            return Err(status.message().to_owned());
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// One attempt. `arrived` is how much the receiver had when it was last asked.
async fn offer_and_send(
    wire: &mut Wire,
    offer: SnapshotOffer,
    id: SnapshotId,
    payload: &Arc<Vec<u8>>,
    arrived: &mut u64,
    fruitless: &mut usize,
) -> Result<(), Status> {
    let wanted = wire.client.offer_snapshot(wire.hello.sign(wire.to, offer)).await?.into_inner();
    if wanted.from_byte > *arrived {
        *fruitless = 0;
    }
    *arrived = wanted.from_byte;
    let chunks = tokio_stream::iter(chunks(id, Arc::clone(payload), wanted.from_byte));
    wire.client.snapshot(wire.hello.sign(wire.to, chunks)).await?;
    Ok(())
}

/// The chunks from a byte on, cut as they are needed. There is at least one, which says what it belongs to.
fn chunks(id: SnapshotId, payload: Arc<Vec<u8>>, from: u64) -> impl Iterator<Item = SnapshotChunk> {
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(payload.len());
    let offsets = std::iter::once(from).chain((from..payload.len()).step_by(CHUNK_BYTES).skip(1));
    offsets.map(move |offset| {
        let end = payload.len().min(offset + CHUNK_BYTES);
        SnapshotChunk { id: Some(id), offset: offset as u64, part: payload[offset..end].to_vec() }
    })
}

/// True if another attempt would get the same answer.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::DataLoss
            | Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

/// The received parts of snapshots, one snapshot for each group.
#[derive(Default)]
pub(super) struct Incoming(Mutex<BTreeMap<u32, Partial>>);

struct Partial {
    id: SnapshotId,
    /// As in the newest offer.
    message: Message,
    bytes: Vec<u8>,
}

impl Incoming {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<u32, Partial>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an offer, and says from which byte on the snapshot is wanted.
    pub(super) fn offer(&self, id: SnapshotId, message: Message) -> Result<u64, Status> {
        if id.size_bytes > SNAPSHOT_BYTES_MAX {
            return Err(Status::resource_exhausted("the snapshot is too large"));
        }
        let mut slots = self.slots();
        let bytes = match slots.remove(&id.group) {
            Some(partial) if partial.id == id => partial.bytes,
            _ => Vec::new(),
        };
        let from_byte = bytes.len() as u64;
        slots.insert(id.group, Partial { id, message, bytes });
        Ok(from_byte)
    }

    /// Adds a chunk, and says what it belongs to.
    pub(super) fn append(&self, chunk: &SnapshotChunk) -> Result<SnapshotId, Status> {
        let mut slots = self.slots();
        let partial = chunk.id.and_then(|id| slots.get_mut(&id.group).filter(|partial| partial.id == id));
        let partial = partial.ok_or_else(|| Status::aborted("another snapshot was offered meanwhile"))?;
        if partial.bytes.len() as u64 != chunk.offset {
            return Err(Status::aborted("a chunk that does not follow the one before"));
        }
        if chunk.offset + chunk.part.len() as u64 > partial.id.size_bytes {
            return Err(Status::invalid_argument("the snapshot is longer than was said"));
        }
        partial.bytes.extend_from_slice(&chunk.part);
        Ok(partial.id)
    }

    /// Takes the snapshot out once it is complete, and decodes it.
    pub(super) async fn finish(&self, id: SnapshotId) -> Result<ReceivedSnapshot, Status> {
        let whole = {
            let mut slots = self.slots();
            let is_whole =
                |partial: &&Partial| partial.id == id && partial.bytes.len() as u64 == id.size_bytes;
            slots.get(&id.group).filter(is_whole).is_some().then(|| slots.remove(&id.group)).flatten()
        };
        let Partial { message, bytes, .. } =
            whole.ok_or_else(|| Status::aborted("the snapshot ended before it was whole"))?;
        let read = spawn_blocking(move || {
            if crc32c::crc32c(&bytes) != id.crc32c {
                return Err(Status::data_loss("the snapshot fails its checksum"));
            }
            ReceivedSnapshot::read(message, bytes).map_err(|error| Status::data_loss(error.to_string()))
        });
        read.await.map_err(|error| Status::internal(error.to_string()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u64, payload: &[u8]) -> SnapshotId {
        SnapshotId { index, size_bytes: payload.len() as u64, crc32c: crc32c::crc32c(payload), group: 0 }
    }

    fn payload() -> Arc<Vec<u8>> {
        Arc::new((0..5 * CHUNK_BYTES + 17).map(|at| (at % 251) as u8).collect())
    }

    fn have(incoming: &Incoming) -> Option<Vec<u8>> {
        incoming.slots().get(&0).map(|partial| partial.bytes.clone())
    }

    #[test]
    fn a_transfer_that_breaks_goes_on_where_it_was() {
        let (incoming, payload) = (Incoming::default(), payload());
        let id = id(7, &payload);
        assert_eq!(incoming.offer(id, Message::default()).unwrap(), 0);
        for chunk in chunks(id, Arc::clone(&payload), 0).take(2) {
            incoming.append(&chunk).unwrap();
        }
        let from = incoming.offer(id, Message::default()).unwrap();
        assert_eq!(from, 2 * CHUNK_BYTES as u64);
        for chunk in chunks(id, Arc::clone(&payload), from) {
            incoming.append(&chunk).unwrap();
        }
        assert_eq!(have(&incoming).as_ref(), Some(&*payload));
        // All of it arrived and only the answer was lost: one empty chunk says which snapshot is meant.
        let from = incoming.offer(id, Message::default()).unwrap();
        let last: Vec<SnapshotChunk> = chunks(id, Arc::clone(&payload), from).collect();
        assert_eq!(last.iter().map(|chunk| chunk.part.len()).collect::<Vec<_>>(), [0]);
        assert_eq!(incoming.append(&last[0]).unwrap(), id);
    }

    #[test]
    fn another_snapshot_takes_the_place_of_an_unfinished_one() {
        let (incoming, payload) = (Incoming::default(), payload());
        let (first, second) = (id(7, &payload), id(8, &payload));
        incoming.offer(first, Message::default()).unwrap();
        let mut sent = chunks(first, Arc::clone(&payload), 0);
        incoming.append(&sent.next().unwrap()).unwrap();
        assert_eq!(incoming.offer(second, Message::default()).unwrap(), 0);
        assert_eq!(incoming.append(&sent.next().unwrap()).unwrap_err().code(), Code::Aborted);
        assert_eq!(incoming.offer(first, Message::default()).unwrap(), 0, "nothing of it is left");
    }

    #[test]
    fn chunks_out_of_place_or_beyond_the_end_are_refused() {
        let (incoming, payload) = (Incoming::default(), payload());
        let id = id(7, &payload);
        incoming.offer(id, Message::default()).unwrap();
        let mut sent: Vec<SnapshotChunk> = chunks(id, Arc::clone(&payload), 0).collect();
        assert_eq!(incoming.append(&sent[1]).unwrap_err().code(), Code::Aborted);
        incoming.append(&sent[0]).unwrap();
        assert_eq!(incoming.append(&sent[0]).unwrap_err().code(), Code::Aborted);
        sent[1].part = vec![0; payload.len()];
        assert_eq!(incoming.append(&sent[1]).unwrap_err().code(), Code::InvalidArgument);
        let too_large = SnapshotId { size_bytes: SNAPSHOT_BYTES_MAX + 1, ..id };
        let refused = incoming.offer(too_large, Message::default()).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn what_is_not_whole_or_was_changed_on_the_way_is_refused() {
        let (incoming, payload) = (Incoming::default(), payload());
        let id = id(7, &payload);
        incoming.offer(id, Message::default()).unwrap();
        assert_eq!(incoming.finish(id).await.unwrap_err().code(), Code::Aborted);
        for mut chunk in chunks(id, Arc::clone(&payload), 0) {
            if chunk.offset == 0 {
                chunk.part[5] ^= 1;
            }
            incoming.append(&chunk).unwrap();
        }
        assert_eq!(incoming.finish(id).await.unwrap_err().code(), Code::DataLoss);
        assert_eq!(have(&incoming), None, "the next attempt begins anew");
        // The checksum is right, and it is no snapshot.
        incoming.offer(id, Message::default()).unwrap();
        chunks(id, Arc::clone(&payload), 0).for_each(|chunk| {
            incoming.append(&chunk).unwrap();
        });
        assert_eq!(incoming.finish(id).await.unwrap_err().code(), Code::DataLoss);
    }

    #[test]
    fn groups_do_not_get_in_each_others_way() {
        let (incoming, payload) = (Incoming::default(), payload());
        let (first, second) = (id(7, &payload), SnapshotId { group: 2, ..id(7, &payload) });
        for id in [first, second] {
            incoming.offer(id, Message::default()).unwrap();
        }
        for chunk in chunks(first, Arc::clone(&payload), 0) {
            incoming.append(&chunk).unwrap();
        }
        assert_eq!(incoming.offer(second, Message::default()).unwrap(), 0);
        assert_eq!(incoming.offer(first, Message::default()).unwrap(), payload.len() as u64);
    }

    #[tokio::test]
    async fn every_snapshot_is_reported_once_whatever_becomes_of_it() {
        let lanes = crate::lane::tests::lanes(super::super::hello::tests::status(vec![], &[], 1));
        let lane = lanes.root();
        Delivery::new(Arc::clone(lane), MemberId(2)).done();
        drop(Delivery::new(Arc::clone(lane), MemberId(3)));
        let reports = lane.inbox.take(None).unwrap().events;
        let told: Vec<(u64, bool)> = reports
            .iter()
            .filter_map(|event| match event {
                Event::Replica(Input::SnapshotSent { to, delivered }) => Some((to.0, *delivered)),
                _ => None,
            })
            .collect();
        assert_eq!(told, [(2, true), (3, false)]);
    }
}
