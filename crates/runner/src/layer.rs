//! Writes a folder as a layer of an image. The same files always produce the same bytes.
//!
//! Format: <https://github.com/opencontainers/image-spec/blob/main/layer.md>.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use alustan_registry::{Digest, Hasher};
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};

/// Modification time of every entry: 2000-01-01, in seconds since 1970.
pub const TIME: i64 = 946_684_800;
/// Name prefix of whiteouts: entries that delete files of lower layers instead of adding a file
/// (<https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts>).
const WHITEOUT: &[u8] = b".wh.";

/// Source folder of a layer, and its path in the image.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// Folder with the files of the layer.
    pub folder: &'a Path,
    /// Absolute path of the content in the image.
    pub target: &'a Path,
    /// Topmost folder for which the layer has an entry: `target` or a folder above it. The base image has the folders above.
    pub made_from: &'a Path,
    /// User and group of every entry.
    pub owner: u64,
}

/// A layer on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Digest of the compressed tar archive.
    pub digest: Digest,
    /// Digest of the uncompressed tar archive.
    pub diff_id: Digest,
    /// Size of the compressed tar archive, in bytes.
    pub size: u64,
}

/// Error of writing a layer.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
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
/// Entries are sorted by path, have mode 0755 or 0644 and the time [`TIME`]. Symbolic links stay links and are never followed. Memory
/// usage does not depend on the size of the files.
///
/// # Errors
/// [`LayerError::Read`], [`LayerError::Whiteout`] and [`LayerError::Special`] with the path below the folder;
/// [`LayerError::Write`] if the disk is full, for example.
pub fn write(content: Content<'_>, to: &Path) -> Result<Written, LayerError> {
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
    append(&mut builder, content, Path::new(""))?;
    let (encoder, diff_id, _) = builder.into_inner()?.finish();
    let (file, digest, size) = encoder.finish()?.finish();
    file.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Written {
        digest,
        diff_id,
        size,
    })
}

/// Appends all files and folders below `path`, which is relative to `content.folder`.
fn append(
    builder: &mut Builder<impl Write>,
    content: Content<'_>,
    path: &Path,
) -> Result<(), LayerError> {
    let unread = |error| LayerError::Read(path.to_owned(), error);
    let entries = fs::read_dir(content.folder.join(path)).map_err(unread)?;
    let mut names: Vec<_> = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()
        .map_err(unread)?;
    names.sort();
    for name in names {
        let path = path.join(&name);
        if name.as_bytes().starts_with(WHITEOUT) {
            return Err(LayerError::Whiteout(path));
        }
        let source = content.folder.join(&path);
        let target = inside(content.target).join(&path);
        let unread = |error| LayerError::Read(path.clone(), error);
        let found = fs::symlink_metadata(&source).map_err(unread)?;
        let kind = found.file_type();
        if kind.is_symlink() {
            let mut header = header(EntryType::Symlink, 0o777, 0, content.owner);
            let link = fs::read_link(&source).map_err(unread)?;
            builder.append_link(&mut header, target, link)?;
        } else if kind.is_dir() {
            let mut header = header(EntryType::Directory, 0o755, 0, content.owner);
            builder.append_data(&mut header, target, io::empty())?;
            append(builder, content, &path)?;
        } else if kind.is_file() {
            let executable = found.permissions().mode() & 0o111 != 0;
            let mode = if executable { 0o755 } else { 0o644 };
            let mut header = header(EntryType::Regular, mode, found.len(), content.owner);
            let mut file = Exact::open(&source, found.len()).map_err(unread)?;
            builder
                .append_data(&mut header, target, &mut file)
                .map_err(|error| match file.error.take() {
                    Some(error) => unread(error),
                    None => LayerError::Write(error),
                })?;
        } else {
            return Err(LayerError::Special(path));
        }
    }
    Ok(())
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

/// Reads a file of a known size; fails if the file is shorter, and ignores the rest if it is longer.
struct Exact {
    file: File,
    left: u64,
    /// Last error of reading the file. `append_data` returns errors of reads and of writes alike; this field distinguishes them.
    error: Option<io::Error>,
}

impl Exact {
    fn open(path: &Path, size: u64) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        Ok(Self {
            file,
            left: size,
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

/// Writer that hashes and counts the bytes that it writes.
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
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;

    use flate2::read::GzDecoder;
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    const OWNER: u64 = 65532;

    fn content(folder: &Path) -> Content<'_> {
        Content {
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

    /// `kind mode uid mtime path -> link` of each entry, in order.
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
        fs::write(&path, "short").unwrap();
        let mut file = Exact::open(&path, 9).unwrap();
        let error = io::copy(&mut file, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(file.error.is_some());
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
