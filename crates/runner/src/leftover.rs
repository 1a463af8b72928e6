//! State that the engine could not save: kept on the cache volume, and pushed by the next run
//! before anything else (rule 8).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::seal::Seal;

/// The file that the engine leaves when it cannot save the state.
pub const FILE: &str = "errored.tfstate";

/// Where the copy is kept.
fn copy_path(cache: &Path) -> PathBuf {
    cache.join("errored.tfstate.sealed")
}

/// Keeps `file` on the cache volume.
pub fn keep(cache: &Path, file: &Path, key: &[u8]) -> io::Result<()> {
    let sealed = Seal::new(key, "errored state")
        .and_then(|seal| seal.seal(fs::read(file).ok()?))
        .ok_or_else(|| io::Error::other("the state could not be sealed"))?;
    let (part, target) = (cache.join("errored.tfstate.part"), copy_path(cache));
    let mut opened = fs::File::create(&part)?;
    io::Write::write_all(&mut opened, &sealed)?;
    opened.sync_all()?;
    fs::rename(part, target)
}

/// The state that an earlier run kept, if there is any that our key opens.
pub fn take(cache: &Path, key: &[u8]) -> Option<Vec<u8>> {
    let sealed = fs::read(copy_path(cache)).ok()?;
    let opened = Seal::new(key, "errored state").and_then(|seal| seal.open(&sealed));
    if opened.is_none() {
        crate::say!(
            "{} cannot be opened and is left alone",
            copy_path(cache).display()
        );
    }
    opened
}

/// Forgets what was pushed.
pub fn forget(cache: &Path) {
    let _ = fs::remove_file(copy_path(cache));
}

/// Puts aside what is older than the state that is stored now.
pub fn put_aside(cache: &Path, number: i64) {
    let _ = fs::rename(
        copy_path(cache),
        cache.join(format!("errored.tfstate.{number}.old")),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_state_is_found_by_the_next_run_and_unreadable_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path();
        let file = cache.join(FILE);
        fs::write(&file, "state").unwrap();
        assert_eq!(take(cache, b"key"), None);
        keep(cache, &file, b"key").unwrap();
        assert_eq!(take(cache, b"other"), None);
        assert_eq!(take(cache, b"key").unwrap(), b"state");
        forget(cache);
        assert_eq!(take(cache, b"key"), None);
    }
}
