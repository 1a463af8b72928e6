//! Reads fields of objects of other operators.

use serde_json::Value;

/// Returns the value at the JSON pointer `pointer`. Empty strings, lists and objects are absent.
pub(crate) fn value<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    object.pointer(pointer).filter(|value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    })
}

/// Returns the string at `pointer`.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    value(object, pointer)?.as_str()
}

/// Whether the boolean at `pointer` is true.
pub(crate) fn is_true(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer) == Some(&Value::Bool(true))
}

/// Returns the items of the list at `pointer`.
pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns the kind of the Flux, Argo CD or Helm owner of `object`, according to labels and annotations. The owner reverts changes of
/// `object`.
pub(crate) fn manager(object: &Value) -> Option<&'static str> {
    const LABELS: [(&str, &str); 3] = [
        ("kustomize.toolkit.fluxcd.io~1name", "a Flux Kustomization"),
        ("helm.toolkit.fluxcd.io~1name", "a Flux HelmRelease"),
        ("argocd.argoproj.io~1instance", "an Argo CD Application"),
    ];
    let label = |name: &str| text(object, &format!("/metadata/labels/{name}"));
    let known = LABELS.iter().find(|(name, _)| label(name).is_some());
    let is_tracked = text(
        object,
        "/metadata/annotations/argocd.argoproj.io~1tracking-id",
    )
    .is_some();
    match known {
        Some((_, manager)) => Some(manager),
        None if is_tracked => Some("an Argo CD Application"),
        None if label("app.kubernetes.io~1managed-by") == Some("Helm") => Some("a Helm release"),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!({}), None)]
    #[case(json!({"labels": {"app": "web"}}), None)]
    #[case(json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}), Some("a Helm release"))]
    #[case(
        json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps", "app.kubernetes.io/managed-by": "Helm"}}),
        Some("a Flux Kustomization")
    )]
    #[case(
        json!({"annotations": {"argocd.argoproj.io/tracking-id": "apps:x"}}),
        Some("an Argo CD Application")
    )]
    fn manager_is_recognised_by_labels(#[case] metadata: Value, #[case] wanted: Option<&str>) {
        assert_eq!(manager(&json!({ "metadata": metadata })), wanted);
    }

    #[test]
    fn empty_values_are_absent() {
        let object = json!({"a": "", "b": [], "c": {}, "d": null, "e": false});
        for pointer in ["/a", "/b", "/c", "/d", "/f"] {
            assert_eq!(value(&object, pointer), None, "{pointer}");
        }
        assert_eq!(value(&object, "/e"), Some(&json!(false)));
    }
}
