use clap::Parser;
use rstest::rstest;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    adopt: Adopt,
}

fn adopt(line: &str) -> Adopt {
    let words = ["adopt", "--image-name", "registry.test/web"]
        .into_iter()
        .chain(line.split(' '));
    Line::try_parse_from(words).unwrap().adopt
}

#[test]
fn resource_has_the_name_of_the_object() {
    let options = adopt("--from tofu-controller web").options("team").unwrap();
    assert_eq!((&*options.namespace, &*options.name), ("team", "web"));
}

#[rstest]
#[case("--from burrito ../web", "NAME")]
#[case("--from burrito web --name Web", "--name")]
#[case("--from burrito web --registry-secret A", "--registry-secret")]
#[case("--from state web.tfstate --name a.b_c --url x", "--name")]
fn invalid_options_are_refused(#[case] line: &str, #[case] named: &str) {
    let error = adopt(line).options("team").unwrap_err();
    assert!(error.contains(named), "{error}");
}

#[test]
fn long_name_of_an_object_needs_another_name() {
    let name = "a".repeat(51);
    let line = format!("--from tofu-controller {name}");
    let error = adopt(&line).options("team").unwrap_err();
    assert!(error.contains("--name"), "{error}");
    assert!(adopt(&format!("{line} --name web")).options("team").is_ok());
}

#[test]
fn references_with_invalid_names_are_not_read() {
    let options = adopt("--from burrito web").options("team").unwrap();
    let reference = |name: &str, namespace: Value| {
        let object = serde_json::json!({"ref": {"name": name, "namespace": namespace}});
        Reference::of(&object, "/ref", &options)
    };
    let found = reference("infra", Value::Null).unwrap();
    assert_eq!((&*found.namespace, &*found.name), ("team", "infra"));
    assert!(reference("../x", Value::Null).is_none());
    assert!(reference("x", "a/b".into()).is_none());
}
