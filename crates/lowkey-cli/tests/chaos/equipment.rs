//! What some faults need and not every machine has: a compiler for the library that makes syncs fail, and
//! leave to mount a small disk. What is missing is said in the table, and left out.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A command that ends the next one when the thread that started it ends, however it ends: a node that
/// nobody looks after must not run on. Nothing where there is no such command.
pub(crate) fn leash() -> Vec<String> {
    let leash = ["setpriv", "--pdeathsig", "KILL", "--"];
    let tried = Command::new(leash[0]).args(&leash[1..]).arg("true").output();
    match tried.is_ok_and(|tried| tried.status.success()) {
        true => leash.map(str::to_owned).to_vec(),
        false => Vec::new(),
    }
}

/// The library that plays faults inside of a node.
pub(crate) struct Shim {
    library: PathBuf,
}

impl Shim {
    /// Compiles it, or says why not.
    pub(crate) fn build(folder: &Path) -> Result<Self, String> {
        let source = folder.join("shim.c");
        let library = folder.join("shim.so");
        fs::write(&source, include_str!("shim.c")).unwrap();
        let compiled = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .output()
            .map_err(|error| format!("no C compiler: {error}"))?;
        match compiled.status.success() {
            true => Ok(Self { library }),
            false => Err(format!("cc: {}", String::from_utf8_lossy(&compiled.stderr))),
        }
    }

    /// A command that loads it into the next one, and the file by which it is told what to do.
    pub(crate) fn wrapper(&self, control: &Path) -> Vec<String> {
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("LOWKEY_CHAOS_CONTROL={}", control.display()),
        ]
    }
}

/// What a node's shim is told.
pub(crate) struct Control(PathBuf);

impl Control {
    pub(crate) fn new(path: PathBuf) -> Self {
        fs::write(&path, [0; 40]).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn set(&self, offset: u64, number: i64) {
        let file = fs::File::options().write(true).open(&self.0).unwrap();
        file.write_all_at(&number.to_ne_bytes(), offset).unwrap();
    }

    pub(crate) fn fail_syncs(&self, fail: bool) {
        self.set(8, i64::from(fail));
    }

    pub(crate) fn step_wall_clock(&self, offset_seconds: i64) {
        self.set(16, offset_seconds);
    }

    /// Lets the clock that leases are timed by run at another rate, which no real one does.
    pub(crate) fn falsify_clock(&self, rate_permille: i64) {
        let time = clock_gettime(ClockId::Monotonic);
        self.set(24, time.tv_sec * 1_000_000_000 + time.tv_nsec);
        self.set(32, rate_permille);
    }

    /// True if a process has loaded the shim.
    pub(crate) fn is_loaded_by(&self, pid: u32) -> bool {
        fs::read(&self.0).unwrap()[..8] == i64::from(pid).to_ne_bytes()
    }
}

/// A small disk in a mount namespace of its own, which lives as long as this does.
pub(crate) struct SmallDisk {
    keeper: Child,
    at: PathBuf,
    privileges: &'static str,
}

impl SmallDisk {
    /// Mounts one, or says why not.
    pub(crate) fn mount(at: &Path, size: &str) -> Result<Self, String> {
        fs::create_dir_all(at).unwrap();
        let script =
            format!("mount -t tmpfs -o size={size} tmpfs '{}' && echo ready && exec cat", at.display());
        for privileges in ["-m", "-rm"] {
            // It ends when its input does: with this process, whatever becomes of that.
            let keeper = Command::new("unshare")
                .args([privileges, "sh", "-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            let Ok(keeper) = keeper else { continue };
            let mut disk = Self { keeper, at: at.to_owned(), privileges };
            if disk.is_ready() {
                return Ok(disk);
            }
        }
        Err("nobody may mount a small disk here (unshare -m, mount -t tmpfs)".to_owned())
    }

    fn is_ready(&mut self) -> bool {
        use std::io::Read as _;
        let mut said = [0; 6];
        let stdout = self.keeper.stdout.as_mut().expect("it is piped");
        let is_mounted = stdout.read_exact(&mut said).is_ok() && said == *b"ready\n";
        // It must be possible to enter, and to look in from outside.
        let wrapper = self.wrapper();
        let entered = Command::new(&wrapper[0]).args(&wrapper[1..]).arg("true").output();
        is_mounted
            && entered.is_ok_and(|entered| entered.status.success())
            && fs::write(self.inside("probe"), "").is_ok()
            && fs::remove_file(self.inside("probe")).is_ok()
    }

    /// A command that runs the next one where the disk can be seen.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        let target = self.keeper.id().to_string();
        let mut wrapper = vec!["nsenter", "-m", "-t", &target];
        if self.privileges == "-rm" {
            wrapper.extend(["-U", "--preserve-credentials"]);
        }
        wrapper.extend(["--wd=/", "--"]);
        wrapper.into_iter().map(str::to_owned).collect()
    }

    /// A path on the disk, as seen from here.
    pub(crate) fn inside(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.keeper.id(), self.at.display())).join(name)
    }

    /// Takes all the room there is.
    pub(crate) fn fill(&self) {
        use std::io::Write as _;
        let Ok(mut file) = fs::File::create(self.inside("ballast")) else { return };
        let deadline = Instant::now() + Duration::from_secs(5);
        while file.write(&[1; 64 * 1024]).is_ok_and(|count| count > 0) && Instant::now() < deadline {}
    }

    pub(crate) fn make_room(&self) {
        let _ = fs::remove_file(self.inside("ballast"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
