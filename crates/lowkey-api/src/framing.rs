//! The framing of gRPC messages: one byte that says whether the message is compressed, four bytes of length, the message.

use prost::Message;

/// What stands before a message.
const PREFIX_BYTES: usize = 5;

/// A message, not compressed, with what stands before it.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let len = message.encoded_len();
    let mut frame = Vec::with_capacity(PREFIX_BYTES + len);
    frame.push(0);
    // Nothing that is sent comes near four gigabytes.
    frame.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    // It fails for want of room only, and a vector grows.
    let _ = message.encode(&mut frame);
    frame
}

/// The bytes of a message, if these are one that is whole and not compressed, and nothing else.
pub fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = bytes.split_first_chunk::<PREFIX_BYTES>()?;
    let [is_compressed, len @ ..] = *prefix;
    (is_compressed == 0 && u32::from_be_bytes(len) as usize == message.len()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::RenewLeaseRequest;

    #[test]
    fn what_was_framed_is_found_and_nothing_else_is() {
        let whole = framed(&RenewLeaseRequest { lease_id: 300, holds: None });
        assert_eq!(whole[..], [0, 0, 0, 0, 3, 8, 0xac, 2]);
        assert_eq!(unframed(&whole), Some(&whole[5..]));
        assert_eq!(unframed(&framed(&RenewLeaseRequest::default())), Some(&[][..]));
        for len in 0..whole.len() {
            assert_eq!(unframed(&whole[..len]), None, "only {len} bytes have come");
        }
        assert_eq!(unframed(&[&whole[..], &[0]].concat()), None, "something follows");
        assert_eq!(unframed(&[1, 0, 0, 0, 3, 8, 0xac, 2]), None, "compressed");
    }
}
