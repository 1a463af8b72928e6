//! Encrypted plans on the cache volume. The two newest plans are kept.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use zip::ZipArchive;

use crate::file_system::read_regular;
use crate::secrets::encryption::Cipher;
use crate::state::lineage::StateHead;

/// Number of newest plans that are kept on the cache volume.
const KEPT: usize = 2;
/// Maximum size of an encrypted plan, in bytes. Other pods can write to the cache volume, and the memory of the pod is limited.
const MAX_PLAN: u64 = 256 << 20;
/// Name of the zip entry with the state in a plan file.
const STATE: &str = "tfstate";

/// Encrypts the plan in `file` and stores it as the plan of run `number`.
pub fn keep(cache: &Path, number: i64, file: &Path, key: &[u8]) -> io::Result<()> {
    let encrypted = Cipher::new(key, "plan")
        .and_then(|cipher| cipher.encrypt(fs::read(file).ok()?))
        .ok_or_else(|| io::Error::other("failed to encrypt the plan"))?;
    let plans = cache.join("plans");
    if !cache.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    fs::create_dir_all(&plans)?;
    let part = plans.join(format!("{number}.part"));
    fs::write(&part, encrypted)?;
    fs::rename(&part, plans.join(format!("{number}.plan")))?;
    prune(&plans)
}

/// Returns the plan of run `number` that [`keep`] stored; `None` if it does not exist or `key` does not decrypt it.
pub fn open(cache: &Path, number: i64, key: &[u8]) -> Option<Vec<u8>> {
    let file = cache.join("plans").join(format!("{number}.plan"));
    let encrypted = read_regular(&file, MAX_PLAN).ok()?;
    Cipher::new(key, "plan")?.decrypt(&encrypted)
}

/// Returns the lineage of the state for which the plan in `file` was created; `None` without a state, or if the lineage cannot be read.
pub fn lineage(file: &Path) -> Option<String> {
    let mut archive = ZipArchive::new(fs::File::open(file).ok()?).ok()?;
    let mut state = Vec::new();
    let mut entry = archive.by_name(STATE).ok()?;
    entry.read_to_end(&mut state).ok()?;
    StateHead::read(&state).ok()?.lineage
}

fn prune(plans: &Path) -> io::Result<()> {
    let mut numbers: Vec<i64> = fs::read_dir(plans)?
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_suffix(".plan")?
                .parse()
                .ok()
        })
        .collect();
    numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
    for number in numbers.into_iter().skip(KEPT) {
        fs::remove_file(plans.join(format!("{number}.plan")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_two_plans_are_kept_encrypted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plan");
        fs::write(&file, "a plan with a secret").unwrap();
        for number in 8..=11 {
            keep(directory.path(), number, &file, b"key").unwrap();
        }
        let plans = directory.path().join("plans");
        let mut names: Vec<_> = fs::read_dir(&plans)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["10.plan", "11.plan"]);
        let encrypted = fs::read(plans.join("11.plan")).unwrap();
        assert!(!encrypted.windows(6).any(|part| part == b"secret"));
        let opened = open(directory.path(), 11, b"key").unwrap();
        assert_eq!(opened, b"a plan with a secret");
        assert_eq!(open(directory.path(), 11, b"other"), None);
        assert_eq!(open(directory.path(), 9, b"key"), None);
        fs::write(plans.join("11.plan"), &encrypted[..encrypted.len() / 2]).unwrap();
        assert_eq!(open(directory.path(), 11, b"key"), None);
        let huge = fs::File::create(plans.join("11.plan")).unwrap();
        huge.set_len(MAX_PLAN + 1).unwrap();
        assert_eq!(open(directory.path(), 11, b"key"), None);
    }

    #[test]
    fn missing_cache_volume_is_an_error_and_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("absent");
        fs::write(directory.path().join("plan"), "x").unwrap();
        assert!(keep(&cache, 1, &directory.path().join("plan"), b"key").is_err());
        assert!(!cache.exists());
    }
}
