use super::*;
use proptest::prelude::*;
use rstest::rstest;

fn facts(path: &str, text: &str) -> Facts {
    read(path, text.as_bytes()).unwrap()
}

fn sources(path: &str, text: &str) -> Vec<String> {
    facts(path, text)
        .calls
        .into_iter()
        .map(|call| call.source)
        .collect()
}

#[test]
fn local_calls_are_found_with_their_line() {
    let text = "\n# c\nmodule \"a\" {\n  source = \"./a\"\n}\nmodule \"b\" {\n  source = \"../b\" # c\n}\n\
                module \"r\" {\n  source = \"hashicorp/x/aws\"\n}\nmodule \"g\" {\n  source = \"git::https://h/r\"\n}\n";
    let calls = facts("main.tf", text).calls;
    assert_eq!(
        calls
            .iter()
            .map(|call| (call.module.as_str(), call.source.as_str(), call.line))
            .collect::<Vec<_>>(),
        [("a", "./a", 3), ("b", "../b", 6)]
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
fn the_backend_is_told(#[case] path: &str, #[case] text: &str, #[case] backend: Option<&str>) {
    assert_eq!(facts(path, text).backend.as_deref(), backend);
}

#[test]
fn json_calls_are_found_in_every_shape() {
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

#[test]
fn computed_sources_are_left_to_the_engine() {
    assert!(sources("x.tf", "module \"a\" {\n  source = \"./${var.x}\"\n}").is_empty());
    assert!(sources("x.tf", "module \"a\" {\n  source = var.x\n}").is_empty());
    assert!(sources("x.tf", "module \"a\" {}").is_empty());
}

#[rstest]
#[case("x.tf", "resource \"a\" \"b\" {\n  x = \n}\n", 2)]
#[case("x.tf", "a {\n", 1)]
#[case("x.tf", "}", 1)]
#[case("x.tofu", "a = [1,,2]", 1)]
#[case("x.tf.json", "{\n \"a\": }", 2)]
#[case("x.tf.json", "", 1)]
fn what_does_not_parse_says_where(#[case] path: &str, #[case] text: &str, #[case] line: usize) {
    let fault = read(path, text.as_bytes()).unwrap_err();
    assert_eq!(fault.line, line, "{fault:?}");
    assert!(fault.column >= 1 && !fault.message.is_empty());
}

#[test]
fn byte_order_marks_and_other_line_ends_are_read() {
    assert_eq!(
        sources(
            "x.tf",
            "\u{feff}module \"a\" {\r\n  source = \"./a\"\r\n}\r\n"
        ),
        ["./a"]
    );
    assert!(read("x.tf", &[0xff, 0xfe]).is_err());
}

#[test]
fn deep_nesting_is_refused_and_not_a_crash() {
    let deep =
        |open: &str, close: &str| format!("a = {}1{}", open.repeat(100_000), close.repeat(100_000));
    for text in [
        deep("[", "]"),
        deep("(", ")"),
        deep("!", ""),
        deep("{a=", "}"),
        deep("-", ""),
    ] {
        assert!(read("x.tf", text.as_bytes()).is_err());
    }
    let chain = |part: &str| format!("a = {}1", part.repeat(100_000));
    for text in [
        chain("1 + "),
        chain("x ? 1 : "),
        chain("\"${"),
        format!("a = x{}", ".y".repeat(100_000)),
    ] {
        let _ = read("x.tf", text.as_bytes());
    }
    let blocks = "a {\n".repeat(100_000);
    assert!(read("x.tf", blocks.as_bytes()).is_err());
    assert!(read("x.tf.json", "[".repeat(100_000).as_bytes()).is_err());
}

#[test]
fn configuration_is_told_by_name() {
    for name in [
        "main.tf",
        "a/b/main.tf.json",
        "x.tofu",
        "x.tofu.json",
        "a_override.tf",
    ] {
        assert!(is_configuration(name), "{name}");
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
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read("x.tf", &bytes);
        let _ = read("x.tf.json", &bytes);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z{}\\[\\]()\"$%\\n =.,<E-]{0,80}") {
        let _ = read("x.tf", text.as_bytes());
    }
}
