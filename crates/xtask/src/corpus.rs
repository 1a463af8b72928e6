//! `cargo xtask corpus` compares the closures of public modules with the module calls that the engine finds. See `docs/development/testing.md`.
//!
//! Each folder with configuration files is a root module. `terraform get` parses it and its local modules, and prints each module that it
//! installs. Without a network it cannot install remote modules; it reports these as errors and continues with the other modules.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use alustan_source::corpus::Repository;
use anyhow::{Context, Result, anyhow, ensure};

/// Maximum number of root modules per repository.
const FOLDERS: usize = 2_000;

/// Maximum time of `terraform get` for one root module, in seconds.
const SECONDS: &str = "60";

/// Errors of `terraform get` about remote modules, which it cannot fetch. Any other error refuses the module.
const REMOTE: [&str; 3] = [
    "Error accessing remote module registry",
    "Failed to download module",
    "Could not download module",
];

/// Root modules of a repository, and differences between closure and engine.
#[derive(Default)]
struct Row {
    folders: usize,
    engine: usize,
    closure: usize,
    whole: usize,
    /// Differences that fail the check.
    failures: Vec<String>,
    /// Differences that do not fail the check.
    notes: Vec<String>,
}

/// Compares the modules of each repository in `folder`, and prints a table.
///
/// # Errors
/// If the closure refuses a root module that the engine accepts, or misses a local module that the engine finds; or if a folder cannot be read.
pub(crate) fn check(folder: &Path, engine: &Path) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut repositories: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path().canonicalize()?))
        .collect::<Result<_>>()?;
    repositories.retain(|path| path.is_dir());
    repositories.sort();
    repositories.dedup();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| repository | folders | accepted by the engine | accepted by the closure | whole repository | refused or missed |\n\
         |---|---|---|---|---|---|"
    )?;
    let (mut failures, mut notes) = (Vec::new(), Vec::new());
    for path in repositories {
        let row = compare(&path, engine)?;
        let name = path.file_name().unwrap_or_default().display();
        writeln!(
            out,
            "| {name} | {} | {} | {} | {} | {} |",
            row.folders,
            row.engine,
            row.closure,
            row.whole,
            row.failures.len()
        )?;
        failures.extend(row.failures.iter().map(|text| format!("{name}: {text}")));
        notes.extend(row.notes.iter().map(|text| format!("{name}: {text}")));
    }
    for (title, lines) in [("Refused or missed", &failures), ("Notes", &notes)] {
        writeln!(out, "\n## {title}\n")?;
        for line in lines {
            writeln!(out, "- {line}")?;
        }
    }
    ensure!(
        failures.is_empty(),
        "the closure refuses or misses {} modules that the engine accepts",
        failures.len()
    );
    Ok(())
}

/// Compares the root modules of the repository at `path`, on all processors.
fn compare(path: &Path, engine: &Path) -> Result<Row> {
    let repository = Repository::read(path).with_context(|| format!("read {}", path.display()))?;
    let folders: Vec<&str> = repository.root_modules().take(FOLDERS).collect();
    let processors = std::thread::available_parallelism()?.get();
    let share = folders.len().div_ceil(processors).max(1);
    let compare_share = |share: &[&str]| {
        let mut row = Row::default();
        for root in share {
            row.add(path, &repository, root, engine)?;
        }
        Ok::<_, anyhow::Error>(row)
    };
    let mut total = Row::default();
    std::thread::scope(|scope| {
        let shares: Vec<_> = folders
            .chunks(share)
            .map(|share| scope.spawn(move || compare_share(share)))
            .collect();
        for share in shares {
            let row = share.join().map_err(|_| anyhow!("a thread panicked"))??;
            total.folders += row.folders;
            total.engine += row.engine;
            total.closure += row.closure;
            total.whole += row.whole;
            total.failures.extend(row.failures);
            total.notes.extend(row.notes);
        }
        Ok(total)
    })
}

impl Row {
    /// Adds the root module at `root` of the repository in the folder `path`.
    fn add(
        &mut self,
        path: &Path,
        repository: &Repository,
        root: &str,
        program: &Path,
    ) -> Result<()> {
        let closure = repository.local_modules(root);
        let engine = Engine::get(program, path, root)?;
        let name = if root.is_empty() { "." } else { root };
        self.folders += 1;
        self.engine += usize::from(engine.error.is_none());
        self.closure += usize::from(closure.is_ok());
        if let Some(error) = engine.error {
            self.notes
                .push(format!("{name}: refused by the engine: {error}"));
            return Ok(());
        }
        let closure = match closure {
            Ok(closure) => closure,
            Err(error) => {
                self.failures
                    .push(format!("{name}: refused by the closure: {error}"));
                return Ok(());
            }
        };
        if let Some(why) = closure.whole {
            self.whole += 1;
            self.notes.push(format!(
                "{name}: the closure is the whole repository: {why}"
            ));
            return Ok(());
        }
        for (folder, key) in &engine.modules {
            if folder != root && !closure.calls.contains_key(folder) {
                let location = location(path, root, &engine.modules, key);
                self.failures.push(format!(
                    "{name}: module `{key}` in `{folder}` is missed at {location}"
                ));
            }
        }
        for (folder, location) in &closure.calls {
            if !engine.modules.contains_key(folder) {
                self.notes.push(format!(
                    "{name}: the engine does not call `{folder}` at {location}"
                ));
            }
        }
        Ok(())
    }
}

/// Result of `terraform get` for a root module.
struct Engine {
    /// Key of the first call of each local module, by the folder of the module from the root of the repository.
    modules: BTreeMap<String, String>,
    /// First error that is not about a remote module.
    error: Option<String>,
}

impl Engine {
    /// Runs `terraform get` in the folder `root` of the repository at `path`, without a network. Changes no file in the repository.
    fn get(program: &Path, path: &Path, root: &str) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let output = Command::new("timeout")
            .arg(SECONDS)
            .arg(program)
            .args(["get", "-no-color"])
            .current_dir(path.join(root))
            .env("TF_DATA_DIR", data.path())
            .env("TF_IN_AUTOMATION", "1")
            .env("TF_REGISTRY_DISCOVERY_RETRY", "0")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("GIT_ALLOW_PROTOCOL", "none")
            .envs(["HTTP_PROXY", "HTTPS_PROXY"].map(|name| (name, "http://127.0.0.1:9")))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run {}", program.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let mut summaries = errors
            .lines()
            .filter_map(|line| line.strip_prefix("Error: "))
            .peekable();
        let error = if output.status.success() || summaries.peek().is_some() {
            summaries
                .find(|error| !REMOTE.contains(error))
                .map(str::to_owned)
        } else {
            Some(output.status.to_string())
        };
        let mut modules = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((key, folder)) = line
                .strip_prefix("- ")
                .and_then(|line| line.split_once(" in "))
            {
                modules
                    .entry(join(root, folder))
                    .or_insert_with(|| key.to_owned());
            }
        }
        Ok(Self { modules, error })
    }
}

/// Resolves `relative` against the folder `root`. A path that leaves the repository begins with `..`.
fn join(root: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = root.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/').filter(|part| !["", "."].contains(part)) {
        if part == ".." && parts.last().is_some_and(|last| *last != "..") {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns file and line of the block with the module call `key`, or the folder of the caller if there is no line that begins with the block.
fn location(path: &Path, root: &str, modules: &BTreeMap<String, String>, key: &str) -> String {
    let (caller, name) = key.rsplit_once('.').unwrap_or(("", key));
    let folder = modules
        .iter()
        .find(|(_, key)| *key == caller)
        .map_or(root, |(folder, _)| folder);
    let headers = ["module", "run"].map(|kind| format!("{kind} \"{name}\""));
    let folders = [path.join(folder), path.join(folder).join("tests")];
    let mut files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
    files
        .find_map(|file| {
            let file = file.ok()?.path();
            let text = std::fs::read_to_string(&file).ok()?;
            let is_header = |line: &str| headers.iter().any(|header| line.starts_with(header));
            let line = text.lines().position(is_header)?;
            let file = file.strip_prefix(path).ok()?.display().to_string();
            Some(format!("{file}:{}", line + 1))
        })
        .unwrap_or_else(|| folder.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Compares a repository with the output of an engine. The root module calls `a`, and `b` calls a folder that does not exist.
    fn compare_with(output: &str, errors: &str) -> Result<Row> {
        let folder = tempfile::tempdir()?;
        let repository = folder.path().join("repository");
        let call = |source: &str| format!("\nmodule \"m\" {{\n  source = \"{source}\"\n}}\n");
        for (path, text) in [
            ("", call("./a")),
            ("a", String::new()),
            ("b", call("./missing")),
        ] {
            std::fs::create_dir_all(repository.join(path))?;
            std::fs::write(repository.join(path).join("main.tf"), text)?;
        }
        let engine = folder.path().join("engine");
        let script = format!(
            "#!/bin/sh\n[ -d a ] || exit 0\necho '{output}'\necho '{errors}' >&2\n[ -z '{errors}' ]\n"
        );
        std::fs::write(&engine, script)?;
        std::fs::set_permissions(&engine, std::fs::Permissions::from_mode(0o755))?;
        compare(&repository, &engine)
    }

    #[test]
    fn refused_and_missed_modules_fail_the_check() -> Result<()> {
        let row = compare_with("- m in a", "Error: Failed to download module")?;
        assert_eq!((row.folders, row.engine, row.closure), (3, 3, 2));
        assert_eq!(
            row.failures,
            [
                "b: refused by the closure: b/main.tf:2: module \"m\": the repository has no folder `./missing`"
            ]
        );
        let row = compare_with("- m in c", "")?;
        assert!(
            row.failures
                .contains(&".: module `m` in `c` is missed at main.tf:2".to_owned())
        );
        assert_eq!(row.notes, [".: the engine does not call `a` at main.tf:2"]);
        let row = compare_with("", "Error: Unsupported argument")?;
        assert_eq!((row.folders, row.engine, row.closure), (3, 2, 2));
        Ok(())
    }

    #[test]
    fn join_resolves_parent_folders() {
        assert_eq!(join("a/b", "../c/./d"), "a/c/d");
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("a", "../../../x"), "../../x");
    }
}
