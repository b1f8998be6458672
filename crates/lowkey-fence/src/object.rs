//! S3 and other object stores, by way of `object_store`.
//!
//! A write reads the object, compares the token with the marks in it, and puts the new one on the condition that
//! the old one is still there (`If-Match`, or `If-None-Match: *` for the first). Whoever loses that race reads
//! again. A plain put would overwrite a later holder's work.
//!
//! The marks are the first line of the object, and not metadata: the ETag of S3 is a digest of the content alone.
//! With marks in the metadata, a claim that leaves the content as it is would leave the ETag as it is, and the
//! conditional put of a former holder would pass.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lowkey_token::{Fence, Token};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};

use crate::marks::{Marks, signed};
use crate::refusal::FenceError;
use crate::resource::{InvalidResource, Resource};

/// How the first line of a fenced object begins: what it is, and the version of the format.
const MAGIC: &[u8] = b"lowkey-fence 1 ";

/// The longest first line: the magic, two numbers of 20 digits, and some words.
const LINE_BYTES_MAX: usize = 128;

/// One object that a lock protects. Its path is the resource.
///
/// The object begins with one line that holds the marks, such as `lowkey-fence 1 exclusive=34 shared=0 present`;
/// [`ObjectFence::read`] takes it off. If others must find the plain content, write that under a name that is never
/// used again, and fence a small object that names it.
///
/// Nothing but this type may write or delete the object: a plain delete forgets the marks.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use lowkey_fence::{Fence, Mode, ObjectFence, Token};
/// use object_store::memory::InMemory;
///
/// let store = Arc::new(InMemory::new()); // or AmazonS3Builder::from_env()…
/// ObjectFence::check_store(store.as_ref(), &"lowkey-scratch".into()).await?; // refuses unfit stores
///
/// let report = ObjectFence::new(store, "reports/nightly".into())?;
/// let fence = Fence::new("billing", Token(34), Mode::Exclusive); // or guard.fence()
/// report.claim(&fence).await?; // before anything is read
/// let old = report.read().await?;
/// report.put(&fence, "the report").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ObjectFence {
    store: Arc<dyn ObjectStore>,
    path: Path,
    resource: Resource,
}

/// What is in the store now.
struct Stored {
    /// `None` if there is no object at all.
    version: Option<UpdateVersion>,
    marks: Marks,
    /// `None` if it was deleted, or never written.
    content: Option<Bytes>,
}

impl ObjectFence {
    /// Names the object. Nothing is asked of the store yet.
    pub fn new(store: Arc<dyn ObjectStore>, path: Path) -> Result<Self, InvalidResource> {
        Ok(Self { resource: Resource::parse(path.to_string())?, store, path })
    }

    /// Refuses a store that has no conditional put, or takes the condition and ignores it: nothing can be fenced
    /// there. It writes to this path, and deletes it again.
    pub async fn check_store(store: &dyn ObjectStore, scratch: &Path) -> Result<(), StoreUnfit> {
        let put = |content: &'static str, mode: PutMode| store.put_opts(scratch, content.into(), mode.into());
        store.put(scratch, "first".into()).await.map_err(StoreUnfit::Failed)?;
        let created = put("second", PutMode::Create).await;
        let stale =
            UpdateVersion { e_tag: Some("\"00000000000000000000000000000000\"".into()), version: None };
        let updated = put("third", PutMode::Update(stale)).await;
        store.delete(scratch).await.map_err(StoreUnfit::Failed)?;
        match (created, updated) {
            (Err(Error::AlreadyExists { .. }), Err(Error::Precondition { .. } | Error::NotFound { .. })) => {
                Ok(())
            }
            (Ok(_), _) => Err(StoreUnfit::Ignores("If-None-Match: *")),
            (_, Ok(_)) => Err(StoreUnfit::Ignores("If-Match")),
            (Err(Error::AlreadyExists { .. }), Err(error)) | (Err(error), _) => {
                Err(StoreUnfit::Failed(error))
            }
        }
    }

    /// Presents the token before anything is read. From now on no earlier holder writes.
    pub async fn claim(&self, fence: &Fence) -> Result<(), FenceError<Error>> {
        self.change(fence, Some).await.map(drop)
    }

    /// The content, without the marks. `None` if it was deleted, or never written.
    ///
    /// Claim first, if what is written later depends on it.
    pub async fn read(&self) -> Result<Option<Bytes>, Error> {
        Ok(self.load().await?.content)
    }

    /// The marks.
    pub async fn marks(&self) -> Result<Marks, Error> {
        Ok(self.load().await?.marks)
    }

    /// Replaces the content.
    pub async fn put(&self, fence: &Fence, content: impl Into<Bytes>) -> Result<(), FenceError<Error>> {
        let content = content.into();
        self.change(fence, |_| Some(Some(content.clone()))).await.map(drop)
    }

    /// Changes the content: what was read is what is replaced, so this needs no claim. The function runs again if
    /// somebody else wrote meanwhile. If it returns `None`, nothing is written, and the answer is `false`.
    pub async fn update(
        &self,
        fence: &Fence,
        mut change: impl FnMut(Option<Bytes>) -> Option<Bytes>,
    ) -> Result<bool, FenceError<Error>> {
        self.change(fence, |content| change(content).map(Some)).await
    }

    /// Deletes the content. An object without content stays and keeps the marks.
    pub async fn delete(&self, fence: &Fence) -> Result<(), FenceError<Error>> {
        self.change(fence, |_| Some(None)).await.map(drop)
    }

    /// Forgets the marks, and keeps the content. **Only when no client of the old cluster can write any more**: its
    /// token would be accepted beside the new holder's.
    pub async fn reset(&self) -> Result<(), Error> {
        loop {
            let Stored { version, content, .. } = self.load().await?;
            if version.is_none() || self.replace(version, Marks::default(), content.as_ref()).await? {
                return Ok(());
            }
        }
    }

    async fn change(
        &self,
        fence: &Fence,
        mut change: impl FnMut(Option<Bytes>) -> Option<Option<Bytes>>,
    ) -> Result<bool, FenceError<Error>> {
        signed(fence)?;
        // Whoever has to read again does so because somebody else has written: all together go on.
        loop {
            let Stored { version, mut marks, content } = self.load().await.map_err(FenceError::Store)?;
            let before = (marks, content.clone());
            marks.present(&self.resource, fence)?;
            let Some(content) = change(content) else { return Ok(false) };
            let after = (marks, content);
            let is_done = (version.is_some() && before == after)
                || self.replace(version, marks, after.1.as_ref()).await.map_err(FenceError::Store)?;
            if is_done {
                return Ok(true);
            }
        }
    }

    /// Puts the object if it is still the one that was read. `false`: it is not.
    async fn replace(
        &self,
        version: Option<UpdateVersion>,
        marks: Marks,
        content: Option<&Bytes>,
    ) -> Result<bool, Error> {
        let mode = version.map_or(PutMode::Create, PutMode::Update);
        let payload = PutPayload::from(encode(marks, content));
        match self.store.put_opts(&self.path, payload, mode.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotFound { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn load(&self) -> Result<Stored, Error> {
        let found = match self.store.get_opts(&self.path, GetOptions::default()).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => {
                return Ok(Stored { version: None, marks: Marks::default(), content: None });
            }
            Err(error) => return Err(error),
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let (marks, content) = decode(found.bytes().await?);
        Ok(Stored { version: Some(version), marks, content })
    }
}

fn encode(marks: Marks, content: Option<&Bytes>) -> Bytes {
    let state = if content.is_some() { "present" } else { "deleted" };
    let line = format!("exclusive={} shared={} {state}\n", marks.exclusive, marks.shared);
    let mut object = BytesMut::from(MAGIC);
    object.extend_from_slice(line.as_bytes());
    object.extend_from_slice(content.map_or(&[], |content| content.as_ref()));
    object.freeze()
}

/// Marks and content. An object that was never fenced is all content, and has seen no token.
fn decode(mut object: Bytes) -> (Marks, Option<Bytes>) {
    let line = object.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n');
    let found = line.and_then(|end| {
        let words = std::str::from_utf8(object[..end].strip_prefix(MAGIC)?).ok()?;
        let mut words = words.split(' ');
        let mut mark = |name| words.next()?.strip_prefix(name)?.parse().ok().map(Token);
        let marks = Marks { exclusive: mark("exclusive=")?, shared: mark("shared=")? };
        Some((marks, end, words.next()? == "present"))
    });
    match found {
        Some((marks, end, is_present)) => {
            let content = object.split_off(end + 1);
            (marks, is_present.then_some(content))
        }
        None => (Marks::default(), Some(object)),
    }
}

/// Why nothing can be fenced in a store.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreUnfit {
    /// It takes this condition and ignores it.
    Ignores(&'static str),
    /// It failed; perhaps it has no conditional put.
    Failed(Error),
}

impl fmt::Display for StoreUnfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignores(condition) => {
                write!(
                    f,
                    "nothing can be fenced in this store: it takes a put with {condition} and ignores that"
                )
            }
            Self::Failed(error) => write!(f, "it is not known whether this store can be fenced: {error}"),
        }
    }
}

impl StdError for StoreUnfit {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Ignores(_) => None,
            Self::Failed(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let marks = Marks { exclusive: Token(u64::MAX), shared: Token(7) };
        for content in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\nlowkey-fence 1 \n"))] {
            assert_eq!(decode(encode(marks, content.as_ref())), (marks, content));
        }
    }

    #[test]
    fn an_object_that_was_never_fenced_is_all_content() {
        for object in
            ["", "plain", "lowkey-fence 1 exclusive=x shared=1 present\n", "lowkey-fence 1 exclusive=1"]
        {
            assert_eq!(decode(Bytes::from(object)), (Marks::default(), Some(Bytes::from(object))));
        }
    }
}
