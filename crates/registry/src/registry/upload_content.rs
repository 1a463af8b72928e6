//! Content of a blob to upload, as a stream.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use tokio::{fs::File, io::AsyncReadExt as _};

use crate::{error::Error, image::Blob, reference::Hasher};

/// Size of the chunks in which files are read, in bytes.
const CHUNK: usize = 128 << 10;

/// Returns the content of a file of `size` bytes as a stream.
pub(super) async fn file(
    path: &Path,
    size: u64,
) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
    let (file, actual) = open_file(path)
        .await
        .map_err(|error| unreadable(path, &error))?;
    if actual != size {
        return Err(Error::UploadFile {
            file: path.to_owned(),
            why: format!("the file has {actual} bytes, not {size}"),
        });
    }
    let path: PathBuf = path.to_owned();
    Ok(chunks(file, size).map(move |chunk| chunk.map_err(|error| unreadable(&path, &error))))
}

/// Returns digest and size of the content of a file, without keeping the content in memory.
pub(super) async fn blob_of(path: &Path) -> Result<Blob, Error> {
    let blob = async {
        let (file, size) = open_file(path).await?;
        let mut content = std::pin::pin!(chunks(file, size));
        let mut hasher = Hasher::sha256();
        while let Some(chunk) = content.next().await {
            hasher.update(&chunk?);
        }
        let digest = hasher.finish();
        io::Result::Ok(Blob { digest, size })
    };
    blob.await.map_err(|error| unreadable(path, &error))
}

fn chunks(file: File, size: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold(file.take(size), |mut file| async {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut chunk).await?;
        Ok((read > 0).then(|| (chunk.freeze(), file)))
    })
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::UploadFile {
        file: path.to_owned(),
        why: error.to_string(),
    }
}

async fn open_file(path: &Path) -> io::Result<(File, u64)> {
    let file = File::open(path).await?;
    let size = file.metadata().await?.len();
    Ok((file, size))
}

/// Returns `bytes` as a stream of one chunk.
pub(super) fn in_memory(bytes: Bytes) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    stream::iter([Ok(bytes)])
}
