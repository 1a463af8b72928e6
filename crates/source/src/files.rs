//! Packs files that are not in git, for example files in a resource or of an artifact, into a context.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::{
    cache::CacheOptions,
    closure::{Closure, ContextLimits, Selection},
    context::{Context, ContextSpec},
    error::Error,
    git::session::cache_error,
    module,
    packed::{self, PackedContext},
    tree::Tree,
};

/// A file of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Whether the file is executable.
    pub executable: bool,
    /// Content of the file.
    pub content: Bytes,
}

/// Files of a module, by path from the root of the source. A path has no empty component, no `.` and no `..`.
pub type SourceFiles = BTreeMap<String, SourceFile>;

/// Packs the files that the module at [`ContextSpec::path`] needs, like [`GitCache::fetch_context`](crate::GitCache::fetch_context). The packed
/// context is a temporary file in `folder`.
///
/// # Errors
/// If the module is invalid, if its files exceed the limits of a context, or if `folder` cannot be written.
pub fn pack_files(
    files: &SourceFiles,
    spec: &ContextSpec,
    folder: &Path,
) -> Result<Context, Error> {
    let path = spec.folder()?;
    let selection = select(files, spec, &path)?;
    let packed = packed::pack(folder, |archive| {
        selection
            .entries
            .keys()
            .filter_map(|path| Some((path, files.get(path)?)))
            .try_for_each(|(path, file)| {
                let size = file.content.len() as u64;
                archive.add_file(path, file.executable, size, &*file.content)
            })
    });
    let PackedContext { digest, size, file } =
        packed.map_err(|source| cache_error("pack a context in", folder, source))?;
    Ok(Context {
        digest,
        size,
        archive: Some(file),
        module_path: path,
        module_backend: selection.backend,
        committed_at: 0,
        files: selection.entries.len(),
        uncompressed: selection.entries.values().map(|entry| entry.size).sum(),
        submodules: Vec::new(),
    })
}

fn select(files: &SourceFiles, spec: &ContextSpec, path: &str) -> Result<Selection, Error> {
    let tree = Tree::of_files(files.iter().map(|(path, file)| {
        let size = file.content.len() as u64;
        (path.clone(), file.executable, size)
    }));
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
            let content = files.get(&file.object).map(|file| &file.content);
            let facts = module::read(&file.path, content.map_or(&[][..], |content| content));
            closure.supply(&file, &facts)?;
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
