use std::collections::BTreeMap;

use super::facts::{COMPUTED, ModuleCall, NAME, PATH, SOURCES};
use super::*;
use proptest::prelude::*;
use rstest::rstest;

/// Returns the facts of `text`. Asserts that all module calls in `text` can be determined.
fn facts(path: &str, text: &str) -> Facts {
    let facts = read(path, text.as_bytes());
    assert_eq!(facts.unclear, None, "{text}");
    facts
}

fn sources(path: &str, text: &str) -> Vec<String> {
    facts(path, text).calls.into_keys().collect()
}

/// Returns line and reason of the first part of `text` whose module calls cannot be determined; `(0, "clear")` if all module calls can be determined.
fn unclear(path: &str, text: &str) -> (usize, &'static str) {
    let unclear = read(path, text.as_bytes()).unclear;
    unclear.map_or((0, "clear"), |unclear| (unclear.line, unclear.why))
}

#[test]
fn local_calls_are_found_with_their_line() {
    let text = "\n# c\nmodule \"a\" {\n  source = \"./a\"\n}\nmodule \"b\" {\n  source = \"../b\" # c\n}\n\
                module \"r\" {\n  source = \"hashicorp/x/aws\"\n}\nmodule \"g\" {\n  source = \"git::https://h/r\"\n}\n";
    let calls = facts("main.tf", text).calls;
    assert_eq!(
        calls
            .iter()
            .map(|(source, call)| (call.module.as_str(), source.as_str(), call.line))
            .collect::<Vec<_>>(),
        [("b", "../b", 6), ("a", "./a", 3)]
    );
}

#[rstest]
#[case("x.tf", "terraform {\n  backend \"s3\" {}\n}", Some("s3"))]
#[case(
    "x.tf",
    "terraform {\n  required_version = \">= 1\"\n}\nterraform {\n  backend \"gcs\" {\n    bucket = \"b\"\n  }\n}",
    Some("gcs")
)]
#[case(
    "x.tf",
    "terraform {\n  cloud {\n    organization = \"o\"\n  }\n}",
    Some("cloud")
)]
#[case("x.tf", "terraform {}", None)]
#[case("x.tf.json", r#"{"terraform":{"backend":{"s3":{}}}}"#, Some("s3"))]
#[case(
    "x.tf.json",
    r#"{"terraform":[{"required_version":"1"},{"backend":[{"s3":{}}]}]}"#,
    Some("s3")
)]
#[case("x.tofu.json", r#"{"terraform":{"cloud":{}}}"#, Some("cloud"))]
#[case("x.tf.json", "[]", None)]
fn backend_type_is_detected(#[case] path: &str, #[case] text: &str, #[case] backend: Option<&str>) {
    assert_eq!(facts(path, text).backend.as_deref(), backend);
}

#[test]
fn module_calls_in_json_are_found_in_every_form() {
    assert_eq!(
        sources(
            "x.tf.json",
            r#"{"module":{"a":{"source":"./a"},"r":{"source":"x/y/z"}}}"#
        ),
        ["./a"]
    );
    assert_eq!(
        sources("x.tf.json", r#"{"module":[{"a":[{"source":"../a"}]}]}"#),
        ["../a"]
    );
    assert_eq!(
        sources("x.tf.json", r#"[{"module":{"a":{"source":"./a"}}}]"#),
        ["./a"]
    );
    assert!(sources("x.tf.json", r#"{"module":3,"terraform":"x"}"#).is_empty());
}

#[rstest]
#[case::interpolation("x.tf", "\nmodule \"a\" {\n  source = \"./${var.x}\"\n}", 2)]
#[case::variable("x.tf", "module \"a\" {\n  source = var.x\n}", 1)]
#[case::operator("x.tf", "module \"a\" {\n  source = \"./a\" == \"./b\"\n}", 1)]
#[case::escape("x.tf", r#"module "a" { source = "./\u0061" }"#, 1)]
#[case::heredoc("x.tf", "module \"a\" {\n  source = <<E\n./a\nE\n}", 1)]
#[case::json("x.tf.json", r#"{"module":{"a":{"source":"./${var.x}"}}}"#, 1)]
fn computed_module_source_is_unclear(#[case] path: &str, #[case] text: &str, #[case] line: usize) {
    assert_eq!(unclear(path, text), (line, COMPUTED));
}

#[test]
fn module_block_without_a_source_is_ignored() {
    assert!(sources("x.tf", "module \"a\" {}").is_empty());
    assert!(sources("x.tf.json", r#"{"module":{"a":{}}}"#).is_empty());
}

/// The scanner finds a module call after the text of each case.
#[rstest]
#[case::comments("# module \"x\" {\n// }\n/* { \" */ a = 1 /* \n */ # \"\n")]
#[case::comment_in_a_header("a /* { */ \"b\" /* c */ {\n}\n")]
#[case::one_line_block("a \"b\" c { d = \"}\" }\n")]
#[case::empty_one_line_block("a {}\n")]
#[case::nested_blocks(
    "a {\n  b {\n    source = \"./no\"\n  }\n  module \"no\" {\n    source = \"./no\"\n  }\n}\n"
)]
#[case::strings("a = \"{ \\\" \\\\\"\nb = \"$${ %%{ $$ % $\"\n")]
#[case::nested_templates("a = \"${b(\"${c[\"}\"]}\", { d = \"%{ if e }{%{ endif }\" })}\"\n")]
#[case::line_breaks_in_an_interpolation("a = \"${\n  b\n}\"\n")]
#[case::heredoc("a = <<EOT\n} \" ${ b(\"}\") } $${ \\\nEOT2\n EOT x\nEOT\n")]
#[case::indented_heredoc("a {\n  b = <<-EOT\n    }\n    EOT\n}\n")]
#[case::heredoc_end_between_unicode_spaces("a = <<EOT\n}\n\u{a0}\u{b}EOT\u{2028}\u{85}\n")]
#[case::heredoc_in_an_interpolation("a = <<A\n${ b(<<B\nA\n}\nB\n) } A\nA\n")]
#[case::heredoc_in_a_call("a = b(<<-A, 1\nA\n)\n".replace(", 1", ""))]
#[case::comparison("a = b < c\nd = e <= f\n")]
#[case::conditional_over_lines("a = {\n  b = c ?\n    d :\n    e\n}\n")]
#[case::repeated_key("a = {\n  b = 1\n  b = 2\n}\n")]
#[case::brackets("a = [for b in c : { (b) = d[*].e } if f]\n")]
#[case::division("a = b / c / d\n")]
#[case::identifiers("é-b_1 \"é\" { ü = \"ö\" }\n")]
#[case::run_block("run \"a\" {\n  module {}\n}\n")]
#[case::carriage_returns("a = <<E\r\n}\r\nE\r\nb {\r\n}\r\n")]
fn module_call_is_found_after_other_syntax(#[case] before: impl AsRef<str>) {
    let text = format!(
        "{}module \"m\" {{\n  source = \"./m\"\n}}\n",
        before.as_ref()
    );
    let facts = facts("x.tf", &text);
    let lines = before.as_ref().matches('\n').count();
    let call = ModuleCall {
        module: "m".to_owned(),
        line: lines + 1,
    };
    assert_eq!(facts.calls, BTreeMap::from([("./m".to_owned(), call)]));
}

/// The scanner keeps the facts before a syntax error.
#[rstest]
#[case::open_bracket("resource \"a\" \"b\" {\n  x = [\n}\n", 5)]
#[case::open_block("a {\n", 4)]
#[case::end_without_block("}", 3)]
#[case::newline_in_a_string("a = \"b\n\"", 3)]
#[case::open_heredoc("a = <<E\nb", 4)]
#[case::open_comment("/* a", 3)]
#[case::open_interpolation("a = \"${", 3)]
#[case::attribute_in_quotes("\"a\" = 1", 3)]
#[case::no_block("a \"b\"\n{\n}", 3)]
#[case::interpolation_in_a_label("a \"${b}\" {}", 3)]
#[case::other_characters("= 1", 3)]
fn syntax_error_is_unclear_at_its_line(#[case] rest: &str, #[case] line: usize) {
    let text = format!("module \"m\" {{ source = \"./m\" }}\nterraform {{ cloud {{}} }}\n{rest}");
    let facts = read("x.tf", text.as_bytes());
    assert_eq!(facts.unclear.map(|unclear| unclear.line), Some(line));
    assert!(facts.calls.contains_key("./m"));
    assert_eq!(facts.backend.as_deref(), Some("cloud"));
}

#[rstest]
#[case("{\n \"a\": }", 2)]
#[case("", 1)]
#[case(r#"{"module":{"a":{"source":1}}}"#, 1)]
#[case("{} x", 1)]
fn invalid_json_is_unclear_at_its_line(#[case] text: &str, #[case] line: usize) {
    assert_eq!(unclear("x.tf.json", text).0, line);
}

#[test]
fn byte_order_mark_and_crlf_are_accepted() {
    assert_eq!(
        sources(
            "x.tf",
            "\u{feff}module \"a\" {\r\n  source = \"./a\"\r\n}\r\n"
        ),
        ["./a"]
    );
    assert!(read("x.tf", &[0xff, 0xfe]).unclear.is_some());
}

/// Reads hostile files of 4 MiB each. A quadratic implementation would not finish in time.
#[test]
fn hostile_files_are_read_in_linear_time() {
    const SIZE: usize = 4 << 20;
    let all = |part: &str| part.repeat(SIZE / part.len());
    let numbered = |part: fn(usize) -> String| {
        let mut text = String::with_capacity(SIZE);
        let mut number = 0;
        while text.len() < SIZE {
            text.push_str(&part(number));
            number += 1;
        }
        text
    };
    for text in [
        all("["),
        all("a {\n"),
        all("a = \"${"),
        all("\"${"),
        format!("a = {}", all("{b=")),
        format!("a = {}", all("x.")),
        format!("a = <<E\n{}", all("E ")),
        format!("a = <<E\n{}", all("\n")),
        format!("a = <<E\n{}", all("${1}")),
        format!("a = {}", all("<<E")),
        all("/*"),
        all("a = <<E\nE\n"),
        numbered(|n| format!("module \"{n}\" {{\n  source = \"./{n}\"\n}}\n")),
        numbered(|n| format!("a{n} = 1\n")),
    ] {
        let facts = read("x.tf", text.as_bytes());
        assert!(facts.calls.len() <= SOURCES);
    }
    for text in [
        all("["),
        all("{\"a\":"),
        format!("{{{}\"b\":1}}", numbered(|n| format!("\"a{n}\":{{}},"))),
        format!(
            "{{\"module\":{{{}\"b\":{{}}}}}}",
            numbered(|n| format!("\"{n}\":{{\"source\":\"./{n}\"}},"))
        ),
    ] {
        let facts = read("x.tf.json", text.as_bytes());
        assert!(facts.calls.len() <= SOURCES);
    }
}

#[test]
fn facts_of_one_file_have_bounds() {
    let long = format!(
        "module \"{}\" {{ source = \"./{}\" }}",
        "m".repeat(10_000),
        "x".repeat(PATH)
    );
    assert_eq!(
        unclear("x.tf", &long),
        (1, "the path of a module is too long")
    );
    let call = |n: usize| format!("module \"m\" {{ source = \"./{n}\" }}\n");
    let many: String = (0..=SOURCES).map(call).collect();
    assert_eq!(
        unclear("x.tf", &many),
        (SOURCES + 1, "the file contains too many module calls")
    );
    let named = format!("module \"{}\" {{ source = \"./x\" }}", "m".repeat(10_000));
    assert_eq!(facts("x.tf", &named).calls["./x"].module.len(), NAME);
    let backend = format!("terraform {{ backend \"{}\" {{}} }}", "b".repeat(10_000));
    assert_eq!(
        facts("x.tf", &backend).backend.map(|kind| kind.len()),
        Some(NAME)
    );
}

#[rstest]
#[case::blocks("", "a {\n", "}\n", 1_000, "too many nested blocks")]
#[case::brackets("a = ", "[", "]", 1_000, "too many nested brackets")]
#[case::templates("a = ", "\"${", "}\"", 500, "too many nested brackets")]
fn nesting_depth_is_limited(
    #[case] before: &str,
    #[case] open: &str,
    #[case] close: &str,
    #[case] most: usize,
    #[case] why: &str,
) {
    let nested = |levels| format!("{before}{}{}", open.repeat(levels), close.repeat(levels));
    facts("x.tf", &nested(most));
    assert_eq!(unclear("x.tf", &nested(most + 1)).1, why);
}

#[test]
fn configuration_files_are_detected_by_name() {
    for name in [
        "main.tf",
        "a/b/main.tf.json",
        "x.tofu",
        "x.tofu.json",
        "a_override.tf",
    ] {
        assert!(is_configuration(name), "{name}");
    }
    for name in ["override.tf", "a_override.tf.json", "a/b.c_override.tofu"] {
        assert!(is_override(name), "{name}");
    }
    for name in [
        "overrides.tf",
        "override.hcl",
        "a-override.tf",
        "override/a.tf",
    ] {
        assert!(!is_override(name), "{name}");
    }
    for name in [
        "main.tfvars",
        ".hidden.tf",
        "main.tf~",
        "a.tf/x",
        "terragrunt.hcl",
        "main.tf.bak",
        "x.json",
    ] {
        assert!(!is_configuration(name), "{name}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read("x.tf", &bytes);
        let _ = read("x.tf.json", &bytes);
    }

    #[test]
    fn any_text_is_read(text in "[a-z{}\\[\\]()\"$%\\n =.,<E-]{0,80}") {
        let _ = read("x.tf", text.as_bytes());
    }
}
