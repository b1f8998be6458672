//! The key that a node proves its identity with: `data/node.key`.
//!
//! A node makes it at its first start. It is on disk, synced, before any other node hears of it, and it never
//! changes: the hash of the public key is part of the node's registration, and every peer checks it. The file is a
//! private key (Ed25519, PKCS#8, DER), readable by its owner alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lowkey_core::KeyHash;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::error::StartError;

/// The file's name in the data directory.
pub(crate) const KEY_FILE: &str = "node.key";
/// It becomes the real one when it is whole.
const UNFINISHED_FILE: &str = "node.key.new";
const MODE: u32 = 0o600;

/// A node's key.
pub(crate) struct NodeKey {
    directory: PathBuf,
    pkcs8: Vec<u8>,
    is_kept: bool,
    others_can_read: bool,
    /// The key, and its public half as TLS shows it.
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) hash: KeyHash,
}

impl NodeKey {
    /// The key of a data directory, or a new one in memory if it has none.
    pub(crate) fn open(directory: &Path) -> Result<Self, StartError> {
        let path = directory.join(KEY_FILE);
        let (pkcs8, is_kept) = match fs::read(&path) {
            Ok(pkcs8) => (pkcs8, true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (make()?, false),
            Err(source) => return Err(failed("cannot read", &path)(source)),
        };
        let mode = fs::metadata(&path).map_or(MODE, |file| file.permissions().mode());
        let private = PrivatePkcs8KeyDer::from(pkcs8.as_slice());
        let unusable = || StartError::NodeKey { path: path.clone() };
        let key = any_eddsa_type(&private).map_err(|_| unusable())?;
        let public = key.public_key().ok_or_else(unusable)?;
        let hash = key_hash(&public);
        // Where a certificate would stand, TLS with raw public keys (RFC 7250) has the public key itself.
        let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key));
        let (directory, others_can_read) = (directory.to_owned(), mode & 0o077 != 0);
        Ok(Self { directory, pkcs8, is_kept, others_can_read, certified, hash })
    }

    /// Puts a new key on disk. It must be there before any other node hears of it.
    pub(crate) fn keep(&mut self) -> Result<(), StartError> {
        if self.is_kept {
            if std::mem::take(&mut self.others_can_read) {
                let path = self.directory.join(KEY_FILE);
                tracing::warn!(path = %path.display(), "others can read this node's key: chmod 600 it");
            }
            return Ok(());
        }
        let (unfinished, path) = (self.directory.join(UNFINISHED_FILE), self.directory.join(KEY_FILE));
        self.write(&unfinished, &path).map_err(failed("cannot write", &path))?;
        self.is_kept = true;
        Ok(())
    }

    fn write(&self, unfinished: &Path, path: &Path) -> io::Result<()> {
        match fs::remove_file(unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(unfinished)?;
        file.write_all(&self.pkcs8)?;
        file.sync_all()?;
        fs::rename(unfinished, path)?;
        File::open(&self.directory)?.sync_all()
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeKey({})", self.hash)
    }
}

/// The hash by which a public key (SubjectPublicKeyInfo, DER) is known.
pub(crate) fn key_hash(public: &[u8]) -> KeyHash {
    KeyHash(sha256(public))
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn make() -> Result<Vec<u8>, StartError> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    made.map(|document| document.as_ref().to_vec()).map_err(|_| StartError::Io {
        doing: "cannot get random numbers from the operating system".into(),
        source: io::Error::other("no key could be made"),
    })
}

fn failed(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let doing = format!("{doing} {}", path.display());
    move |source| StartError::Io { doing, source }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A key of its own, on no disk.
    pub(crate) fn any_key() -> NodeKey {
        NodeKey::open(Path::new("/nonexistent")).unwrap()
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_may_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = NodeKey::open(directory.path()).unwrap();
        assert!(!directory.path().join(KEY_FILE).exists(), "not before it is kept");
        first.keep().unwrap();
        let path = directory.path().join(KEY_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(NodeKey::open(directory.path()).unwrap().hash, first.hash);
        assert_ne!(any_key().hash, first.hash);
        assert!(!format!("{first:?}").contains(&format!("{:?}", first.pkcs8)));
    }

    #[test]
    fn a_key_that_is_none_is_refused_and_what_was_not_finished_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(UNFINISHED_FILE), b"half").unwrap();
        NodeKey::open(directory.path()).unwrap().keep().unwrap();
        NodeKey::open(directory.path()).unwrap();
        fs::write(directory.path().join(KEY_FILE), b"no key").unwrap();
        let refused = NodeKey::open(directory.path()).unwrap_err().to_string();
        assert!(refused.contains(KEY_FILE), "{refused}");
    }
}
