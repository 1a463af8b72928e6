//! Paths in a repository: names separated by `/`, without `.` and `..`; `""` for the root.

/// Removes empty components and `.` from `path`. The error is the reason for which the path is invalid.
pub(crate) fn normalise(path: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err("contains `..`".into()),
            name if name.chars().any(char::is_control) => {
                return Err("contains control characters".into());
            }
            name => parts.push(name),
        }
    }
    Ok(parts.join("/"))
}

/// Resolves `relative` against the folder `base`. Each `..` removes one name; symbolic links are not resolved. `None` if the path leaves
/// the repository.
pub(crate) fn join(base: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the folder that contains `path`; `""` for the root.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the last component of `path`.
pub(crate) fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Whether `path` is `folder` or below it.
#[cfg(test)]
pub(crate) fn is_within(path: &str, folder: &str) -> bool {
    folder.is_empty()
        || path
            .strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_or_refused() {
        assert_eq!(normalise("/a//./b/").unwrap(), "a/b");
        assert_eq!(normalise("").unwrap(), "");
        assert!(normalise("a/../b").is_err());
        assert!(normalise("a\nb").is_err());
    }

    #[test]
    fn join_above_the_root_is_refused() {
        assert_eq!(join("a/b", "../c").unwrap(), "a/c");
        assert_eq!(join("a", "..").unwrap(), "");
        assert_eq!(join("a", "../.."), None);
        assert_eq!(join("", "./x/"), Some("x".into()));
    }

    #[test]
    fn is_within_compares_whole_path_components() {
        assert!(is_within("a/b", "a") && is_within("a", "a") && is_within("x", ""));
        assert!(!is_within("ab", "a"));
    }
}
