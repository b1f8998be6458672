//! Protobuf, written field by field: into memory, into a hash, or compared with bytes that exist already.
//!
//! Every replica does all three for every entry. Writing straight from the command's fields needs no copies.

/// Where bytes go.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts them.
#[derive(Default)]
struct Length(usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// FNV-1a, 64 bits: a fixed, specified function, so that replicas of different builds agree. It guards against drift, not
/// against an adversary.
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn finish(self) -> u64 {
        self.0
    }
}

impl Sink for Fnv {
    fn put(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    }
}

/// Compares them with others.
pub(crate) struct Same<'a> {
    /// Those that were not met yet; nothing once one was different.
    rest: Option<&'a [u8]>,
}

impl<'a> Same<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: Some(bytes) }
    }

    /// True if all were the same, and none is left.
    pub(crate) fn finish(self) -> bool {
        self.rest.is_some_and(<[u8]>::is_empty)
    }
}

impl Sink for Same<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.rest = self.rest.and_then(|rest| rest.strip_prefix(bytes));
    }
}

/// What is written as a message.
pub(crate) trait MessagePart {
    /// Writes its fields, in the order of their numbers.
    fn write<S: Sink>(&self, fields: &mut Fields<'_, S>);

    fn len(&self) -> usize {
        let mut length = Length::default();
        self.write(&mut Fields(&mut length));
        length.0
    }
}

/// The fields of a message. As the format has it, what is empty or zero is left out.
pub(crate) struct Fields<'a, S>(pub(crate) &'a mut S);

impl<S: Sink> Fields<'_, S> {
    pub(crate) fn number(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(number) << 3);
            self.varint(value);
        }
    }

    pub(crate) fn bytes(&mut self, number: u32, value: &[u8]) {
        if !value.is_empty() {
            self.head(number, value.len());
            self.0.put(value);
        }
    }

    pub(crate) fn text(&mut self, number: u32, value: &str) {
        self.bytes(number, value.as_bytes());
    }

    pub(crate) fn numbers(&mut self, number: u32, values: impl Iterator<Item = u64> + Clone) {
        let mut length = Length::default();
        values.clone().for_each(|value| Fields(&mut length).varint(value));
        if length.0 != 0 {
            self.head(number, length.0);
            values.for_each(|value| self.varint(value));
        }
    }

    /// A message within, which is not left out.
    pub(crate) fn message(&mut self, number: u32, value: &impl MessagePart) {
        self.head(number, value.len());
        value.write(self);
    }

    /// What stands before a value that has a length.
    fn head(&mut self, number: u32, len: usize) {
        self.varint(u64::from(number) << 3 | 2);
        self.varint(len as u64);
    }

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut len = 0;
        while value >= 0x80 {
            bytes[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
        }
        bytes[len] = value as u8;
        self.0.put(&bytes[..=len]);
    }
}
