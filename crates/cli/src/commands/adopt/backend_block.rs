//! Backend blocks in HCL, and their form in `spec.backend`.

use alustan_backends::{fields_of, holds_secret};
use hcl_edit::expr::{Expression, Object};
use hcl_edit::structure::Body;
use serde_json::{Map, Number, Value, json};

use super::adoption::Adoption;
use super::fields::Note;

/// Maximum length of the text of a block, in bytes.
const MAX_BYTES: usize = 64 * 1024;

/// Backend block.
#[derive(Debug, PartialEq)]
pub(crate) struct BackendBlock {
    /// Type of the backend. Example: `s3`.
    pub(crate) kind: String,
    /// Arguments with literal values.
    pub(crate) arguments: Map<String, Value>,
}

impl BackendBlock {
    /// Parses the content of a `terraform` block that contains one `backend` block.
    ///
    /// # Errors
    /// Reason why the block cannot be mapped. It contains no value of the block.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
        }
        let body: Body = text.parse().map_err(|_| "it is not valid HCL".to_owned())?;
        let mut structures = body.iter();
        let block = match (
            structures.next().and_then(|first| first.as_block()),
            structures.next(),
        ) {
            (Some(block), None) if block.has_ident("backend") => block,
            _ => return Err("it is not a single `backend` block".to_owned()),
        };
        let kind = match block.labels.as_slice() {
            [kind] if is_kind(kind.as_str()) => kind.as_str().to_owned(),
            _ => return Err("the type of the `backend` block is not valid".to_owned()),
        };
        if let Some(nested) = block.body.blocks().next() {
            let name = nested.ident.as_str();
            return Err(format!(
                "nested blocks, such as `{name}`, have no equivalent"
            ));
        }
        let argument = |attribute: &hcl_edit::structure::Attribute| {
            let name = attribute.key.as_str().to_owned();
            Ok((name, literal(&attribute.value)?))
        };
        Ok(Self {
            kind,
            arguments: block
                .body
                .attributes()
                .map(argument)
                .collect::<Result<_, String>>()?,
        })
    }

    /// Sets `spec.backend` for the block. `path` is the field that contains the block, for notes. An argument that looks like a secret is
    /// not copied.
    pub(crate) fn set(self, adoption: &mut Adoption, path: &str) {
        let known = fields_of(&self.kind);
        let provider = known.map_or("generic", |(provider, _)| provider);
        adoption.set("backend.provider", json!(provider));
        if known.is_none() {
            adoption.set("backend.type", json!(self.kind));
        }
        let fields = known.map(|(_, fields)| fields).unwrap_or_default();
        for (name, value) in self.arguments {
            if holds_secret(&name, &value) {
                let text = "looks like a secret and is not copied: put it into a Secret, set \
                            spec.backend.secretRef, and use the name of the argument as the key";
                adoption.note(Note::lacks(format!("{path}.{name}"), text));
                continue;
            }
            match fields.iter().find(|(argument, _)| *argument == name) {
                Some((_, field)) => set_field(adoption, field, &value),
                None => adoption.set(&format!("backend.config.{name}"), value),
            }
        }
    }
}

/// Sets a field of `spec.backend`. The argument `endpoints` of `s3` is an object, the field a URL.
fn set_field(adoption: &mut Adoption, field: &str, value: &Value) {
    let url = value.get("s3").unwrap_or(value);
    adoption.set(&format!("backend.{field}"), url.clone());
}

fn is_kind(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.len() <= 63
        && text.bytes().all(is_valid)
}

/// Parses a literal in HCL.
///
/// # Errors
/// The text is not a literal, for example because it refers to a variable.
pub(crate) fn parse_literal(text: &str) -> Result<Value, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let expression: Expression = text.parse().map_err(|_| "it is not valid HCL".to_owned())?;
    literal(&expression)
}

fn literal(expression: &Expression) -> Result<Value, String> {
    match expression {
        Expression::Null(_) => Ok(Value::Null),
        Expression::Bool(value) => Ok(json!(*value.value())),
        Expression::String(text) => Ok(json!(text.value())),
        Expression::Number(number) => {
            let number: Number = number
                .value()
                .to_string()
                .parse()
                .map_err(|_| not_literal())?;
            Ok(Value::Number(number))
        }
        Expression::Array(items) => items.iter().map(literal).collect(),
        Expression::Object(fields) => object(fields),
        _ => Err(not_literal()),
    }
}

fn object(fields: &Object) -> Result<Value, String> {
    let field = |(key, value): (&hcl_edit::expr::ObjectKey, &hcl_edit::expr::ObjectValue)| {
        let name = key
            .as_ident()
            .map(|name| name.as_str().to_owned())
            .or_else(|| Some(key.as_expr()?.as_str()?.to_owned()))
            .ok_or_else(not_literal)?;
        Ok((name, literal(value.expr())?))
    };
    fields
        .iter()
        .map(field)
        .collect::<Result<_, String>>()
        .map(Value::Object)
}

fn not_literal() -> String {
    "it contains an expression that is not a literal".to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::adoption::Options;
    use super::*;
    use rstest::rstest;

    fn backend(text: &str) -> (Value, Vec<String>) {
        let mut adoption = Adoption::new(&Options::default());
        BackendBlock::parse(text)
            .unwrap()
            .set(&mut adoption, "customConfiguration");
        let notes = adoption
            .notes
            .iter()
            .map(|note| note.path.clone())
            .collect();
        (adoption.get("backend").unwrap().clone(), notes)
    }

    #[test]
    fn s3_block_sets_the_fields_of_provider_aws() {
        let (backend, notes) = backend(
            r#"backend "s3" {
                 bucket = "states"
                 key    = "web.tfstate"
                 region = "us-east-1"
                 dynamodb_table = "locks"
                 use_lockfile = true
                 endpoints = { s3 = "https://minio.test" }
                 kms_key_id = "alias/state"
                 access_key = "x3-secret"
               }"#,
        );
        let wanted = json!({
            "provider": "aws", "adopt": true, "s3": "states", "key": "web.tfstate",
            "region": "us-east-1", "dynamoDB": "locks", "lockFile": true,
            "endpoint": "https://minio.test", "config": {"kms_key_id": "alias/state"},
        });
        assert_eq!(backend, wanted);
        assert_eq!(notes, ["customConfiguration.access_key"]);
    }

    #[test]
    fn unknown_type_uses_provider_generic() {
        let (backend, _) = backend(r#"backend "oss" { bucket = "b" }"#);
        let wanted = json!({
            "provider": "generic", "type": "oss", "adopt": true, "config": {"bucket": "b"},
        });
        assert_eq!(backend, wanted);
    }

    #[rstest]
    #[case("backend \"s3\" {", "not valid HCL")]
    #[case("", "single")]
    #[case("a = 1", "single")]
    #[case("backend \"s3\" {}\nrequired_version = \"1\"", "single")]
    #[case("cloud {}", "single")]
    #[case("backend \"S 3\" {}", "type")]
    #[case("backend \"s3\" {\n key = var.k\n}", "not a literal")]
    #[case(
        "backend \"remote\" {\n workspaces {\n name = \"x3-secret\"\n }\n}",
        "`workspaces`"
    )]
    fn other_blocks_are_refused(#[case] text: &str, #[case] why: &str) {
        let error = BackendBlock::parse(text).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("x3-secret"), "{error}");
    }

    #[test]
    fn long_text_is_refused() {
        let text = format!(
            "backend \"s3\" {{\n key = \"{}\"\n}}",
            "k".repeat(MAX_BYTES)
        );
        assert!(BackendBlock::parse(&text).is_err());
    }

    #[rstest]
    #[case("[1, \"a\", true, null]", json!([1, "a", true, null]))]
    #[case("{ a = 1.5, \"b c\" = {} }", json!({"a": 1.5, "b c": {}}))]
    fn literals_are_parsed(#[case] text: &str, #[case] wanted: Value) {
        assert_eq!(parse_literal(text), Ok(wanted));
    }
}
