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

/// Rewrites an error of the engine that refers to lines of [`FILE`], or to the value of an environment variable `TF_VAR_NAME` that the runner
/// sets. Replaces each reference by the field of the resource that sets the variable: `spec.variables.NAME` for names in `own`, and
/// `spec.variablesFrom` for other names. Removes the lines of the file that the engine quotes. For a string that is not a value of the complex
/// type of its variable, adds which value is required. Replaces the command line options that the engine suggests by fields.
pub fn with_fields(error: &str, own: &BTreeSet<String>) -> String {
    let is_quoted = |line: &&str| {
        let number = line.split_once(':').map(|(number, _)| number);
        number.is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let mut lines = error.lines().peekable();
    let mut text = Vec::new();
    let mut unparsed = BTreeSet::new();
    while let Some(line) = lines.next() {
        if let Some(name) = unparsed_variable(line) {
            lines.next_if_eq(&"(source code not available)");
            text.push(format!("on {}:", field_of(name, own)));
            unparsed.insert(name);
            continue;
        }
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
            Some(name) => format!("on {}:", field_of(name, own)),
            None => "on spec.variables:".to_owned(),
        });
    }
    let text = without_not_set(&text.join("\n"), &unparsed);
    let text = replace_sentence(
        &text,
        OPTIONS,
        "Set it in spec.variables or spec.variablesFrom.",
    );
    unparsed.extend(unsuitable_variables(error, own));
    with_advice(&text, &unparsed, own)
}

/// Sentence of the engine about a variable without value.
const OPTIONS: &str =
    "Use a -var or -var-file command line argument to provide a value for this variable.";

fn field_of(name: &str, own: &BTreeSet<String>) -> String {
    if own.contains(name) {
        format!("spec.variables.{name}")
    } else {
        format!("variable {name} of spec.variablesFrom")
    }
}

/// Returns the variable whose value has the syntax error at the position `line`.
fn unparsed_variable(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("on <value for var.")?.split_once('>')?;
    Some(name)
}

/// Returns the variables in `own` whose environment variable has a value of another type. The engine may wrap its text at any space. Variables
/// that are not in `own` are ignored: `spec.runner.envFromSecrets` may set them, also with a simple type.
fn unsuitable_variables<'a>(error: &'a str, own: &BTreeSet<String>) -> Vec<&'a str> {
    let words: Vec<&str> = error.split_whitespace().collect();
    let name = |window: &[&'a str]| match *window {
        ["the", name, "environment"] => name.strip_prefix("TF_VAR_"),
        _ => None,
    };
    let names = words.windows(3).filter_map(name);
    names.filter(|name| own.contains(*name)).collect()
}

/// Removes the errors about required variables in `names` without value: the engine reports them because it could not parse the values.
fn without_not_set(text: &str, names: &BTreeSet<&str>) -> String {
    let is_not_set = |error: &&str| {
        let words = error.split_whitespace().collect::<Vec<_>>().join(" ");
        names
            .iter()
            .any(|name| words.contains(&format!("input variable \"{name}\" is not set")))
    };
    let mut errors = text.split("\nError: ");
    let first = errors.next().unwrap_or_default().to_owned();
    errors
        .filter(|error| !is_not_set(error))
        .fold(first, |text, error| format!("{text}\nError: {error}"))
}

/// Replaces `sentence`, which the engine may wrap at any space.
fn replace_sentence(text: &str, sentence: &str, replacement: &str) -> String {
    let after = |text: &'_ str| {
        let mut words = sentence.split(' ');
        let rest = words.try_fold(text, |rest, word| rest.trim_start().strip_prefix(word))?;
        Some(rest.to_owned())
    };
    let first = sentence.split(' ').next().unwrap_or_default();
    let found = text.match_indices(first).find_map(|(at, _)| {
        let (before, rest) = text.split_at_checked(at)?;
        Some((before, after(rest)?))
    });
    match found {
        Some((before, rest)) => {
            let rest = replace_sentence(&rest, sentence, replacement);
            format!("{before}{replacement}{rest}")
        }
        None => text.to_owned(),
    }
}

/// Adds, before the first error, which value the variables in `names` require: their type is complex, and their value is a string.
fn with_advice(text: &str, names: &BTreeSet<&str>, own: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return text.to_owned();
    }
    let fields: Vec<String> = names.iter().map(|name| field_of(name, own)).collect();
    let advice = format!(
        "{}: the variable has a complex type, and its value is a string; write a list, a map or an object, for example [\"a\", \"b\"]",
        fields.join(", ")
    );
    match text.split_once("Error: ") {
        Some((before, errors)) => format!("{before}{advice}\nError: {errors}"),
        None => format!("{text}; {advice}"),
    }
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
    fn string_for_complex_variable_names_the_field_and_the_required_value() {
        let error = "plan failed with exit code 1: Error: Variables not allowed\non <value for var.zones> line 1:\n\
            (source code not available)\nVariables may not be used here.\nError: No value for required variable\n\
            on main.tf line 1:\n1: variable \"zones\" {\nThe root module input variable \"zones\" is not set, and has no \
            default value.\nUse a -var or -var-file command line argument to provide a value for this\nvariable.";
        let wanted = |field: &str| {
            format!(
                "plan failed with exit code 1: {field}: the variable has a complex type, and its value is a string; \
                 write a list, a map or an object, for example [\"a\", \"b\"]\nError: Variables not allowed\non {field}:\n\
                 Variables may not be used here."
            )
        };
        let own = BTreeSet::from(["zones".to_owned()]);
        assert_eq!(with_fields(error, &own), wanted("spec.variables.zones"));
        let expected = wanted("variable zones of spec.variablesFrom");
        assert_eq!(with_fields(error, &BTreeSet::new()), expected);

        let error = "Error: Invalid value for input variable\nUnsuitable value for var.zones set using the TF_VAR_zones\n\
            environment variable: list of string required.";
        let text = with_fields(error, &own);
        assert!(
            text.starts_with("spec.variables.zones: the variable has"),
            "{text}"
        );
        assert_eq!(with_fields(error, &BTreeSet::new()), error);
    }

    #[test]
    fn missing_value_suggests_fields_and_no_option() {
        let error = "Error: No value for required variable\nThe root module input variable \"x\" is not set, and has no \
            default value. Use\na -var or -var-file command line argument to provide a value for this\nvariable.\nError: x";
        assert_eq!(
            with_fields(error, &BTreeSet::new()),
            "Error: No value for required variable\nThe root module input variable \"x\" is not set, and has no default \
             value. Set it in spec.variables or spec.variablesFrom.\nError: x"
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
