//! Trims objects in the watch caches: removes the fields that no reconcile reads. This bounds the memory of the caches, although tenants
//! may create objects with any labels, names and content.

use alustan_api::labels::{self, Component, JOB_NAME};
use alustan_api::names;
use alustan_api::run::key;
use alustan_core::model::facts::sets_approval;
use alustan_core::objects::outputs;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource as _, ResourceExt};

use crate::indexed_store::IndexedStore;
use crate::resource::{Guarded, Ref};
use crate::watch::keys::ResourceKey;
use crate::watch::mapping::is_build_secret;

/// Maximum size of the result in a run report, in bytes of JSON. Larger results are not read. Runners write much smaller results.
pub(crate) const MAX_REPORT_BYTES: usize = 256 << 10;
/// Maximum size of the progress in a run report, in bytes of JSON. Larger progress is not read.
pub(crate) const MAX_PROGRESS_BYTES: usize = 128 << 10;
/// Maximum size of the details of a run, in bytes.
pub(crate) const MAX_DETAILS_BYTES: usize = 160 << 10;
/// Maximum size of the values from other objects (`spec.variablesFrom`), in bytes of JSON. The run record contains the values twice, and a
/// Secret has at most 1 MiB.
pub(crate) const MAX_VALUES_BYTES: usize = 256 * 1024;

/// Labels that reconciles read.
const LABELS: [&str; 11] = [
    labels::MANAGED_BY,
    labels::COMPONENT,
    labels::NAME,
    labels::NAMESPACE,
    labels::UID,
    labels::IMAGE_TAG,
    labels::POD_OPTIONS,
    labels::CHANGES,
    labels::ORPHANED,
    JOB_NAME,
    CONTROLLER_UID,
];
/// Annotations of Secrets that reconciles read.
const ANNOTATIONS: [&str; 3] = [
    labels::RESTORE_TO,
    labels::JSON_OUTPUTS,
    labels::SENSITIVE_OUTPUTS,
];
/// Prefix of the annotations of `Terraform` resources that reconciles read. Annotation `kubectl.kubernetes.io/last-applied-configuration`
/// repeats the spec.
const OWN_PREFIX: &str = "alustan.io/";
/// Annotation of a Secret whose content is missing in the watch cache. The Secret in the cluster does not have this annotation.
const CONTENT_REMOVED: &str = "alustan.io/left-out";

/// Label of pods with the uid of their Job
/// (<https://kubernetes.io/docs/reference/labels-annotations-taints/#batchkubernetesio-controller-uid>).
pub(crate) const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";

/// Maximum number of owner references per object in the watch caches. Further owner references are removed.
const MAX_OWNERS: usize = 10;
/// Maximum length of a name, in bytes: <https://kubernetes.io/docs/concepts/overview/working-with-objects/names>.
const MAX_NAME_BYTES: usize = 253;

/// Removes metadata that no reconcile reads. Also removes owner references with a field longer than [`MAX_NAME_BYTES`], and keeps at most
/// [`MAX_OWNERS`].
pub(crate) fn metadata(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    meta.annotations = None;
    meta.finalizers = None;
    meta.generate_name = None;
    if let Some(labels) = &mut meta.labels {
        labels.retain(|name, _| LABELS.contains(&name.as_str()));
    }
    if let Some(owners) = &mut meta.owner_references {
        owners.retain(|owner| {
            let texts = [&owner.name, &owner.uid, &owner.kind, &owner.api_version];
            texts.iter().all(|text| text.len() <= MAX_NAME_BYTES)
        });
        owners.truncate(MAX_OWNERS);
    }
}

/// Removes the metadata of a `Terraform` resource that no reconcile reads.
pub(crate) fn resource(resource: &mut Guarded) {
    let metadata = resource.meta_mut();
    metadata.managed_fields = metadata.managed_fields.take().map(|mut entries| {
        entries.retain(sets_approval);
        entries.shrink_to_fit();
        entries
    });
    metadata.annotations = metadata.annotations.take().and_then(|mut annotations| {
        annotations.retain(|name, _| name.starts_with(OWN_PREFIX));
        (!annotations.is_empty()).then_some(annotations)
    });
}

/// Removes the metadata of a Job that no reconcile reads.
pub(crate) fn job_metadata(meta: &mut ObjectMeta) {
    let annotations = meta.annotations.take();
    metadata(meta);
    let inputs_annotation =
        annotations.and_then(|mut annotations| annotations.remove_entry(labels::INPUTS));
    let inputs_annotation = inputs_annotation.filter(|(_, digest)| digest.len() <= MAX_NAME_BYTES);
    meta.annotations = inputs_annotation.map(|entry| [entry].into());
}

/// Trims a Secret. Removes its content if the resource in its labels does not exist or uses no Secret of this name, see
/// [`is_content_removed`].
pub(crate) fn secret(secret: &mut Secret, resources: &IndexedStore<Guarded>) {
    let annotations = secret.metadata.annotations.take();
    metadata(&mut secret.metadata);
    secret.type_ = None;
    if is_build_secret(secret) {
        secret.data = None;
        return;
    }
    if !has_resource(secret, resources) {
        secret.data = None;
        mark_content_removed(&mut secret.metadata);
        return;
    }
    secret.metadata.annotations = annotations.map(|mut annotations| {
        annotations.retain(|name, _| ANNOTATIONS.contains(&name.as_str()));
        annotations
    });
    let component = secret.labels().get(labels::COMPONENT).map(String::as_str);
    let is_report = component == Some(Component::Report.as_str());
    let is_outputs = component == Some(Component::Outputs.as_str());
    let Some(data) = &mut secret.data else {
        return;
    };
    data.retain(|name, content| {
        if is_report && name == key::LEFTOVER {
            // Reconciles check whether the report has an unsaved state, but do not read the state.
            content.0 = Vec::new();
            true
        } else if is_report {
            is_read(name, content.0.len())
        } else {
            key::log_of(name).is_none()
        }
    });
    if is_outputs {
        // A value above the limit is truncated to one byte more than the limit, so that reconciles still refuse it.
        for content in data.values_mut() {
            content.0.truncate(MAX_VALUES_BYTES + 1);
            content.0.shrink_to_fit();
        }
    }
}

/// Removes the content of a Secret and marks it with [`CONTENT_REMOVED`].
pub(crate) fn remove_content(secret: &mut Secret) {
    secret.data = None;
    mark_content_removed(&mut secret.metadata);
}

fn mark_content_removed(metadata: &mut ObjectMeta) {
    metadata.annotations = Some([(CONTENT_REMOVED.to_owned(), String::new())].into());
}

/// Whether the content of `secret` was removed from the watch cache, because its resource was not known when the Secret arrived, or was
/// deleted later. If the resource has been created since, the reconcile of the resource reads the Secret from the API server.
pub(crate) fn is_content_removed(secret: &impl ResourceExt) -> bool {
    secret.annotations().contains_key(CONTENT_REMOVED)
}

/// Returns the names of the Secrets of `resource` that the watch cache holds.
pub(crate) fn names(resource: &Guarded) -> Vec<String> {
    let name = resource.name_any();
    let outputs = resource.0.as_ref().ok().map(outputs::name);
    let names = [names::record, names::report, names::pin].map(|name_of| name_of(&name));
    names.into_iter().chain(outputs).collect()
}

/// Whether the resource in the labels of `secret` exists, has the uid in the labels, and uses a Secret of this name.
fn has_resource(secret: &Secret, resources: &IndexedStore<Guarded>) -> bool {
    let labels = secret.labels();
    let (Some(name), Some(uid), Some(namespace)) = (
        labels.get(labels::NAME),
        labels.get(labels::UID),
        secret.namespace(),
    ) else {
        return false;
    };
    let resource = Ref::new(name).within(&namespace);
    let with_uid = resources.references_with(&ResourceKey::Uid(uid.clone()));
    if !with_uid.contains(&resource) {
        return false;
    }
    let name = expected_name(secret).or_else(|| {
        let resource = resources.get(&resource)?;
        resource.0.as_ref().ok().map(outputs::name)
    });
    name.is_some_and(|name| name == secret.name_any())
}

/// Returns the name that a run record, a run report or a pin with these labels must have. `None` for other Secrets.
pub(crate) fn expected_name(secret: &impl ResourceExt) -> Option<String> {
    let labels = secret.labels();
    let (resource_name, component) = (labels.get(labels::NAME)?, labels.get(labels::COMPONENT)?);
    let expected_names = [
        (Component::Record, names::record(resource_name)),
        (Component::Report, names::report(resource_name)),
        (Component::Pin, names::pin(resource_name)),
    ];
    let mut expected_names = expected_names.into_iter();
    expected_names.find_map(|(kind, name)| (kind.as_str() == component).then_some(name))
}

/// Whether reconciles read the entry `name` of a run report. `size`: size of the entry, in bytes.
fn is_read(name: &str, size: usize) -> bool {
    match name {
        key::PROGRESS => size <= MAX_PROGRESS_BYTES,
        key::REPORT => size <= MAX_REPORT_BYTES,
        key::OUTPUTS => true,
        key::DETAILS => size <= MAX_DETAILS_BYTES,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;
    use k8s_openapi::api::batch::v1::Job;
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;
    use crate::indexed_store::indexed_store;
    use crate::watch::cached::{CachedJob, CachedPod};

    /// The resource `web` in namespace `team`, whose outputs are in the Secret `shared`.
    fn resources() -> IndexedStore<Guarded> {
        let (resources, mut writer) = indexed_store();
        let tf = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "team", "uid": "u"},
            "spec": {
                "gitRepo": {"url": "https://git.test/a"}, "containerRegistry": {"imageName": "registry.test/a"},
                "outputs": {"secretName": "shared"},
            },
        }));
        let tf = Guarded(Ok(tf.unwrap()));
        writer.apply(watcher::Event::Apply(tf));
        resources
    }

    /// Returns a Secret as the watch cache holds it. `owner`: name and uid of its resource. `sizes`: names and sizes of its entries.
    fn trimmed(
        owner: (&str, &str),
        component: Component,
        name: &str,
        sizes: &[(&str, usize)],
    ) -> Secret {
        let data = sizes
            .iter()
            .map(|(entry, size)| ((*entry).to_owned(), ByteString(vec![b'x'; *size])));
        let mut secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("team".to_owned()),
                resource_version: Some("1".to_owned()),
                labels: Some(labels::of(owner.0, owner.1, component)),
                annotations: Some([labels::RESTORE_TO, CONTENT_REMOVED].map(annotation).into()),
                ..ObjectMeta::default()
            },
            data: Some(data.collect()),
            ..Secret::default()
        };
        super::secret(&mut secret, &resources());
        secret
    }

    fn annotation(name: &str) -> (String, String) {
        (name.to_owned(), "x".to_owned())
    }

    const WEB: (&str, &str) = ("web", "u");

    /// Names and sizes of the entries of a Secret.
    fn sizes(secret: Secret) -> Vec<(String, usize)> {
        let data = secret.data.into_iter().flatten();
        data.map(|(entry, content)| (entry, content.0.len()))
            .collect()
    }

    #[test]
    fn entries_of_a_report_that_are_not_read_are_removed() {
        let report = |entries: &[(&str, usize)]| {
            sizes(trimmed(WEB, Component::Report, "web-report", entries))
        };
        let read = [
            (key::PROGRESS, MAX_PROGRESS_BYTES),
            (key::REPORT, MAX_REPORT_BYTES),
        ];
        let expected = read.map(|(entry, size)| (entry.to_owned(), size));
        assert_eq!(report(&read), expected);
        let too_large = read.map(|(entry, size)| (entry, size + 1));
        assert!(report(&too_large).is_empty());
        assert!(report(&[("of-a-module", 1 << 20)]).is_empty());
        let unsaved = report(&[(key::LEFTOVER, 1 << 10)]);
        assert_eq!(unsaved, [(key::LEFTOVER.to_owned(), 0)]);
    }

    #[test]
    fn outputs_that_are_too_large_for_a_variable_are_cut() {
        let entries = [("large", 1 << 20), ("small", MAX_VALUES_BYTES)];
        let expected = [("large", MAX_VALUES_BYTES + 1), ("small", MAX_VALUES_BYTES)];
        let expected = expected.map(|(entry, size)| (entry.to_owned(), size));
        assert_eq!(
            sizes(trimmed(WEB, Component::Outputs, "shared", &entries)),
            expected
        );
    }

    #[test]
    fn secrets_of_no_resource_are_cached_without_data() {
        let entry = [(key::RECORD, 1 << 20)];
        let record = trimmed(WEB, Component::Record, "web-run", &entry);
        let annotations = record.metadata.annotations.clone().unwrap();
        assert_eq!(annotations, [labels::RESTORE_TO].map(annotation).into());
        assert_eq!(record.metadata.resource_version.as_deref(), Some("1"));
        for (owner, component, name) in [
            (("web", "u1"), Component::Record, "web-run"),
            (("other", "u"), Component::Record, "other-run"),
            (WEB, Component::Record, "anything"),
            (WEB, Component::Pin, "web-run"),
            (WEB, Component::Outputs, "anything"),
        ] {
            let secret = trimmed(owner, component, name, &entry);
            assert!(is_content_removed(&secret), "{name} of {owner:?}");
            assert_eq!(
                (secret.data, secret.metadata.annotations.unwrap().len()),
                (None, 1)
            );
        }
    }

    #[test]
    fn annotations_of_other_tools_are_removed_from_resources() {
        let last_applied = ("kubectl.kubernetes.io/last-applied-configuration", "{}");
        for (annotations, kept) in [
            (vec![last_applied], None),
            (
                vec![last_applied, (alustan_api::RECONCILE_AT, "1")],
                Some(1),
            ),
        ] {
            let annotations: BTreeMap<_, _> = annotations.into_iter().collect();
            let tf = json!({
                "metadata": {"name": "web", "annotations": annotations},
                "spec": {"gitRepo": {"url": "https://git.test/a"}, "containerRegistry": {"imageName": "registry.test/a"}},
            });
            let mut resource: Guarded = serde_json::from_value(tf).unwrap();
            super::resource(&mut resource);
            let annotations = resource.meta().annotations.as_ref();
            assert_eq!(annotations.map(BTreeMap::len), kept);
        }
    }

    #[test]
    fn jobs_and_pods_keep_only_fields_that_are_read() {
        let long = "x".repeat(100_000);
        let labels = json!({labels::NAME: "web", "alustan.io/x": "y"});
        let owner =
            |name: &str| json!({"apiVersion": "v1", "kind": "Job", "name": name, "uid": "u"});
        let metadata = json!({
            "name": "web-apply-1", "labels": labels, "finalizers": ["x/y"],
            "annotations": {labels::INPUTS: "digest", "x": long},
            "ownerReferences": [
                owner(&long), owner("web"),
                {"apiVersion": "v1", "kind": "Job", "name": "web", "uid": long},
            ],
        });
        let claim = json!({"name": "cache", "persistentVolumeClaim": {"claimName": "web-cache"}});
        let containers = json!([
            {"name": "a", "args": ["build"], "image": long}, {"name": "b", "args": [long]},
        ]);
        let spec = json!({
            "containers": containers, "volumes": [claim, {"name": "e", "emptyDir": {}}],
        });
        let status = json!({"phase": "Running"});
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status}))
                .unwrap();
        super::metadata(&mut pod.metadata);
        let pod = CachedPod::from(pod);
        let meta = json!({
            "name": "web-apply-1", "labels": {labels::NAME: "web"}, "ownerReferences": [owner("web")],
        });
        assert_eq!(serde_json::to_value(pod.metadata).unwrap(), meta);
        assert_eq!(pod.phase.as_deref(), Some("Running"));
        let spec = json!({"template": {"metadata": metadata, "spec": spec}});
        let mut job: Job =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        job_metadata(&mut job.metadata);
        let job = CachedJob::from(job);
        let mut meta = meta;
        meta["annotations"] = json!({labels::INPUTS: "digest"});
        assert_eq!(serde_json::to_value(job.metadata).unwrap(), meta);
        assert_eq!(job.claims, ["web-cache"]);
        assert!(job.builds_by_runner);
    }
}
