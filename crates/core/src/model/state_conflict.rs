//! Conflicts of two resources with one state (rule 11). A resource that has applied to the state owns it. If both or neither have applied,
//! the older resource owns the state. Module code can report any address. So an address in a run report blocks only resources in the same
//! namespace that have no address in their spec.

use alustan_api::report::Failure;
use alustan_api::run::Pin;
use alustan_api::{Reason, Terraform};
use alustan_backends::{Owner, is_shared};
use kube_core::ResourceExt;

/// Returns the address of the state of `tf`, such as `s3://bucket/key`: from the spec, or, if the spec does not determine it, from the
/// report of the last run. `None` if no other resource can use the same address.
pub fn address(tf: &Terraform) -> Option<String> {
    spec_address(tf)
        .or_else(|| reported_address(tf))
        .filter(|address| is_shared(address))
}

/// Returns the address of the state of the deleted `tf`: from the pin, or, if the pin does not determine it, from the report of the last
/// run. The spec is not used, because its backend may have changed since the last apply.
fn pinned_address(tf: &Terraform, pin: &Pin) -> Option<String> {
    let backend = &pin.inputs.backend;
    if backend.managed.is_some() {
        return None;
    }
    alustan_backends::address_of(backend)
        .filter(|address| is_shared(address))
        .or_else(|| reported_address(tf))
        .filter(|address| is_shared(address))
}

/// Returns the address reported by the last run.
fn reported_address(tf: &Terraform) -> Option<String> {
    tf.status.as_ref()?.state_address.clone()
}

fn spec_address(tf: &Terraform) -> Option<String> {
    let (namespace, name) = (tf.namespace().unwrap_or_default(), tf.name_any());
    let owner = Owner {
        namespace: &namespace,
        name: &name,
    };
    let workspace = tf.spec.workspace();
    alustan_backends::address_of_spec(tf.spec.backend.as_ref()?, owner, workspace)
}

/// Returns the address of the state that `tf` uses: for a deleted resource, the address in `pin`; otherwise [`address`].
pub fn address_in_use(tf: &Terraform, pin: Option<&Pin>) -> Option<String> {
    let is_deleted = tf.metadata.deletion_timestamp.is_some();
    match pin.filter(|_| is_deleted) {
        Some(pin) => pinned_address(tf, pin),
        None => address(tf),
    }
}

/// Returns the failure if the state of `tf` ([`address_in_use`]) belongs to one of `others`.
pub fn conflict<'a>(
    tf: &Terraform,
    pin: Option<&Pin>,
    others: impl IntoIterator<Item = &'a Terraform>,
) -> Option<Failure> {
    let is_deleted = tf.metadata.deletion_timestamp.is_some();
    let own_address = address_in_use(tf, pin)?;
    let uses_address = |other: &Terraform| {
        let address = if is_address_reported(tf) && other.namespace() == tf.namespace() {
            address(other)
        } else {
            spec_address(other)
        };
        address.as_ref() == Some(&own_address)
    };
    let owner = others
        .into_iter()
        .filter(|other| rank(other, &own_address) < rank(tf, &own_address))
        .find(|other| uses_address(other))?;
    // Messages do not name resources of other namespaces (rule 17).
    let owner_name = if owner.namespace() == tf.namespace() {
        format!("tf {}", owner.name_any())
    } else {
        "a resource in another namespace".to_owned()
    };
    let field = tf.spec.backend.as_ref();
    let field = field.and_then(alustan_backends::location_field);
    let advice = match field {
        _ if is_deleted => "nothing is destroyed until the conflict is resolved".to_owned(),
        Some(field) => format!(
            "set another spec.backend.{field}, or set deletionPolicy: Orphan on one of the two \
             resources and delete it"
        ),
        None => "configure another state location in the module's backend block or in \
                 spec.backend, or set deletionPolicy: Orphan on one of the two resources and \
                 delete it"
            .to_owned(),
    };
    Some(Failure::user(
        Reason::StateConflict,
        format!(
            "the state {own_address} belongs to {owner_name}; two resources with one state would destroy each \
             other's objects; {advice}"
        ),
    ))
}

/// Returns the rank of `tf`. The resource with the lowest rank owns the state at `address`. Resources that have applied at `address` come
/// first, then older resources.
fn rank(tf: &Terraform, address: &str) -> (bool, Option<i64>, Option<String>) {
    let created = tf.metadata.creation_timestamp.as_ref();
    (
        !has_applied_at(tf, address),
        created.map(|created_at| created_at.0.as_second()),
        tf.uid(),
    )
}

/// Whether `tf` has been applied, and its last run reported `address`.
fn has_applied_at(tf: &Terraform, address: &str) -> bool {
    let status = tf.status.as_ref();
    let has_applied = status.is_some_and(|status| status.last_applied.is_some());
    has_applied && reported_address(tf).as_deref() == Some(address)
}

/// Whether the address of `tf` comes from its last run instead of its spec.
pub fn is_address_reported(tf: &Terraform) -> bool {
    spec_address(tf).is_none()
}
