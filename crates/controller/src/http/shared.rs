//! What callers share with the operator: the values of a mounted Secret.

use std::io;
use std::path::Path;

use tracing::warn;

use crate::webhook::Secret;

/// The secrets in the files of `folder`, read anew, since a mounted Secret changes while we run. Files
/// whose names begin with a dot are the kubelet's own
/// (<https://kubernetes.io/docs/concepts/configuration/secret/>).
///
/// # Errors
/// Where the folder or a file in it cannot be read.
pub(super) async fn secrets_in(folder: &Path) -> io::Result<Vec<Secret>> {
    let mut files = tokio::fs::read_dir(folder).await?;
    let mut secrets = Vec::new();
    while let Some(file) = files.next_entry().await? {
        if file.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match tokio::fs::read(file.path()).await {
            Ok(secret) => match Secret::read(&secret) {
                Ok(secret) => secrets.push(secret),
                Err(why) => {
                    warn!(file = %file.path().display(), "a secret is left aside: it {why}");
                }
            },
            // The key was removed a moment ago.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(secrets)
}
