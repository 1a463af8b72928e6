//! Packs selected files into the tar.gz of a context. Git writes the files to a pipe, and the context is written to a file, so that neither is in
//! memory.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use super::collect::RepositoryCall;
use crate::{
    closure::Selection,
    error::Error,
    git::{Bounds, session::cache_error},
    module,
    packed::{self, PackedContext},
    tree::{Entry, Kind},
};

/// Maximum length of the line before a content in the output of `git cat-file --batch`, in bytes.
const HEAD: u64 = 256;

impl RepositoryCall<'_> {
    /// Packs the files of `selection` into a file in `folder`.
    pub(super) async fn pack(
        &self,
        selection: Selection,
        folder: &Path,
    ) -> Result<(Selection, PackedContext), Error> {
        let mut input = Vec::new();
        for entry in selection.entries.values() {
            input.extend_from_slice(entry.object.as_bytes());
            input.push(b'\n');
        }
        let bounds = Bounds {
            time: self.options.pack_timeout,
            stdout: 0,
            memory: self.size.process(),
        };
        let folder = folder.to_owned();
        let read = move |stdout| match pack(&selection, BufReader::new(stdout), &folder) {
            Ok(packed) => Ok(Some((selection, packed))),
            Err(error) if is_malformed(&error) => Ok(None),
            Err(error) => Err(cache_error("pack a context in", &folder, error)),
        };
        let session = self.session.get().await?;
        let arguments = ["cat-file", "--batch"];
        session
            .git_into(
                self.repository,
                "read files of",
                &arguments,
                input,
                bounds,
                read,
            )
            .await?
            .ok_or_else(|| self.nonsense())
    }
}

/// Packs the files of `selection`. `output`: output of `git cat-file --batch` for their objects. See
/// <https://git-scm.com/docs/git-cat-file#_batch_output>.
fn pack(
    selection: &Selection,
    mut output: impl BufRead,
    folder: &Path,
) -> io::Result<PackedContext> {
    packed::pack(folder, |archive| {
        for (path, entry) in &selection.entries {
            read_head(&mut output, entry)?;
            match entry.kind {
                Kind::File { executable } => {
                    archive.add_file(path, executable, entry.size, &mut output)?;
                }
                Kind::Link => archive.add_link(path, &read_target(&mut output, entry.size)?)?,
                Kind::Submodule => return Err(malformed("a submodule has no content")),
            }
            let mut end = [0];
            output.read_exact(&mut end)?;
        }
        Ok(())
    })
}

/// Reads the line `<object> <type> <size>`. Fails if object or size are not those of `entry`: the limits of a context apply to the size of `entry`.
fn read_head(output: &mut impl BufRead, entry: &Entry) -> io::Result<()> {
    let mut line = Vec::new();
    output.take(HEAD).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let expected = format!("{} blob {}\n", entry.object, entry.size);
    if line != expected.as_bytes() {
        return Err(malformed("an object is missing or has another size"));
    }
    Ok(())
}

/// Reads the target of a symbolic link of `size` bytes.
fn read_target(output: &mut impl BufRead, size: u64) -> io::Result<String> {
    if size > module::facts::PATH as u64 {
        return Err(malformed("the target of a symbolic link is too long"));
    }
    let mut target = String::new();
    output.take(size).read_to_string(&mut target)?;
    Ok(target)
}

/// Whether `error` means that the output of git is malformed or incomplete.
fn is_malformed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::{UnpackLimits, unpack};

    fn selection(entries: &[(&str, Kind, &str, u64)]) -> Selection {
        let entries = entries.iter().map(|(path, kind, object, size)| {
            let entry = Entry {
                kind: *kind,
                object: (*object).to_owned(),
                size: *size,
            };
            ((*path).to_owned(), entry)
        });
        Selection {
            entries: entries.collect(),
            submodules: Vec::new(),
            backend: None,
            whole: None,
        }
    }

    const FILE: Kind = Kind::File { executable: false };

    #[test]
    fn files_and_links_are_packed_from_a_stream() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("a", FILE, "aa", 3),
            ("b", FILE, "aa", 3),
            ("c", Kind::Link, "cc", 1),
        ];
        let output = &b"aa blob 3\nx\ny\naa blob 3\nx\ny\ncc blob 1\na\n"[..];
        let packed = pack(&selection(&files), output, folder.path()).unwrap();
        let bytes = std::fs::read(&packed.file).unwrap();
        assert_eq!(packed.size, bytes.len() as u64);
        assert_eq!(packed.digest, crate::ContextDigest::of(&bytes));
        let target = tempfile::tempdir().unwrap();
        unpack(bytes.as_slice(), target.path(), &UnpackLimits::default()).unwrap();
        for path in ["a", "b", "c"] {
            assert_eq!(std::fs::read(target.path().join(path)).unwrap(), b"x\ny");
        }
        drop(packed);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn unexpected_output_of_git_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (("a", FILE, "aa", 3), ("a", Kind::Link, "aa", 1 << 20));
        let endless = vec![b'x'; 1 << 20];
        let cases = [
            (file, &b"aa missing\n"[..]),
            (file, b"bb blob 3\nabc\n"),
            (file, b"aa blob 4\nabcd\n"),
            (file, b"aa tree 3\nabc\n"),
            (file, b"aa blob 3\nab"),
            (file, b"aa blob 3\nabc"),
            (file, b""),
            (file, endless.as_slice()),
            (link, b"aa blob 1048576\n"),
        ];
        for (entry, output) in cases {
            let error = pack(&selection(&[entry]), output, folder.path())
                .err()
                .unwrap();
            let kinds = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
