//! Packs a context into a tar.gz. The bytes depend only on the paths, the contents, the executable bits and the link targets.

use std::io::{self, Read, Write};

use flate2::{Compression, GzBuilder, write::GzEncoder};
use tar::{Builder, EntryType, Header};

/// Compression level. A change of the level changes the digest of every context.
const LEVEL: Compression = Compression::new(6);
/// Operating system `unknown` in the gzip header, so that the bytes do not depend on the platform.
const OPERATING_SYSTEM: u8 = 255;

/// Writes a context to `W` as a stream. The entries must be added in the order of their paths.
pub(crate) struct Archive<W: Write>(Builder<GzEncoder<W>>);

impl<W: Write> Archive<W> {
    pub(crate) fn new(output: W) -> Self {
        let gzip = GzBuilder::new().mtime(0).operating_system(OPERATING_SYSTEM);
        Self(Builder::new(gzip.write(output, LEVEL)))
    }

    /// Adds a file with the next `size` bytes of `content`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if `content` is shorter.
    pub(crate) fn add_file(
        &mut self,
        path: &str,
        executable: bool,
        size: u64,
        content: impl Read,
    ) -> io::Result<()> {
        let mut header = header(EntryType::Regular, if executable { 0o755 } else { 0o644 });
        header.set_size(size);
        let mut content = content.take(size);
        self.0.append_data(&mut header, path, &mut content)?;
        if content.limit() > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    pub(crate) fn add_link(&mut self, path: &str, target: &str) -> io::Result<()> {
        let mut header = header(EntryType::Symlink, 0o777);
        header.set_size(0);
        self.0.append_link(&mut header, path, target)
    }

    /// Writes the end of the archive.
    pub(crate) fn finish(self) -> io::Result<W> {
        let mut gzip = self.0.into_inner()?;
        gzip.flush()?;
        gzip.finish()
    }
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextDigest;
    use crate::unpack::{UnpackLimits, unpack};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn packed(files: &BTreeMap<String, (bool, Vec<u8>)>) -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        for (path, (executable, content)) in files {
            let size = content.len() as u64;
            archive
                .add_file(path, *executable, size, content.as_slice())
                .unwrap();
        }
        archive.finish().unwrap()
    }

    fn link(path: &str, target: &str) -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.add_link(path, target).unwrap();
        archive.finish().unwrap()
    }

    /// Asserts the digest of a packed context, because a change of the bytes would rebuild the images of all users.
    #[test]
    fn archive_bytes_are_reproducible() {
        let files = BTreeMap::from([
            (
                "a/main.tf".to_owned(),
                (false, b"resource \"null_resource\" \"x\" {}\n".repeat(50)),
            ),
            ("run.sh".to_owned(), (true, b"#!/bin/sh\n".to_vec())),
        ]);
        let mut bytes = packed(&files);
        assert_eq!(bytes, packed(&files));
        assert_eq!(
            bytes.get(4..10),
            Some(&[0, 0, 0, 0, 0, 255][..]),
            "no time, no system"
        );
        bytes.extend(link("l", "a/main.tf"));
        assert_eq!(
            ContextDigest::of(&bytes).as_str(),
            "sha256:f2362c128501789bab97a2fdfa706a231f1df63ab8f9a844df825698c9a47be0"
        );
    }

    /// A reader that returns a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = self.1 % 7_919 + 1_013;
            let length = self.1.min(buffer.len());
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn archive_bytes_are_independent_of_the_size_of_reads() {
        let content: Vec<u8> = (0..3_000_000_u32)
            .map(|n| ((n / 3) ^ (n.wrapping_mul(2_654_435_761) >> 29)).to_le_bytes()[0])
            .collect();
        let size = content.len() as u64;
        let mut archive = Archive::new(Vec::new());
        let reader = Trickle(&content, 0);
        archive.add_file("a", false, size, reader).unwrap();
        let files = BTreeMap::from([("a".to_owned(), (false, content))]);
        let bytes = packed(&files);
        assert!(archive.finish().unwrap() == bytes);
        assert_eq!(
            ContextDigest::of(&bytes).as_str(),
            "sha256:0b04f596c1af61d2b09aa97527b757c62006961a72a6678a505f730a697216bd"
        );
    }

    #[test]
    fn content_that_ends_early_is_an_error() {
        let mut archive = Archive::new(Vec::new());
        let error = archive.add_file("a", false, 2, &b"x"[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn long_names_and_link_targets_are_preserved() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("{}/x", vec!["a".repeat(100); 5].join("/"));
        let mut archive = Archive::new(Vec::new());
        archive.add_file(&long, true, 1, &b"x"[..]).unwrap();
        archive.add_link("l", &long).unwrap();
        let bytes = archive.finish().unwrap();
        unpack(bytes.as_slice(), folder.path(), &UnpackLimits::default()).unwrap();
        assert_eq!(std::fs::read(folder.path().join("l")).unwrap(), b"x");
    }

    proptest! {
        #[test]
        fn packed_files_are_unpacked_unchanged(
            files in proptest::collection::btree_map("[a-z]{1,8}(/[a-z ü.]{1,8}x){0,3}", (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..64)), 0..8),
        ) {
            let clash = files.keys().any(|a| files.keys().any(|b| b.starts_with(&format!("{a}/"))));
            prop_assume!(!clash);
            let folder = tempfile::tempdir().unwrap();
            unpack(packed(&files).as_slice(), folder.path(), &UnpackLimits::default()).unwrap();
            for (path, (executable, content)) in &files {
                use std::os::unix::fs::PermissionsExt as _;
                let path = folder.path().join(path);
                prop_assert_eq!(&std::fs::read(&path).unwrap(), content);
                let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                prop_assert_eq!(mode, if *executable { 0o755 } else { 0o644 });
            }
        }
    }
}
