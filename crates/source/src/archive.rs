//! Packs a context into a tar.gz. The bytes depend only on the paths, the contents, the executable bits and the link targets. Performs no I/O.

use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder, write::GzEncoder};
use tar::{Builder, EntryType, Header};

/// An entry of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    File { executable: bool, content: &'a [u8] },
    Link { target: &'a str },
}

/// Compression level. A change of the level changes the digest of every context.
const LEVEL: Compression = Compression::new(6);
/// Operating system `unknown` in the gzip header, so that the bytes do not depend on the platform.
const OPERATING_SYSTEM: u8 = 255;

/// Packs entries into a tar.gz. The entries must be sorted by path.
pub(crate) fn pack<'a>(entries: impl Iterator<Item = (&'a str, Item<'a>)>) -> io::Result<Vec<u8>> {
    let gzip = GzBuilder::new().mtime(0).operating_system(OPERATING_SYSTEM);
    let mut archive = Builder::new(gzip.write(Vec::new(), LEVEL));
    for (path, item) in entries {
        append(&mut archive, path, item)?;
    }
    let mut gzip = archive.into_inner()?;
    gzip.flush()?;
    gzip.finish()
}

fn append(archive: &mut Builder<GzEncoder<Vec<u8>>>, path: &str, item: Item<'_>) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    match item {
        Item::File {
            executable,
            content,
        } => {
            header.set_entry_type(EntryType::Regular);
            header.set_mode(if executable { 0o755 } else { 0o644 });
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, path, content)
        }
        Item::Link { target } => {
            header.set_entry_type(EntryType::Symlink);
            header.set_mode(0o777);
            header.set_size(0);
            archive.append_link(&mut header, path, target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextDigest;
    use crate::unpack::{UnpackLimits, unpack};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn packed(files: &BTreeMap<String, (bool, Vec<u8>)>) -> Vec<u8> {
        let entries = files.iter().map(|(path, (executable, content))| {
            (
                path.as_str(),
                Item::File {
                    executable: *executable,
                    content,
                },
            )
        });
        pack(entries).unwrap()
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
        bytes.extend(
            pack(
                [(
                    "l",
                    Item::Link {
                        target: "a/main.tf",
                    },
                )]
                .into_iter(),
            )
            .unwrap(),
        );
        assert_eq!(
            ContextDigest::of(&bytes).as_str(),
            "sha256:f2362c128501789bab97a2fdfa706a231f1df63ab8f9a844df825698c9a47be0"
        );
    }

    #[test]
    fn long_names_and_link_targets_are_preserved() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("{}/x", vec!["a".repeat(100); 5].join("/"));
        let mut entries = [
            ("l", Item::Link { target: &long }),
            (
                long.as_str(),
                Item::File {
                    executable: true,
                    content: b"x",
                },
            ),
        ]
        .to_vec();
        entries.sort_by_key(|(path, _)| *path);
        let bytes = pack(entries.into_iter()).unwrap();
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
