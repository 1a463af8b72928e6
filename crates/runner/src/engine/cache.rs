//! Provider packages on the cache volume.
//!
//! Other pods can write to the volume: a shared claim, but also the claim of a resource, can be mounted by any pod of the namespace. So the
//! engine neither executes nor reads packages there. The runner copies a package to scratch space of the pod, and gives the copy to the
//! engine only if it has a checksum in the dependency lock file of the module. A package without a checksum is installed again. No lock is
//! needed: packages are stored by rename, and an incomplete or changed package fails the check.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hcl_edit::structure::Body;
use ring::digest::{Context, SHA256};

use crate::cache_volume::in_time;
use crate::engine::lock_file;
use crate::file_system::{open_regular, read_regular};
use crate::log;
use crate::paths::Vars;

/// Folder of the packages on the cache volume.
const PACKAGES: &str = "plugins";
/// Maximum size of the dependency lock file, in bytes.
const MAX_LOCK_FILE: u64 = 4 << 20;
/// Maximum size of the packages that one pod copies from the cache volume, in bytes.
const MAX_BYTES: u64 = 8 << 30;
/// Maximum number of files in these packages.
const MAX_FILES: usize = 20_000;
/// Maximum depth of folders in a package.
const MAX_DEPTH: usize = 16;

/// Plugin cache of the engine in scratch space, with verified copies of packages on the cache volume.
#[derive(Debug)]
pub struct ProviderCache {
    volume: PathBuf,
    local: PathBuf,
    /// Checksums of the packages in the dependency lock file, by path of the package: `host/namespace/type/version/platform`.
    checksums: BTreeMap<PathBuf, Vec<String>>,
}

impl ProviderCache {
    /// Like [`Self::open_now`], within the time limit [`PATIENCE`](crate::cache_volume::PATIENCE). Returns `None` if the cache cannot be used.
    pub async fn open(volume: &Path, local: PathBuf, directory: &Path) -> Option<Self> {
        let (volume, directory) = (volume.to_owned(), directory.to_owned());
        in_time(move || Self::open_now(&volume, local, &directory)).await
    }

    /// Like [`Self::store_now`], within the time limit [`PATIENCE`](crate::cache_volume::PATIENCE).
    pub async fn store(self) {
        in_time(move || {
            self.store_now();
            Ok(())
        })
        .await;
    }

    /// Creates the plugin cache `local` for the module in `directory`. Copies the packages with a checksum in the dependency lock file from
    /// the cache volume `volume`, and removes a package with another checksum from the volume.
    ///
    /// # Errors
    ///
    /// Fails if `local` cannot be created. A package that cannot be copied is skipped.
    fn open_now(volume: &Path, local: PathBuf, directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(&local)?;
        let cache = Self {
            volume: volume.join(PACKAGES),
            local,
            checksums: locked(directory),
        };
        let mut budget = Budget {
            bytes: MAX_BYTES,
            files: MAX_FILES,
        };
        for (package, checksums) in &cache.checksums {
            cache.copy_verified(package, checksums, &mut budget);
        }
        Ok(cache)
    }

    fn copy_verified(&self, package: &Path, checksums: &[String], budget: &mut Budget) {
        let (from, to) = (self.volume.join(package), self.local.join(package));
        if !self.is_on_volume(&from) {
            return;
        }
        let copied = budget
            .copy(&from, &to, 0)
            .and_then(|()| checksum(&to))
            .map(|checksum| checksums.contains(&checksum));
        if matches!(copied, Ok(true)) {
            return;
        }
        let _ = fs::remove_dir_all(&to);
        let name = package.display();
        if let Err(error) = copied {
            log!("cannot use provider {name} on the cache volume: {error}");
            return;
        }
        log!(
            "provider {name} on the cache volume does not match .terraform.lock.hcl: it is removed \
             from the volume and installed again"
        );
        if let Err(error) = fs::remove_dir_all(&from) {
            log!("failed to remove provider {name} from the cache volume: {error}");
        }
    }

    /// Whether the dependency lock file has checksums, so that packages can be cached.
    pub fn is_useful(&self) -> bool {
        !self.checksums.is_empty()
    }

    /// Returns the environment variables that enable the plugin cache. The plugin cache contains only packages that were verified, or that the
    /// engine installed in this pod. So the engine may use a package for a module whose dependency lock file lacks the provider. The engine may
    /// then write an incomplete dependency lock file, which is deleted with the copy of the module.
    pub fn environment(&self) -> Vars {
        let path = self.local.to_string_lossy().into_owned();
        Vars::from([
            ("TF_PLUGIN_CACHE_DIR".to_owned(), path),
            (
                "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE".to_owned(),
                "1".to_owned(),
            ),
        ])
    }

    /// Stores packages on the cache volume that the engine installed and that have a checksum in the dependency lock file. A full or
    /// unwritable volume is only logged.
    fn store_now(&self) {
        for (package, checksums) in &self.checksums {
            if let Err(error) = self.store_package(package, checksums) {
                let name = package.display();
                log!("failed to store provider {name} on the cache volume: {error}");
                return;
            }
        }
    }

    /// Whether `path` is a folder on the volume that is reached without links. Another pod may have replaced a folder by a link to a folder of
    /// this pod.
    fn is_on_volume(&self, path: &Path) -> bool {
        let volume = self
            .volume
            .parent()
            .and_then(|root| fs::canonicalize(root).ok());
        let expected = volume.zip(path.strip_prefix(&self.volume).ok());
        let expected = expected.map(|(volume, rest)| volume.join(PACKAGES).join(rest));
        fs::canonicalize(path).is_ok_and(|real| Some(real) == expected) && is_folder(path)
    }

    fn store_package(&self, package: &Path, checksums: &[String]) -> io::Result<()> {
        let (from, to) = (self.local.join(package), self.volume.join(package));
        // A package of a filesystem mirror is a link: the image contains it.
        if !is_folder(&from) || is_folder(&to) || !checksums.contains(&checksum(&from)?) {
            return Ok(());
        }
        let parent = to.parent().unwrap_or(&self.volume);
        fs::create_dir_all(parent)?;
        if !self.is_on_volume(parent) {
            return Err(io::Error::other("its folder is a link"));
        }
        let part = parent.join(format!(".part-{}", std::process::id()));
        let _ = fs::remove_dir_all(&part);
        let mut budget = Budget {
            bytes: MAX_BYTES,
            files: MAX_FILES,
        };
        let stored = budget
            .copy(&from, &part, 0)
            .and_then(|()| fs::rename(&part, &to));
        if stored.is_err() {
            let _ = fs::remove_dir_all(&part);
        }
        stored
    }
}

/// Returns the checksums of unpacked packages (`h1:`) in the dependency lock file of the module in `directory`, by path of the package. Empty if
/// the file is missing, too large or invalid.
fn locked(directory: &Path) -> BTreeMap<PathBuf, Vec<String>> {
    let bytes = read_regular(&directory.join(lock_file::FILE), MAX_LOCK_FILE);
    let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let body: Option<Body> = text.and_then(|text| text.parse().ok());
    let mut checksums = BTreeMap::new();
    for block in body.iter().flat_map(|body| body.get_blocks("provider")) {
        let text = |name: &str| block.body.get_attribute(name)?.value.as_str();
        let hashes = block.body.get_attribute("hashes");
        let hashes = hashes.and_then(|hashes| hashes.value.as_array());
        let unpacked: Vec<String> = hashes
            .into_iter()
            .flatten()
            .filter_map(|hash| hash.as_str())
            .filter(|hash| hash.starts_with("h1:"))
            .map(str::to_owned)
            .collect();
        let address = block
            .labels
            .first()
            .map(hcl_edit::structure::BlockLabel::as_str);
        let package = address
            .zip(text("version"))
            .and_then(|(address, version)| package_path(address, version));
        if let Some(package) = package.filter(|_| !unpacked.is_empty()) {
            checksums.insert(package, unpacked);
        }
    }
    checksums
}

/// Returns the path of a package for the platform of this process; `None` if `address` or `version` is invalid.
fn package_path(address: &str, version: &str) -> Option<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let path = PathBuf::from(format!("{address}/{version}/linux_{architecture}"));
    let mut parts = path.components();
    let is_normal = parts.all(|part| matches!(part, Component::Normal(_)));
    (is_normal && path.components().count() == 5).then_some(path)
}

/// Whether `path` is a folder and no link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Bytes and files that may still be copied.
struct Budget {
    bytes: u64,
    files: usize,
}

impl Budget {
    /// Copies a folder with regular files. Refuses links and other files, which no provider package contains.
    fn copy(&mut self, from: &Path, to: &Path, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other("its folders are too deep"));
        }
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            self.files = self
                .files
                .checked_sub(1)
                .ok_or_else(|| io::Error::other("it has too many files"))?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            if entry.file_type()?.is_dir() {
                self.copy(&source, &target, depth + 1)?;
            } else {
                self.copy_file(&source, &target)?;
            }
        }
        Ok(())
    }

    fn copy_file(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let file = open_regular(from)?;
        let permissions = file.metadata()?.permissions();
        let mut target = fs::File::create(to)?;
        let limit = self.bytes.saturating_add(1);
        let copied = io::copy(&mut file.take(limit), &mut target)?;
        self.bytes = self
            .bytes
            .checked_sub(copied)
            .ok_or_else(|| io::Error::other("it is too large"))?;
        target.set_permissions(permissions)
    }
}

/// Returns the checksum `h1:` of the package in `folder`, as in the dependency lock file: SHA-256 of the list of files, each with its SHA-256
/// (<https://pkg.go.dev/golang.org/x/mod/sumdb/dirhash#Hash1>).
fn checksum(folder: &Path) -> io::Result<String> {
    let mut files = BTreeMap::new();
    list(folder, "", &mut files)?;
    let mut all = Context::new(&SHA256);
    for (name, path) in files {
        let mut file = Context::new(&SHA256);
        io::copy(&mut open_regular(&path)?, &mut HashWriter(&mut file))?;
        let line = format!("{}  {name}\n", hex::encode(file.finish()));
        all.update(line.as_bytes());
    }
    Ok(format!("h1:{}", STANDARD.encode(all.finish())))
}

/// Adds the files in `folder` to `files`, by path below the package.
fn list(folder: &Path, prefix: &str, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let name = file_name
            .to_str()
            .filter(|name| !name.contains('\n'))
            .ok_or_else(|| io::Error::other("it has an invalid file name"))?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{prefix}{name}/"), files)?;
        } else {
            files.insert(format!("{prefix}{name}"), entry.path());
        }
    }
    Ok(())
}

struct HashWriter<'a>(&'a mut Context);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ADDRESS: &str = "registry.terraform.io/team/x";

    struct Place {
        root: tempfile::TempDir,
    }

    impl Place {
        /// Creates a cache volume with a package, and a module whose dependency lock file has the checksum of `locked`.
        fn new(stored: &str, locked: &str) -> Self {
            let place = Self {
                root: tempfile::tempdir().unwrap(),
            };
            let original = place.path("original");
            fs::create_dir_all(&original).unwrap();
            fs::write(original.join("terraform-provider-x"), locked).unwrap();
            let checksum = checksum(&original).unwrap();
            fs::create_dir_all(place.path("module")).unwrap();
            let lock = format!(
                "provider \"{ADDRESS}\" {{\n  version = \"1.0.0\"\n  hashes = [\"zh:0\", \"{checksum}\"]\n}}\n"
            );
            fs::write(place.path("module/.terraform.lock.hcl"), lock).unwrap();
            fs::create_dir_all(place.stored()).unwrap();
            fs::write(place.stored().join("terraform-provider-x"), stored).unwrap();
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.path().join(name)
        }

        fn stored(&self) -> PathBuf {
            let package = package_path(ADDRESS, "1.0.0").unwrap();
            self.path("volume/plugins").join(package)
        }

        /// Opens the cache, and returns the content of the provider in the plugin cache of the engine.
        fn open(&self) -> (ProviderCache, Option<String>) {
            let local = self.path("local");
            let cache = ProviderCache::open_now(&self.path("volume"), local, &self.path("module"));
            let program = package_path(ADDRESS, "1.0.0")
                .unwrap()
                .join("terraform-provider-x");
            let content = fs::read_to_string(self.path("local").join(program)).ok();
            (cache.unwrap(), content)
        }
    }

    #[test]
    fn package_with_the_locked_checksum_is_copied() {
        let place = Place::new("good", "good");
        let (cache, content) = place.open();
        assert_eq!(content.as_deref(), Some("good"));
        assert_eq!(
            cache.environment()["TF_PLUGIN_CACHE_DIR"],
            place.path("local").display().to_string()
        );
        // A change on the volume after the check does not reach the engine.
        fs::write(place.stored().join("terraform-provider-x"), "bad").unwrap();
        let copy = place
            .path("local")
            .join(package_path(ADDRESS, "1.0.0").unwrap());
        let copy = fs::read_to_string(copy.join("terraform-provider-x")).unwrap();
        assert_eq!(copy, "good");
    }

    #[test]
    fn replaced_package_is_removed_and_not_used() {
        let place = Place::new("bad", "good");
        assert_eq!(place.open().1, None);
        assert!(!place.stored().exists());
        let added = Place::new("good", "good");
        fs::write(added.stored().join("more"), "x").unwrap();
        assert_eq!(added.open().1, None);
    }

    #[test]
    fn provider_without_lock_file_is_not_cached() {
        let place = Place::new("good", "good");
        fs::remove_file(place.path("module/.terraform.lock.hcl")).unwrap();
        let (cache, content) = place.open();
        assert_eq!((cache.is_useful(), content), (false, None));
        let huge = fs::File::create(place.path("module/.terraform.lock.hcl")).unwrap();
        huge.set_len(MAX_LOCK_FILE + 1).unwrap();
        assert!(!place.open().0.is_useful());
    }

    #[test]
    fn link_and_pipe_on_the_volume_are_not_read() {
        let place = Place::new("good", "good");
        let program = place.stored().join("terraform-provider-x");
        fs::remove_file(&program).unwrap();
        symlink(place.path("original/terraform-provider-x"), &program).unwrap();
        assert_eq!(place.open().1, None);
        fs::remove_file(&program).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &program,
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        assert_eq!(place.open().1, None);
        fs::remove_dir_all(place.stored()).unwrap();
        symlink(place.path("original"), place.stored()).unwrap();
        assert_eq!(place.open().1, None);
        fs::remove_file(place.stored()).unwrap();
        let elsewhere = place.path("elsewhere");
        fs::rename(place.path("volume/plugins"), &elsewhere).unwrap();
        symlink(&elsewhere, place.path("volume/plugins")).unwrap();
        fs::create_dir_all(place.stored()).unwrap();
        fs::write(place.stored().join("terraform-provider-x"), "bad").unwrap();
        assert_eq!(place.open().1, None);
        assert!(
            place.stored().exists(),
            "a folder outside of the volume is kept"
        );
    }

    #[test]
    fn package_over_the_limits_is_not_copied() {
        let place = Place::new("good", "good");
        let copied = |bytes, files| {
            let target = place.path("copy");
            let _ = fs::remove_dir_all(&target);
            Budget { bytes, files }.copy(&place.stored(), &target, 0)
        };
        assert!(copied(4, 1).is_ok());
        assert!(copied(3, 1).is_err());
        assert!(copied(4, 0).is_err());
        let deep: PathBuf = std::iter::repeat_n("a", MAX_DEPTH + 2).collect();
        fs::create_dir_all(place.stored().join(deep)).unwrap();
        assert!(copied(1000, 1000).is_err());
    }

    #[test]
    fn lock_file_cannot_name_a_path_outside_the_cache() {
        assert!(package_path(ADDRESS, "1.0.0").is_some());
        for (address, version) in [
            ("../../x", "1.0.0"),
            ("/a/b/c", "1.0.0"),
            (ADDRESS, ".."),
            (ADDRESS, "1/2"),
            ("x", "1"),
        ] {
            assert_eq!(package_path(address, version), None, "{address} {version}");
        }
    }

    #[test]
    fn installed_package_is_stored_for_the_next_pod() {
        let place = Place::new("bad", "good");
        let (cache, _) = place.open();
        let installed = place
            .path("local")
            .join(package_path(ADDRESS, "1.0.0").unwrap());
        fs::create_dir_all(&installed).unwrap();
        fs::write(installed.join("terraform-provider-x"), "good").unwrap();
        cache.store_now();
        fs::remove_dir_all(place.path("local")).unwrap();
        assert_eq!(place.open().1.as_deref(), Some("good"));
    }

    #[test]
    fn unwritable_volume_is_no_failure() {
        let place = Place::new("good", "good");
        let (cache, _) = place.open();
        fs::remove_dir_all(place.path("volume")).unwrap();
        fs::write(place.path("volume"), "not a folder").unwrap();
        cache.store_now();
        fs::remove_dir_all(place.path("local")).unwrap();
        assert_eq!(place.open().1, None);
    }
}
