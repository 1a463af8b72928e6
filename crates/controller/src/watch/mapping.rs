//! Maps a watched object to the resources to reconcile after a change of the object.

use std::collections::BTreeSet;

use alustan_api::labels::{self, Component};
use alustan_api::{ObjectKey, Terraform};
use alustan_core::dependency_graph::followers;
use alustan_core::settings::Settings;
use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;

use crate::indexed_store::IndexedStore;
use crate::resource::{Guarded, Ref, has_component, readable};
use crate::watch::keys::ResourceKey;

/// Number of kinds whose first list must be complete before the operator writes any object: resources, Secrets, `ConfigMap`s,
/// `PersistentVolumeClaim`s, Jobs, pods.
pub(crate) const LISTS: usize = 6;

/// Values of label [`labels::COMPONENT`] of the Secrets in the watch cache. Each reconcile reads these Secrets. Secrets with state are not
/// cached.
pub(crate) const MIRRORED: [Component; 5] = [
    Component::Record,
    Component::Report,
    Component::Pin,
    Component::Outputs,
    Component::BuildSecret,
];

/// Whether the label [`labels::COMPONENT`] of `secret` is one of [`MIRRORED`].
pub(crate) fn is_mirrored(secret: &Secret) -> bool {
    MIRRORED
        .into_iter()
        .any(|component| has_component(secret, component))
}

/// Returns the label selector of the objects of the operator with one of `components`.
pub(crate) fn managed_selector(components: &[Component]) -> String {
    let components: Vec<_> = components
        .iter()
        .map(|component| component.as_str())
        .collect();
    format!(
        "{}={},{} in ({})",
        labels::MANAGED_BY,
        labels::MANAGER,
        labels::COMPONENT,
        components.join(",")
    )
}

/// Returns the label selector of the objects that the operator does not manage. Users may set [`labels::MANAGED_BY`] on their own objects, for example
/// for all objects that they deploy together with a resource.
pub(crate) fn unmanaged_selector() -> String {
    format!("!{}", labels::UID)
}

/// Returns the resource that `object` belongs to, from its labels. Reads the namespace label in the build namespace only, because tenants
/// can write labels in other namespaces.
pub(crate) fn owner(settings: &Settings, object: &impl Resource) -> Option<Ref> {
    let (namespace, labels) = (object.namespace()?, object.labels());
    let is_build_namespace = settings.build_namespace.as_ref() == Some(&namespace);
    let labelled_namespace = labels.get(labels::NAMESPACE).filter(|_| is_build_namespace);
    Some(Ref::new(labels.get(labels::NAME)?).within(labelled_namespace.unwrap_or(&namespace)))
}

/// Whether `object` is a build Secret, which has credentials for the Job of the same name.
pub(crate) fn is_build_secret(object: &impl ResourceExt) -> bool {
    has_component(object, Component::BuildSecret)
}

/// Whether `object` is the build Secret of the Job `uid`.
pub(crate) fn is_build_secret_of(object: &impl ResourceExt, uid: &str) -> bool {
    let mut owners = object.owner_references().iter();
    is_build_secret(object) && owners.any(|owner| owner.uid == uid)
}

/// Whether `namespaces`, the watched namespaces (all if empty), include `namespace`.
pub(crate) fn is_watched(namespaces: &[String], namespace: &str) -> bool {
    namespaces.is_empty() || namespaces.iter().any(|watched| watched == namespace)
}

/// Requeues all `resources`.
pub(crate) fn wake_all(resources: &IndexedStore<Guarded>, wake: &mpsc::UnboundedSender<Ref>) {
    for key in resources.keys() {
        // `send` fails only after the controller has stopped.
        let _ = wake.send(to_ref(&key));
    }
}

/// Returns the reference to the resource with this key.
pub(crate) fn to_ref(key: &ObjectKey) -> Ref {
    Ref::new(&key.name).within(&key.namespace)
}

/// Returns namespace and name of `object`.
pub(crate) fn key_of(object: &impl ResourceExt) -> ObjectKey {
    ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns the resources that reference `target` by name, or select it by labels. They are reconciled when `target` changes.
pub(crate) fn followers_of(
    resources: &IndexedStore<Guarded>,
    target: &Terraform,
) -> BTreeSet<ObjectKey> {
    let key = ObjectKey::of(target);
    let mut candidates = resources.with(&ResourceKey::Selector(key.namespace.clone()));
    candidates.extend(resources.with(&ResourceKey::Reference(key)));
    followers(target, readable(&candidates))
        .into_iter()
        .collect()
}

/// Returns the resources that use outputs of the owner of `secret`. Empty if `secret` is not an outputs Secret.
pub(crate) fn consumers_of_outputs(
    settings: &Settings,
    resources: &IndexedStore<Guarded>,
    secret: &impl Resource,
) -> Vec<Ref> {
    let source = owner(settings, secret).filter(|_| has_component(secret, Component::Outputs));
    let source = source.and_then(|owner| resources.get(&owner));
    let Some(Ok(source)) = source.as_deref().map(|object| &object.0) else {
        return Vec::new();
    };
    followers_of(resources, source).iter().map(to_ref).collect()
}
