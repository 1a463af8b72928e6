//! File with the values of variables that the engine reads, and errors of the engine that quote the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::declarations::Declared;
use super::environment::fits_environment;
use super::variables::{Values, parsed};

/// Generated file with values of the module's variables. Its name sorts after the files of the module, so the engine reads the file last, and its
/// values take precedence.
pub const FILE: &str = "zzz-alustan.auto.tfvars.json";

/// Returns the content of the tfvars file: the values of declared variables. `has_var_files`: whether `spec.varFiles` has entries.
///
/// If the value of a variable of a complex type is a string, the file does not contain the variable: the engine parses the string from the
/// environment variable `TF_VAR_name`. Variable files take precedence over environment variables. Therefore, with variable files, and for a
/// string that does not fit into an environment variable, the string is parsed for the file. If the string is neither HCL without functions
/// nor JSON, the file contains the string, and the engine reports a type error.
pub fn tfvars(
    values: &Values,
    declared: &BTreeMap<String, Declared>,
    has_var_files: bool,
) -> Values {
    let value_in_file = |(name, value): (&String, &Value)| {
        let declared = declared.get(name)?;
        let value = match value {
            Value::String(text) if declared.complex && !has_var_files && fits_environment(text) => {
                return None;
            }
            Value::String(text) if declared.complex => {
                parsed(text).unwrap_or_else(|| value.clone())
            }
            _ => value.clone(),
        };
        Some((name.clone(), value))
    };
    values.iter().filter_map(value_in_file).collect()
}

/// Removes the path of the context `root` from an error of the engine, so that the error names variable files by their path in the repository.
pub fn without_root(error: &str, root: &Path) -> String {
    error.replace(&format!("{}/", root.display()), "")
}

/// Formats values as JSON with each value on its own lines, so that lines that the engine quotes in an error contain no other value.
pub fn to_text(values: &Values) -> Vec<u8> {
    serde_json::to_vec_pretty(values).unwrap_or_default()
}

/// Rewrites an error of the engine that refers to lines of [`FILE`]. Replaces each reference to a line by the field of the resource that sets the
/// variable: `spec.variables.NAME` for names in `own`, and `spec.variablesFrom` for other names. Removes the lines of the file that the engine
/// quotes.
pub fn with_fields(error: &str, own: &BTreeSet<String>) -> String {
    let is_quoted = |line: &&str| {
        let number = line.split_once(':').map(|(number, _)| number);
        number.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let mut lines = error.lines().peekable();
    let mut text = Vec::new();
    while let Some(line) = lines.next() {
        if !line.starts_with(&format!("on {FILE} line ")) {
            text.push(line.to_owned());
            continue;
        }
        let mut quoted = Vec::new();
        while let Some(line) = lines.next_if(is_quoted) {
            quoted.push(line);
        }
        let name = quoted.first().and_then(|line| line.split('"').nth(1));
        text.push(match name {
            Some(name) if own.contains(name) => format!("on spec.variables.{name}:"),
            Some(name) => format!("on variable {name} of spec.variablesFrom:"),
            None => "on spec.variables:".to_owned(),
        });
    }
    text.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::environment::{MAX_VALUE_BYTES, environment};
    use serde_json::json;

    fn values(value: Value) -> Values {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn errors_name_the_field_and_not_the_generated_file() {
        let error = "Error: Invalid value for input variable\non zzz-alustan.auto.tfvars.json line 2:\n\
            2:   \"list\": [\n3:     \"a\"\n4:   ],\nThe given value is not suitable for var.list declared at \
            main.tf:2,1-16: a\nnumber is required.";
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let wanted = |field: &str| {
            format!(
                "Error: Invalid value for input variable\non {field}:\nThe given value is not suitable for \
                 var.list declared at main.tf:2,1-16: a\nnumber is required."
            )
        };
        assert_eq!(
            with_fields(error, &own(&["list"])),
            wanted("spec.variables.list")
        );
        let expected = wanted("variable list of spec.variablesFrom");
        assert_eq!(with_fields(error, &own(&[])), expected);
        assert_eq!(
            with_fields("Error: x\n\n2: y", &own(&[])),
            "Error: x\n\n2: y"
        );
    }

    #[test]
    fn the_tfvars_file_has_only_declared_variables() {
        let declared = BTreeMap::from([
            ("a".to_owned(), Declared::default()),
            (
                "list".to_owned(),
                Declared {
                    complex: true,
                    sensitive: false,
                },
            ),
        ]);
        let given = values(json!({"a": "1", "list": "[1,2]", "other": true}));
        assert_eq!(tfvars(&given, &declared, false), values(json!({"a": "1"})));
        let given = values(json!({"list": [1, 2]}));
        assert_eq!(tfvars(&given, &declared, false), given);
        let given = values(json!({"a": "1", "list": "[1, -2, \"x\", { k = null, j : true }]"}));
        assert_eq!(
            tfvars(&given, &declared, true),
            values(json!({"a": "1", "list": [1, -2, "x", {"k": null, "j": true}]}))
        );
        // Neither string fits into an environment variable: each is longer than `MAX_VALUE_BYTES`, and the second contains NUL.
        let long = "x".repeat(MAX_VALUE_BYTES);
        for (text, wanted) in [
            (json!([long.as_str()]).to_string(), json!([long.as_str()])),
            (long.clone() + "\0", json!(long.clone() + "\0")),
        ] {
            let given = values(json!({ "list": text }));
            assert_eq!(
                tfvars(&given, &declared, false),
                values(json!({ "list": wanted }))
            );
            assert!(environment(&given).is_empty());
        }
    }
}
