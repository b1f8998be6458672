//! Data directories that were damaged while nobody looked: refused and named, never believed.
//!
//! Every byte is tried in this process, with the crate that reads the files; a sample of them is
//! tried with the binary itself, to see that it ends as it should. The layout of the files is in
//! `docs/internals/log-format.md`.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lowkey_wal::{Disk, DiskFile, GroupId, GroupLog, Options, Recovered, Wal, WalError, sealed, snapshots};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Ended, Node, rounds, run_to_end};

/// A node's directory after it ended.
struct Remains {
    node: Node,
    files: BTreeMap<String, Arc<Vec<u8>>>,
    _folder: TempDir,
}

impl Remains {
    /// A few leases, locks and releases, then the end.
    fn make(end: Signal) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
        node.start_ready();
        for number in 1..=4 {
            let owner = format!(r#""owner_id":"worker-{number}""#);
            let lease = node.ok("POST", "/v1/lease", &format!(r#"{{{owner},"ttl_seconds":600}}"#));
            let lease = lease["leaseId"].as_str().unwrap();
            let lock = format!(r#""lock_name":"jobs/{number}","lease_id":{lease}"#);
            node.ok("POST", "/v1/lock/acquire", &format!("{{{lock},{owner}}}"));
            if number % 2 == 0 {
                node.ok("POST", "/v1/lock/release", &format!("{{{lock}}}"));
            }
        }
        node.signal(end);
        node.wait_exit();
        let files = read_files(&node.data_dir);
        Self { node, files, _folder: folder }
    }

    /// The files with one byte changed, as a disk that takes writes and forgets them. A segment that
    /// was made ahead is there only if it is changed: it takes time to look through, and is not needed.
    fn view(&self, change: Option<(&str, usize)>) -> Arc<View> {
        let mut files = self.files.clone();
        files.retain(|name, bytes| {
            let is_prepared = name.starts_with("segment-") && !bytes.starts_with(b"LKWB");
            !is_prepared || change.is_some_and(|(changed, _)| changed == name)
        });
        let change = change.map(|(name, at)| (name.to_owned(), at));
        Arc::new(View { files, change, writes: Arc::default() })
    }

    fn identity(&self) -> [u8; 16] {
        identity_in(&self.files["node"])
    }

    fn open(&self, view: &Arc<View>) -> Result<Recovered, WalError> {
        let disk: Arc<dyn Disk> = Arc::<View>::clone(view);
        Wal::open(disk, self.identity(), Options::default()).map(|(_, recovered)| recovered)
    }

    fn name_of(&self, beginning: &str) -> String {
        self.files.keys().find(|name| name.starts_with(beginning)).unwrap().clone()
    }

    /// The batches of a segment.
    fn batches(&self, segment: &str) -> Vec<Range<usize>> {
        const HEADER_BYTES: usize = 72;
        let bytes = &self.files[segment];
        let mut batches = Vec::new();
        let mut at = 0;
        while bytes[at..].starts_with(b"LKWB") {
            let payload = u32::from_le_bytes(bytes[at + 60..at + 64].try_into().unwrap()) as usize;
            let end = (at + HEADER_BYTES + payload).next_multiple_of(8);
            batches.push(at..end);
            at = end;
        }
        assert!(bytes[at..].iter().all(|byte| *byte == 0), "what is not used is zero");
        batches
    }

    fn segments(&self) -> Vec<String> {
        self.files.keys().filter(|name| name.starts_with("segment-")).cloned().collect()
    }

    /// The binary's last word about a directory in which one byte is changed. Refusing changes
    /// nothing, so that the next byte can be tried in the same directory.
    fn refusal(&self, name: &str, at: usize) -> Ended {
        let path = self.node.data_dir.join(name);
        flip(&path, at);
        let ended = run_to_end(&mut self.node.command());
        flip(&path, at);
        assert_eq!(ended.code, Some(69), "{name} at {at}: {ended:?}");
        let line = ended.only_line();
        assert!(line.contains(name) && line.contains("offset"), "{name} at {at}: {line}");
        ended
    }

    /// The binary's last word about a directory that `spoil` changed; all is as before afterwards.
    fn refusal_when(&self, spoil: impl FnOnce(&Path)) -> String {
        spoil(&self.node.data_dir);
        let ended = run_to_end(&mut self.node.command());
        assert_eq!(ended.code, Some(69), "{ended:?}");
        self.restore();
        ended.only_line().to_owned()
    }

    fn restore(&self) {
        for name in read_files(&self.node.data_dir).keys() {
            std::fs::remove_file(self.node.data_dir.join(name)).unwrap();
        }
        for (name, bytes) in &self.files {
            std::fs::write(self.node.data_dir.join(name), bytes.as_slice()).unwrap();
        }
    }

    /// The directory is what it was, and the node comes back with all that it knew.
    fn assert_whole(&mut self) {
        assert!(read_files(&self.node.data_dir) == self.files, "a start that was refused left no trace");
        self.node.start_ready();
        for number in 1..=4 {
            let lock = self.node.ok("GET", &format!("/v1/lock?name=jobs/{number}"), "");
            assert_eq!(lock["holders"].as_array().unwrap().len(), number % 2, "{lock}");
        }
        let next = r#"{"lock_name":"next","owner_id":"o","ttl_seconds":600}"#;
        let next = self.node.ok("POST", "/v1/lock/acquire", next);
        assert_eq!((next["fencingToken"].as_str(), next["leaseId"].as_str()), (Some("5"), Some("5")));
    }
}

/// The node's identity, from the bytes of its `node` file.
pub(crate) fn identity_in(node_file: &[u8]) -> [u8; 16] {
    // The second field of the payload, after the name; 16 bytes long.
    let payload = &node_file[28..];
    let at = 2 + usize::from(payload[1]);
    assert_eq!(payload[at..at + 2], [0x12, 16]);
    payload[at + 2..at + 18].try_into().unwrap()
}

fn read_files(directory: &Path) -> BTreeMap<String, Arc<Vec<u8>>> {
    // Not the audit's folder and not the admin's socket: a node starts without them.
    let files = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = files
        .filter(|file| file.file_type().unwrap().is_file())
        .map(|file| (file.file_name().into_string().unwrap(), Arc::new(std::fs::read(file.path()).unwrap())));
    files.collect()
}

fn flip(path: &Path, at: usize) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at as u64).unwrap();
}

/// Files in memory with one byte changed. Writes are counted and forgotten.
struct View {
    files: BTreeMap<String, Arc<Vec<u8>>>,
    change: Option<(String, usize)>,
    writes: Arc<AtomicUsize>,
}

impl View {
    fn count(&self) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn is_untouched(&self) -> bool {
        self.writes.load(Ordering::Relaxed) == 0
    }
}

impl Disk for View {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.keys().cloned().collect())
    }

    fn create(&self, _name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.count()?;
        Ok(Arc::new(Forgetful(Arc::clone(&self.writes))))
    }

    fn open(&self, _name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Forgetful(Arc::clone(&self.writes))))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = self.files.get(name).ok_or(io::ErrorKind::NotFound)?.to_vec();
        if let Some((_, at)) = self.change.as_ref().filter(|(changed, _)| changed == name) {
            bytes[*at] ^= 0x10;
        }
        Ok(bytes)
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        self.count()
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        self.count()
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(())
    }
}

struct Forgetful(Arc<AtomicUsize>);

impl DiskFile for Forgetful {
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn set_len(&self, _len_bytes: u64) -> io::Result<()> {
        self.write_at(0, &[])
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The damage is told with its file and the place of the batch that it is in.
fn assert_named(refused: Result<Recovered, WalError>, name: &str, at: usize, batch: &Range<usize>) {
    match refused {
        Err(WalError::Corrupt { file, offset, .. }) => {
            assert_eq!(file, name, "changed at {at}");
            assert!(batch.contains(&(offset as usize)), "{offset} is told for {at} in {batch:?}");
        }
        other => panic!("{name} changed at {at} in {batch:?}: {other:?}"),
    }
}

/// How far apart the places in the log are that are tried in this process: each takes a look through
/// whole segments.
fn stride() -> usize {
    rounds("LOWKEY_DAMAGE_STRIDE", 5)
}

/// Tries the used part of the log; gives how many places were tried, and the intact log.
fn try_log(remains: &Remains, doubtful: Option<&Range<usize>>) -> (usize, BTreeMap<GroupId, GroupLog>) {
    let whole = remains.open(&remains.view(None)).unwrap().groups;
    let mut tried = 0;
    for segment in remains.segments() {
        let batches = remains.batches(&segment);
        let used = batches.last().map_or(0, |last| last.end);
        for at in (0..used).step_by(stride()) {
            let batch = batches.iter().find(|batch| batch.contains(&at)).unwrap();
            let view = remains.view(Some((&segment, at)));
            tried += 1;
            match (doubtful == Some(batch), remains.open(&view)) {
                (true, Ok(recovered)) => {
                    let cut = recovered.cut.unwrap_or_else(|| panic!("{segment} at {at}: believed"));
                    assert_eq!((cut.file.as_str(), cut.offset as usize), (segment.as_str(), batch.start));
                }
                (_, refused) => {
                    assert_named(refused, &segment, at, batch);
                    assert!(view.is_untouched(), "{segment} at {at}: a refusal changes nothing");
                }
            }
        }
        // What was never written is never read.
        let unused = used..remains.files[&segment].len();
        for at in [unused.start, unused.start + unused.len() / 2, unused.end - 1] {
            match remains.open(&remains.view(Some((&segment, at)))) {
                Ok(recovered) => assert_eq!(recovered.groups, whole, "{segment} at {at}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(&segment) && text.contains("offset"), "{at}: {text}");
                }
            }
        }
    }
    (tried, whole)
}

#[test]
fn after_a_clean_stop_no_changed_byte_is_believed() {
    let started = Instant::now();
    let mut remains = Remains::make(Signal::TERM);
    let (tried, _) = try_log(&remains, None);
    let log_took = started.elapsed();

    let mut sealed_bytes = 0;
    for at in 0..remains.files["clean-stop"].len() {
        let view = remains.view(Some(("clean-stop", at)));
        assert_named(remains.open(&view), "clean-stop", at, &(0..usize::MAX));
        assert!(view.is_untouched());
        sealed_bytes += 1;
    }
    for at in 0..remains.files["node"].len() {
        let error =
            sealed::read(&*remains.view(Some(("node", at))), "node", *b"NODE").unwrap_err().to_string();
        assert!(error.contains("node is damaged at offset"), "{at}: {error}");
        sealed_bytes += 1;
    }
    let snapshot = remains.name_of("snapshot-");
    for at in 0..remains.files[&snapshot].len() {
        let error = snapshots::load_newest(&*remains.view(Some((&snapshot, at))), GroupId::ROOT)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&snapshot) && error.contains("offset"), "{at}: {error}");
        sealed_bytes += 1;
    }

    // The binary says all this too.
    let segment = remains.name_of("segment-");
    let used = remains.batches(&segment).last().unwrap().end;
    let mut asked = 0;
    for (name, bytes, places) in [
        (segment.as_str(), used, 14),
        ("clean-stop", remains.files["clean-stop"].len(), 4),
        ("node", remains.files["node"].len(), 4),
        (&snapshot, remains.files[&snapshot].len(), 4),
    ] {
        for place in 0..places {
            remains.refusal(name, (bytes - 1) * place / (places - 1));
            asked += 1;
        }
    }
    remains.assert_whole();
    println!(
        "clean stop: {tried} places of {used} bytes of log in {} ms, all {sealed_bytes} of sealed files, {asked} by the binary; {} ms",
        log_took.as_millis(),
        started.elapsed().as_millis()
    );
}

#[test]
fn after_a_kill_only_the_last_batch_is_in_doubt() {
    let started = Instant::now();
    let mut remains = Remains::make(Signal::KILL);
    let segment = remains.name_of("segment-");
    let batches = remains.batches(&segment);
    let last = batches.last().unwrap().clone();
    let (tried, whole) = try_log(&remains, Some(&last));
    assert!(!whole.is_empty());
    assert!(!remains.files.contains_key("clean-stop"));

    let mut asked = 0;
    for place in 0..12 {
        remains.refusal(&segment, (last.start - 1) * place / 11);
        asked += 1;
    }
    assert!(read_files(&remains.node.data_dir) == remains.files, "a start that was refused left no trace");

    // Damage to the last batch looks like a write that the crash cut short: said, cut, and gone on.
    flip(&remains.node.data_dir.join(&segment), last.start + 20);
    remains.node.start_ready();
    let log = remains.node.log_text();
    assert!(log.contains("a write that a crash cut short"), "{log}");
    remains.node.kill();
    remains.restore();
    remains.assert_whole();
    println!(
        "kill: {tried} places of {} bytes of log, {asked} by the binary; {} ms",
        last.end,
        started.elapsed().as_millis()
    );
}

#[test]
fn files_that_are_missing_cut_or_anothers_are_named() {
    let mut remains = Remains::make(Signal::TERM);
    let stranger = Remains::make(Signal::TERM);
    let segment = remains.name_of("segment-");
    let snapshot = remains.name_of("snapshot-");
    let remove = |name: &str| {
        let name = name.to_owned();
        move |directory: &Path| std::fs::remove_file(directory.join(name)).unwrap()
    };
    let assert_says = |line: &str, words: &[&str]| {
        for word in words {
            assert!(line.contains(word), "{word} is not in: {line}");
        }
    };

    assert_says(&remains.refusal_when(remove(&segment)), &[&segment, "missing"]);
    let no_log = |directory: &Path| {
        for name in remains.segments() {
            std::fs::remove_file(directory.join(name)).unwrap();
        }
    };
    assert_says(&remains.refusal_when(no_log), &["no log", "comes back as a new one"]);
    assert_says(&remains.refusal_when(remove("node")), &["`node` file", "join"]);
    assert_says(&remains.refusal_when(remove(&snapshot)), &["no snapshot"]);

    let resize = |bytes: u64| {
        let segment = segment.clone();
        move |directory: &Path| {
            let file = std::fs::File::options().write(true).open(directory.join(segment)).unwrap();
            file.set_len(bytes).unwrap();
        }
    };
    let whole = remains.files[&segment].len() as u64;
    for bytes in [0, 100, whole / 2, whole - 1, whole + 8] {
        assert_says(&remains.refusal_when(resize(bytes)), &[&segment]);
    }
    for name in ["node", "clean-stop", &snapshot] {
        let cut = |directory: &Path| {
            let file = std::fs::File::options().write(true).open(directory.join(name)).unwrap();
            file.set_len(remains.files[name].len() as u64 - 1).unwrap();
        };
        assert_says(&remains.refusal_when(cut), &[name, "offset"]);
    }

    for (name, words) in [
        (segment.as_str(), &["belongs to another node", "mixed up"][..]),
        ("clean-stop", &["clean-stop"]),
        ("node", &[]),
        (&snapshot, &["snapshot", "cluster"]),
    ] {
        let exchange =
            |directory: &Path| std::fs::write(directory.join(name), stranger.files[name].as_slice()).unwrap();
        assert_says(&remains.refusal_when(exchange), words);
    }

    // What nobody needs may be missing: the marker of a clean stop, and the segment made ahead.
    let spare = remains.segments().pop().unwrap();
    assert!(remains.batches(&spare).is_empty());
    for needless in ["clean-stop", &spare] {
        remove(needless)(&remains.node.data_dir);
        remains.node.start_ready();
        remains.node.kill();
        remains.restore();
    }
    remains.assert_whole();
}
