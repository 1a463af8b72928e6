//! Tests with archives that a correct controller never creates.

use super::*;
use crate::archive::Archive;
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use rstest::rstest;
use std::collections::BTreeSet;
use std::io::Write as _;

/// A tar entry whose header contains `name` unchanged, for example `../x`. `tar::Builder` refuses such names.
struct Raw {
    kind: EntryType,
    name: &'static str,
    target: &'static str,
    content: Vec<u8>,
    size: Option<u64>,
}

fn file(name: &'static str) -> Raw {
    Raw {
        kind: EntryType::Regular,
        name,
        target: "",
        content: b"evil".to_vec(),
        size: None,
    }
}

fn link(name: &'static str, target: &'static str) -> Raw {
    Raw {
        kind: EntryType::Symlink,
        name,
        target,
        content: Vec::new(),
        size: None,
    }
}

fn archive(entries: &[Raw]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.as_mut_bytes()[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        header.as_mut_bytes()[157..157 + entry.target.len()]
            .copy_from_slice(entry.target.as_bytes());
        header.set_entry_type(entry.kind);
        header.set_mode(0o4777);
        header.set_size(entry.size.unwrap_or(entry.content.len() as u64));
        header.set_cksum();
        gzip.write_all(header.as_bytes()).unwrap();
        gzip.write_all(&entry.content).unwrap();
        gzip.write_all(&vec![0; (512 - entry.content.len() % 512) % 512])
            .unwrap();
    }
    gzip.write_all(&[0; 1024]).unwrap();
    gzip.finish().unwrap()
}

/// Unpacks into `<temp>/in`. Returns the reason of the error, or `ok`. Asserts that no file appears outside of `<temp>/in`.
fn attempt_with(entries: &[Raw], limits: UnpackLimits) -> (&'static str, tempfile::TempDir) {
    let temp = tempfile::tempdir().unwrap();
    let dest = temp.path().join("in");
    fs::create_dir(&dest).unwrap();
    fs::write(temp.path().join("secret"), "untouched").unwrap();
    let outcome = unpack(archive(entries).as_slice(), &dest, &limits);
    let names: Vec<_> = fs::read_dir(temp.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "something was written outside: {names:?}");
    assert_eq!(fs::read(temp.path().join("secret")).unwrap(), b"untouched");
    (
        outcome.err().map_or("ok", |error| error.reason().as_str()),
        temp,
    )
}

fn attempt(entries: &[Raw]) -> &'static str {
    attempt_with(entries, UnpackLimits::default()).0
}

#[rstest]
#[case::parent(file("../x"))]
#[case::parent_deeper(file("a/../../x"))]
#[case::parent_alone(file(".."))]
#[case::root(file("/tmp/alustan-unpack-x"))]
#[case::dot_first(file("./../x"))]
#[case::hard_link(Raw { kind: EntryType::Link, target: "../secret", ..file("x") })]
#[case::inner_hard_link(Raw { kind: EntryType::Link, target: "y", ..file("x") })]
#[case::character_device(Raw { kind: EntryType::Char, ..file("x") })]
#[case::block_device(Raw { kind: EntryType::Block, ..file("x") })]
#[case::fifo(Raw { kind: EntryType::Fifo, ..file("x") })]
#[case::absolute_link(link("x", "/etc/passwd"))]
#[case::link_up(link("x", "../secret"))]
#[case::link_to_parent(link("x", ".."))]
#[case::link_to_nothing(link("x", "y"))]
#[case::link_to_itself(link("x", "x"))]
#[case::link_without_target(link("x", ""))]
fn unsafe_entry_is_refused(#[case] entry: Raw) {
    assert_eq!(attempt(&[entry]), "ContextRefused");
}

#[test]
fn nothing_is_written_through_a_link() {
    assert_eq!(attempt(&[link("d", ".."), file("d/x")]), "ContextRefused");
    assert_eq!(
        attempt(&[link("d", "../.."), file("d/x")]),
        "ContextRefused"
    );
    assert_eq!(
        attempt(&[file("real/f"), link("d", "real"), file("d/x")]),
        "ContextRefused"
    );
}

#[test]
fn links_that_escape_in_combination_are_refused() {
    // `a/b/up` points to the target folder. `a/b/up/../secret` is therefore outside of the target folder, although the path seems to be inside.
    let entries = [
        file("a/b/f"),
        link("a/b/up", "../.."),
        link("out", "a/b/up/../secret"),
    ];
    let (reason, temp) = attempt_with(&entries, UnpackLimits::default());
    assert_eq!(reason, "ContextRefused");
    assert!(
        !temp.path().join("in/out").is_symlink(),
        "no link survives the refusal"
    );
}

#[test]
fn existing_link_in_the_target_folder_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let dest = temp.path().join("in");
    fs::create_dir(&dest).unwrap();
    symlink("..", dest.join("d")).unwrap();
    let error = unpack(
        archive(&[file("d/x")]).as_slice(),
        &dest,
        &UnpackLimits::default(),
    )
    .unwrap_err();
    assert_eq!(error.reason().as_str(), "ContextRefused");
    assert!(!temp.path().join("x").exists());
}

#[test]
fn nothing_is_overwritten() {
    assert_eq!(attempt(&[file("x"), file("x")]), "ContextRefused");
    assert_eq!(attempt(&[file("x"), file("x/y")]), "ContextRefused");
    assert_eq!(attempt(&[file("x"), link("x", "y")]), "ContextRefused");
}

#[test]
fn special_bits_are_dropped() {
    let (reason, temp) = attempt_with(&[file("x")], UnpackLimits::default());
    assert_eq!(reason, "ok");
    let mode = fs::metadata(temp.path().join("in/x"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn limits_on_bytes_and_entries_apply() {
    let limits = UnpackLimits {
        bytes: 7,
        entries: 2,
    };
    assert_eq!(
        attempt_with(&[file("a"), file("b")], limits).0,
        "ContextTooLarge"
    );
    assert_eq!(attempt_with(&[file("a")], limits).0, "ok");
    let limits = UnpackLimits {
        bytes: 100,
        entries: 2,
    };
    assert_eq!(
        attempt_with(&[file("a"), file("b"), file("c")], limits).0,
        "ContextTooLarge"
    );
}

/// Packs an empty file at each path.
fn files_at(paths: &BTreeSet<String>) -> Vec<u8> {
    let mut archive = Archive::new(Vec::new());
    for path in paths {
        archive.add_file(path, false, 0, io::empty()).unwrap();
    }
    archive.finish().unwrap()
}

/// Counts the folders below `folder`.
fn folders(folder: &Path) -> usize {
    let mut unread = vec![folder.to_owned()];
    let mut count = 0;
    while let Some(folder) = unread.pop() {
        let inner: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        count += inner.len();
        unread.extend(inner);
    }
    count
}

#[test]
fn parent_folders_count_as_entries() {
    let limits = UnpackLimits {
        bytes: 100,
        entries: 3,
    };
    assert_eq!(attempt_with(&[file("a/b/c")], limits).0, "ok");
    assert_eq!(
        attempt_with(&[file("a/b/c/d")], limits).0,
        "ContextTooLarge"
    );
    assert_eq!(
        attempt_with(&[file("a"), link("b/c/l", "../../a")], limits).0,
        "ContextTooLarge"
    );
}

/// Each group of ten files has 51 folders, so 16,000 files have 81,600 folders.
#[test]
fn files_in_many_deep_folders_are_refused_early() {
    let path = |file: usize| format!("{}/{}x{file}", file / 10, "a/".repeat(50));
    let archive = files_at(&(0..16_000).map(path).collect());
    let limits = UnpackLimits {
        entries: 2_000,
        ..UnpackLimits::default()
    };
    let temp = tempfile::tempdir().unwrap();
    let error = unpack(archive.as_slice(), temp.path(), &limits).unwrap_err();
    assert_eq!(error.reason().as_str(), "ContextTooLarge");
    let made = folders(temp.path());
    assert!(made < 2_000, "{made}");
}

#[test]
fn paths_of_more_than_1024_bytes_are_refused() {
    let deep = format!("{}/", "b".repeat(199)).repeat(5);
    for (path, reason) in [
        ("a/".repeat(2_000) + "x", "ContextRefused"),
        (format!("{deep}{}", "x".repeat(25)), "ContextRefused"),
        (format!("{deep}{}", "x".repeat(24)), "ok"),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let archive = files_at(&BTreeSet::from([path]));
        let error = unpack(archive.as_slice(), temp.path(), &UnpackLimits::default()).err();
        assert_eq!(
            error.as_ref().map_or("ok", |error| error.reason().as_str()),
            reason
        );
        let made = if error.is_none() { 5 } else { 0 };
        assert_eq!(folders(temp.path()), made, "{error:?}");
        assert!(error.is_none_or(|error| error.to_string().len() < 1_200));
    }
}

#[test]
fn decompression_bomb_is_refused_early() {
    let mut bomb = file("x");
    bomb.content = vec![0; 8 << 20];
    let limits = UnpackLimits {
        bytes: 1 << 20,
        entries: 10,
    };
    assert_eq!(attempt_with(&[bomb], limits).0, "ContextTooLarge");
    let mut long_name = file("././@LongLink");
    long_name.kind = EntryType::GNULongName;
    long_name.content = vec![b'a'; 8 << 20];
    assert_ne!(attempt_with(&[long_name, file("x")], limits).0, "ok");
}

#[test]
fn truncated_entry_is_reported_as_damaged() {
    let mut lie = file("x");
    lie.size = Some(1 << 40);
    assert_eq!(attempt(&[lie]), "ContextDamaged");
    let temp = tempfile::tempdir().unwrap();
    let error = unpack(&b"nonsense"[..], temp.path(), &UnpackLimits::default()).unwrap_err();
    assert_eq!(error.reason().as_str(), "ContextDamaged");
}

#[test]
fn inner_links_and_folders_are_created() {
    let folder = Raw {
        kind: EntryType::Directory,
        content: Vec::new(),
        ..file("empty/")
    };
    let entries = [
        folder,
        file("a/f"),
        link("a/l", "f"),
        link("d", "a"),
        link("e", "d/l"),
    ];
    let (reason, temp) = attempt_with(&entries, UnpackLimits::default());
    assert_eq!(reason, "ok");
    assert_eq!(fs::read(temp.path().join("in/e")).unwrap(), b"evil");
    assert!(temp.path().join("in/empty").is_dir());
}

/// Returns all names in a folder except `in`, where archives are unpacked, and `secret`.
fn outside(temp: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(temp).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name != "in" && name != "secret")
        .collect()
}

const NAMES: [&str; 12] = [
    "a",
    "a/b",
    "a/b/c",
    "../x",
    "a/../../x",
    "/tmp/x",
    "b",
    "b/x",
    "./a",
    "a//b",
    "c/d/e",
    "",
];
const TARGETS: [&str; 8] = ["a", "..", "../..", "/tmp", "b", "../x", ".", "a/b"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_archive_writes_outside_the_target_folder(
        entries in proptest::collection::vec((0..NAMES.len(), 0..TARGETS.len(), 0..5_u8), 0..8),
    ) {
        let entries: Vec<Raw> = entries
            .into_iter()
            .map(|(name, target, kind)| match kind {
                0 | 1 => file(NAMES[name]),
                2 => link(NAMES[name], TARGETS[target]),
                3 => Raw { kind: EntryType::Link, ..link(NAMES[name], TARGETS[target]) },
                _ => Raw { kind: EntryType::Directory, content: Vec::new(), ..file(NAMES[name]) },
            })
            .collect();
        let (_, temp) = attempt_with(&entries, UnpackLimits::default());
        prop_assert_eq!(outside(temp.path()), Vec::<String>::new());
    }

    #[test]
    fn damaged_archives_are_read_or_refused(at in 0_usize..400, byte: u8, end in 0_usize..400) {
        let mut bytes = archive(&[file("a/b"), link("c", "a/b"), file("d")]);
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(bytes.len().saturating_sub(end / 4));
        let temp = tempfile::tempdir().unwrap();
        let inside = temp.path().join("in");
        std::fs::create_dir(&inside).unwrap();
        let _ = unpack(&bytes[..], &inside, &UnpackLimits::default());
        prop_assert_eq!(outside(temp.path()), Vec::<String>::new());
    }
}
