//! Content of a blob to upload, as a stream.

use std::{io, path::Path};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use tokio::{fs::File, io::AsyncReadExt as _};

use crate::{error::Error, image::Layer};

/// Size of the chunks in which files are read, in bytes.
const CHUNK: usize = 128 << 10;

/// Returns the content of the file of a layer as a stream.
pub(super) async fn file(
    layer: &Layer,
) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
    let path = layer.file.clone();
    let failed = move |why: String| Error::LayerFile {
        file: path.clone(),
        why,
    };
    let (file, size) = open_file(&layer.file)
        .await
        .map_err(|error| failed(error.to_string()))?;
    if size != layer.size {
        return Err(failed(format!(
            "the file has {size} bytes, not {}",
            layer.size
        )));
    }
    let chunks = stream::try_unfold(file.take(size), |mut file| async {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut chunk).await?;
        io::Result::Ok((read > 0).then(|| (chunk.freeze(), file)))
    });
    Ok(chunks.map(move |chunk| chunk.map_err(|error| failed(error.to_string()))))
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
