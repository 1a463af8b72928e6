//! Packs files that are not in git, for example files in a resource or of an artifact, into a context.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::{
    cache::CacheOptions,
    closure::{Closure, ContextLimits, Selection},
    commit_info::CommitInfo,
    context::{Context, ContextSpec},
    error::Error,
    git::session::cache_error,
    module,
    packed::{self, PackedContext},
    tree::Tree,
};

/// A file of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile<C = Bytes> {
    /// Whether the file is executable.
    pub executable: bool,
    /// Content of the file.
    pub content: C,
}

/// Files of a module, by path from the root of the source. A path has no empty component, no `.` and no `..`.
pub type SourceFiles<C = Bytes> = BTreeMap<String, SourceFile<C>>;

/// Content of a file of a module, in memory or on disk.
pub trait FileContent {
    /// Returns the size of the content, in bytes.
    fn size(&self) -> u64;

    /// Returns a reader of the content.
    fn reader(&self) -> impl Read;
}

impl FileContent for Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn reader(&self) -> impl Read {
        &**self
    }
}

/// Content on disk: a part of a temporary file with the contents of many files.
#[derive(Clone, Debug)]
pub struct FilePart {
    pub(crate) file: Arc<File>,
    /// Position of the first byte in `file`.
    pub(crate) offset: u64,
    /// Size of the content, in bytes.
    pub(crate) size: u64,
}

impl FileContent for FilePart {
    fn size(&self) -> u64 {
        self.size
    }

    fn reader(&self) -> impl Read {
        let Self { file, offset, size } = self;
        let reader = ReaderAt {
            file,
            offset: *offset,
        };
        reader.take(*size)
    }
}

/// Reads a file from `offset`, without the position of the file, which all contents in it share.
struct ReaderAt<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for ReaderAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// Packs the files that the module at [`ContextSpec::path`] needs, like [`GitCache::fetch_context`](crate::GitCache::fetch_context). The packed
/// context is a temporary file in `folder`.
///
/// # Errors
/// If the module is invalid, if its files exceed the limits of a context, or if a content cannot be read or `folder` cannot be written.
pub fn pack_files<C: FileContent>(
    files: &SourceFiles<C>,
    spec: &ContextSpec,
    folder: &Path,
) -> Result<Context, Error> {
    let path = spec.folder()?;
    let unusable = |source| cache_error("pack a context in", folder, source);
    let selection = select(files, spec, &path, unusable)?;
    let packed = packed::pack(folder, |archive| {
        selection
            .entries
            .keys()
            .filter_map(|path| Some((path, files.get(path)?)))
            .try_for_each(|(path, file)| {
                let SourceFile {
                    executable,
                    content,
                } = file;
                archive.add_file(path, *executable, content.size(), content.reader())
            })
    });
    let PackedContext { digest, size, file } = packed.map_err(unusable)?;
    Ok(Context {
        digest,
        size,
        archive: Some(file),
        module_path: path,
        module_backend: selection.backend,
        commit: CommitInfo::default(),
        files: selection.entries.len(),
        uncompressed: selection.entries.values().map(|entry| entry.size).sum(),
        submodules: Vec::new(),
    })
}

/// Selects the files of the module in the folder `path`. `unreadable`: returns the error of a content that cannot be read.
fn select<C: FileContent>(
    files: &SourceFiles<C>,
    spec: &ContextSpec,
    path: &str,
    unreadable: impl Fn(io::Error) -> Error,
) -> Result<Selection, Error> {
    let tree = Tree::of_files(
        files
            .iter()
            .map(|(path, file)| (path.clone(), file.executable, file.content.size())),
    );
    let mut closure = Closure::new(Arc::new(tree), false);
    closure.start(path, &spec.includes()?, spec.wrapper)?;
    spec.valid_var_files()?
        .iter()
        .try_for_each(|file| closure.add_var_file(file))?;
    loop {
        let requests = closure.files_to_read();
        if requests.is_empty() {
            break;
        }
        for file in requests {
            let mut text = Vec::new();
            if let Some(SourceFile { content, .. }) = files.get(&file.path) {
                content
                    .reader()
                    .read_to_end(&mut text)
                    .map_err(&unreadable)?;
            }
            closure.supply(&file, &module::read(&file.path, &text))?;
        }
    }
    let limits = CacheOptions::default();
    closure.finish(ContextLimits {
        files: limits.context_files,
        folders: limits.context_folders,
        bytes: limits.context_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::{UnpackLimits, unpack};

    fn files(texts: &[(&str, &str)]) -> SourceFiles {
        texts
            .iter()
            .map(|(path, text)| {
                let file = SourceFile {
                    executable: false,
                    content: Bytes::copy_from_slice(text.as_bytes()),
                };
                ((*path).to_owned(), file)
            })
            .collect()
    }

    fn spec(path: &str) -> ContextSpec {
        ContextSpec {
            path: Some(path.to_owned()),
            ..ContextSpec::default()
        }
    }

    fn packed(files: &SourceFiles, spec: &ContextSpec) -> Result<Context, Error> {
        pack_files(files, spec, &std::env::temp_dir())
    }

    const MODULE: &str =
        "terraform {\n  backend \"s3\" {}\n}\nmodule \"a\" {\n  source = \"../a\"\n}\n";

    #[test]
    fn context_has_the_module_and_its_local_modules() {
        let files = files(&[
            ("net/main.tf", MODULE),
            ("a/main.tf", "output \"x\" {}"),
            ("other/main.tf", ""),
        ]);
        let context = packed(&files, &spec("net")).unwrap();
        assert_eq!(context.module_path, "net");
        assert_eq!(context.module_backend.as_deref(), Some("s3"));
        assert_eq!(context.files, 2);
        let folder = tempfile::tempdir().unwrap();
        let archive = std::fs::File::open(context.archive.unwrap()).unwrap();
        unpack(archive, folder.path(), &UnpackLimits::default()).unwrap();
        let text = std::fs::read_to_string(folder.path().join("net/main.tf")).unwrap();
        assert_eq!(text, MODULE);
        assert!(!folder.path().join("other").exists());
        let whole = ContextSpec {
            include: vec![String::new()],
            ..spec("net")
        };
        let context_of_all = packed(&files, &whole).unwrap();
        assert_eq!(context_of_all.files, 3, "include of the root");
    }

    #[test]
    fn module_that_leaves_its_source_is_refused() {
        let refused = |texts: &[(&str, &str)], spec: &ContextSpec| {
            let error = packed(&files(texts), spec).unwrap_err();
            (error.reason().to_string(), error.to_string())
        };
        let outside = [("main.tf", "module \"a\" {\n  source = \"../a\"\n}\n")];
        let (reason, _) = refused(&outside, &ContextSpec::default());
        assert_eq!(reason, "PathLeavesRepository");
        let (reason, message) = refused(&[("main.tf", "")], &spec("net"));
        assert_eq!(reason, "PathNotFound");
        assert_eq!(message, "path `net` does not exist");
        let var_file = ContextSpec {
            var_files: vec!["prod.tfvars".to_owned()],
            ..ContextSpec::default()
        };
        let (reason, _) = refused(&[("main.tf", "")], &var_file);
        assert_eq!(reason, "VarFileNotFound");
    }

    #[test]
    fn files_beyond_the_limits_of_a_context_are_refused() {
        let many: SourceFiles = (0..=20_000)
            .map(|number| {
                let file = SourceFile {
                    executable: false,
                    content: Bytes::new(),
                };
                (format!("f{number}.txt"), file)
            })
            .collect();
        let error = packed(&many, &ContextSpec::default()).unwrap_err();
        assert_eq!(error.reason().as_str(), "ContextTooLarge");
    }
}
