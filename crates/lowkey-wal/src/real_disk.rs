//! A directory of the operating system as a [`Disk`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};

/// A real directory.
#[derive(Clone, Debug)]
pub struct RealDisk {
    dir: PathBuf,
}

impl RealDisk {
    /// Uses a directory, and makes it, durably, if it is missing.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let dir = dir.into();
        make_dir(&dir)?;
        Ok(RealDisk { dir })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is not a plain file name"),
            ));
        }
        Ok(self.dir.join(name))
    }
}

/// Makes a directory and all above it; each name is synced in the directory that holds it before the next one
/// below is made. So is the name of one that is there: the process that made it may have been stopped before its sync, and
/// the whole directory would be gone with the next loss of power.
fn make_dir(dir: &Path) -> io::Result<()> {
    let above = match dir.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    if dir.is_dir() {
        return match sync_dir(above) {
            // Not ours to read, or nothing that could be written: then we have not made the name either.
            Err(error) if is_none_of_ours(&error) => Ok(()),
            synced => synced,
        };
    }
    make_dir(above)?;
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        other => other?,
    }
    sync_dir(above)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all().map_err(|error| {
        let problem = format!("syncing {} failed: {error}; check the disk, then start again", dir.display());
        io::Error::new(error.kind(), problem)
    })
}

fn is_none_of_ours(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | InvalidInput | Unsupported)
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_file() {
                continue;
            }
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(File::create(self.path_of(name)?)?)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).open(self.path_of(name)?)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path_of(name)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path_of(from)?, self.path_of(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path_of(name)?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        sync_dir(&self.dir)
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.0.set_len(len_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
