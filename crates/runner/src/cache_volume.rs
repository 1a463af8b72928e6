//! Access to the cache volume, which other pods can change and which may not answer.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::log;

/// Time limit of an access to the cache volume, which may be a file server that does not answer.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// Executes `access`, which reads or writes the cache volume. Logs an error, and a volume that does not answer within [`PATIENCE`]. The thread of
/// `access` ends with the process.
pub async fn in_time<T: Send + 'static>(
    access: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Option<T> {
    let access = tokio::task::spawn_blocking(access);
    let error = match tokio::time::timeout(PATIENCE, access).await {
        Ok(Ok(Ok(value))) => return Some(value),
        Ok(Ok(Err(error))) => error,
        Ok(Err(error)) => io::Error::other(error),
        Err(_) => io::Error::from(io::ErrorKind::TimedOut),
    };
    log!("cannot use the cache volume: {error}");
    None
}

/// Removes the content of `volume`, the directory of a resource in a shared cache volume. The directory itself is a mount point.
pub fn empty(volume: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => result = Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn emptied_directory_stays() {
        let root = tempfile::tempdir().unwrap();
        let [volume, original] = ["volume", "original"].map(|name| root.path().join(name));
        fs::create_dir_all(volume.join("plugins/registry.test")).unwrap();
        fs::create_dir(&original).unwrap();
        fs::write(original.join("terraform-provider-x"), "good").unwrap();
        fs::write(volume.join("plugins/registry.test/package"), "x").unwrap();
        fs::write(volume.join("file"), "x").unwrap();
        symlink(&original, volume.join("link")).unwrap();
        empty(&volume).unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert!(original.join("terraform-provider-x").exists());
    }
}
