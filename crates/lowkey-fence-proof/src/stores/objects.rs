//! A log in an object of an S3 server.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::executor::block_on;
use futures::future::{BoxFuture, join_all};
use lowkey_fence::{Fence, Marks, ObjectFence};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode};
use tokio::task::block_in_place;

use super::{Entry, Holder, Stop, Store, Way, answer, pass};
use crate::Failure;
use crate::servers::{BUCKET, Server};

/// So many create one object at once, and one of them may win.
const CONTENDERS: usize = 64;

pub(super) struct Objects {
    store: Arc<AmazonS3>,
    _server: Server,
}

impl Objects {
    pub(super) async fn new(server: Server) -> Result<Self, Failure> {
        let store = AmazonS3Builder::new()
            .with_endpoint(&server.address)
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_access_key_id(BUCKET)
            .with_secret_access_key(BUCKET)
            .with_region("us-east-1")
            .build()?;
        ObjectFence::check_store(&store, &Path::from("scratch")).await?;
        probe(&store).await?;
        Ok(Self { store: Arc::new(store), _server: server })
    }
}

/// Whether conditions are atomic in this server.
async fn probe(store: &AmazonS3) -> Result<(), Failure> {
    let path = Path::from("probe");
    let creates = (0..CONTENDERS)
        .map(|number| store.put_opts(&path, number.to_string().into(), PutMode::Create.into()));
    let mut winners = 0;
    for outcome in join_all(creates).await {
        match outcome {
            Ok(_) => winners += 1,
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    store.delete(&path).await?;
    match winners {
        1 => Ok(()),
        _ => Err(format!("{winners} of {CONTENDERS} concurrent conditional creates won").into()),
    }
}

impl Store for Objects {
    fn connect<'a>(&'a self, resource: &'a str) -> BoxFuture<'a, Result<Box<dyn Holder>, Failure>> {
        async move {
            let path = Path::from(resource);
            let fence = ObjectFence::new(Arc::clone(&self.store) as _, path.clone())?;
            Ok(Box::new(ObjectHolder { store: Arc::clone(&self.store), path, fence }) as Box<dyn Holder>)
        }
        .boxed()
    }
}

struct ObjectHolder {
    store: Arc<AmazonS3>,
    path: Path,
    fence: ObjectFence,
}

impl ObjectHolder {
    async fn write_fenced(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut stop = Some(stop);
        let mut crashed = None;
        let outcome = self.fence.update(fence, |content| {
            // Between the read and the conditional put.
            crashed = block_in_place(|| block_on(pass(&mut stop))).err();
            let entry = format!("{}\n", Entry::new(id, fence));
            let content = [content.unwrap_or_default().as_ref(), entry.as_bytes()].concat();
            crashed.is_none().then(|| content.into())
        });
        let outcome = outcome.await;
        crashed.map_or_else(|| answer(outcome), Err)
    }

    async fn write_naively(&mut self, fence: &Fence, id: u64, stop: Stop) -> Result<bool, Failure> {
        let mut marks = self.fence.marks().await?;
        if !marks.accept(fence.token(), fence.mode()) {
            return Ok(false);
        }
        let content = self.fence.read().await?.unwrap_or_default();
        pass(&mut Some(stop)).await?;
        let line = format!("lowkey-fence 1 exclusive={} shared={} present\n", marks.exclusive, marks.shared);
        let entry = format!("{}\n", Entry::new(id, fence));
        let object = [line.as_bytes(), content.as_ref(), entry.as_bytes()].concat();
        self.store.put(&self.path, object.into()).await?;
        Ok(true)
    }
}

impl Holder for ObjectHolder {
    fn claim<'a>(&'a mut self, fence: &'a Fence) -> BoxFuture<'a, Result<bool, Failure>> {
        async move { answer(self.fence.claim(fence).await) }.boxed()
    }

    fn write<'a>(
        &'a mut self,
        fence: &'a Fence,
        id: u64,
        way: Way,
        stop: Stop,
    ) -> BoxFuture<'a, Result<bool, Failure>> {
        match way {
            Way::Fenced => self.write_fenced(fence, id, stop).boxed(),
            Way::Naive => self.write_naively(fence, id, stop).boxed(),
        }
    }

    fn log(&mut self) -> BoxFuture<'_, Result<Vec<Entry>, Failure>> {
        async move {
            let content = self.fence.read().await?.unwrap_or_default();
            std::str::from_utf8(&content)?.lines().map(str::parse).collect()
        }
        .boxed()
    }

    fn marks(&mut self) -> BoxFuture<'_, Result<Marks, Failure>> {
        async move { Ok(self.fence.marks().await?) }.boxed()
    }
}
