//! The JSON syntax: <https://developer.hashicorp.com/terraform/language/syntax/json>.

use serde_json::Value;

use super::{Call, Facts, Fault, is_local};

pub(super) fn read(text: &str) -> Result<Facts, Fault> {
    let root: Value = serde_json::from_str(text).map_err(|error| fault(&error))?;
    let calls = blocks(&root, "module")
        .filter_map(|(name, body)| call(name, body))
        .collect();
    Ok(Facts {
        calls,
        backend: backend(&root),
    })
}

fn fault(error: &serde_json::Error) -> Fault {
    let text = error.to_string();
    let message = text
        .split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned();
    Fault {
        line: error.line().max(1),
        column: error.column().max(1),
        message,
    }
}

/// An object, or every object of a list: the syntax allows both at each level.
fn objects(value: &Value) -> impl Iterator<Item = &serde_json::Map<String, Value>> {
    let one = value.as_object().into_iter();
    one.chain(
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object),
    )
}

/// Labelled blocks of one kind.
fn blocks<'a>(
    root: &'a Value,
    kind: &'static str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    objects(root)
        .filter_map(move |root| root.get(kind))
        .flat_map(objects)
        .flatten()
}

fn call(name: &str, body: &Value) -> Option<Call> {
    let source = objects(body).find_map(|body| body.get("source")?.as_str())?;
    is_local(source).then(|| Call {
        module: name.to_owned(),
        source: source.to_owned(),
        line: 0,
    })
}

fn backend(root: &Value) -> Option<String> {
    blocks(root, "terraform").find_map(|(key, body)| match key.as_str() {
        "backend" => objects(body).find_map(|body| body.keys().next().cloned()),
        "cloud" => Some("cloud".to_owned()),
        _ => None,
    })
}
