//! Writes a folder as a layer of an image. The same files always produce the same bytes.
//!
//! Format: <https://github.com/opencontainers/image-spec/blob/main/layer.md>.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use alustan_registry::{Digest, Hasher};
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, open, openat, readlinkat, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

/// Modification time of every entry: 2000-01-01, in seconds since 1970.
pub(super) const TIME: i64 = 946_684_800;
/// Name prefix of whiteouts: entries that delete files of lower layers instead of adding a file
/// (<https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>).
const WHITEOUT: &[u8] = b".wh.";
/// Maximum length of a path in the folder, in bytes. Limits the depth of the folders.
const MAX_PATH_BYTES: usize = 4096;
/// Flags with which files and folders are opened. A symbolic link is an error, and opening a named pipe does not block.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK);

/// Source folder of a layer, and its path in the image.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerContent<'a> {
    /// Folder with the files of the layer.
    pub(super) folder: &'a Path,
    /// Absolute path of the content in the image.
    pub(super) target: &'a Path,
    /// `target` or a parent folder of `target`: the topmost folder for which the layer contains an entry. The base image contains the
    /// parent folders of `made_from`.
    pub(super) made_from: &'a Path,
    /// Uid and gid of `target` and of every entry below `target`.
    pub(super) owner: u64,
}

/// Digests and size of a layer that was written to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Digest of the compressed tar archive.
    pub(super) digest: Digest,
    /// Digest of the uncompressed tar archive.
    pub(super) diff_id: Digest,
    /// Size of the compressed tar archive, in bytes.
    pub(super) size: u64,
}

/// Error of writing a layer.
#[derive(Debug, thiserror::Error)]
pub(super) enum LayerError {
    /// A file of the folder cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    /// The layer cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// The name of a file begins with `.wh.`, which marks a deleted file in a layer.
    #[error(
        "the name of {0} begins with .wh., which marks a deleted file in a container image: rename \
         the file"
    )]
    Whiteout(PathBuf),
    /// A file is neither regular, nor a folder, nor a symbolic link.
    #[error("{0} is not a regular file, folder or symbolic link: remove it")]
    Special(PathBuf),
}

/// Writes `content` as a gzip-compressed tar archive to the file `to`.
///
/// The entries of each folder are sorted by name. Files and folders have mode 0755 or 0644, and all entries have the time [`TIME`]. Symbolic
/// links are stored as links and never followed, even if another process replaces files during the write. Memory usage does not depend on
/// the size of the files.
///
/// # Errors
/// Returns [`LayerError::Read`], [`LayerError::Whiteout`] or [`LayerError::Special`] with the path of the file relative to the folder.
/// Returns [`LayerError::Write`] if the archive cannot be written, for example because the disk is full.
pub(super) fn write(content: LayerContent<'_>, to: &Path) -> Result<Written, LayerError> {
    let compressed = Hashing::new(BufWriter::new(File::create(to)?));
    let archive = Hashing::new(GzEncoder::new(compressed, Compression::fast()));
    let mut builder = Builder::new(archive);
    let parents = content.target.ancestors();
    let mut parents: Vec<&Path> = parents
        .take_while(|parent| parent.starts_with(content.made_from))
        .collect();
    parents.reverse();
    for parent in parents {
        let owner = if parent == content.target {
            content.owner
        } else {
            0
        };
        builder.append_data(
            &mut header(EntryType::Directory, 0o755, 0, owner),
            inside(parent),
            io::empty(),
        )?;
    }
    let unread = |error: Errno| LayerError::Read(content.folder.to_owned(), error.into());
    let folder = open(content.folder, FLAGS | OFlags::DIRECTORY, Mode::empty()).map_err(unread)?;
    append(&mut builder, content, &folder, Path::new(""))?;
    let (encoder, diff_id, _) = builder.into_inner()?.finish();
    let (file, digest, size) = encoder.finish()?.finish();
    file.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Written {
        digest,
        diff_id,
        size,
    })
}

/// Appends all files and folders in `folder` to the archive. `path`: path of `folder` relative to `content.folder`.
fn append(
    builder: &mut Builder<impl Write>,
    content: LayerContent<'_>,
    folder: &OwnedFd,
    path: &Path,
) -> Result<(), LayerError> {
    for name in names(folder).map_err(|error| LayerError::Read(path.to_owned(), error))? {
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        if name.to_bytes().starts_with(WHITEOUT) {
            return Err(LayerError::Whiteout(path));
        }
        let unread = |error: io::Error| LayerError::Read(path.clone(), error);
        let refused = |error: Errno| unread(error.into());
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(refused(Errno::NAMETOOLONG));
        }
        let open = |flags| openat(folder, &name, FLAGS | flags, Mode::empty()).map_err(refused);
        let target = inside(content.target).join(&path);
        let stat = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(refused)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let mut header = header(EntryType::Symlink, 0o777, 0, content.owner);
                let link = readlinkat(folder, &name, Vec::new()).map_err(refused)?;
                builder.append_link(&mut header, target, OsStr::from_bytes(link.to_bytes()))?;
            }
            FileType::Directory => {
                let mut header = header(EntryType::Directory, 0o755, 0, content.owner);
                builder.append_data(&mut header, target, io::empty())?;
                append(builder, content, &open(OFlags::DIRECTORY)?, &path)?;
            }
            FileType::RegularFile => {
                let mut file = Exact::new(open(OFlags::empty())?).map_err(unread)?;
                let mode = if file.is_executable { 0o755 } else { 0o644 };
                let mut header = header(EntryType::Regular, mode, file.left, content.owner);
                builder
                    .append_data(&mut header, target, &mut file)
                    .map_err(|error| match file.error.take() {
                        Some(error) => unread(error),
                        None => LayerError::Write(error),
                    })?;
            }
            _ => return Err(LayerError::Special(path)),
        }
    }
    Ok(())
}

/// Returns the names of all files and folders in `folder`, sorted.
fn names(folder: impl AsFd) -> io::Result<Vec<CString>> {
    let entries = Dir::read_from(folder)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let mut names = names.collect::<Result<Vec<_>, _>>()?;
    names.retain(|name| !matches!(name.to_bytes(), b"." | b".."));
    names.sort();
    Ok(names)
}

/// Returns `path` without the leading slash, as in tar archives.
fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn header(kind: EntryType, mode: u32, size: u64, owner: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mtime(TIME.unsigned_abs());
    header
}

/// Reader of a file up to the size that the file has when it is opened. Fails if the file becomes shorter. Ignores bytes that are added
/// later.
struct Exact {
    file: File,
    is_executable: bool,
    left: u64,
    /// Last error of reading the file; `None` if `append_data` failed to write. `append_data` returns the same type of error for reads and
    /// writes.
    error: Option<io::Error>,
}

impl Exact {
    /// Creates a reader of `file`.
    ///
    /// # Errors
    /// Fails if `file` is not a regular file: another process may have replaced it after [`append`] read its type.
    fn new(file: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("the file was replaced while it was read"));
        }
        Ok(Self {
            file: file.into(),
            is_executable: stat.st_mode & 0o111 != 0,
            left: stat.st_size.try_into().unwrap_or_default(),
            error: None,
        })
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = (&mut self.file).take(self.left).read(buffer)?;
        if read == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.try_read(buffer).inspect_err(|error| {
            let copy = error.raw_os_error().map(io::Error::from_raw_os_error);
            self.error = Some(copy.unwrap_or_else(|| error.kind().into()));
        })
    }
}

/// Writer that computes the digest and the number of the written bytes.
struct Hashing<W> {
    inner: W,
    hash: Hasher,
    size: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Hasher::sha256(),
            size: 0,
        }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.inner, self.hash.finish(), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use flate2::read::GzDecoder;
    use proptest::prelude::*;
    use rustix::fs::mkdirat;
    use tempfile::TempDir;

    use super::*;

    const OWNER: u64 = 65532;

    fn content(folder: &Path) -> LayerContent<'_> {
        LayerContent {
            folder,
            target: Path::new("/alustan/module"),
            made_from: Path::new("/alustan"),
            owner: OWNER,
        }
    }

    fn written(folder: &Path) -> (Written, Vec<u8>) {
        let out = TempDir::new().unwrap();
        let file = out.path().join("layer");
        let written = write(content(folder), &file).unwrap();
        (written, fs::read(file).unwrap())
    }

    /// Returns `kind mode uid mtime path -> link` for each entry of the layer, in the order of the archive.
    fn entries(layer: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(GzDecoder::new(layer));
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            format!(
                "{:?} {:o} {} {} {}{}",
                header.entry_type(),
                header.mode().unwrap(),
                header.uid().unwrap(),
                header.mtime().unwrap(),
                entry.path().unwrap().display(),
                entry
                    .link_name()
                    .unwrap()
                    .map(|link| format!(" -> {}", link.display()))
                    .unwrap_or_default()
            )
        });
        entries.collect()
    }

    #[test]
    fn layer_has_sorted_entries_with_fixed_metadata() {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        fs::write(path("sub/z.tf"), "z").unwrap();
        fs::write(path("run.sh"), "#!/bin/sh").unwrap();
        fs::set_permissions(path("run.sh"), Permissions::from_mode(0o500)).unwrap();
        fs::write(path("a.tf"), "a").unwrap();
        fs::set_permissions(path("a.tf"), Permissions::from_mode(0o600)).unwrap();
        symlink("/etc/passwd", path("link")).unwrap();
        let (written, bytes) = written(folder.path());
        assert_eq!(
            entries(&bytes),
            [
                "Directory 755 0 946684800 alustan",
                "Directory 755 65532 946684800 alustan/module",
                "Regular 644 65532 946684800 alustan/module/a.tf",
                "Symlink 777 65532 946684800 alustan/module/link -> /etc/passwd",
                "Regular 755 65532 946684800 alustan/module/run.sh",
                "Directory 755 65532 946684800 alustan/module/sub",
                "Regular 644 65532 946684800 alustan/module/sub/z.tf",
            ]
        );
        let mut tar = Vec::new();
        GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut tar)
            .unwrap();
        assert_eq!(written.digest, Digest::of(&bytes));
        assert_eq!(written.diff_id, Digest::of(&tar));
        assert_eq!(written.size, bytes.len() as u64);
    }

    #[test]
    fn names_of_any_length_are_kept() {
        let folder = TempDir::new().unwrap();
        let deep = folder.path().join("d".repeat(120)).join("e".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("f"), "").unwrap();
        symlink("t".repeat(300), folder.path().join("z")).unwrap();
        let (_, bytes) = written(folder.path());
        let entries = entries(&bytes);
        let [.., file, link] = entries.as_slice() else {
            panic!("{entries:?}")
        };
        let path = format!("{}/{}/f", "d".repeat(120), "e".repeat(120));
        assert!(file.ends_with(&path), "{file}");
        assert!(link.ends_with(&"t".repeat(300)), "{link}");
    }

    #[test]
    fn whiteouts_and_special_files_are_refused_by_path() {
        for name in [".wh.main.tf", ".wh..wh..opq"] {
            let folder = TempDir::new().unwrap();
            fs::create_dir(folder.path().join("sub")).unwrap();
            fs::write(folder.path().join("sub").join(name), "").unwrap();
            let refused = write(content(folder.path()), &folder.path().join("layer"));
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(&format!(" sub/{name} ")), "{text}");
        }
        let folder = TempDir::new().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        let out = TempDir::new().unwrap();
        let refused = write(content(folder.path()), &out.path().join("layer")).unwrap_err();
        assert!(matches!(refused, LayerError::Special(path) if path == Path::new("s")));
    }

    #[test]
    fn full_disk_is_reported_as_such() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("a.tf"), "a".repeat(1 << 20)).unwrap();
        let refused = write(content(folder.path()), Path::new("/dev/full")).unwrap_err();
        let LayerError::Write(error) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn file_that_shrinks_is_an_error() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "long text").unwrap();
        let mut file = Exact::new(File::open(&path).unwrap().into()).unwrap();
        fs::write(&path, "short").unwrap();
        let error = io::copy(&mut file, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(file.error.is_some());
    }

    /// Another process replaces a folder by a symbolic link while the layer is written. The layer must not contain the target of the link.
    #[test]
    fn folder_that_becomes_a_link_is_not_followed() {
        let secret = TempDir::new().unwrap();
        fs::write(secret.path().join("config.json"), "password").unwrap();
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("real")).unwrap();
        symlink(secret.path(), path("link")).unwrap();
        let is_over = AtomicBool::new(false);
        let swap = |name: &str| {
            fs::rename(path(name), path("sub")).unwrap();
            fs::rename(path("sub"), path(name)).unwrap();
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    swap("real");
                    swap("link");
                }
            });
            let is_followed = (0..300).any(|_| {
                let out = TempDir::new().unwrap();
                let file = out.path().join("layer");
                let written = write(content(folder.path()), &file).is_ok();
                let layer_entries = written.then(|| entries(&fs::read(file).unwrap()));
                let mut layer_entries = layer_entries.into_iter().flatten();
                layer_entries.any(|entry| entry.contains("config.json"))
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(!is_followed);
        });
    }

    #[test]
    fn folder_deeper_than_the_longest_path_is_refused() {
        let root = TempDir::new().unwrap();
        let mut folder = open(root.path(), FLAGS | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let name = "d".repeat(200);
        for _ in 0..=MAX_PATH_BYTES / name.len() {
            mkdirat(&folder, &name, Mode::from(0o755)).unwrap();
            folder = openat(&folder, &name, FLAGS | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let out = TempDir::new().unwrap();
        let refused = write(content(root.path()), &out.path().join("layer")).unwrap_err();
        assert!(matches!(refused, LayerError::Read(..)), "{refused:?}");
    }

    proptest! {
        #[test]
        fn same_files_make_the_same_layer(
            files in proptest::collection::btree_map("[a-z]{1,3}(/[a-z]{4,6}){0,2}", any::<Vec<u8>>(), 0..8),
        ) {
            let made = |files: &BTreeMap<String, Vec<u8>>, backwards: bool| {
                let folder = TempDir::new().unwrap();
                let mut files: Vec<_> = files.iter().collect();
                if backwards {
                    files.reverse();
                }
                for (name, bytes) in files {
                    let path = folder.path().join(name);
                    if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                        fs::write(path, bytes).unwrap();
                    }
                }
                written(folder.path()).0
            };
            let files: BTreeMap<_, _> = files
                .iter()
                .filter(|(name, _)| !files.keys().any(|other| other.starts_with(&format!("{name}/"))))
                .map(|(name, bytes)| (name.clone(), bytes.clone()))
                .collect();
            prop_assert_eq!(made(&files, false), made(&files, true));
        }
    }
}
