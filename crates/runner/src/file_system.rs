//! Copies of folders, paths in a context, and files with permissions.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Copies a folder recursively. Symbolic links stay links, files become writable, and executable files stay executable.
pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            replace_link(&fs::read_link(&source)?, &target)?;
        } else if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else if kind.is_file() {
            copy_file(&source, &target)?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    let executable = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
    fs::set_permissions(
        to,
        fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }),
    )
}

/// Creates the symbolic link `link` to `target`, and replaces an existing entry.
pub fn replace_link(target: &Path, link: &Path) -> io::Result<()> {
    match fs::symlink_metadata(link) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(link)?,
        Ok(_) => fs::remove_file(link)?,
        Err(_) => {}
    }
    symlink(target, link)
}

/// Returns the folder of the module in the context `root`; `None` if `path` leaves the context.
pub fn module_directory(root: &Path, path: &str) -> Option<PathBuf> {
    let mut directory = root.to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => directory.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(directory)
}

/// Returns the path of a file in the context `root`. `path`: path relative to the folder `directory` of the context, after symbolic links in the
/// path of this folder are resolved. Each `..` removes one name. `None` if `path` or `directory` leaves the context.
pub fn file_in_context(root: &Path, directory: &Path, path: &str) -> Option<PathBuf> {
    let resolved = fs::canonicalize(directory).ok()?;
    let folder = resolved.strip_prefix(fs::canonicalize(root).ok()?).ok()?;
    let mut names = Vec::new();
    let parts = [folder, Path::new(path)];
    for component in parts.into_iter().flat_map(Path::components) {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir => drop(names.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(root.join(names.into_iter().collect::<PathBuf>()))
}

/// Opens a regular file. Refuses links and other files, such as a pipe, on which a read would wait. Other pods can create them on a cache volume.
pub fn open_regular(path: &Path) -> io::Result<fs::File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Reads a regular file of at most `limit` bytes.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let mut file = open_regular(path)?.take(limit.saturating_add(1));
    file.read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
        Ok(bytes)
    } else {
        Err(io::Error::other(format!("it is larger than {limit} bytes")))
    }
}

/// Writes a file and sets its permissions to `mode`, also if the file already exists.
pub fn write_private(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_copy_is_writable_and_keeps_links_and_modes() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/main.tf"), "x").unwrap();
        fs::write(from.join("run.sh"), "y").unwrap();
        fs::set_permissions(from.join("sub/main.tf"), fs::Permissions::from_mode(0o444)).unwrap();
        fs::set_permissions(from.join("run.sh"), fs::Permissions::from_mode(0o555)).unwrap();
        symlink("/somewhere/else", from.join("absolute")).unwrap();
        symlink("sub/main.tf", from.join("relative")).unwrap();
        copy_tree(&from, &to).unwrap();
        let mode = |name: &str| fs::metadata(to.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("sub/main.tf"), mode("run.sh")), (0o644, 0o755));
        assert_eq!(
            fs::read_link(to.join("absolute")).unwrap(),
            Path::new("/somewhere/else")
        );
        assert_eq!(fs::read_to_string(to.join("relative")).unwrap(), "x");
    }

    #[test]
    fn module_path_outside_the_context_is_refused() {
        let root = Path::new("/m");
        assert_eq!(module_directory(root, ""), Some("/m".into()));
        assert_eq!(module_directory(root, "./a/b/"), Some("/m/a/b".into()));
        assert_eq!(module_directory(root, "a/../../b"), None);
        assert_eq!(module_directory(root, "/etc"), None);
    }

    #[test]
    fn file_outside_the_context_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("live")).unwrap();
        for module in ["a/b", "live"] {
            let file = |path| file_in_context(root, &root.join(module), path);
            assert_eq!(file("x.tfvars"), Some(root.join("a/b/x.tfvars")));
            assert_eq!(
                file("../../env/./x.tfvars"),
                Some(root.join("env/x.tfvars"))
            );
            assert_eq!(file("../../../x.tfvars"), None);
            assert_eq!(file("/x.tfvars"), None);
        }
    }
}
