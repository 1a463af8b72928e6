//! Unpacks a context in the build pod. The context is untrusted: no entry may be written outside of the target folder.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Read},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Component, Path, PathBuf},
};

use alustan_api::Reason;
use flate2::read::GzDecoder;
use tar::{Archive, Entry, EntryType};

/// Maximum size of a path in a context, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 1024;

/// Limits of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Maximum size of all files, in bytes.
    pub bytes: u64,
    /// Maximum total number of entries and of parent folders that are created for the entries.
    pub entries: u64,
}

impl Default for UnpackLimits {
    /// Returns 256 MiB and 50,000 entries: not less than the limits of [`CacheOptions`](crate::CacheOptions) for packing a context.
    fn default() -> Self {
        Self {
            bytes: 256 * 1024 * 1024,
            entries: 50_000,
        }
    }
}

/// Reasons for which an archive was not unpacked. Files written before the failure stay and must not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The archive is damaged or is not a tar.gz.
    #[error("the context is not a valid tar.gz archive")]
    Damaged(#[source] io::Error),
    /// The archive has an entry whose type, path or link target is not allowed in a context.
    #[error("the context contains the invalid entry `{entry}`, which {why}")]
    Refused {
        /// Path of the entry, at most 1 024 characters, escaped.
        entry: String,
        /// Reason for which the entry is refused.
        why: &'static str,
    },
    /// The archive exceeds a limit.
    #[error("the context contains more than {limit} {unit}")]
    TooLarge {
        /// Limit, in `unit`.
        limit: u64,
        /// Unit of the limit: `bytes` or `entries`.
        unit: &'static str,
    },
    /// A file, folder or link cannot be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// Local path.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl UnpackError {
    /// Returns the reason for conditions, events and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Damaged(_) => Reason::ContextDamaged,
            Self::Refused { .. } => Reason::ContextRefused,
            Self::TooLarge { .. } => Reason::ContextTooLarge,
            Self::Write { .. } => Reason::ContextWriteFailed,
        }
    }
}

/// Unpacks a tar.gz into `dest`, which must exist and should be empty. Blocks the current thread.
///
/// Permits only files, folders and relative symbolic links. Links are created last, so that nothing is written through a link. The target of each
/// link must be inside of `dest`. Existing files are never overwritten.
///
/// # Errors
/// [`UnpackError`]. After an error, `dest` may contain a part of the archive.
pub fn unpack(reader: impl Read, dest: &Path, limits: &UnpackLimits) -> Result<(), UnpackError> {
    let dest = dest
        .canonicalize()
        .map_err(|source| write_error(dest, source))?;
    // The limit includes the tar headers, because the tar reader reads long names into memory.
    let most = limits
        .bytes
        .saturating_add(limits.entries.saturating_mul(4096))
        .saturating_add(1 << 20);
    let mut unpacking = Unpacking {
        dest,
        limits: *limits,
        bytes: 0,
        entries: 0,
        links: Vec::new(),
    };
    let mut archive = Archive::new(GzDecoder::new(reader).take(most));
    for entry in archive.entries().map_err(UnpackError::Damaged)? {
        unpacking.entry(entry.map_err(UnpackError::Damaged)?)?;
    }
    unpacking.make_links()
}

struct Unpacking {
    dest: PathBuf,
    limits: UnpackLimits,
    bytes: u64,
    entries: u64,
    /// Path and target of each symbolic link. Links are created after all files.
    links: Vec<(PathBuf, PathBuf)>,
}

impl Unpacking {
    fn entry(&mut self, mut entry: Entry<'_, impl Read>) -> Result<(), UnpackError> {
        self.count_entry()?;
        let path = entry.path().map_err(UnpackError::Damaged)?.into_owned();
        check_path(&path)?;
        match entry.header().entry_type() {
            EntryType::Directory => self.make_folder(&path),
            EntryType::Regular => self.write_file(&path, &mut entry),
            EntryType::Symlink => self.keep_link(path, &entry),
            EntryType::Link => Err(refused(&path, "is a hard link")),
            _ => Err(refused(
                &path,
                "is not a regular file, folder or symbolic link",
            )),
        }
    }

    fn count_entry(&mut self) -> Result<(), UnpackError> {
        self.entries += 1;
        let limit = self.limits.entries;
        if self.entries > limit {
            Err(UnpackError::TooLarge {
                limit,
                unit: "entries",
            })
        } else {
            Ok(())
        }
    }

    /// Creates a folder and its parents. Counts each created folder as an entry of the archive. Refuses a path on which a symbolic link or a file
    /// exists.
    fn make_folder(&mut self, path: &Path) -> Result<(), UnpackError> {
        let mut folder = self.dest.clone();
        for part in path.components() {
            folder.push(part);
            match fs::symlink_metadata(&folder) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => return Err(refused(path, "has a parent that is not a folder")),
                Err(_) => {
                    self.count_entry()?;
                    create_folder(&folder).map_err(|source| write_error(&folder, source))?;
                }
            }
        }
        Ok(())
    }

    fn write_file(
        &mut self,
        path: &Path,
        entry: &mut Entry<'_, impl Read>,
    ) -> Result<(), UnpackError> {
        self.make_folder(path.parent().unwrap_or_else(|| Path::new("")))?;
        let target = self.dest.join(path);
        let executable = entry.header().mode().map_err(UnpackError::Damaged)? & 0o100 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&target)
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => refused(path, "already exists"),
                _ => write_error(&target, source),
            })?;
        let (limit, remaining) = (self.limits.bytes, self.limits.bytes - self.bytes);
        self.bytes += copy(
            &mut entry.take(remaining.saturating_add(1)),
            &mut file,
            UnpackError::Damaged,
            |source| write_error(&target, source),
        )?;
        if self.bytes > limit {
            return Err(UnpackError::TooLarge {
                limit,
                unit: "bytes",
            });
        }
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(|source| write_error(&target, source))
    }

    fn keep_link(
        &mut self,
        path: PathBuf,
        entry: &Entry<'_, impl Read>,
    ) -> Result<(), UnpackError> {
        let target = entry.link_name().map_err(UnpackError::Damaged)?;
        let target = target
            .ok_or_else(|| refused(&path, "is a symbolic link without target"))?
            .into_owned();
        if target.is_absolute() {
            return Err(refused(&path, "is a symbolic link to an absolute path"));
        }
        self.links.push((path, target));
        Ok(())
    }

    /// Creates all links, then resolves each link with the kernel. After an error, for example a target outside of `dest`, removes all
    /// links.
    fn make_links(&mut self) -> Result<(), UnpackError> {
        let links = std::mem::take(&mut self.links);
        let made = links
            .iter()
            .try_for_each(|(path, target)| self.make_link(path, target));
        let outcome =
            made.and_then(|()| links.iter().try_for_each(|(path, _)| self.check_link(path)));
        if outcome.is_err() {
            for (path, _) in &links {
                let path = self.dest.join(path);
                if path.is_symlink() {
                    // Ignores an error: the first error is returned, and `dest` must not be used after an error.
                    let _ = fs::remove_file(path);
                }
            }
        }
        outcome
    }

    fn make_link(&mut self, path: &Path, target: &Path) -> Result<(), UnpackError> {
        self.make_folder(path.parent().unwrap_or_else(|| Path::new("")))?;
        let place = self.dest.join(path);
        symlink(target, &place).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => refused(path, "already exists"),
            _ => write_error(&place, source),
        })
    }

    fn check_link(&self, path: &Path) -> Result<(), UnpackError> {
        match self.dest.join(path).canonicalize() {
            Ok(end) if end.starts_with(&self.dest) => Ok(()),
            Ok(_) => Err(refused(
                path,
                "is a symbolic link to a target outside of the context",
            )),
            Err(_) => Err(refused(path, "is a dangling symbolic link")),
        }
    }
}

/// Creates a folder that all users can read, independent of the umask.
fn create_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Permits only relative paths without `.` and `..`, with at least one name and at most [`MAX_PATH_BYTES`] bytes.
fn check_path(path: &Path) -> Result<(), UnpackError> {
    if path.as_os_str().len() > MAX_PATH_BYTES {
        return Err(refused(path, "has a path longer than 1024 bytes"));
    }
    let names = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    if !names || path.as_os_str().is_empty() {
        return Err(refused(path, "is not a path inside the context"));
    }
    Ok(())
}

/// Copies `from` to `to`. Returns the number of bytes, or the error that `read_error` or `write_error` makes of an error.
pub(crate) fn copy<E>(
    from: &mut impl Read,
    to: &mut impl io::Write,
    read_error: impl Fn(io::Error) -> E,
    write_error: impl Fn(io::Error) -> E,
) -> Result<u64, E> {
    let mut chunk = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        let read = from.read(&mut chunk).map_err(&read_error)?;
        if read == 0 {
            return Ok(total);
        }
        total += read as u64;
        to.write_all(chunk.get(..read).unwrap_or_default())
            .map_err(&write_error)?;
    }
}

fn refused(path: &Path, why: &'static str) -> UnpackError {
    let path = path.display().to_string();
    let beginning: String = path.chars().take(MAX_PATH_BYTES).collect();
    UnpackError::Refused {
        entry: beginning.escape_debug().to_string(),
        why,
    }
}

fn write_error(path: &Path, source: io::Error) -> UnpackError {
    UnpackError::Write {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
