//! Modules that use each form of the syntax. The engine accepts each folder in `forms/`: `make corpus DIR=crates/source/tests/corpus` compares the
//! closures with the module calls of the engine. Folders whose name begins with `called` are the modules that a form calls.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use alustan_source::corpus::{LocalModules, Repository};
use rstest::rstest;

fn local_modules(form: &str) -> LocalModules {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/forms");
    Repository::read(&folder)
        .unwrap()
        .local_modules(form)
        .unwrap()
}

#[rstest]
#[case("comments", &["comments/called", "comments/called-2", "comments/called-3"])]
#[case("crlf-and-bom", &["crlf-and-bom/called", "crlf-and-bom/called-2"])]
#[case("empty", &["empty/called"])]
#[case("expressions", &["expressions/called"])]
#[case("heredocs", &["heredocs/called"])]
#[case("json", &["json/called", "json/called-2", "json/called-3", "json/called-4"])]
#[case("labels", &["labels/called", "labels/called-2"])]
#[case("links", &["links/called-3", "links/deep/called", "links/deep/called-2"])]
#[case("mocks", &["mocks/called"])]
#[case("module-blocks", &["module-blocks/called", "module-blocks/called-2", "module-blocks/called-3"])]
#[case("override", &["override/called", "override/called-2", "override/called-3"])]
#[case("templates", &["templates/called"])]
#[case("tests", &["tests-setup", "tests/called", "tests/called-3"])]
#[case("tofu", &["tofu/called", "tofu/called-2"])]
fn module_calls_are_found_in_each_form(#[case] form: &str, #[case] expected: &[&str]) {
    let modules = local_modules(form);
    assert_eq!(modules.whole, None);
    assert_eq!(modules.calls.keys().collect::<Vec<_>>(), expected);
}

#[rstest]
#[case("whole-escape")]
#[case("whole-parentheses")]
#[case("whole-template")]
fn computed_source_includes_the_whole_repository(#[case] form: &str) {
    let why = format!("{form}/main.tf:1: the source of the module is not a literal");
    assert_eq!(local_modules(form).whole, Some(why));
}
