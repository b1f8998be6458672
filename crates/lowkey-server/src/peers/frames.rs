//! Messages in a stream of bytes, one after the other. Each has its length before it (4 bytes, little
//! endian).

use bytes::{Buf as _, BytesMut};
use tonic::Status;

const LENGTH_BYTES: usize = 4;
/// The largest message. An append holds about one mebibyte of entries, and one entry more.
const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Adds a message as a frame behind the existing frames.
pub(super) fn add_frame(frames: &mut Vec<u8>, message: &[u8]) {
    // A message is never larger than the largest frame, which is far below this.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    frames.extend_from_slice(&length.to_le_bytes());
    frames.extend_from_slice(message);
}

/// The first of these frames, as many as fit.
pub(super) fn fitting(frames: &[u8], room: usize) -> &[u8] {
    if frames.len() <= room {
        return frames;
    }
    let mut end = 0;
    while let Some(length) = frames[end..].first_chunk::<LENGTH_BYTES>() {
        let next = end + LENGTH_BYTES + u32::from_le_bytes(*length) as usize;
        if next > room {
            break;
        }
        end = next;
    }
    &frames[..end]
}

/// The next complete frame, if there is one.
pub(super) fn take_frame(received: &mut BytesMut) -> Result<Option<BytesMut>, Status> {
    let Some(length) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Status::invalid_argument(format!("a frame of {length} bytes")));
    }
    // Allocate for the bytes that arrive, not for the length that is announced. Sending bytes costs the
    // sender as much; announcing a length costs it nothing.
    if received.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    received.advance(LENGTH_BYTES);
    Ok(Some(received.split_to(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_arrive() {
        let mut sent = Vec::new();
        let messages: [&[u8]; 4] = [b"one", b"", &[7; 300], b"four"];
        for message in messages {
            add_frame(&mut sent, message);
        }
        let (mut received, mut heard) = (BytesMut::new(), Vec::new());
        for part in sent.chunks(7) {
            received.extend_from_slice(part);
            while let Some(frame) = take_frame(&mut received).unwrap() {
                heard.push(frame.to_vec());
            }
        }
        assert_eq!(heard, messages);
        assert!(received.is_empty());
    }

    #[test]
    fn a_frame_beyond_all_measure_is_refused_before_it_is_read() {
        let mut received = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert!(take_frame(&mut received).is_err());
    }

    #[test]
    fn a_frame_that_is_only_announced_takes_no_memory() {
        let mut received = BytesMut::from(&(FRAME_BYTES_MAX as u32).to_le_bytes()[..]);
        assert!(take_frame(&mut received).unwrap().is_none());
        assert!(received.capacity() < 1024);
    }

    #[test]
    fn of_many_frames_the_first_fit_and_each_is_whole() {
        let mut frames = Vec::new();
        for message in [&[1; 10][..], &[2; 20], &[]] {
            add_frame(&mut frames, message);
        }
        let lengths = [0, 13, 14, 37, 38, 41, 42, 43].map(|room| fitting(&frames, room).len());
        assert_eq!(lengths, [0, 0, 14, 14, 38, 38, 42, 42]);
    }
}
