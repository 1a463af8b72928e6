//! Follows the paths in the configuration of Terragrunt: included files, configuration files that are read, dependencies, modules and other
//! files. Performs no I/O.
//!
//! A path that does not exist is no error: Terragrunt reports it in the run. A path that only Terragrunt can evaluate extends the closure to the
//! whole repository.

use super::config_file::ConfigFile;
use super::{Closure, FileRequest};
use crate::{
    module::{
        facts::{Facts, PATH},
        terragrunt_paths::{Expression, PathKind, PathUse, ROOT, UNIT},
    },
    repopath,
    tree::{Target, Unresolvable},
};

/// Maximum number of parts of expressions that the evaluation of a path evaluates.
const PARTS: usize = 1_000;
/// Maximum number of local values in a chain.
const LOCALS: usize = 16;

impl Closure {
    /// Adds the configuration of Terragrunt in the folder of the root module.
    pub(super) fn add_root_unit(&mut self) {
        let unit = self.root.clone();
        self.add_unit(unit, true);
    }

    fn add_unit(&mut self, unit: String, is_root: bool) {
        self.folders.insert(unit.clone());
        let Some(path) = repopath::join(&unit, UNIT) else {
            return;
        };
        if let Some(Target::File(path)) = self.find(&path, &path) {
            self.add_config(ConfigFile {
                path,
                original: unit.clone(),
                unit,
                is_included: false,
                is_root,
            });
        }
    }

    fn add_config(&mut self, config: ConfigFile) {
        if self.configs.contains(&config) {
            return;
        }
        if self.configs.len() == super::FILES {
            self.take_whole(&config.path, "too many configuration files of Terragrunt");
            return;
        }
        self.configs.insert(config.clone());
        self.unread_configs.push(config);
    }

    /// Adds the files that the paths in `facts`, the facts of `file`, lead to.
    pub(super) fn supply_config(&mut self, file: &FileRequest, config: &ConfigFile, facts: &Facts) {
        let parent = self.parent_folder(config, facts);
        for path in &facts.terragrunt.uses {
            let mut evaluation = Evaluation {
                closure: self,
                config,
                facts,
                parent: &parent,
                parts: PARTS,
            };
            let Some(value) = evaluation.value(&path.path, 0) else {
                let why = "only Terragrunt can evaluate the path";
                self.take_whole(&format!("{}:{}", file.path, path.line), why);
                continue;
            };
            self.follow_path(file, config, path, &value);
        }
    }

    /// Returns the folder of the file that `config` includes first, or of `config` itself if another file includes it
    /// (`get_parent_terragrunt_dir()`).
    fn parent_folder(&self, config: &ConfigFile, facts: &Facts) -> String {
        let own = repopath::parent(&config.path).to_owned();
        let mut includes = facts.terragrunt.uses.iter();
        let include = includes.find(|path| path.kind == PathKind::Include);
        let Some(include) = include.filter(|_| !config.is_included) else {
            return own;
        };
        let mut evaluation = Evaluation {
            closure: self,
            config,
            facts,
            parent: &own,
            parts: PARTS,
        };
        let value = evaluation.value(&include.path, 0);
        let path = value.and_then(|value| resolve(&config.unit, &value));
        path.map_or(own, |path| repopath::parent(&path).to_owned())
    }

    fn follow_path(
        &mut self,
        file: &FileRequest,
        config: &ConfigFile,
        path: &PathUse,
        value: &str,
    ) {
        let (base, module) = match path.kind {
            PathKind::Source => split_source(value),
            _ => (value, ""),
        };
        if base.is_empty() {
            return;
        }
        // Relative paths start at the folder of the unit, and those of functions at the folder of the file.
        let bases = [config.unit.as_str(), repopath::parent(&file.path)];
        let mut folders: Vec<_> = bases
            .iter()
            .filter_map(|folder| resolve(folder, base))
            .collect();
        folders.dedup();
        for folder in folders {
            if let Some(target) = self.find(&folder, &file.path) {
                self.add_target(config, path.kind, target, module);
            }
        }
    }

    fn add_target(&mut self, config: &ConfigFile, kind: PathKind, target: Target, module: &str) {
        match (kind, target) {
            (PathKind::Include, Target::File(path)) => {
                self.singles.insert(path.clone());
                self.add_config(ConfigFile {
                    path,
                    is_included: true,
                    ..config.clone()
                });
            }
            (PathKind::Config, Target::File(path)) => self.add_read_config(config, path),
            (PathKind::Config, Target::Folder(folder)) => {
                let unit = repopath::join(&folder, UNIT);
                let found = unit.and_then(|path| self.find(&path, &config.path));
                if let Some(Target::File(path)) = found {
                    self.add_read_config(config, path);
                }
            }
            (PathKind::Dependency, Target::Folder(folder)) => self.add_unit(folder, false),
            (PathKind::Dependency, Target::File(path)) => {
                self.add_unit(repopath::parent(&path).to_owned(), false);
            }
            (PathKind::Source, Target::Folder(folder)) => {
                self.folders.insert(folder.clone());
                let path = repopath::join(&folder, module);
                let found = path.and_then(|path| self.find(&path, &config.path));
                if let Some(Target::Folder(folder)) = found {
                    if config.is_root {
                        self.sources.insert(folder.clone());
                    }
                    self.add_module(folder);
                }
            }
            (PathKind::File, Target::Folder(folder)) => drop(self.folders.insert(folder)),
            (PathKind::File | PathKind::Source, Target::File(path)) => {
                self.singles.insert(path);
            }
            (_, Target::Submodule(path)) => {
                if self.submodules {
                    self.entered.insert(path);
                }
            }
            (PathKind::Include, Target::Folder(_)) => {}
        }
    }

    fn add_read_config(&mut self, config: &ConfigFile, path: String) {
        self.singles.insert(path.clone());
        self.add_config(ConfigFile {
            unit: repopath::parent(&path).to_owned(),
            path,
            original: config.original.clone(),
            is_included: false,
            is_root: false,
        });
    }

    /// Resolves `path` and adds the symbolic links in it. `None` if the path does not exist. `user`: file that uses the path.
    fn find(&mut self, path: &str, user: &str) -> Option<Target> {
        match self.tree.follow(path, &self.steps) {
            Ok(followed) => {
                self.singles.extend(followed.links);
                Some(followed.target)
            }
            Err(Unresolvable::TooLong) => {
                self.take_whole(user, "too many folders and symbolic links in a path");
                None
            }
            Err(Unresolvable::Missing | Unresolvable::Outside | Unresolvable::Loop) => None,
        }
    }
}

/// Evaluation of path expressions in a configuration file.
struct Evaluation<'a> {
    closure: &'a Closure,
    config: &'a ConfigFile,
    facts: &'a Facts,
    parent: &'a str,
    /// Number of parts of expressions that may still be evaluated.
    parts: usize,
}

impl Evaluation<'_> {
    /// Returns the value of `expression`; `None` if only Terragrunt can evaluate it. `locals`: number of local values in the current chain.
    fn value(&mut self, expression: &Expression, locals: usize) -> Option<String> {
        self.parts = self.parts.checked_sub(1)?;
        let value = match expression {
            Expression::Text(text) => text.clone(),
            Expression::Template(parts) => {
                let mut whole = String::new();
                for part in parts {
                    whole.push_str(&self.value(part, locals)?);
                    if whole.len() > PATH {
                        return None;
                    }
                }
                whole
            }
            Expression::Local(name) if locals < LOCALS => {
                let value = self.facts.terragrunt.locals.get(name)?;
                self.value(value, locals + 1)?
            }
            Expression::Call(name, arguments) => {
                let first = arguments.first();
                let first = first.map(|first| self.value(first, locals));
                match first {
                    Some(first) => self.function(name, Some(&first?), arguments.len())?,
                    None => self.function(name, None, 0)?,
                }
            }
            Expression::Local(_) | Expression::Other => return None,
        };
        (value.len() <= PATH).then_some(value)
    }

    fn function(&self, name: &str, first: Option<&str>, count: usize) -> Option<String> {
        let config = self.config;
        let folder = repopath::parent(&config.path);
        let value = match (name, first) {
            // The label of an include. Which of several includes has this label is not read.
            (
                "get_parent_terragrunt_dir"
                | "path_relative_to_include"
                | "path_relative_from_include",
                Some(_),
            ) if self.has_several_includes() => return None,
            ("get_terragrunt_dir", None) => absolute(&config.unit),
            ("get_original_terragrunt_dir", None) => absolute(&config.original),
            ("get_parent_terragrunt_dir", _) => absolute(self.parent),
            ("get_repo_root" | "get_path_to_repo_root", None) => absolute(""),
            ("get_path_from_repo_root", None) => config.unit.clone(),
            ("path_relative_to_include", _) => relative(&config.unit, self.included(folder))?,
            ("path_relative_from_include", _) => {
                let down = relative(&config.unit, self.included(folder))?;
                let up = down
                    .split('/')
                    .map(|part| if part == "." { "." } else { ".." });
                up.collect::<Vec<_>>().join("/")
            }
            ("find_in_parent_folders", name) => self.in_parent_folders(name, count)?,
            ("dirname", Some(path)) => match path.rsplit_once('/') {
                Some(("", _)) => "/".to_owned(),
                Some((folder, _)) => folder.to_owned(),
                None => ".".to_owned(),
            },
            ("basename", Some(path)) => repopath::name(path).to_owned(),
            ("abspath", Some(path)) if path.starts_with('/') => path.to_owned(),
            _ => return None,
        };
        Some(value)
    }

    fn has_several_includes(&self) -> bool {
        let uses = self.facts.terragrunt.uses.iter();
        uses.filter(|path| path.kind == PathKind::Include).count() > 1
    }

    /// Returns the folder of the included file: of this file, in the folder `own`, or of the file that this file includes.
    fn included<'a>(&'a self, own: &'a str) -> &'a str {
        if self.config.is_included {
            own
        } else {
            self.parent
        }
    }

    /// Returns the nearest file or folder with the name `name` above the folder of the unit. `None` if there is none, or if the call has a
    /// fallback.
    fn in_parent_folders(&self, name: Option<&str>, count: usize) -> Option<String> {
        let names = name.map_or_else(|| vec![UNIT, ROOT], |name| vec![name]);
        if count > 1 || names.iter().any(|name| name.starts_with('/')) {
            return None;
        }
        let mut folder = self.config.unit.as_str();
        while !folder.is_empty() {
            folder = repopath::parent(folder);
            for name in &names {
                let path = repopath::join(folder, name)?;
                match self.closure.tree.follow(&path, &self.closure.steps) {
                    Ok(_) => return Some(absolute(&path)),
                    Err(Unresolvable::TooLong) => return None,
                    Err(_) => {}
                }
            }
        }
        // Terragrunt reports the missing file.
        Some(String::new())
    }
}

/// Beginning of the value of a path that begins at the root of the repository. The run has another folder there.
const ROOT_FOLDER: &str = "/.";

/// Returns the value of a path from the root of the repository.
fn absolute(path: &str) -> String {
    if path.is_empty() {
        ROOT_FOLDER.to_owned()
    } else {
        format!("{ROOT_FOLDER}/{path}")
    }
}

/// Returns the path of `folder` from `base`, a folder above it. `None` for other folders.
fn relative(folder: &str, base: &str) -> Option<String> {
    let rest = if base.is_empty() {
        folder
    } else {
        let rest = folder.strip_prefix(base)?;
        if rest.is_empty() {
            rest
        } else {
            rest.strip_prefix('/')?
        }
    };
    Some(if rest.is_empty() { "." } else { rest }.to_owned())
}

/// Resolves the value of a path against `folder`. `None` if the path leaves the repository.
fn resolve(folder: &str, value: &str) -> Option<String> {
    match value.strip_prefix(ROOT_FOLDER) {
        Some(path) if path.is_empty() || path.starts_with('/') => repopath::join("", path),
        None if !value.starts_with('/') => repopath::join(folder, value),
        Some(_) | None => None,
    }
}

/// Splits the value of `source` at `//` into the folder that Terragrunt copies and the module in it. Returns an empty folder for sources that
/// are not local.
fn split_source(value: &str) -> (&str, &str) {
    let value = value.split_once('?').map_or(value, |(path, _)| path);
    if value.contains("::") || value.contains("://") {
        return ("", "");
    }
    value.split_once("//").unwrap_or((value, ""))
}
