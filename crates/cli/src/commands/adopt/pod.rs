//! Options of runner pods: scheduling, resources, volumes and metadata.

use alustan_api::PodOptions;
use serde_json::{Value, json};

use super::adoption::Adoption;
use super::fields::Note;
use super::object::value;

/// Fields of a pod spec, and of the container of burrito, with the same name in `runner.pod`.
const SPEC_FIELDS: [&str; 8] = [
    "resources",
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "hostAliases",
    "volumes",
    "volumeMounts",
];
/// Fields of pod metadata with the same name in `runner.pod`.
const METADATA_FIELDS: [&str; 2] = ["labels", "annotations"];

/// Sets `runner.pod` from the pod spec at `spec_pointer` and the metadata at `metadata_pointer` of `spec`. A field with a part that
/// `runner.pod` does not have is not copied, and a note names it.
pub(crate) fn set(
    adoption: &mut Adoption,
    spec: &Value,
    spec_pointer: &str,
    metadata_pointer: &str,
) {
    let of_spec = SPEC_FIELDS.map(|field| (spec_pointer, field));
    let of_metadata = METADATA_FIELDS.map(|field| (metadata_pointer, field));
    for (pointer, field) in of_spec.into_iter().chain(of_metadata) {
        let path = format!("{pointer}/{field}");
        let Some(theirs) = value(spec, &path) else {
            continue;
        };
        if has_equivalent(field, theirs) {
            adoption.set(&format!("runner.pod.{field}"), theirs.clone());
        } else {
            let text = "has a part that runner.pod does not have, and is not copied (docs/pods.md)";
            let path = format!("spec{}", path.replace('/', "."));
            adoption.note(Note::lacks(path, text));
        }
    }
}

/// Whether `runner.pod` can express the whole value of `field`.
fn has_equivalent(field: &str, theirs: &Value) -> bool {
    let options = serde_json::from_value::<PodOptions>(json!({ field: theirs }));
    let ours = options.and_then(serde_json::to_value).unwrap_or_default();
    ours.get(field) == Some(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::adopt::adoption::Options;
    use rstest::rstest;

    fn mapped(pod: &Value) -> Adoption {
        let mut adoption = Adoption::new(&Options::of_test());
        let spec = json!({ "template": pod });
        set(&mut adoption, &spec, "/template/spec", "/template/metadata");
        adoption
    }

    #[test]
    fn options_of_the_pod_are_copied() {
        let pod = json!({
            "metadata": {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}},
            "spec": {
                "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "500m"}},
                "nodeSelector": {"pool": "infra"},
                "tolerations": [{"key": "infra", "operator": "Exists"}],
                "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
                "volumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": true}],
            },
        });
        let adoption = mapped(&pod);
        let wanted = json!({
            "resources": pod["spec"]["resources"], "nodeSelector": pod["spec"]["nodeSelector"],
            "tolerations": pod["spec"]["tolerations"], "volumes": pod["spec"]["volumes"],
            "volumeMounts": pod["spec"]["volumeMounts"],
            "labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"],
        });
        assert_eq!(adoption.get("runner.pod"), Some(&wanted));
        assert!(adoption.notes.is_empty(), "{:?}", adoption.notes);
    }

    #[rstest]
    #[case::host_path(json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}), "volumes")]
    #[case::device(json!({"resources": {"claims": [{"name": "gpu"}]}}), "resources")]
    #[case::type_error(json!({"nodeSelector": ["a"]}), "nodeSelector")]
    fn field_without_an_equivalent_is_noted(#[case] spec: Value, #[case] field: &str) {
        let adoption = mapped(&json!({ "spec": spec }));
        assert_eq!(adoption.get("runner.pod"), None);
        let paths: Vec<&str> = adoption.notes.iter().map(|note| &*note.path).collect();
        assert_eq!(paths, [format!("spec.template.spec.{field}")]);
    }
}
