//! Damage that no checksum finds.

use lowkey_core::State;

/// The payload of a snapshot with one text of its state made another of the same length, and with the hash that
/// goes with it: what a bug or a bad memory could have written. Nothing if the text is not there.
pub fn tamper(payload: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    assert_eq!(from.len(), to.len(), "a text of another length would not fit in its place");
    let mut payload = payload.to_vec();
    // The hash comes last, behind the state and one byte that announces it.
    let (end, hash_at) = (payload.len().checked_sub(9)?, payload.len() - 8);
    let hash = u64::from_le_bytes(payload[hash_at..].try_into().ok()?);
    let begin = (0..end).find(|begin| State::hash_of_snapshot(&payload[*begin..end]) == hash)?;
    let place = payload[begin..end].windows(from.len()).position(|text| text == from.as_bytes())?;
    payload[begin + place..begin + place + to.len()].copy_from_slice(to.as_bytes());
    let hash = State::hash_of_snapshot(&payload[begin..end]);
    payload[hash_at..].copy_from_slice(&hash.to_le_bytes());
    Some(payload)
}
