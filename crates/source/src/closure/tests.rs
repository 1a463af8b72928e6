use super::*;
use crate::module;
use crate::tree::tests::tree;
use proptest::prelude::*;
use rstest::rstest;
use std::collections::HashMap;

const LIMITS: ContextLimits = ContextLimits {
    files: 20_000,
    folders: 30_000,
    bytes: 64 << 20,
};

/// Computes the closure with file contents by path. All other files are empty.
fn close(
    tree: &Tree,
    contents: &[(&str, &str)],
    root: &str,
    include: &[&str],
) -> Result<Selection, Error> {
    close_with(tree, contents, root, include, false)
}

fn close_with(
    tree: &Tree,
    contents: &[(&str, &str)],
    root: &str,
    include: &[&str],
    submodules: bool,
) -> Result<Selection, Error> {
    let contents: HashMap<String, &str> = contents
        .iter()
        .map(|(path, text)| (format!("object of {path}"), *text))
        .collect();
    let include: Vec<String> = include.iter().map(|path| (*path).to_owned()).collect();
    let mut closure = Closure::new(Arc::new(tree.clone()), submodules);
    closure.start(root, &include, None)?;
    loop {
        let requests = closure.files_to_read();
        if requests.is_empty() {
            return closure.finish(LIMITS);
        }
        for file in requests {
            let text = contents.get(&file.object).copied().unwrap_or_default();
            closure.supply(&file, &module::read(&file.path, text.as_bytes()))?;
        }
    }
}

/// Returns the closure of the root module in folder `root`, with the variable file at `path`.
fn close_with_var_file(tree: &Tree, root: &str, path: &str) -> Result<Selection, Error> {
    let mut closure = Closure::new(Arc::new(tree.clone()), false);
    closure.start(root, &[], None)?;
    closure.add_var_file(path)?;
    while !closure.files_to_read().is_empty() {}
    closure.finish(LIMITS)
}

fn call(source: &str) -> String {
    format!("module \"m\" {{\n  source = \"{source}\"\n}}\n")
}

fn paths(selection: &Selection) -> Vec<&str> {
    selection.entries.keys().map(String::as_str).collect()
}

fn reason(result: Result<Selection, Error>) -> &'static str {
    result.err().map_or("ok", |error| error.reason().as_str())
}

#[test]
fn only_called_local_modules_are_included() {
    let tree = tree(&[
        "app/main.tf",
        "app/templates/x.tpl",
        "lib/a/main.tf",
        "lib/b/main.tf",
        "lib/c/main.tf",
        "README.md",
        "other/main.tf",
    ]);
    let (a, b) = (call("../lib/a"), call("../b"));
    let closure = close(
        &tree,
        &[("app/main.tf", &a), ("lib/a/main.tf", &b)],
        "app",
        &[],
    )
    .unwrap();
    assert_eq!(
        paths(&closure),
        [
            "app/main.tf",
            "app/templates/x.tpl",
            "lib/a/main.tf",
            "lib/b/main.tf"
        ]
    );
}

#[test]
fn module_cycle_terminates() {
    let tree = tree(&["a/main.tf", "b/main.tf"]);
    let (b, a) = (call("../b"), call("../a"));
    let closure = close(&tree, &[("a/main.tf", &b), ("b/main.tf", &a)], "a", &[]).unwrap();
    assert_eq!(paths(&closure), ["a/main.tf", "b/main.tf"]);
}

#[test]
fn engine_artifacts_are_excluded() {
    let tree = tree(&[
        "main.tf",
        "terraform.tfstate",
        "x.tfstate.backup",
        "terraform.tfstate.d/p/terraform.tfstate",
        ".terraform/x",
        ".terraform.lock.hcl",
        "a/.terraform/y",
        ".git/config",
        "a/.GIT/x",
        "remote.tfstate.tf",
    ]);
    let closure = close(&tree, &[], "", &[]).unwrap();
    assert_eq!(
        paths(&closure),
        [".terraform.lock.hcl", "main.tf", "remote.tfstate.tf"]
    );
}

#[rstest]
#[case::in_the_module("./prod.tfvars", &["web/main.tf", "web/prod.tfvars"])]
#[case::outside("../env/prod.tfvars", &["env/prod.tfvars", "web/main.tf", "web/prod.tfvars"])]
#[case::link(
    "../env/link.tfvars",
    &["env/link.tfvars", "shared/x.tfvars", "web/main.tf", "web/prod.tfvars"]
)]
fn variable_file_is_part_of_the_closure(#[case] path: &str, #[case] wanted: &[&str]) {
    let tree = tree(&[
        "web/main.tf",
        "web/prod.tfvars",
        "env/prod.tfvars",
        "env/other.tfvars",
        "env/link.tfvars -> ../shared/x.tfvars",
        "shared/x.tfvars",
    ]);
    assert_eq!(
        paths(&close_with_var_file(&tree, "web", path).unwrap()),
        wanted
    );
}

/// The engine resolves `..` after the symbolic links in the path of its working directory.
#[test]
fn variable_file_is_relative_to_the_resolved_module_folder() {
    let tree = tree(&["live -> a/web", "a/web/main.tf", "a/x.tfvars", "x.tfvars"]);
    let closure = close_with_var_file(&tree, "live", "../x.tfvars").unwrap();
    assert_eq!(paths(&closure), ["a/web/main.tf", "a/x.tfvars", "live"]);
}

#[rstest]
#[case::missing("../env/prod.tfvars", "VarFileNotFound", "no file `env/prod.tfvars`")]
#[case::folder("../env/x.tfvars", "VarFileNotFound", "it is a folder")]
#[case::submodule("../sub/x.tfvars", "VarFileNotFound", "gitRepo.submodules: true")]
#[case::link("out.tfvars", "InvalidPath", "leads out of the repository through")]
#[case::outside("../../x.tfvars", "InvalidPath", "leads out of the repository")]
fn unusable_variable_file_is_refused(
    #[case] path: &str,
    #[case] expected: &str,
    #[case] message: &str,
) {
    let tree = tree(&[
        "web/main.tf",
        "web/out.tfvars -> ../../x.tfvars",
        "env/x.tfvars/a",
        "sub @",
    ]);
    let error = close_with_var_file(&tree, "web", path).err().unwrap();
    assert_eq!(error.reason().as_str(), expected);
    assert!(!error.is_transient());
    let text = error.to_string();
    assert!(
        text.contains("spec.varFiles") && text.contains(message),
        "{text}"
    );
}

#[test]
fn includes_add_files_and_folders() {
    let tree = tree(&["m/main.tf", "shared/a", "shared/b/c", "one", "two"]);
    let closure = close(&tree, &[], "m", &["shared", "one"]).unwrap();
    assert_eq!(
        paths(&closure),
        ["m/main.tf", "one", "shared/a", "shared/b/c"]
    );
    assert_eq!(reason(close(&tree, &[], "m", &["three"])), "PathNotFound");
}

#[test]
fn only_the_backend_of_the_root_module_is_read() {
    let tree = tree(&["m/a.tf", "m/b.tf", "n/main.tf"]);
    let (n, s3, gcs) = (
        call("../n"),
        "terraform {\n  backend \"s3\" {}\n}",
        "terraform {\n  backend \"gcs\" {}\n}",
    );
    let closure = close(
        &tree,
        &[("m/a.tf", &n), ("m/b.tf", s3), ("n/main.tf", gcs)],
        "m",
        &[],
    )
    .unwrap();
    assert_eq!(closure.backend.as_deref(), Some("s3"));
    let closure = close(&tree, &[("m/a.tf", &n), ("n/main.tf", gcs)], "m", &[]).unwrap();
    assert_eq!(closure.backend, None);
}

#[test]
fn backend_of_an_override_file_replaces_other_backends() {
    let tree = tree(&["a.tf", "b_override.tf", "c.tf", "d_override.tf"]);
    let [azurerm, s3, gcs] =
        ["azurerm", "s3", "gcs"].map(|kind| format!("terraform {{\n  backend \"{kind}\" {{}}\n}}"));
    let contents = [
        ("a.tf", azurerm.as_str()),
        ("b_override.tf", &s3),
        ("c.tf", &gcs),
    ];
    let closure = close(&tree, &contents, "", &[]).unwrap();
    assert_eq!(closure.backend.as_deref(), Some("s3"));
}

/// The engine ignores the missing module if a block of another file replaces the call.
#[rstest]
#[case("a/main.tf", "a/override.tf", "ok")]
#[case("a/main.tf", "a/x_override.tf.json", "ok")]
#[case("a/main.tf", "a/main.tofu", "ok")]
#[case("a/main.tofu.json", "a/b.tf", "ok")]
#[case("a/main.tf", "a/overrides.tf", "ModuleNotFound")]
#[case("a/main.tf", "override.tf", "ModuleNotFound")]
fn replaceable_call_may_have_no_folder(
    #[case] caller: &str,
    #[case] other: &str,
    #[case] expected: &str,
) {
    let missing = if module::Syntax::of(caller) == module::Syntax::Json {
        r#"{"module": {"m": {"source": "./missing"}}}"#.to_owned()
    } else {
        call("./missing")
    };
    let tree = tree(&[caller, other]);
    let result = close(&tree, &[(caller, &missing)], "a", &[]);
    assert_eq!(reason(result), expected);
}

#[test]
fn modules_of_tests_of_the_root_module_are_included() {
    let tree = tree(&[
        "m/main.tf",
        "m/a.tftest.hcl",
        "m/tests/b.tofutest.hcl",
        "m/tests/deep/c.tftest.hcl",
        "n/main.tf",
        "n/d.tftest.hcl",
        "x/1/x",
        "x/2/x",
        "x/3/x",
        "x/4/x",
    ]);
    let module = call("../n");
    let run =
        |number| format!("run \"r\" {{\n  module {{\n    source = \"../x/{number}\"\n  }}\n}}\n");
    let [first, second, third, fourth] = [1, 2, 3, 4].map(run);
    let contents = [
        ("m/main.tf", module.as_str()),
        ("m/a.tftest.hcl", &first),
        ("m/tests/b.tofutest.hcl", &second),
        ("m/tests/deep/c.tftest.hcl", &third),
        ("n/d.tftest.hcl", &fourth),
    ];
    let closure = close(&tree, &contents, "m", &[]).unwrap();
    let outside: Vec<&str> = paths(&closure)
        .into_iter()
        .filter(|path| path.starts_with('x'))
        .collect();
    assert_eq!(outside, ["x/1/x", "x/2/x"]);
}

#[rstest]
#[case::absolute("/alustan-git", true)]
#[case::url("file:///alustan-git", true)]
#[case::scheme_in_capitals("FILE:///alustan-git", true)]
#[case::getter("file::/alustan-git", true)]
#[case::getter_of_a_relative_path("file::./x", true)]
#[case::git("git::file:///alustan-git", true)]
#[case::git_path("git::/alustan-git//sub", true)]
#[case::https("https://host.test/file:/x.zip", false)]
#[case::git_https("git::https://host.test/r?ref=file::x", false)]
#[case::registry("host.test/team/file/aws", false)]
#[case::scp("git@host.test:file/x.git", false)]
fn module_source_on_the_host_is_refused(#[case] source: &str, #[case] is_refused: bool) {
    let module = tree(&["m/a.tf", "m/b.tf.json"]);
    let json = format!(r#"{{"module": {{"m": {{"source": "{source}"}}}}}}"#);
    let native = call(source);
    let wanted = if is_refused {
        "ModuleSourceNotAllowed"
    } else {
        "ok"
    };
    for (file, text) in [("m/a.tf", &native), ("m/b.tf.json", &json)] {
        assert_eq!(
            reason(close(&module, &[(file, text)], "m", &[])),
            wanted,
            "{file}"
        );
    }
    // The engine may not read the call. If it does, the build refuses the source.
    let replaced = tree(&["m/a.tf", "m/a_override.tf"]);
    assert_eq!(
        reason(close(&replaced, &[("m/a.tf", &native)], "m", &[])),
        "ok"
    );
}

#[test]
fn refused_module_source_is_reported_with_its_block() {
    let error = close(
        &tree(&["main.tf"]),
        &[("main.tf", &call("/etc/ssl"))],
        "",
        &[],
    )
    .unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with(
            "main.tf:1: module \"m\": source `/etc/ssl` is a path outside of the repository; "
        ),
        "{message}"
    );
    assert!(!error.is_transient());
    let long = call(&format!("/{}", "x".repeat(5_000)));
    let error = close(&tree(&["main.tf"]), &[("main.tf", &long)], "", &[]).unwrap_err();
    assert!(error.to_string().len() < 500);
}

#[test]
fn unresolved_module_source_is_reported_with_its_block() {
    let tree = tree(&["a/b/main.tf", "a/file", "sub @"]);
    let with =
        |source: &str| close(&tree, &[("a/b/main.tf", &call(source))], "a/b", &[]).unwrap_err();
    let error = with("../../../x");
    assert_eq!(error.reason().as_str(), "PathLeavesRepository");
    assert_eq!(
        error.to_string(),
        "a/b/main.tf:1: module \"m\": source `../../../x` leaves the repository"
    );
    for (source, why) in [
        ("../x", "no folder `../x`"),
        ("../file", "is a file"),
        ("../../sub", "submodule"),
    ] {
        let error = with(source);
        assert_eq!(error.reason().as_str(), "ModuleNotFound");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[rstest]
#[case::syntax("a = 1\nb = [\n", "m/bad.tf:3: an expression is not terminated")]
#[case::computed(
    "\nmodule \"x\" {\n  source = var.x\n}\n",
    "m/bad.tf:2: the source of the module is not a literal"
)]
fn unparsable_file_includes_the_whole_repository(#[case] text: &str, #[case] why: &str) {
    let tree = tree(&[
        "m/main.tf",
        "m/bad.tf",
        "other/x",
        "other/out -> ../../x",
        "x",
        ".git/x",
        "bad\u{fffd}name",
        "sub @",
    ]);
    let s3 = "terraform {\n  backend \"s3\" {}\n}";
    let closure = close(&tree, &[("m/bad.tf", text), ("m/main.tf", s3)], "m", &[]).unwrap();
    assert_eq!(paths(&closure), ["m/bad.tf", "m/main.tf", "other/x", "x"]);
    assert_eq!(closure.whole.as_deref(), Some(why));
    assert_eq!(closure.backend.as_deref(), Some("s3"));
    assert!(closure.submodules.is_empty());
}

#[test]
fn escaping_symlink_is_refused_in_a_whole_repository() {
    let out = tree(&["m/bad.tf", "m/out -> ../../x"]);
    assert_eq!(
        reason(close(&out, &[("m/bad.tf", "[")], "m", &[])),
        "SymlinkLeavesContext"
    );
}

#[test]
fn too_many_files_include_the_whole_repository() {
    let files: Vec<String> = (0..=FILES).map(|file| format!("m/{file:04}.tf")).collect();
    let mut files: Vec<&str> = files.iter().map(String::as_str).collect();
    files.push("x");
    let closure = close(&tree(&files), &[], "m", &[]).unwrap();
    assert_eq!(closure.entries.len(), files.len());
    assert_eq!(
        closure.whole.as_deref(),
        Some("m/2000.tf: too many configuration files")
    );
}

#[test]
fn too_many_modules_include_the_whole_repository() {
    let whole = |modules: usize| {
        let folders: Vec<String> = (0..modules).map(|n| format!("l/{n}/main.tf")).collect();
        let mut files: Vec<&str> = folders.iter().map(String::as_str).collect();
        files.extend(["m/a.tf", "m/b.tf"]);
        let call = |n: usize| call(&format!("../l/{n}"));
        let calls = |range: std::ops::Range<usize>| -> String { range.map(call).collect() };
        let (first, second) = (calls(0..1_001), calls(1_001..modules));
        let contents = [("m/a.tf", first.as_str()), ("m/b.tf", second.as_str())];
        close(&tree(&files), &contents, "m", &[]).unwrap().whole
    };
    let why = whole(2_002).unwrap();
    assert!(why.ends_with(": too many modules"), "{why}");
    // The root module has two files and calls 1,998 modules with one file each: the maximum of 2,000 files.
    assert_eq!(whole(1_998), None);
}

#[test]
fn over_8_mib_configuration_includes_whole_repository() {
    let whole = |bytes: u64| {
        let listing = format!("100644 blob a {bytes}\tm/a.tf\x00100644 blob b 1\tm/b.tf\x00");
        let tree = Tree::read(listing.as_bytes()).unwrap();
        close(&tree, &[], "m", &[]).unwrap().whole
    };
    assert_eq!(whole((8 << 20) - 1), None);
    let why = "m/b.tf: too much configuration".to_owned();
    assert_eq!(whole(8 << 20), Some(why));
}

#[test]
fn invalid_file_of_an_uncalled_module_is_ignored() {
    let tree = tree(&["m/main.tf", "m/sub/bad.tf", "n/bad.tf"]);
    let bad = [("m/sub/bad.tf", "{"), ("n/bad.tf", "{")];
    assert_eq!(
        paths(&close(&tree, &bad, "m", &[]).unwrap()),
        ["m/main.tf", "m/sub/bad.tf"]
    );
}

#[test]
fn invalid_module_path_is_refused() {
    let tree = tree(&[
        "m/main.tf",
        "sub @",
        "out -> ../x",
        "abs -> /etc",
        "a -> b",
        "b -> a",
    ]);
    for (path, expected) in [
        ("x", "PathNotFound"),
        ("m/main.tf", "InvalidPath"),
        ("sub", "InvalidPath"),
        ("sub/x", "InvalidPath"),
        ("out", "InvalidPath"),
        ("abs", "InvalidPath"),
        ("a", "InvalidPath"),
        ("m", "ok"),
    ] {
        assert_eq!(reason(close(&tree, &[], path, &[])), expected, "{path}");
    }
}

#[test]
fn links_inside_the_closure_are_included() {
    let tree = tree(&[
        "m/main.tf",
        "m/l.tf -> main.tf",
        "m/d/x",
        "m/e -> d",
        "n -> m",
    ]);
    let closure = close(&tree, &[], "m", &[]).unwrap();
    assert_eq!(paths(&closure), ["m/d/x", "m/e", "m/l.tf", "m/main.tf"]);
    let closure = close(&tree, &[], "n", &[]).unwrap();
    assert!(
        paths(&closure).contains(&"n"),
        "a link on the way to the module goes in"
    );
}

#[test]
fn linked_module_folder_is_included_with_its_link() {
    let tree = tree(&[
        "app/main.tf",
        "app/mod -> ../lib/real",
        "lib/real/main.tf",
        "lib/real/l.tf -> main.tf",
    ]);
    let source = call("./mod");
    let closure = close(&tree, &[("app/main.tf", &source)], "app", &[]).unwrap();
    assert_eq!(
        paths(&closure),
        [
            "app/main.tf",
            "app/mod",
            "lib/real/l.tf",
            "lib/real/main.tf"
        ]
    );
}

#[test]
fn sources_are_relative_to_the_target_of_a_link() {
    let tree = tree(&[
        "root -> a/b/root",
        "a/b/root/main.tf",
        "a/b/m -> ../../lib/x/y",
        "lib/x/y/main.tf",
        "lib/x/z/main.tf",
        "a/b/z/main.tf",
        "z/main.tf",
    ]);
    let (link, sibling) = (call("../m"), call("../z"));
    let contents = [
        ("a/b/root/main.tf", link.as_str()),
        ("lib/x/y/main.tf", &sibling),
    ];
    let closure = close(&tree, &contents, "root", &[]).unwrap();
    assert_eq!(
        paths(&closure),
        [
            "a/b/m",
            "a/b/root/main.tf",
            "lib/x/y/main.tf",
            "lib/x/z/main.tf",
            "root"
        ]
    );
}

#[test]
fn targets_of_links_are_included() {
    let tree = tree(&[
        "m/main.tf",
        "m/file -> ../shared/on",
        "m/d/folder -> ../../templates",
        "shared/on -> ../shared/x",
        "shared/x",
        "shared/y",
        "templates/a",
        "templates/b -> ../other/c",
        "templates/terraform.tfstate",
        "other/c",
        "other/d",
    ]);
    let closure = close(&tree, &[], "m", &[]).unwrap();
    assert_eq!(
        paths(&closure),
        [
            "m/d/folder",
            "m/file",
            "m/main.tf",
            "other/c",
            "shared/on",
            "shared/x",
            "templates/a",
            "templates/b",
        ]
    );
    let whole = close(&tree, &[("m/main.tf", "[")], "m", &[]).unwrap();
    assert_eq!(whole.entries.len(), 10);
}

#[test]
fn submodule_in_the_target_of_a_link_is_requested() {
    let tree = tree(&["m/main.tf", "m/l -> ../shared", "shared/x", "shared/sub @"]);
    let closure = close_with(&tree, &[], "m", &[], true).unwrap();
    assert_eq!(closure.submodules, ["shared/sub"]);
}

/// Links to nested folders that are followed from the innermost folder to the outermost: each link adds all files again.
#[test]
fn files_in_targets_of_links_are_limited() {
    let folder = |depth| "a/".repeat(depth);
    let close_with_links = |links: usize, target: &dyn Fn(usize) -> String| {
        let mut files = vec!["m/main.tf".to_owned()];
        files.extend((1..=links).map(|link| format!("m/l{link:03} -> ../{}", target(link))));
        files.extend((0..19_000).map(|file| format!("{}{file}", folder(100))));
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        reason(close(&tree(&files), &[], "m", &[]))
    };
    assert_eq!(close_with_links(100, &folder), "SymlinkLeavesContext");
    assert_eq!(close_with_links(100, &|_| folder(100)), "ok");
}

#[test]
fn links_that_leave_the_closure_are_refused() {
    for (target, why) in [
        ("/etc/passwd", "leads out of the repository"),
        ("../../x", "leads out of the repository"),
        ("nothing", "is dangling"),
        ("l.tf", "is part of a cycle of symbolic links"),
        ("../sub/x", "submodule"),
        (
            "terraform.tfstate",
            "points to a file that git or an engine creates",
        ),
    ] {
        let link = format!("m/l.tf -> {target}");
        let tree = tree(&[
            "m/main.tf",
            "m/terraform.tfstate",
            "other/x",
            "sub @",
            &link,
        ]);
        let error = close(&tree, &[], "m", &[]).unwrap_err();
        assert_eq!(error.reason().as_str(), "SymlinkLeavesContext");
        assert!(
            error.to_string().contains("`m/l.tf`") && error.to_string().contains(why),
            "{error}"
        );
    }
}

#[rstest]
#[case("l -> nothing", "ok")]
#[case("l -> l", "ok")]
#[case("l -> ../sub/x", "ok")]
#[case("l -> terraform.tfstate", "ok")]
#[case("l -> /x", "SymlinkLeavesContext")]
#[case("d/l.tf -> nothing", "ok")]
#[case("terraform.tfvars -> nothing", "ok")]
#[case("a.auto.tfvars.json -> ../sub/x", "SymlinkLeavesContext")]
#[case("d/terraform.tfvars -> ../../sub/x", "ok")]
fn link_without_a_target_is_excluded_unless_it_is_read(#[case] link: &str, #[case] expected: &str) {
    let link = format!("m/{link}");
    let tree = tree(&["m/main.tf", "m/terraform.tfstate", "sub @", &link]);
    let result = close(&tree, &[], "m", &[]);
    if let Ok(closure) = &result {
        assert_eq!(paths(closure), ["m/main.tf"]);
    }
    assert_eq!(reason(result), expected);
}

#[test]
fn submodules_below_the_module_are_excluded_and_listed() {
    let tree = tree(&["m/main.tf", "m/vendor @"]);
    let closure = close(&tree, &[], "m", &[]).unwrap();
    assert_eq!(
        (paths(&closure), closure.submodules.as_slice()),
        (vec!["m/main.tf"], &["m/vendor".to_owned()][..])
    );
}

#[test]
fn paths_that_git_never_creates_are_refused() {
    for name in [
        "../x",
        "a/../../x",
        "/etc/x",
        "a//x",
        "./x",
        "bad\u{fffd}name",
    ] {
        let tree = tree(&["main.tf", name]);
        assert_eq!(reason(close(&tree, &[], "", &[])), "InvalidPath", "{name}");
    }
}

#[test]
fn paths_too_long_to_be_unpacked_are_refused() {
    let long = "a/".repeat(2_000) + "x";
    let with_it = tree(&["main.tf", &long]);
    let error = close(&with_it, &[], "", &[]).unwrap_err();
    assert_eq!(error.reason().as_str(), "ContextTooLarge");
    let wanted = "is 4001 bytes, more than the limit of 1024: `a/a/";
    let message = error.to_string();
    assert!(message.contains(wanted) && message.len() < 400, "{message}");
    let (longest, longer) = ("a".repeat(1_024), "a".repeat(1_025));
    assert_eq!(
        reason(close(&tree(&["main.tf", &longest]), &[], "", &[])),
        "ok"
    );
    assert_eq!(
        reason(close(&tree(&["main.tf", &longer]), &[], "", &[])),
        "ContextTooLarge"
    );
    // A context with the whole repository omits a file with too long a path if the module does not need the file.
    let beside = tree(&["m/bad.tf", &long]);
    let closure = close(&beside, &[("m/bad.tf", "[")], "m", &[]).unwrap();
    assert_eq!(paths(&closure), ["m/bad.tf"]);
}

/// Each group of ten files has 51 folders, so 16,000 files have 81,600 folders.
#[test]
fn number_of_context_folders_is_limited() {
    let path = |file: usize| format!("{}/{}x{file}", file / 10, "a/".repeat(50));
    let of = |files: usize| {
        let paths: Vec<String> = (0..files).map(path).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        close(&tree(&paths), &[], "", &[])
    };
    let error = of(16_000).unwrap_err();
    assert_eq!(error.reason().as_str(), "ContextTooLarge");
    let wanted = "has 81600 folders, more than the limit of 30000";
    assert!(error.to_string().contains(wanted), "{error}");
    // 588 groups have 29,988 folders, and 589 groups have 30,039. The limit is 30,000.
    assert_eq!(reason(of(5_880)), "ok");
    assert_eq!(reason(of(5_881)), "ContextTooLarge");
}

#[test]
fn link_cycle_does_not_create_endless_modules() {
    let tree = tree(&["m/main.tf", "m/a -> .", "m/b -> .", "x"]);
    let source = format!("{}{}", call("./a"), call("./b"));
    let closure = close(&tree, &[("m/main.tf", &source)], "m", &[]).unwrap();
    assert_eq!(paths(&closure), ["m/a", "m/b", "m/main.tf"]);
}

/// Trees that take quadratic time if each path is resolved separately. A quadratic implementation would not finish in time.
#[rstest]
#[case::nested_modules((0..2_000).map(|depth| format!("{}main.tf", "a/".repeat(depth))).collect(), "./a")]
#[case::links_over_links((0..20_000).map(|link| format!("l{link} -> {}main.tf", "./".repeat(1_000))).chain(["main.tf".to_owned()]).collect(), "./a")]
#[case::names_of_one_module((0..20_000).map(|link| format!("l{link} -> m")).chain(["m/main.tf".to_owned(), "main.tf".to_owned()]).collect(), "./l1")]
fn hostile_trees_are_followed_in_linear_time(#[case] files: Vec<String>, #[case] source: &str) {
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let source = call(source);
    let contents: Vec<(&str, &str)> = files.iter().map(|path| (*path, source.as_str())).collect();
    let _ = close(&tree(&files), &contents, "", &[]);
}

#[test]
fn submodules_are_requested_only_if_a_path_leads_into_them() {
    let tree = tree(&["app/main.tf", "app/sub @", "lib @", "shared @", "other @"]);
    let source = call("../lib/a");
    let contents = [("app/main.tf", source.as_str())];
    let wanted = close_with(&tree, &contents, "app", &["shared/x"], true).unwrap();
    assert_eq!(wanted.submodules, ["app/sub", "lib", "shared"]);
    let root = close_with(&tree, &[], "other/m", &[], true).unwrap();
    assert_eq!(root.submodules, ["other"]);
    let refused = close(&tree, &contents, "app", &[]).unwrap_err().to_string();
    assert!(refused.contains("gitRepo.submodules: true"), "{refused}");
}

proptest! {
    #[test]
    fn any_configuration_is_read(
        text in proptest::collection::vec(
            prop_oneof![
                Just("module \"m\" {\n".to_owned()), Just("source = \"".to_owned()), Just("../".to_owned()),
                Just("./a".to_owned()), Just("\"\n".to_owned()), Just("}\n".to_owned()), Just("<<E\n".to_owned()),
                Just("${".to_owned()), Just("backend \"s3\" {".to_owned()), Just("\0".to_owned()), "\\PC{0,6}",
            ],
            0..24,
        ),
        name in "(main.tf|a.tf.json)",
    ) {
        let file = format!("a/{name}");
        let tree = tree(&[&file, "b/main.tf", "sub @", "l -> .."]);
        let text = text.concat();
        if let Ok(found) = close(&tree, &[(&file, &text)], "a", &[]) {
            prop_assert!(found.entries.contains_key(&file));
        }
    }

    #[test]
    fn closure_has_the_module_and_only_repository_files(
        files in proptest::collection::btree_set("(a|b|c)(/(a|b|c|main)){0,2}\\.tf", 1..12),
        sources in proptest::collection::vec("(\\.|\\.\\.)(/(a|b|c|\\.\\.)){0,3}", 0..4),
        root in "(|a|b|a/b)",
    ) {
        let lines: Vec<&str> = files.iter().map(String::as_str).collect();
        let tree = tree(&lines);
        let text: String = sources.iter().map(|source| call(source)).collect();
        let contents: Vec<(&str, &str)> = lines.iter().map(|path| (*path, text.as_str())).collect();
        if let Ok(found) = close(&tree, &contents, &root, &[]) {
            let again = close(&tree, &contents, &root, &[]).unwrap();
            prop_assert_eq!(paths(&found), paths(&again));
            prop_assert!(found.entries.keys().all(|path| files.contains(path)));
            prop_assert!(files.iter().filter(|path| repopath::is_within(path, &root)).all(|path| found.entries.contains_key(path)));
        }
    }
}

mod terragrunt;
