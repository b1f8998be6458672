//! Where backups are kept: URLs, and requests with an end.
//!
//! Credentials come from the environment, by the names that the SDKs of the stores use (`AWS_ACCESS_KEY_ID`,
//! `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …). They are never part of a URL: a URL is shown,
//! logged and kept in the cluster.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use crate::error::BackupError;

/// The longest URL that is taken.
const URL_BYTES_MAX: usize = 1024;

/// Where backups are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl(Url);

impl StoreUrl {
    /// True for a place within the other one, or that place itself.
    pub fn is_within(&self, other: &Self) -> bool {
        let (inner, outer) = (self.0.as_str().trim_end_matches('/'), other.0.as_str().trim_end_matches('/'));
        inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl FromStr for StoreUrl {
    type Err = BackupError;

    fn from_str(text: &str) -> Result<Self, BackupError> {
        let refused = |problem: &str| BackupError::Url { problem: problem.to_owned() };
        if text.len() > URL_BYTES_MAX {
            return Err(refused("the URL must not be longer than 1024 bytes"));
        }
        let allowed = "must be a URL such as s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or \
                       file:///FOLDER";
        let url =
            Url::parse(text).map_err(|error| refused(&format!("{allowed}; it is {text:?} ({error})")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("must not contain credentials: they belong into the environment"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refused("must end with the folder: no ? and no #"));
        }
        let has_host = url.host_str().is_some_and(|host| !host.is_empty());
        match url.scheme() {
            "file" if has_host => {
                Err(refused("a folder of this machine has three slashes, as in file:///FOLDER"))
            }
            "file" if url.path() == "/" => {
                Err(refused("must name a folder, and / is none to keep backups in"))
            }
            "file" => Ok(Self(url)),
            "s3" | "gs" | "az" if has_host => Ok(Self(url)),
            "s3" | "gs" | "az" => Err(refused("must name a bucket")),
            other => Err(refused(&format!("{allowed}; {other}:// is none of them"))),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

/// A place for backups. Nothing is asked of it until something is wanted.
#[derive(Clone)]
pub struct Store {
    pub(crate) url: StoreUrl,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// The folder within.
    root: Path,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.url)
    }
}

impl Store {
    /// The store at this URL. Requests are made on the runtime of the caller.
    pub fn open(url: &StoreUrl) -> Result<Self, BackupError> {
        let in_words = |error: object_store::Error| BackupError::Url {
            problem: format!("{url} cannot be used: {error}"),
        };
        if url.0.scheme() == "file" {
            let folder = url
                .0
                .to_file_path()
                .map_err(|()| BackupError::Url { problem: format!("{url} is no folder of this machine") })?;
            let root = Path::from_absolute_path(&folder).map_err(|error| in_words(error.into()))?;
            return Ok(Self {
                url: url.clone(),
                objects: Arc::new(LocalFileSystem::new().with_fsync(true)),
                root,
            });
        }
        let objects = cloud(&url.0).map_err(in_words)?;
        let root = Path::from_url_path(url.0.path()).map_err(|error| in_words(error.into()))?;
        Ok(Self { url: url.clone(), objects, root })
    }

    /// The same with these objects behind it, however they are kept.
    pub fn over(url: &StoreUrl, objects: Arc<dyn ObjectStore>, root: Path) -> Self {
        Self { url: url.clone(), objects, root }
    }

    /// Its URL.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file in the store.
    pub(crate) fn path(&self, file: &str) -> Path {
        file.split('/').fold(self.root.clone(), |path, part| path.join(part))
    }

    /// The file at a path, from the store's URL on; `None` for what is elsewhere.
    pub(crate) fn file(&self, path: &Path) -> Option<String> {
        let parts: Vec<String> =
            path.prefix_match(&self.root)?.map(|part| part.as_ref().to_owned()).collect();
        Some(parts.join("/"))
    }
}

#[cfg(not(feature = "cloud"))]
fn cloud(url: &Url) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    Err(not_built(url))
}

#[cfg(feature = "cloud")]
fn cloud(url: &Url) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
    // HTTP clients want to know by which library they encrypt. It fails where that was chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match url.scheme() {
        #[cfg(feature = "aws")]
        "s3" => Ok(Arc::new(
            object_store::aws::AmazonS3Builder::from_env()
                .with_url(url.as_str())
                .with_retry(retries())
                .with_client_options(options("AWS_ALLOW_HTTP"))
                .build()?,
        )),
        #[cfg(feature = "gcp")]
        "gs" => Ok(Arc::new(
            object_store::gcp::GoogleCloudStorageBuilder::from_env()
                .with_url(url.as_str())
                .with_retry(retries())
                .with_client_options(options("GOOGLE_ALLOW_HTTP"))
                .build()?,
        )),
        #[cfg(feature = "azure")]
        "az" => Ok(Arc::new(
            object_store::azure::MicrosoftAzureBuilder::from_env()
                .with_url(url.as_str())
                .with_retry(retries())
                .with_client_options(options("AZURE_ALLOW_HTTP"))
                .build()?,
        )),
        _ => Err(not_built(url)),
    }
}

fn not_built(url: &Url) -> object_store::Error {
    let source = format!("this build of lowkey cannot use {}://", url.scheme()).into();
    object_store::Error::Generic { store: "backups", source }
}

/// A store that does not answer is given up in the end, and the next backup tries again.
#[cfg(feature = "cloud")]
fn retries() -> object_store::RetryConfig {
    object_store::RetryConfig {
        max_retries: 5,
        retry_timeout: std::time::Duration::from_secs(60),
        ..object_store::RetryConfig::default()
    }
}

/// Limits on silence, not on the whole: a large backup may take long. Plain HTTP only where the environment says so.
#[cfg(feature = "cloud")]
fn options(allow_http: &str) -> object_store::ClientOptions {
    use std::time::Duration;

    let allow_http = std::env::var(allow_http).is_ok_and(|value| matches!(value.as_str(), "1" | "true"));
    object_store::ClientOptions::default()
        .with_allow_http(allow_http)
        .with_connect_timeout(Duration::from_secs(5))
        .with_read_timeout(Duration::from_secs(60))
        .with_timeout_disabled()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<StoreUrl, String> {
        text.parse().map_err(|error: BackupError| error.to_string())
    }

    #[test]
    fn a_url_names_a_folder_and_no_secret() {
        for good in ["s3://bucket", "s3://bucket/a/b", "gs://b/", "az://c/x", "file:///var/backups/lowkey"] {
            assert!(parsed(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("/var/backups", "file:///FOLDER"),
            ("file://var/backups", "three slashes"),
            ("file:///", "must name a folder"),
            ("s3://", "bucket"),
            ("s3://key:secret@bucket/a", "credentials"),
            ("s3://bucket/a?x=1", "no ?"),
            ("http://bucket/a", "none of them"),
        ] {
            let told = parsed(bad).unwrap_err();
            assert!(told.contains(why), "{bad}: {told}");
            assert!(!told.contains("secret@"), "{told}");
        }
    }

    #[test]
    fn a_place_within_another_begins_with_all_of_it() {
        let within = |inner: &str, outer: &str| parsed(inner).unwrap().is_within(&parsed(outer).unwrap());
        assert!(within("s3://b/a", "s3://b/a/") && within("s3://b/a/c", "s3://b/a"));
        assert!(!within("s3://b/ab", "s3://b/a") && !within("s3://b/a", "s3://b/a/c"));
        assert!(!within("file:///a/../b", "file:///a"), "it is put in order first");
    }

    #[test]
    fn a_file_of_the_store_is_found_again_by_its_path() {
        let store = Store::open(&parsed("file:///tmp/a").unwrap()).unwrap();
        let path = store.path("epochs/1024.json");
        assert_eq!(path.as_ref(), "tmp/a/epochs/1024.json");
        assert_eq!(store.file(&path).as_deref(), Some("epochs/1024.json"));
        assert_eq!(store.file(&"elsewhere/x".into()), None);
    }
}
