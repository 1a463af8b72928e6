//! Unpacks an OCI artifact that contains a module. The contents of all files go into one temporary file. The artifact is untrusted: bounds its
//! size and the number of its entries, and refuses links and paths that leave the folder.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::path::Path;
use std::sync::Arc;

use flate2::read::{DeflateDecoder, GzDecoder};
use rawzip::{CompressionMethod, CreatorSystem, RECOMMENDED_BUFFER_SIZE, ZipArchive};
use tar::{Archive, EntryType};

use crate::{
    cache::CacheOptions,
    error::Error,
    files::{FilePart, SourceFile, SourceFiles},
    git::session::cache_error,
    repopath,
    unpack::{MAX_PATH_BYTES, copy},
};

/// Maximum size of all tar headers and padding, in bytes: about 30,000 files.
const MAX_HEADER_BYTES: u64 = 32 << 20;
/// Maximum number of bytes of a path in an error, before invalid bytes are replaced.
const MAX_SHOWN_BYTES: usize = 800;

/// Format of the content of an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactFormat {
    /// tar.gz, as written by `flux push artifact`.
    TarGzip,
    /// zip, as in a module package of OpenTofu.
    Zip,
}

/// Limits of an artifact.
#[derive(Clone, Copy)]
struct Limits {
    /// Maximum size of all files, in bytes.
    bytes: u64,
    /// Maximum number of files and folders.
    entries: u64,
}

impl Default for Limits {
    /// Returns the limits of a context: 64 MiB, and 50,000 files and folders.
    fn default() -> Self {
        let context = CacheOptions::default();
        Self {
            bytes: context.context_bytes,
            entries: context.context_files + context.context_folders,
        }
    }
}

/// Returns the files in `archive`, which is read from its current position. Their contents are in a temporary file in `folder`. Blocks the
/// current thread.
///
/// # Errors
/// [`Error::InvalidArtifact`] if the content is damaged, or has an entry other than a file or folder, or with a path outside of the
/// artifact. [`Error::ArtifactTooLarge`] if the content exceeds the limits of a context. [`Error::Cache`] if `folder` cannot be written.
pub fn artifact_files(
    format: ArtifactFormat,
    archive: &File,
    folder: &Path,
) -> Result<SourceFiles<FilePart>, Error> {
    read(format, archive, folder, Limits::default())
}

fn read(
    format: ArtifactFormat,
    archive: &File,
    folder: &Path,
    limits: Limits,
) -> Result<SourceFiles<FilePart>, Error> {
    let unwritable = |error| cache_error("unpack an artifact in", folder, error);
    let contents = Arc::new(tempfile::tempfile_in(folder).map_err(unwritable)?);
    let mut reading = Reading {
        limits,
        folder,
        contents: BufWriter::new(contents),
        bytes: 0,
        entries: 0,
        files: SourceFiles::new(),
    };
    match format {
        ArtifactFormat::TarGzip => reading.tar(archive)?,
        ArtifactFormat::Zip => reading.zip(archive)?,
    }
    reading.contents.flush().map_err(unwritable)?;
    check_parents(&reading.files)?;
    Ok(reading.files)
}

struct Reading<'a> {
    limits: Limits,
    folder: &'a Path,
    /// Contents of all files so far.
    contents: BufWriter<Arc<File>>,
    /// Number of bytes in `contents`.
    bytes: u64,
    entries: u64,
    files: SourceFiles<FilePart>,
}

impl Reading<'_> {
    fn tar(&mut self, archive: &File) -> Result<(), Error> {
        // The tar reader reads a long name into memory, whatever its size.
        let most = self.limits.bytes.saturating_add(MAX_HEADER_BYTES);
        let decoder = GzDecoder::new(BufReader::new(archive));
        let mut archive = Archive::new(decoder.take(most));
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            self.count()?;
            let path = bounded_path(&entry.path_bytes())?.to_vec();
            let executable = entry.header().mode().map_err(damaged)? & 0o100 != 0;
            match entry.header().entry_type() {
                EntryType::Directory => drop(checked_path(&path)?),
                EntryType::Regular => self.file(&path, executable, &mut entry)?,
                EntryType::XGlobalHeader => {}
                EntryType::Link | EntryType::Symlink => return Err(refused(&path, "is a link")),
                _ => return Err(refused(&path, "is not a file or folder")),
            }
        }
        // The tar reader takes the end of its input for the end of the archive.
        if archive.into_inner().limit() == 0 {
            return Err(too_large(most, "bytes of files and tar headers"));
        }
        Ok(())
    }

    fn zip(&mut self, archive: &File) -> Result<(), Error> {
        const KIND: u32 = 0o170_000;
        const FILE: u32 = 0o100_000;
        const FOLDER: u32 = 0o040_000;
        // A header in the central directory that is larger than the buffer is an error.
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let archive = archive.try_clone().map_err(damaged)?;
        let archive = ZipArchive::from_file(archive, &mut buffer).map_err(damaged)?;
        let mut entries = archive.entries(&mut buffer);
        while let Some(entry) = entries.next_entry().map_err(damaged)? {
            self.count()?;
            let path = entry.file_path().as_bytes();
            let mode = match entry.version_made_by().creator_system() {
                CreatorSystem::UNIX | CreatorSystem::MACOS => entry.external_attributes() >> 16,
                _ => 0,
            };
            if ![0, FILE, FOLDER].contains(&(mode & KIND)) {
                return Err(refused(path, "is not a file or folder"));
            }
            if entry.is_dir() {
                checked_path(path)?;
                continue;
            }
            let executable = mode & 0o100 != 0;
            let content = archive.get_entry(entry.wayfinder()).map_err(damaged)?;
            match entry.compression_method() {
                _ if entry.flags().is_encrypted() => return Err(refused(path, "is encrypted")),
                CompressionMethod::STORE => {
                    let mut content = content.verifying_reader(content.reader());
                    self.file(path, executable, &mut content)?;
                }
                CompressionMethod::DEFLATE => {
                    let inflated = DeflateDecoder::new(content.reader());
                    self.file(path, executable, &mut content.verifying_reader(inflated))?;
                }
                _ => return Err(refused(path, "is compressed with an unsupported method")),
            }
        }
        if self.entries != archive.entries_hint() {
            return Err(damaged(io::Error::other("wrong number of entries")));
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Error> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(too_large(self.limits.entries, "entries"));
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], executable: bool, reader: &mut impl Read) -> Result<(), Error> {
        let path = checked_path(path)?;
        if path.is_empty() {
            return Err(refused(b"", "has an empty path"));
        }
        let remaining = self.limits.bytes - self.bytes;
        let mut bounded = reader.take(remaining.saturating_add(1));
        let unwritable = |error| cache_error("unpack an artifact in", self.folder, error);
        let size = copy(&mut bounded, &mut self.contents, damaged, unwritable)?;
        if size > remaining {
            return Err(too_large(self.limits.bytes, "bytes"));
        }
        let content = FilePart {
            file: self.contents.get_ref().clone(),
            offset: self.bytes,
            size,
        };
        self.bytes += size;
        let file = SourceFile {
            executable,
            content,
        };
        match self.files.insert(path.clone(), file) {
            None => Ok(()),
            Some(_) => Err(refused(path.as_bytes(), "occurs twice")),
        }
    }
}

fn bounded_path(path: &[u8]) -> Result<&[u8], Error> {
    if path.len() > MAX_PATH_BYTES {
        return Err(refused(path, "has a path longer than 1024 bytes"));
    }
    Ok(path)
}

/// Returns the path of an entry without empty components and `.`.
fn checked_path(path: &[u8]) -> Result<String, Error> {
    let path = bounded_path(path)?;
    let text =
        std::str::from_utf8(path).map_err(|_| refused(path, "has a path that is not UTF-8"))?;
    if text.starts_with('/') || text.contains('\\') {
        return Err(refused(
            path,
            "has an absolute path, or a path with a backslash",
        ));
    }
    repopath::normalise(text)
        .map_err(|_| refused(path, "has a path with `..` or control characters"))
}

/// Refuses a file whose path is also the folder of another file.
fn check_parents(files: &SourceFiles<FilePart>) -> Result<(), Error> {
    let mut folders = BTreeSet::new();
    for path in files.keys() {
        let mut folder = repopath::parent(path);
        while !folder.is_empty() && folders.insert(folder) {
            folder = repopath::parent(folder);
        }
    }
    match folders.iter().find(|folder| files.contains_key(**folder)) {
        None => Ok(()),
        Some(path) => Err(refused(path.as_bytes(), "is a file and a folder")),
    }
}

fn refused(path: &[u8], why: &str) -> Error {
    let shown = path.get(..MAX_SHOWN_BYTES).unwrap_or(path);
    let path: String = String::from_utf8_lossy(shown).chars().take(200).collect();
    Error::InvalidArtifact {
        why: format!("the entry `{}` {why}", path.escape_debug()),
    }
}

fn damaged(error: impl Display) -> Error {
    let error = error.to_string();
    let error: String = error.chars().take(200).collect();
    Error::InvalidArtifact {
        why: format!("the content is damaged ({})", error.escape_debug()),
    }
}

fn too_large(limit: u64, unit: &'static str) -> Error {
    Error::ArtifactTooLarge { limit, unit }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Seek as _};

    use allocation_counter::measure;
    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use rstest::rstest;
    use tar::{Builder, Header};
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::context::ContextSpec;
    use crate::files::{FileContent as _, pack_files};

    const FILE: EntryType = EntryType::Regular;

    /// Returns a tar.gz. Writes the paths into the headers without the checks of the tar library.
    fn tar_gzip(entries: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (kind, path, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_size(content.len() as u64);
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            if *kind != FILE {
                header.set_link_name("x").unwrap();
            }
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    fn zipped(entries: &[(&str, u32, &[u8])]) -> Vec<u8> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for (path, mode, content) in entries {
            let options = SimpleFileOptions::default().unix_permissions(*mode);
            archive.start_file(*path, options).unwrap();
            archive.write_all(content).unwrap();
        }
        archive.finish().unwrap().into_inner()
    }

    fn stored(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        file
    }

    fn files(format: ArtifactFormat, content: &[u8]) -> Result<SourceFiles<FilePart>, Error> {
        files_within(format, content, Limits::default())
    }

    fn files_within(
        format: ArtifactFormat,
        content: &[u8],
        limits: Limits,
    ) -> Result<SourceFiles<FilePart>, Error> {
        read(format, &stored(content), &std::env::temp_dir(), limits)
    }

    fn text(file: &SourceFile<FilePart>) -> String {
        std::io::read_to_string(file.content.reader()).unwrap()
    }

    #[test]
    fn artifact_of_flux_is_read() {
        let content = tar_gzip(&[
            (EntryType::Directory, "./", b""),
            (EntryType::Directory, "net/", b""),
            (FILE, "./net/main.tf", b"a"),
            (FILE, "run.sh", b"b"),
        ]);
        let files = files(ArtifactFormat::TarGzip, &content).unwrap();
        let paths: Vec<_> = files.keys().collect();
        assert_eq!(paths, ["net/main.tf", "run.sh"]);
        assert_eq!(text(&files["net/main.tf"]), "a");
        assert_eq!(text(&files["run.sh"]), "b");
        assert!(files["run.sh"].executable);
    }

    #[test]
    fn module_package_of_opentofu_is_read() {
        let content = zipped(&[("net/main.tf", 0o644, b"a"), ("run.sh", 0o755, b"b")]);
        let files = files(ArtifactFormat::Zip, &content).unwrap();
        assert_eq!(text(&files["net/main.tf"]), "a");
        assert_eq!(text(&files["run.sh"]), "b");
        assert!(files["run.sh"].executable && !files["net/main.tf"].executable);
    }

    #[rstest]
    #[case::parent("../main.tf", FILE)]
    #[case::inner_parent("a/../../main.tf", FILE)]
    #[case::absolute("/main.tf", FILE)]
    #[case::backslash("a\\main.tf", FILE)]
    #[case::control("a\n.tf", FILE)]
    #[case::empty(".", FILE)]
    #[case::symbolic_link("main.tf", EntryType::Symlink)]
    #[case::hard_link("main.tf", EntryType::Link)]
    #[case::device("main.tf", EntryType::Char)]
    #[case::folder("../a", EntryType::Directory)]
    fn links_and_paths_that_leave_the_artifact_are_refused(
        #[case] path: &str,
        #[case] kind: EntryType,
    ) {
        let content = tar_gzip(&[(kind, path, b"")]);
        let error = files(ArtifactFormat::TarGzip, &content).unwrap_err();
        assert_eq!(error.reason().as_str(), "ArtifactInvalid", "{error}");
        if kind == FILE {
            let content = zipped(&[(path, 0o644, b"")]);
            let error = files(ArtifactFormat::Zip, &content).unwrap_err();
            assert_eq!(error.reason().as_str(), "ArtifactInvalid", "{error}");
        }
    }

    #[test]
    fn symbolic_link_in_a_zip_is_refused() {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default();
        archive
            .add_symlink("main.tf", "/etc/passwd", options)
            .unwrap();
        let content = archive.finish().unwrap().into_inner();
        let error = files(ArtifactFormat::Zip, &content).unwrap_err();
        assert_eq!(error.reason().as_str(), "ArtifactInvalid", "{error}");
    }

    #[test]
    fn entries_that_collide_are_refused() {
        for entries in [
            [(FILE, "a", &b""[..]), (FILE, "./a", b"")],
            [(FILE, "a", b""), (FILE, "a/b/c", b"")],
        ] {
            let error = files(ArtifactFormat::TarGzip, &tar_gzip(&entries)).unwrap_err();
            assert_eq!(error.reason().as_str(), "ArtifactInvalid");
        }
    }

    #[test]
    fn content_beyond_the_limits_is_refused() {
        let limits = Limits {
            bytes: 1000,
            entries: 3,
        };
        let large = [0; 501];
        let bomb = |count: usize| {
            let paths = ["a", "b", "c", "d"];
            let tar: Vec<_> = paths[..count]
                .iter()
                .map(|path| (FILE, *path, &large[..]))
                .collect();
            let zip: Vec<_> = paths[..count]
                .iter()
                .map(|path| (*path, 0o644, &large[..]))
                .collect();
            [
                (ArtifactFormat::TarGzip, tar_gzip(&tar)),
                (ArtifactFormat::Zip, zipped(&zip)),
            ]
        };
        for (format, content) in bomb(1) {
            assert!(files_within(format, &content, limits).is_ok());
        }
        for (format, content) in bomb(2) {
            let error = files_within(format, &content, limits).unwrap_err();
            assert!(
                error.to_string().contains("more than 1000 bytes"),
                "{error}"
            );
        }
        let paths = ["a", "b", "c", "d"];
        let many: Vec<_> = paths.iter().map(|path| (FILE, *path, &b""[..])).collect();
        let error = files_within(ArtifactFormat::TarGzip, &tar_gzip(&many), limits).unwrap_err();
        assert!(error.to_string().contains("more than 3 entries"), "{error}");
    }

    #[test]
    fn archive_that_ends_at_the_limit_is_refused() {
        let name = "a".repeat(100);
        let entry = (EntryType::Directory, &*name, &b""[..]);
        // Each header has 512 bytes.
        let entries = vec![entry; (MAX_HEADER_BYTES / 512) as usize + 1];
        let limits = Limits {
            bytes: 0,
            entries: u64::MAX,
        };
        let error = files_within(ArtifactFormat::TarGzip, &tar_gzip(&entries), limits).unwrap_err();
        assert!(matches!(error, Error::ArtifactTooLarge { .. }), "{error}");
    }

    #[test]
    fn damaged_content_is_refused() {
        let whole = tar_gzip(&[(FILE, "main.tf", &[7; 4000])]);
        for content in [&b"nonsense"[..], &whole[..whole.len() / 2], b""] {
            for format in [ArtifactFormat::TarGzip, ArtifactFormat::Zip] {
                let error = files(format, content).unwrap_err();
                assert_eq!(error.reason().as_str(), "ArtifactInvalid", "{error}");
            }
        }
    }

    #[test]
    fn context_of_an_artifact_is_that_of_its_files() {
        let module = "module \"a\" {\n  source = \"../a\"\n}\n";
        let texts = [
            ("net/main.tf", module),
            ("other.tf", "1"),
            ("a/main.tf", "# 22"),
        ];
        let tar: Vec<_> = texts
            .iter()
            .map(|(path, text)| (FILE, *path, text.as_bytes()))
            .collect();
        let in_memory = texts
            .iter()
            .map(|(path, text)| {
                let file = SourceFile {
                    executable: true,
                    content: Bytes::from_static(text.as_bytes()),
                };
                ((*path).to_owned(), file)
            })
            .collect();
        let spec = ContextSpec {
            path: Some("net".to_owned()),
            ..ContextSpec::default()
        };
        let folder = std::env::temp_dir();
        let on_disk = files(ArtifactFormat::TarGzip, &tar_gzip(&tar)).unwrap();
        let context = pack_files(&on_disk, &spec, &folder).unwrap();
        assert_eq!(context.files, 2);
        let expected = pack_files(&in_memory, &spec, &folder).unwrap();
        assert_eq!(context.digest, expected.digest);
    }

    /// Packs an artifact of 60 MiB, and returns the most heap memory that this takes, in bytes.
    fn memory_of(format: ArtifactFormat, bytes: &[u8]) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        let archive = stored(bytes);
        let spec = ContextSpec {
            include: vec![String::new()],
            ..ContextSpec::default()
        };
        let memory = measure(|| {
            let files = artifact_files(format, &archive, folder.path()).unwrap();
            let context = pack_files(&files, &spec, folder.path()).unwrap();
            assert_eq!((context.files, context.uncompressed), (30, 60 << 20));
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        println!("{format:?}: {} KiB", memory.bytes_max >> 10);
        memory.bytes_max
    }

    #[test]
    fn large_artifact_is_packed_in_little_memory() {
        let large = vec![7; 2 << 20];
        let names: Vec<String> = (0..30).map(|number| format!("big/{number}")).collect();
        let tar: Vec<_> = names.iter().map(|name| (FILE, &**name, &*large)).collect();
        let zip: Vec<_> = names.iter().map(|name| (&**name, 0o644, &*large)).collect();
        assert!(memory_of(ArtifactFormat::TarGzip, &tar_gzip(&tar)) < 2 << 20);
        assert!(memory_of(ArtifactFormat::Zip, &zipped(&zip)) < 2 << 20);
    }

    /// Returns a zip of `count` folders, whose headers in the central directory have `extra` fields. Writes the number of folders into a
    /// record of zip64.
    fn zipped_folders(count: u64, extra: &[u8]) -> Vec<u8> {
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_le_bytes();
        let local = [b"PK\x03\x04".as_slice(), &[0; 26]].concat();
        let mut zip = local.clone();
        for number in 0..count {
            let name = format!("{number}/");
            zip.extend(b"PK\x01\x02");
            zip.extend([0; 24]);
            zip.extend(length(name.as_bytes()));
            zip.extend(length(extra));
            zip.extend([0; 14]);
            zip.extend(name.bytes().chain(extra.iter().copied()));
        }
        let (start, end) = (local.len() as u64, zip.len() as u64);
        zip.extend(b"PK\x06\x06");
        zip.extend(44_u64.to_le_bytes());
        zip.extend([0; 12]);
        for number in [count, count, end - start, start] {
            zip.extend(number.to_le_bytes());
        }
        zip.extend(b"PK\x06\x07\0\0\0\0");
        zip.extend(end.to_le_bytes());
        zip.extend(1_u32.to_le_bytes());
        zip.extend(b"PK\x05\x06\0\0\0\0");
        zip.extend([u8::MAX; 12]);
        zip.extend([0; 2]);
        zip
    }

    #[test]
    fn central_directory_of_a_zip_takes_little_memory() {
        let unknown_fields = [1, 0x90, 0, 0].repeat(16_000);
        let folder = tempfile::tempdir().unwrap();
        for (count, extra, is_refused) in [(250, &*unknown_fields, false), (300_000, &[][..], true)]
        {
            let archive = stored(&zipped_folders(count, extra));
            let memory = measure(|| {
                let result = artifact_files(ArtifactFormat::Zip, &archive, folder.path());
                assert_eq!(result.is_err(), is_refused, "{count}");
            });
            println!("{count} folders: {} KiB", memory.bytes_max >> 10);
            assert!(memory.bytes_max < 1 << 20, "{count}");
        }
    }

    #[test]
    fn zip_with_another_number_of_entries_is_refused() {
        let mut content = zipped(&[("main.tf", 0o644, b"a"), ("run.sh", 0o755, b"b")]);
        let counts = content.len() - 14;
        content[counts..counts + 4].copy_from_slice(&[1, 0, 1, 0]);
        let error = files(ArtifactFormat::Zip, &content).unwrap_err();
        assert!(
            error.to_string().contains("wrong number of entries"),
            "{error}"
        );
    }

    #[test]
    fn folder_that_cannot_be_written_is_an_error_of_the_cache() {
        let content = tar_gzip(&[(FILE, "main.tf", b"")]);
        let missing = Path::new("/nonexistent");
        let error = artifact_files(ArtifactFormat::TarGzip, &stored(&content), missing);
        let error = error.unwrap_err();
        assert_eq!(
            (error.reason().as_str(), error.is_transient()),
            ("GitCacheUnusable", true),
            "{error}"
        );
    }
}
