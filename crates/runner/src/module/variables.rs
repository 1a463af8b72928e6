//! Variables of the module: their declarations, and their values for the engine and the scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use alustan_api::EngineName;
use alustan_api::report::{MAX_CHANGES, Undeclared};
use hcl_edit::expr::Expression;
use hcl_edit::structure::Block;
use serde_json::Value;

use crate::module::files::{Content, json_blocks, read_module_files};
use crate::paths::Vars;

/// Values by variable name.
pub type Values = BTreeMap<String, Value>;

/// Declaration of a variable in the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Whether the variable is marked as sensitive.
    pub sensitive: bool,
    /// Whether the type is a collection or a structural type.
    pub complex: bool,
}

/// Generated file with values of the module's variables. Its name sorts after the files of the module, so the engine reads the file last, and its
/// values take precedence.
pub const FILE: &str = "zzz-alustan.auto.tfvars.json";

/// Maximum length of a value in an environment variable, in bytes. Linux accepts 128 KiB including the name.
const MAX_VALUE_BYTES: usize = 127 * 1024;

/// Names of environment variables that shells, interpreters, loaders and libraries read. Variables of the module with these names are set
/// only with the prefix `TF_VAR_`. Names that configure providers, such as `KUBECONFIG` and `AWS_CONFIG_FILE`, are not reserved: modules
/// may set them.
const RESERVED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "IFS",
    "ENV",
    "PWD",
    "OLDPWD",
    "CDPATH",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "LANG",
    "LANGUAGE",
    "HOSTNAME",
    "UID",
    "EUID",
    "PS1",
    "PS2",
    "PS4",
    "PROMPT_COMMAND",
    "SHELLOPTS",
    "BASHOPTS",
    "GLOBIGNORE",
    "POSIXLY_CORRECT",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "NLSPATH",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "RES_OPTIONS",
    "RESOLV_HOST_CONF",
    "ZDOTDIR",
    "INPUTRC",
    "AWKPATH",
    "AWKLIBPATH",
    "LESSOPEN",
    "LESSCLOSE",
    "CURL_HOME",
    "WGETRC",
    "NETRC",
    "GEM_HOME",
    "GEM_PATH",
    "_JAVA_OPTIONS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "FTP_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "ftp_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "CHECKPOINT_DISABLE",
    "CLASSPATH",
];

/// Prefixes of environment variable names. A name with one of the prefixes is reserved like the names in [`RESERVED`].
const RESERVED_PREFIXES: &[&str] = &[
    "LD_",
    "DYLD_",
    "BASH_",
    "GIT_",
    "SSH_",
    "TF_",
    "ALUSTAN_",
    "KUBERNETES_",
    "LC_",
    "MALLOC_",
    "PYTHON",
    "PERL",
    "RUBY",
    "NODE_",
    "NPM_CONFIG_",
    "npm_config_",
    "JAVA_",
    "JDK_",
    "LUA_",
    "OPENSSL_",
    "XDG_",
    "GODEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOTRACE",
];

/// Removes the prefix `TF_VAR_` from names of variables. If a variable has a value with and without the prefix, keeps the value without the prefix.
pub fn normalise(values: &Values) -> Values {
    let (prefixed, plain): (Vec<_>, Vec<_>) = values
        .iter()
        .partition(|(name, _)| name.starts_with("TF_VAR_"));
    let stripped = prefixed
        .into_iter()
        .map(|(name, value)| (name.trim_start_matches("TF_VAR_").to_owned(), value.clone()));
    stripped
        .chain(
            plain
                .into_iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        )
        .collect()
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
        .take(MAX_CHANGES)
        .collect()
}

/// Formats the undeclared variables as a message.
pub fn advice(undeclared: &[Undeclared]) -> String {
    let names: Vec<_> = undeclared.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    format!("spec.variables: the module does not declare {names}")
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

/// Formats values as JSON with each value on its own lines, so that lines that the engine quotes in an error contain no other value.
pub fn to_text(values: &Values) -> Vec<u8> {
    serde_json::to_vec_pretty(values).unwrap_or_default()
}

/// Returns the content of the tfvars file: the values of declared variables.
///
/// If the value of a variable of a complex type is a string, the file does not contain the variable: the engine parses the string from the
/// environment variable `TF_VAR_name`. A string that does not fit into an environment variable is parsed as JSON for the file. If the string is not
/// JSON, the file contains the string, and the engine reports a type error.
pub fn tfvars(values: &Values, declared: &BTreeMap<String, Declared>) -> Values {
    let value_in_file = |(name, value): (&String, &Value)| {
        let declared = declared.get(name)?;
        let value = match value {
            Value::String(text) if declared.complex && fits_environment(text) => return None,
            Value::String(text) if declared.complex => {
                serde_json::from_str(text).unwrap_or_else(|_| value.clone())
            }
            _ => value.clone(),
        };
        Some((name.clone(), value))
    };
    values.iter().filter_map(value_in_file).collect()
}

/// Whether `text` can be the value of an environment variable.
fn fits_environment(text: &str) -> bool {
    text.len() <= MAX_VALUE_BYTES && !text.contains('\0')
}

/// Returns environment variables with the values: `TF_VAR_NAME`, and `NAME` if it is not reserved.
pub fn environment(values: &Values) -> Vars {
    let mut environment = Vars::new();
    for (name, value) in values {
        let text = text_of(value);
        if may_stand_bare(name) {
            environment.insert(name.clone(), text.clone());
        }
        if is_environment_name(name) {
            environment.insert(format!("TF_VAR_{name}"), text);
        }
    }
    // Omits values that are too long for an environment variable or contain NUL. Only the tfvars file can pass these values.
    environment.retain(|_, text| fits_environment(text));
    environment
}

/// Returns the variables in `environment` that can be set in the environment of a process, without the variables of the runner (`ALUSTAN_…`). The pin
/// contains `environment`, because a destroy may need variables from Secrets that no longer exist.
pub fn given(environment: &Vars) -> Vars {
    let fits = |name: &str, text: &str| {
        let name = is_environment_name(name) && !name.starts_with("ALUSTAN_");
        name && fits_environment(text)
    };
    environment
        .iter()
        .filter(|(name, text)| fits(name, text))
        .map(|(name, text)| (name.clone(), text.clone()))
        .collect()
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_environment_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Whether the environment variable `name` may be set without the prefix `TF_VAR_`: it is a shell identifier and not reserved.
pub fn may_stand_bare(name: &str) -> bool {
    is_identifier(name)
        && !RESERVED.contains(&name)
        && !RESERVED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the strings and numbers inside the values of the variables that `wanted` selects. If the engine parses a string as a list or an object,
/// includes the strings and numbers inside the list or object.
pub fn texts(values: &Values, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    for (_, value) in values.iter().filter(|(name, _)| wanted(name)) {
        collect_texts(value, &mut texts);
    }
    texts
}

fn collect_texts(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            texts.push(text.clone());
            if !text.trim_start().starts_with(['[', '{']) {
                return;
            }
            if let Ok(inner) = text.parse::<Expression>() {
                collect_parsed(&inner, texts);
            } else if let Ok(inner) = serde_json::from_str(text) {
                // JSON with an escape that HCL does not have, such as `\/`.
                collect_texts(&inner, texts);
            }
        }
        Value::Number(number) => texts.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields
            .values()
            .for_each(|field| collect_texts(field, texts)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Collects the strings and numbers inside a list or an object in HCL syntax, which includes JSON.
fn collect_parsed(expression: &Expression, texts: &mut Vec<String>) {
    match expression {
        Expression::String(text) => texts.push(text.value().clone()),
        Expression::Number(number) => texts.push(number.value().to_string()),
        Expression::Array(items) => items.iter().for_each(|item| collect_parsed(item, texts)),
        Expression::Object(fields) => fields
            .iter()
            .for_each(|(_, field)| collect_parsed(field.expr(), texts)),
        // The parser returns a template even for a string that contains only escapes such as `$${`.
        Expression::StringTemplate(text) => texts.push(text.to_string()),
        _ => {}
    }
}

/// Reads the variables that the module in `directory` declares.
pub fn read_declared(directory: &Path, engine: EngineName) -> BTreeMap<String, Declared> {
    let files = read_module_files(directory, engine);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;
    use std::fs;

    fn values(value: Value) -> Values {
        serde_json::from_value(value).unwrap()
    }

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
        assert_eq!(tfvars(&given, &declared), values(json!({"a": "1"})));
        let given = values(json!({"list": [1, 2]}));
        assert_eq!(tfvars(&given, &declared), given);
        // Neither string fits into an environment variable: each is longer than `MAX_VALUE_BYTES`, and the second contains NUL.
        let long = "x".repeat(MAX_VALUE_BYTES);
        for (text, wanted) in [
            (json!([long.as_str()]).to_string(), json!([long.as_str()])),
            (long.clone() + "\0", json!(long.clone() + "\0")),
        ] {
            let given = values(json!({ "list": text }));
            assert_eq!(tfvars(&given, &declared), values(json!({ "list": wanted })));
            assert!(environment(&given).is_empty());
        }
    }

    #[test]
    fn strings_in_json_that_hcl_refuses_are_found() {
        let given = values(json!({"list": r#"["a\/b", "secret-value"]"#}));
        let texts = texts(&given, |_| true);
        assert!(texts.contains(&"secret-value".to_owned()), "{texts:?}");
    }

    #[test]
    fn values_reach_the_environment_as_text_or_json() {
        let given = values(
            json!({"name": "x y", "count": 3, "tags": {"a": ["b"]}, "PATH": "/evil", "a-b": "c"}),
        );
        let wanted = [
            ("TF_VAR_name", "x y"),
            ("name", "x y"),
            ("TF_VAR_count", "3"),
            ("count", "3"),
            ("TF_VAR_tags", r#"{"a":["b"]}"#),
            ("tags", r#"{"a":["b"]}"#),
            ("TF_VAR_PATH", "/evil"),
            ("TF_VAR_a-b", "c"),
        ];
        let wanted = wanted.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(environment(&given), Vars::from(wanted));
    }

    #[test]
    fn values_that_do_not_fit_the_environment_are_omitted() {
        let given = values(json!({"long": "x".repeat(200_000), "zero": "a\u{0}b", "fine": "x"}));
        let names: Vec<String> = environment(&given).into_keys().collect();
        assert_eq!(names, ["TF_VAR_fine", "fine"]);
    }

    #[test]
    fn given_environment_excludes_runner_and_invalid_variables() {
        let all = [
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("tls.crt", "t"),
            ("TF_VAR_a", "v"),
            ("ALUSTAN_WORK_DIR", "/elsewhere"),
            ("a=b", "x"),
            ("", "x"),
            ("ZERO", "a\0b"),
        ];
        let all = all.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let names: Vec<String> = given(&Vars::from(all)).into_keys().collect();
        assert_eq!(names, ["AWS_SECRET_ACCESS_KEY", "TF_VAR_a", "tls.crt"]);
    }

    #[test]
    fn tf_var_prefix_is_stripped_and_plain_name_wins() {
        let given = values(json!({"TF_VAR_a": 1, "TF_VAR_b": 2, "b": 3}));
        assert_eq!(normalise(&given), values(json!({"a": 1, "b": 3})));
    }

    #[rstest]
    #[case("region", true)]
    #[case("AWS_REGION", true)]
    #[case("_x1", true)]
    #[case("1x", false)]
    #[case("a-b", false)]
    #[case("a.b", false)]
    #[case("", false)]
    #[case("PATH", false)]
    #[case("path", true)]
    #[case("LD_PRELOAD", false)]
    #[case("BASH_ENV", false)]
    #[case("GIT_SSH_COMMAND", false)]
    #[case("TF_LOG", false)]
    #[case("https_proxy", false)]
    #[case("KUBERNETES_SERVICE_HOST", false)]
    #[case("ENV", false)]
    #[case("PYTHONPATH", false)]
    #[case("NODE_OPTIONS", false)]
    #[case("npm_config_script_shell", false)]
    #[case("PERL5OPT", false)]
    #[case("RUBYOPT", false)]
    #[case("JAVA_TOOL_OPTIONS", false)]
    #[case("_JAVA_OPTIONS", false)]
    #[case("LUA_INIT", false)]
    #[case("OPENSSL_CONF", false)]
    #[case("XDG_CONFIG_HOME", false)]
    #[case("CURL_HOME", false)]
    #[case("GLIBC_TUNABLES", false)]
    #[case("KUBECONFIG", true)]
    #[case("AWS_CONFIG_FILE", true)]
    fn only_harmless_names_are_exported_without_prefix(#[case] name: &str, #[case] bare: bool) {
        assert_eq!(may_stand_bare(name), bare);
    }

    #[rstest]
    #[case::json(r#"{"user": "app", "keys": ["hush-1", 4711]}"#)]
    #[case::hcl(r#"{ user = "app", keys = ["hush-1", 4711] }"#)]
    fn values_inside_a_secret_string_are_secret_too(#[case] text: &str) {
        let texts = texts(&values(json!({ "db": text })), |_| true);
        assert_eq!(texts, [text, "app", "hush-1", "4711"]);
    }

    #[test]
    fn secret_strings_are_found_at_any_depth() {
        let given = values(json!({"s": {"a": ["one", {"b": "two"}], "n": 12345}, "t": "three"}));
        assert_eq!(
            texts(&given, |name| name == "s"),
            ["one", "two", "12345"].map(String::from).to_vec()
        );
    }
}
