//! Secrets shared with callers, from a mounted Secret.

use std::io;
use std::path::Path;

use tracing::warn;

use crate::standard_webhooks::SharedSecret;

/// Reads the secrets in the files of `folder`. Call it for each request, because a mounted Secret changes while the operator runs.
/// Skips files whose names begin with a dot, which belong to the kubelet
/// (<https://kubernetes.io/docs/concepts/configuration/secret/>).
///
/// # Errors
/// If the directory or a file in it cannot be read.
pub(super) async fn secrets_in(folder: &Path) -> io::Result<Vec<SharedSecret>> {
    let mut files = tokio::fs::read_dir(folder).await?;
    let mut secrets = Vec::new();
    while let Some(file) = files.next_entry().await? {
        if file.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match tokio::fs::read(file.path()).await {
            Ok(secret) => match SharedSecret::parse(&secret) {
                Ok(secret) => secrets.push(secret),
                Err(cause) => {
                    warn!(
                        file = %file.path().display(),
                        "ignored an invalid secret: the secret {cause}"
                    );
                }
            },
            // The file was removed after the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(secrets)
}
