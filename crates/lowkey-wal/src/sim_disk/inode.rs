//! One file of the simulated disk: what is on the medium, what is only on its way there, and what
//! programs see though it will never get there.

use super::random::DiskRandom;

const SECTOR_BYTES: usize = 512;

/// A change that no sync has covered.
#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => put(content, *offset, bytes),
            Change::SetLen(len) => content.resize(*len, 0),
        }
    }
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

#[derive(Clone)]
pub(super) struct Inode {
    /// What survives a power loss.
    durable: Vec<u8>,
    /// What the next sync brings to the medium.
    changes: Vec<Change>,
    /// What programs see: the page cache. `durable` and then `changes` lead here, but for what a
    /// failed sync left behind: those pages count as clean, and no later sync writes them.
    current: Vec<u8>,
}

impl Inode {
    pub(super) fn durable(bytes: Vec<u8>) -> Inode {
        Inode { current: bytes.clone(), durable: bytes, changes: Vec::new() }
    }

    pub(super) fn current(&self) -> &[u8] {
        &self.current
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.change(Change::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.change(Change::SetLen(len));
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.changes.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.changes.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// A sync fails as it does in a kernel: some of the changes reach the medium and some do not, all
    /// count as written from now on, and programs still see them.
    pub(super) fn fail_sync(&mut self, random: &mut DiskRandom) {
        self.meet_fates(random);
    }

    /// The page cache forgets: of each sector that no change waits for, programs may see the medium again.
    pub(super) fn evict(&mut self, random: &mut DiskRandom) {
        let cached = std::mem::replace(&mut self.current, self.durable.clone());
        let kept = sectors(0, cached.len().min(self.current.len()));
        for (from, to) in kept.into_iter().filter(|_| random.below(2) == 0) {
            self.current[from..to].copy_from_slice(&cached[from..to]);
        }
        for change in &self.changes {
            change.apply(&mut self.current);
        }
    }

    /// Flips bits on the medium and in what programs see.
    pub(super) fn flip(&mut self, offset: usize, mask: u8) -> bool {
        if let Some(byte) = self.durable.get_mut(offset) {
            *byte ^= mask;
        }
        match self.current.get_mut(offset) {
            Some(byte) => {
                *byte ^= mask;
                true
            }
            None => false,
        }
    }

    /// Decides the fate of every change that no sync has covered.
    pub(super) fn lose_power(&mut self, random: &mut DiskRandom) {
        self.meet_fates(random);
        self.current.clone_from(&self.durable);
    }

    fn meet_fates(&mut self, random: &mut DiskRandom) {
        for change in std::mem::take(&mut self.changes) {
            match (random.below(4), &change) {
                (0, _) => change.apply(&mut self.durable),
                (1, _) => {}
                (_, Change::Write { offset, bytes }) => self.tear(random, *offset, bytes),
                (_, Change::SetLen(_)) => {}
            }
        }
    }

    /// Lets a part of a write reach the medium: the sectors up to some point, the bytes up to some
    /// point, or any of the sectors, since a drive writes them in the order it likes.
    fn tear(&mut self, random: &mut DiskRandom, offset: usize, bytes: &[u8]) {
        let way = random.below(3);
        if way == 0 {
            let kept = random.below(bytes.len() as u64 + 1) as usize;
            put(&mut self.durable, offset, &bytes[..kept]);
            return;
        }
        let sectors = sectors(offset, bytes.len());
        let kept = random.below(sectors.len() as u64 + 1) as usize;
        for (number, (from, to)) in sectors.into_iter().enumerate() {
            let is_kept = if way == 1 { number < kept } else { random.below(2) == 0 };
            if is_kept {
                put(&mut self.durable, offset + from, &bytes[from..to]);
            }
        }
    }
}

/// The parts of a write that fall into different sectors.
fn sectors(offset: usize, len: usize) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut from = 0;
    while from < len {
        let sector_end = (offset + from + 1).next_multiple_of(SECTOR_BYTES);
        let to = (sector_end - offset).min(len);
        parts.push((from, to));
        from = to;
    }
    parts
}
