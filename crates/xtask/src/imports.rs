//! `cargo xtask imports` fails if the files of a crate have cyclic imports: `a.rs` imports from `b.rs`, and `b.rs` from
//! `a.rs`, directly or through other files. In the crates of [`LAYERED`], the root modules with their folders must not have cyclic imports either.
//!
//! Imports through re-exports and globs are resolved to the file that defines the item. Tests are excluded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Crates whose root modules must not have cyclic imports either, each taken together with its folder.
const LAYERED: [&str; 8] = [
    "cli",
    "controller",
    "core",
    "page",
    "registry",
    "runner",
    "source",
    "state",
];

/// Path of a module or item from the root of its crate.
type Names = Vec<String>;

/// Rust keywords that precede the name of an item.
const ITEMS: [&str; 9] = [
    "fn",
    "struct",
    "enum",
    "union",
    "trait",
    "type",
    "const",
    "static",
    "macro_rules",
];

/// Checks the crates in folder `crates` of the repository `root`.
///
/// # Errors
/// If the files of a crate have cyclic imports, or a file cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let folder = root.join("crates");
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut circles = Vec::new();
    for entry in entries {
        let source = entry?.path().join("src");
        let krate = Crate::read(&source)?;
        let is_layered = source
            .parent()
            .is_some_and(|folder| LAYERED.iter().any(|name| folder.ends_with(name)));
        let folder_circle = || is_layered.then(|| krate.folder_circle(&source)).flatten();
        let circle = krate.circle().or_else(folder_circle);
        circles.extend(circle.map(|circle| format!("{}: {circle}", source.display())));
    }
    ensure!(
        circles.is_empty(),
        "these files have cyclic imports; move the shared items into a file that imports none of them:\n{}",
        circles.join("\n")
    );
    Ok(())
}

/// Modules of a crate, by path.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Module>,
}

/// A module: a file, or an inline module of a file.
#[derive(Default)]
struct Module {
    file: PathBuf,
    defined: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths of two or more segments in the code of the module, except `use` declarations.
    paths: Vec<Names>,
}

/// A name that a module imports.
struct Import {
    /// Name that the module uses for the imported item; `*` for a glob.
    name: String,
    path: Names,
    is_public: bool,
}

impl Crate {
    /// Reads the crate with the sources in `folder`. Skips `main.rs` of a crate with `lib.rs`, because no other file
    /// imports from it.
    fn read(folder: &Path) -> Result<Self> {
        let mut krate = Self::default();
        let root = ["lib.rs", "main.rs"]
            .map(|name| folder.join(name))
            .into_iter()
            .find(|root| root.exists())
            .with_context(|| format!("no lib.rs or main.rs in {}", folder.display()))?;
        krate.read_file(&Vec::new(), &root, folder)?;
        Ok(krate)
    }

    /// Reads the module with path `names` in `file`, and its child modules below `folder`.
    fn read_file(&mut self, names: &Names, file: &Path, folder: &Path) -> Result<()> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let tokens: TokenStream = text
            .parse()
            .map_err(|error| anyhow!("{}: {error}", file.display()))?;
        for child in self.scan(names, file, tokens) {
            let name = child.last().context("a child module has no name")?;
            let path = [format!("{name}.rs"), format!("{name}/mod.rs")]
                .map(|path| folder.join(path))
                .into_iter()
                .find(|path| path.exists())
                .with_context(|| format!("no file for {}", child.join("::")))?;
            let folder = folder.join(name);
            self.read_file(&child, &path, &folder)?;
        }
        Ok(())
    }

    /// Adds the module with path `names` in `file`, and its inline modules. Returns the paths of the child modules that
    /// have their own files.
    fn scan(&mut self, names: &Names, file: &Path, tokens: TokenStream) -> Vec<Names> {
        let mut scanner = Scanner {
            module: Module {
                file: file.to_owned(),
                ..Module::default()
            },
            inline: Vec::new(),
            outside: Vec::new(),
        };
        scanner.scan(tokens, true);
        let child = |name: String| names.iter().cloned().chain([name]).collect::<Names>();
        let mut outside: Vec<Names> = scanner.outside.into_iter().map(child).collect();
        self.modules.insert(names.clone(), scanner.module);
        for (name, tokens) in scanner.inline {
            outside.extend(self.scan(&child(name), file, tokens));
        }
        outside
    }

    /// Returns the imports between files: for each importing file, the files that it imports from, each with the name
    /// of one imported item.
    fn edges(&self) -> BTreeMap<&Path, BTreeMap<&Path, String>> {
        let mut edges: BTreeMap<&Path, BTreeMap<&Path, String>> = BTreeMap::new();
        for (names, module) in &self.modules {
            let imports = module
                .imports
                .iter()
                .filter(|import| !import.is_public)
                .map(|import| &import.path);
            for path in imports.chain(&module.paths) {
                let Some((defining, item)) = self.resolve(names, path, &mut BTreeSet::new()) else {
                    continue;
                };
                let target = self.modules.get(&defining).map(|module| &*module.file);
                if let Some(target) = target.filter(|target| *target != module.file) {
                    let targets = edges.entry(&module.file).or_default();
                    targets.entry(target).or_insert_with(|| item.clone());
                }
            }
        }
        edges
    }

    /// Resolves `path`, used in module `from`. Returns the path of the module that defines the item, and the name of
    /// the item. `None` for a path to a module and for items of other crates.
    fn resolve(
        &self,
        from: &Names,
        path: &[String],
        seen: &mut BTreeSet<(Names, String)>,
    ) -> Option<(Names, String)> {
        let (first, rest) = path.split_first()?;
        let mut base = from.clone();
        match first.as_str() {
            "crate" => self.find(&Vec::new(), rest, seen),
            "self" => self.find(&base, rest, seen),
            "super" => {
                base.pop()?;
                let mut rest = rest;
                while let [next, after @ ..] = rest
                    && next == "super"
                {
                    base.pop()?;
                    rest = after;
                }
                self.find(&base, rest, seen)
            }
            _ => {
                let is_child = self
                    .modules
                    .contains_key(&[base.as_slice(), std::slice::from_ref(first)].concat());
                let is_imported = self
                    .modules
                    .get(from)?
                    .imports
                    .iter()
                    .any(|import| import.name == *first);
                (is_child || is_imported).then(|| self.find(&base, path, seen))?
            }
        }
    }

    /// Resolves a path relative to the module `base`.
    fn find(
        &self,
        base: &Names,
        path: &[String],
        seen: &mut BTreeSet<(Names, String)>,
    ) -> Option<(Names, String)> {
        let (first, rest) = path.split_first()?;
        let child = [base.as_slice(), std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.find(&child, rest, seen);
        }
        let module = self.modules.get(base)?;
        if module.defined.contains(first) {
            return Some((base.clone(), first.clone()));
        }
        if !seen.insert((base.clone(), first.clone())) {
            return None;
        }
        let named = module.imports.iter().filter(|import| import.name == *first);
        let globs = module.imports.iter().filter(|import| import.name == "*");
        let named = named.map(|import| [&import.path, rest].concat());
        let globs = globs.map(|import| [&import.path, path].concat());
        named
            .chain(globs)
            .find_map(|path| self.resolve(base, &path, seen))
    }

    /// Returns the shortest import cycle of files: `a.rs uses X of b.rs, b.rs uses Y of a.rs`.
    fn circle(&self) -> Option<String> {
        describe_circle(&self.edges())
    }

    /// Returns the shortest import cycle of the modules at the root of the crate, each with all files in its folder `source`/NAME.
    fn folder_circle(&self, source: &Path) -> Option<String> {
        let module_of = |file: &'_ Path| {
            let first = file.strip_prefix(source).ok()?.iter().next()?;
            Some(Path::new(first).with_extension(""))
        };
        let modules: BTreeMap<&Path, PathBuf> = self
            .modules
            .values()
            .filter_map(|module| Some((&*module.file, module_of(&module.file)?)))
            .collect();
        let mut edges: BTreeMap<&Path, BTreeMap<&Path, String>> = BTreeMap::new();
        for (file, targets) in self.edges() {
            for (target, item) in targets {
                if let (Some(from), Some(to)) = (modules.get(file), modules.get(target))
                    && from != to
                {
                    let item = format!("{item} ({} -> {})", named(file), named(target));
                    edges.entry(from).or_default().entry(to).or_insert(item);
                }
            }
        }
        describe_circle(&edges)
    }
}

/// Returns the shortest cycle of `edges` as text.
fn describe_circle(edges: &BTreeMap<&Path, BTreeMap<&Path, String>>) -> Option<String> {
    let circle = edges
        .keys()
        .filter_map(|start| shortest_circle(edges, start))
        .min_by_key(Vec::len)?;
    Some(
        circle
            .iter()
            .zip(circle.iter().cycle().skip(1))
            .filter_map(|(from, to)| {
                let item = edges.get(from)?.get(to)?;
                Some(format!("{} uses {item} of {}", named(from), named(to)))
            })
            .collect::<Vec<_>>()
            .join(", "),
    )
}

/// Returns the last two segments of a path.
fn named(file: &Path) -> String {
    let parts: Vec<_> = file
        .iter()
        .rev()
        .take(2)
        .map(|part| part.to_string_lossy())
        .collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

/// Returns the shortest cycle that contains `start`.
fn shortest_circle<'a>(
    edges: &BTreeMap<&'a Path, BTreeMap<&'a Path, String>>,
    start: &'a Path,
) -> Option<Vec<&'a Path>> {
    let mut before: BTreeMap<&Path, &Path> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
            if *next == start {
                let way = std::iter::successors(Some(at), |at| before.get(at).copied());
                let mut circle: Vec<_> = way.collect();
                circle.reverse();
                return Some(circle);
            }
            if !before.contains_key(next) {
                before.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Collects the definitions, imports and paths of a module.
struct Scanner {
    module: Module,
    inline: Vec<(String, TokenStream)>,
    outside: Vec<String>,
}

impl Scanner {
    /// Scans tokens. `of_module` is true for tokens of the module itself, and false for tokens in a block.
    fn scan(&mut self, tokens: TokenStream, of_module: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        let mut is_public = false;
        while let [first, after @ ..] = rest {
            rest = after;
            match first {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    if is_test(rest) {
                        rest = after_item(rest);
                    }
                }
                TokenTree::Ident(word) if word == "pub" => {
                    is_public = true;
                    rest = without_group(rest);
                    continue;
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = rest.iter().position(is_semicolon).unwrap_or(rest.len());
                    let (tree, after) = rest.split_at(end);
                    self.import(&Vec::new(), tree, is_public);
                    rest = after;
                }
                TokenTree::Ident(word) if word == "mod" && of_module => match rest {
                    [TokenTree::Ident(name), TokenTree::Group(body), after @ ..] => {
                        self.inline.push((name.to_string(), body.stream()));
                        rest = after;
                    }
                    [TokenTree::Ident(name), after @ ..] => {
                        self.outside.push(name.to_string());
                        rest = after;
                    }
                    _ => {}
                },
                TokenTree::Ident(word) if of_module && ITEMS.iter().any(|item| word == item) => {
                    let name = rest.iter().find_map(|token| match token {
                        TokenTree::Ident(name) if !ITEMS.iter().any(|item| name == item) => {
                            Some(name.to_string())
                        }
                        _ => None,
                    });
                    self.module.defined.extend(name);
                }
                TokenTree::Ident(word) => rest = self.path(word.to_string(), rest),
                TokenTree::Group(group) => self.scan(group.stream(), false),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            is_public = false;
        }
    }

    /// Records the path that begins with `first`, if the path has two or more segments. Returns the tokens after the path.
    fn path<'a>(&mut self, first: String, mut rest: &'a [TokenTree]) -> &'a [TokenTree] {
        let mut path = vec![first];
        while let [
            TokenTree::Punct(punct),
            TokenTree::Punct(two),
            TokenTree::Ident(next),
            after @ ..,
        ] = rest
            && (punct.as_char(), two.as_char()) == (':', ':')
        {
            path.push(next.to_string());
            rest = after;
        }
        if path.len() > 1 {
            self.module.paths.push(path);
        }
        rest
    }

    /// Records the imports of the use tree `tree`, whose paths are relative to `prefix`.
    fn import(&mut self, prefix: &Names, tree: &[TokenTree], is_public: bool) {
        let mut path = prefix.clone();
        let mut name = None;
        let mut tokens = tree.iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = tokens.next().map(ToString::to_string);
                }
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(star) if star.as_char() == '*' => name = Some("*".to_owned()),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
                    for tree in trees.split(is_comma) {
                        self.import(&path, tree, is_public);
                    }
                    return;
                }
                _ => {}
            }
        }
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.module.imports.push(Import {
                name,
                path,
                is_public,
            });
        }
    }
}

fn is_semicolon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';')
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')
}

/// Returns `rest` without a leading `(…)`, such as the `(crate)` of `pub(crate)`.
fn without_group(rest: &[TokenTree]) -> &[TokenTree] {
    match rest {
        [TokenTree::Group(group), after @ ..] if group.delimiter() == Delimiter::Parenthesis => {
            after
        }
        _ => rest,
    }
}

/// Returns true if `rest`, the tokens after a `#`, begins with `[cfg(test)]`.
pub(crate) fn is_test(rest: &[TokenTree]) -> bool {
    matches!(rest.first(), Some(TokenTree::Group(attribute)) if attribute.to_string().replace(' ', "") == "[cfg(test)]")
}

/// Returns the tokens after the item at the start of `rest`.
pub(crate) fn after_item(rest: &[TokenTree]) -> &[TokenTree] {
    let ends = |token: &TokenTree| {
        is_semicolon(token)
            || matches!(token, TokenTree::Group(body) if body.delimiter() == Delimiter::Brace)
    };
    let end = rest.iter().position(ends).map_or(rest.len(), |end| end + 1);
    rest.split_at(end).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle(files: &[(&str, &str)]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join(name);
            let parent = file.parent().unwrap_or_else(|| folder.path());
            std::fs::create_dir_all(parent).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let name = format!(
            "{}/",
            named(folder.path()).rsplit('/').next().unwrap_or_default()
        );
        let krate = Crate::read(folder.path()).unwrap();
        krate.circle().map(|circle| circle.replace(&name, ""))
    }

    #[test]
    fn cycle_of_two_files_is_found() {
        let path = circle(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; pub(crate) struct A;"),
            ("b.rs", "pub(crate) struct B; fn f() { crate::a::A; }"),
        ]);
        assert_eq!(path.unwrap(), "a.rs uses B of b.rs, b.rs uses A of a.rs");
    }

    #[test]
    fn cycle_of_folders_is_found_without_a_cycle_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("lib.rs", "mod a; mod b;");
        write("a.rs", "pub mod c; pub struct A;");
        write("a/c.rs", "use crate::b::B; fn f(_: B) {}");
        write("b.rs", "use crate::a::A; pub struct B(A);");
        let krate = Crate::read(folder.path()).unwrap();
        assert_eq!(krate.circle(), None);
        let circle = krate.folder_circle(folder.path()).unwrap();
        assert!(circle.starts_with("a uses B (a/c.rs -> "), "{circle}");
    }

    #[test]
    fn one_way_import_is_no_cycle() {
        let files = [
            ("lib.rs", "mod a; mod b; fn f() { a::g(); b::h() }"),
            ("a.rs", "use crate::b; pub(crate) fn g() { b::h() }"),
            ("b.rs", "pub(crate) fn h() {}"),
        ];
        assert_eq!(circle(&files), None);
    }

    #[test]
    fn re_exports_and_globs_are_resolved() {
        for import in ["use crate::B;", "use crate::*; fn f(_: crate::B) {}"] {
            let path = circle(&[
                ("lib.rs", "mod a; mod b; pub use b::*;"),
                ("a.rs", &format!("{import} pub(crate) struct A;")),
                ("b.rs", "use crate::a::A; pub struct B(A);"),
            ]);
            assert!(path.is_some(), "{import}");
        }
    }

    #[test]
    fn parent_and_child_modules_form_a_cycle() {
        let path = circle(&[
            ("main.rs", "mod a;"),
            ("a.rs", "mod c; pub(super) struct A; fn f() { c::g() }"),
            ("a/c.rs", "use super::A; pub(super) fn g() -> A { A }"),
        ]);
        assert_eq!(
            path.unwrap(),
            "a/c.rs uses A of a.rs, a.rs uses g of a/c.rs"
        );
    }

    #[test]
    fn macros_count_as_imports_unlike_tests_and_inline_modules() {
        let a = "mod inner { use super::A; fn f(_: A) {} } pub(crate) struct A;";
        let tests = "#[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] use crate::b::B;";
        let b = "pub(crate) struct B; fn f() { println!(\"{}\", crate::a::A) }";
        let files = |a: String| circle(&[("lib.rs", "mod a; mod b;"), ("a.rs", &a), ("b.rs", b)]);
        assert_eq!(files(format!("{a} {tests}")), None);
        assert!(files(format!("{a} use crate::b::B;")).is_some());
    }
}
