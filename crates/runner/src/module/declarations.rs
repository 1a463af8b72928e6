//! Declarations of variables in the module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use alustan_api::EngineName;
use alustan_api::report::{MAX_UNDECLARED, Undeclared};
use hcl_edit::expr::Expression;
use hcl_edit::structure::Block;
use serde_json::Value;

use super::files::{Content, json_blocks, read_module_files};

/// Declaration of a variable in the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Whether the variable is marked as sensitive.
    pub sensitive: bool,
    /// Whether the type is a collection or a structural type.
    pub complex: bool,
}

/// Reads the variables that the module in `directory` declares.
pub fn read_declared(directory: &Path, engine: EngineName) -> BTreeMap<String, Declared> {
    let files = read_module_files(directory, &[engine]);
    files
        .iter()
        .flat_map(|file| declared_in(&file.content))
        .collect()
}

fn declared_in(content: &Content) -> Vec<(String, Declared)> {
    match content {
        Content::Hcl(body) => body
            .get_blocks("variable")
            .filter_map(declared_in_hcl)
            .collect(),
        Content::Json(file) => json_blocks(file, "variable")
            .into_iter()
            .filter_map(Value::as_object)
            .flatten()
            .map(declared_in_json)
            .collect(),
    }
}

fn declared_in_hcl(block: &Block) -> Option<(String, Declared)> {
    let name = block.labels.first()?.as_str().to_owned();
    let value = |key| {
        block
            .body
            .get_attribute(key)
            .map(|attribute| &attribute.value)
    };
    let sensitive = value("sensitive")
        .and_then(Expression::as_bool)
        .unwrap_or_default();
    let complex = matches!(value("type"), Some(Expression::FuncCall(_)));
    Some((name, Declared { sensitive, complex }))
}

fn declared_in_json((name, body): (&String, &Value)) -> (String, Declared) {
    let body = body.get(0).unwrap_or(body);
    let kind = body.get("type").and_then(Value::as_str).unwrap_or_default();
    let declared = Declared {
        sensitive: body
            .get("sensitive")
            .and_then(Value::as_bool)
            .unwrap_or_default(),
        complex: kind.contains('('),
    };
    (name.clone(), declared)
}

/// Returns the names in `own` (from `spec.variables`) that the module does not declare: sorted, at most [`MAX_CHANGES`]. If `scripts` is true,
/// returns only names that resemble a declared name, because scripts may use undeclared variables.
pub fn undeclared(
    own: &BTreeSet<String>,
    declared: &BTreeMap<String, Declared>,
    scripts: bool,
) -> Vec<Undeclared> {
    own.iter()
        .filter(|name| !declared.contains_key(*name))
        .map(|name| Undeclared {
            name: name.clone(),
            similar: similar(name, declared.keys()),
        })
        .filter(|undeclared| !scripts || undeclared.similar.is_some())
        .take(MAX_UNDECLARED)
        .collect()
}

/// Returns the name in `declared` with the smallest edit distance to `name`. The distance must be at most 1, or at most a third of the number of
/// characters of `name` if that is more.
fn similar<'a>(name: &str, declared: impl Iterator<Item = &'a String>) -> Option<String> {
    let most = (name.chars().count() / 3).max(1);
    declared
        .map(|other| (strsim::osa_distance(name, other), other))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, other)| other.clone())
}

/// Formats the undeclared variables as a message.
pub fn advice(undeclared: &[Undeclared]) -> String {
    let names: Vec<_> = undeclared.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    format!("spec.variables: the module does not declare {names}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;
    use std::fs;

    #[rstest]
    #[case::typing_error(&["replica"], false, &["replica (did you mean replicas?)"])]
    #[case::swapped(&["regoin"], false, &["regoin (did you mean region?)"])]
    #[case::unknown(&["owner"], false, &["owner"])]
    #[case::unknown_with_scripts(&["owner"], true, &[])]
    #[case::typing_error_with_scripts(&["replica"], true, &["replica (did you mean replicas?)"])]
    #[case::declared(&["region", "replicas"], false, &[])]
    fn undeclared_variables_are_reported_with_suggestions(
        #[case] own: &[&str],
        #[case] scripts: bool,
        #[case] wanted: &[&str],
    ) {
        let declared =
            ["region", "replicas", "v"].map(|name| (name.to_owned(), Declared::default()));
        let own = own.iter().map(|name| (*name).to_owned()).collect();
        let names = undeclared(&own, &declared.into(), scripts);
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        assert_eq!(names, wanted);
    }

    #[test]
    fn declarations_are_read_from_hcl_and_json() {
        let directory = tempfile::tempdir().unwrap();
        let hcl = r#"
            variable "plain" {}
            variable "secret" {
              type      = string
              sensitive = true
            }
            variable "many" { type = map(object({ a = string })) }
            resource "terraform_data" "variable" {}
        "#;
        let json = json!({"variable": {"from_json": {"type": "list(string)", "sensitive": true}}});
        fs::write(directory.path().join("a.tf"), hcl).unwrap();
        fs::write(directory.path().join("b.tf.json"), json.to_string()).unwrap();
        fs::write(directory.path().join("c.tofu"), r#"variable "tofu" {}"#).unwrap();
        fs::write(directory.path().join("broken.tf"), "variable {").unwrap();
        let declared = |sensitive, complex| Declared { sensitive, complex };
        let mut wanted = BTreeMap::from([
            ("plain".to_owned(), declared(false, false)),
            ("secret".to_owned(), declared(true, false)),
            ("many".to_owned(), declared(false, true)),
            ("from_json".to_owned(), declared(true, true)),
        ]);
        assert_eq!(
            read_declared(directory.path(), EngineName::Terraform),
            wanted
        );
        wanted.insert("tofu".to_owned(), declared(false, false));
        assert_eq!(
            read_declared(directory.path(), EngineName::Opentofu),
            wanted
        );
    }
}
