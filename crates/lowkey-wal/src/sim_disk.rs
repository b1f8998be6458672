//! A disk that forgets, tears, fills up and fails on command, the same way for the same seed.
//!
//! It keeps apart what a program has written and what would survive a power loss. Each write that no
//! sync has covered may be kept, lost or torn when the power goes; each creation, rename and removal
//! that no directory sync has covered may be undone, the later ones first. A sync that failed leaves
//! bytes that everybody can read and no later sync writes: only writing them again does. A program that
//! is right on this disk after every crash relies on nothing that [`Disk`] does not promise.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::{Disk, DiskFile};

mod inode;
mod random;

use inode::Inode;
use random::DiskRandom;

/// A simulated disk. Clones share the same disk: keep one to turn the knobs, give one to the log.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Mutex<State>>,
}

/// How long operations take, in virtual time: nothing waits, [`SimDisk::take_latency`] tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// Every write.
    pub write: Duration,
    /// Every sync of a file.
    pub sync: Duration,
    /// Every creation, rename, removal and directory sync.
    pub directory: Duration,
}

/// What was asked of the disk since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Writes to files, changes of length included.
    pub writes: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Creations, renames, removals and directory syncs.
    pub directory: u64,
}

impl Counts {
    /// All operations that change something.
    pub fn operations(&self) -> u64 {
        self.writes + self.syncs + self.directory
    }
}

/// A change of the directory that is not durable yet.
#[derive(Clone)]
enum NameChange {
    Link { name: String, inode: u64 },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Link { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            NameChange::Remove { name } => {
                names.remove(name);
            }
        }
    }
}

/// An error to be given at some later operation.
#[derive(Clone, Copy)]
struct Failure {
    /// Operations of that sort until then; 1 is the next one.
    countdown: u64,
    kind: io::ErrorKind,
}

#[derive(Clone)]
struct State {
    random: DiskRandom,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    /// The directory as programs see it.
    names: BTreeMap<String, u64>,
    /// The directory as it is on the medium; `name_changes` lead from here to `names`.
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,

    /// The power is off, or the program that used this disk was killed: everything fails.
    is_dead: bool,
    /// Operations until the power goes; 1 is the next one.
    crash_countdown: Option<u64>,
    write_failure: Option<Failure>,
    sync_failure: Option<Failure>,
    directory_failure: Option<Failure>,
    capacity_bytes: Option<u64>,
    latency: Latency,
    next_sync_stall: Duration,
    waited: Duration,
    counts: Counts,
}

/// What an operation is, for the knobs and counters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Write,
    Sync,
    Directory,
}

impl SimDisk {
    /// What an error says that comes of [`SimDisk::fail_sync`] and its like.
    pub const TOLD_TO_FAIL: &str = "the simulated disk was told to fail";

    /// An empty disk whose every accident follows from the seed.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::from_state(State {
            random: DiskRandom::new(seed),
            inodes: BTreeMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            is_dead: false,
            crash_countdown: None,
            write_failure: None,
            sync_failure: None,
            directory_failure: None,
            capacity_bytes: None,
            latency: Latency::default(),
            next_sync_stall: Duration::ZERO,
            waited: Duration::ZERO,
            counts: Counts::default(),
        })
    }

    fn from_state(state: State) -> SimDisk {
        SimDisk { shared: Arc::new(Mutex::new(state)) }
    }

    /// This disk as a log takes it.
    pub fn as_disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// The power goes off and comes back: the disk as it is then. Capacity and latency stay, other
    /// knobs are reset. This disk and all its open files fail from now on.
    pub fn crash(&self) -> SimDisk {
        let mut state = self.lock();
        state.is_dead = true;
        let mut after = state.successor();
        let mut names = after.durable_names.clone();
        let kept = after.random.below(after.name_changes.len() as u64 + 1) as usize;
        for change in after.name_changes.drain(..).take(kept) {
            change.apply(&mut names);
        }
        after.names.clone_from(&names);
        after.durable_names = names;
        for inode in after.inodes.values_mut() {
            inode.lose_power(&mut after.random);
        }
        after.forget_unnamed();
        SimDisk::from_state(after)
    }

    /// The program is killed, the machine goes on: all that was written is there, but what was not
    /// synced is still not durable. This disk and all its open files fail from now on.
    pub fn kill(&self) -> SimDisk {
        let mut state = self.lock();
        state.is_dead = true;
        SimDisk::from_state(state.successor())
    }

    /// An independent copy of the disk as it is, knobs reset.
    pub fn fork(&self) -> SimDisk {
        SimDisk::from_state(self.lock().successor())
    }

    /// The power goes at the n-th operation from now (1 is the next). That operation fails, half
    /// done perhaps, and so does everything after it, until [`SimDisk::crash`].
    pub fn crash_at_operation(&self, n: u64) {
        self.lock().crash_countdown = Some(n);
    }

    /// The n-th write from now (1 is the next) fails, half written.
    pub fn fail_write(&self, n: u64, kind: io::ErrorKind) {
        self.lock().write_failure = Some(Failure { countdown: n, kind });
    }

    /// The n-th sync of a file from now (1 is the next) fails. What it was to make durable stays
    /// readable and counts as written, as in a kernel's page cache; some of it reached the medium.
    pub fn fail_sync(&self, n: u64, kind: io::ErrorKind) {
        self.lock().sync_failure = Some(Failure { countdown: n, kind });
    }

    /// The n-th creation, rename, removal or directory sync from now (1 is the next) fails, and changes nothing.
    pub fn fail_directory(&self, n: u64, kind: io::ErrorKind) {
        self.lock().directory_failure = Some(Failure { countdown: n, kind });
    }

    /// Nothing fails any more that was told to and has not failed yet.
    pub fn stop_failing(&self) {
        self.lock().forget_failures();
    }

    /// Memory is short: the page cache forgets about half of what it need not write. Programs then see the
    /// medium, which matters only where a failed sync has left the two apart.
    pub fn evict(&self) {
        let mut state = self.lock();
        let State { inodes, random, .. } = &mut *state;
        inodes.values_mut().for_each(|inode| inode.evict(random));
    }

    /// How much all files together may hold; beyond it writes fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity_bytes = bytes;
    }

    /// What all files together hold.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// How long operations take from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.lock().latency = latency;
    }

    /// The next sync of a file takes this much longer.
    pub fn stall_next_sync(&self, stall: Duration) {
        self.lock().next_sync_stall = stall;
    }

    /// The virtual time that operations took since this was last asked.
    pub fn take_latency(&self) -> Duration {
        std::mem::take(&mut self.lock().waited)
    }

    /// What was asked of the disk so far.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// A file as programs see it; `None` if there is none. Works on a dead disk too.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        let inode = state.names.get(name)?;
        Some(state.inodes.get(inode)?.current().to_vec())
    }

    /// Puts a file there, durably, in place of the one that has this name: damage of any sort.
    pub fn set_content(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.lock();
        let inode = state.add_inode(Inode::durable(bytes));
        state.names.insert(name.to_string(), inode);
        state.durable_names.insert(name.to_string(), inode);
    }

    /// Flips bits of one byte on the medium. False if the file has no such byte.
    pub fn flip(&self, name: &str, offset: u64, mask: u8) -> bool {
        let mut state = self.lock();
        let Some(inode) = state.names.get(name).copied() else {
            return false;
        };
        let inode = state.inodes.get_mut(&inode);
        inode.is_some_and(|inode| inode.flip(offset as usize, mask))
    }

    /// Takes a file away, durably. False if there is none.
    pub fn lose(&self, name: &str) -> bool {
        let mut state = self.lock();
        let was_there = state.names.remove(name).is_some();
        state.durable_names = state.names.clone();
        state.name_changes.clear();
        was_there
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("SimDisk")
            .field("names", &state.names.keys())
            .field("is_dead", &state.is_dead)
            .field("counts", &state.counts)
            .finish_non_exhaustive()
    }
}

impl State {
    /// The same disk for the next program.
    fn successor(&mut self) -> State {
        let mut next = self.clone();
        next.random = DiskRandom::new(self.random.next());
        next.is_dead = false;
        next.crash_countdown = None;
        next.forget_failures();
        next.next_sync_stall = Duration::ZERO;
        next.waited = Duration::ZERO;
        next.counts = Counts::default();
        next
    }

    fn forget_failures(&mut self) {
        self.write_failure = None;
        self.sync_failure = None;
        self.directory_failure = None;
    }

    fn forget_unnamed(&mut self) {
        let State { inodes, names, durable_names, .. } = self;
        inodes.retain(|number, _| {
            names.values().any(|n| n == number) || durable_names.values().any(|n| n == number)
        });
    }

    fn add_inode(&mut self, inode: Inode) -> u64 {
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, inode);
        number
    }

    fn used_bytes(&self) -> u64 {
        let inodes = self.names.values().filter_map(|n| self.inodes.get(n));
        inodes.map(|inode| inode.current().len() as u64).sum()
    }

    fn check_alive(&self) -> io::Result<()> {
        if self.is_dead {
            return Err(io::Error::other("the simulated disk has no power"));
        }
        Ok(())
    }

    /// Counts an operation and takes its time. `Err` if it must fail; the flag says if the power
    /// goes during it.
    fn begin(&mut self, sort: Sort) -> Result<(), (io::Error, bool)> {
        self.check_alive().map_err(|error| (error, false))?;
        let (counter, time, slot) = match sort {
            Sort::Write => (&mut self.counts.writes, self.latency.write, &mut self.write_failure),
            Sort::Sync => (
                &mut self.counts.syncs,
                self.latency.sync + std::mem::take(&mut self.next_sync_stall),
                &mut self.sync_failure,
            ),
            Sort::Directory => {
                (&mut self.counts.directory, self.latency.directory, &mut self.directory_failure)
            }
        };
        *counter += 1;
        self.waited += time;
        if let Some(countdown) = &mut self.crash_countdown {
            *countdown = countdown.saturating_sub(1);
            if *countdown == 0 {
                self.is_dead = true;
                let error = io::Error::other("the simulated disk lost its power");
                return Err((error, true));
            }
        }
        if let Some(failure) = slot {
            failure.countdown = failure.countdown.saturating_sub(1);
            if failure.countdown == 0 {
                let error = io::Error::new(failure.kind, SimDisk::TOLD_TO_FAIL);
                *slot = None;
                return Err((error, false));
            }
        }
        Ok(())
    }

    /// Changes the directory. When the power goes during it, the change may or may not be made.
    fn change_names(&mut self, change: NameChange) -> io::Result<()> {
        let begun = self.begin(Sort::Directory);
        if begun.is_ok() || matches!(begun, Err((_, true))) {
            change.apply(&mut self.names);
            self.name_changes.push(change);
        }
        begun.map_err(|(error, _)| error)
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.check_alive()?;
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no file {name}")))
    }

    fn inode(&mut self, number: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or_else(|| io::Error::other("the file is gone"))
    }

    /// Refuses what would make a file, and with it all files together, too large.
    fn check_room(&mut self, number: u64, end: u64) -> io::Result<()> {
        let Some(capacity_bytes) = self.capacity_bytes else {
            return Ok(());
        };
        let held_bytes = self.inode(number)?.current().len() as u64;
        let growth_bytes = end.saturating_sub(held_bytes);
        if growth_bytes > 0 && self.used_bytes() + growth_bytes > capacity_bytes {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        Ok(())
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.check_alive()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.lock();
        let inode = match state.find(name) {
            Ok(inode) => {
                state.begin(Sort::Directory).map_err(|(error, _)| error)?;
                state.inode(inode)?.set_len(0);
                inode
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let inode = state.add_inode(Inode::durable(Vec::new()));
                state.change_names(NameChange::Link { name: name.to_string(), inode })?;
                inode
            }
            Err(error) => return Err(error),
        };
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.lock().find(name)?;
        Ok(self.file(inode))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.lock();
        let inode = state.find(name)?;
        Ok(state.inode(inode)?.current().to_vec())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.find(from)?;
        let (from, to) = (from.to_string(), to.to_string());
        state.change_names(NameChange::Rename { from, to })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.find(name)?;
        let name = name.to_string();
        state.change_names(NameChange::Remove { name })
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.begin(Sort::Directory).map_err(|(error, _)| error)?;
        state.durable_names = state.names.clone();
        state.name_changes.clear();
        state.forget_unnamed();
        Ok(())
    }
}

impl SimDisk {
    fn file(&self, inode: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), inode })
    }
}

struct SimFile {
    disk: SimDisk,
    inode: u64,
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        let begun = state.begin(Sort::Write);
        let written = match &begun {
            Ok(()) => {
                state.check_room(self.inode, offset + bytes.len() as u64)?;
                bytes
            }
            // On its way to the medium when the power went.
            Err((_, true)) => bytes,
            Err((_, false)) if state.is_dead => &[],
            Err((_, false)) => &bytes[..bytes.len() / 2],
        };
        state.inode(self.inode)?.write(offset as usize, written);
        begun.map_err(|(error, _)| error)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.begin(Sort::Write).map_err(|(error, _)| error)?;
        state.check_room(self.inode, len_bytes)?;
        state.inode(self.inode)?.set_len(len_bytes as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.lock();
        match state.begin(Sort::Sync) {
            Ok(()) => state.inode(self.inode)?.sync(),
            Err((error, _)) if state.is_dead => return Err(error),
            Err((error, _)) => {
                let State { inodes, random, .. } = &mut *state;
                if let Some(inode) = inodes.get_mut(&self.inode) {
                    inode.fail_sync(random);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}
