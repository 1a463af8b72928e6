//! Two resources on one state (rule 11): it belongs to the one that applied something there, else to the
//! older. An address that only a run reports never outranks one of a spec, and counts in its own namespace alone: module code can report
//! any.

use alustan_api::Terraform;
use alustan_api::report::{Failure, FailureClass};
use alustan_api::run::Pin;
use alustan_backends::{Owner, is_shared};
use kube::ResourceExt;

/// Where the state of `tf` lives, such as `s3://bucket/key`: as its backend says, else as its last
/// run told. `None` where nobody else can have the same place.
pub fn address(tf: &Terraform) -> Option<String> {
    described(tf)
        .or_else(|| told(tf))
        .filter(|it| is_shared(it))
}

/// The same of what the deleted `tf` made, which its spec may have left since: as the pin of what
/// exists has it.
fn pinned(tf: &Terraform, pin: &Pin) -> Option<String> {
    let backend = &pin.inputs.backend;
    if backend.managed.is_some() {
        return None;
    }
    alustan_backends::address_of(backend)
        .filter(|it| is_shared(it))
        .or_else(|| told(tf))
        .filter(|it| is_shared(it))
}

/// As the last run told.
fn told(tf: &Terraform) -> Option<String> {
    tf.status.as_ref()?.state_address.clone()
}

fn described(tf: &Terraform) -> Option<String> {
    let (namespace, name) = (tf.namespace().unwrap_or_default(), tf.name_any());
    let owner = Owner {
        namespace: &namespace,
        name: &name,
    };
    alustan_backends::described(tf.spec.backend.as_ref()?, owner)
}

/// The address of the state that matters for `tf`: of a deleted one, that of `pin`, which is of what
/// exists.
pub fn in_use(tf: &Terraform, pin: Option<&Pin>) -> Option<String> {
    let deleted = tf.metadata.deletion_timestamp.is_some();
    match pin.filter(|_| deleted) {
        Some(pin) => pinned(tf, pin),
        None => address(tf),
    }
}

/// Why `tf` may not use its state ([`in_use`]): it belongs to one of `others`.
pub fn conflict<'a>(
    tf: &Terraform,
    pin: Option<&Pin>,
    others: impl IntoIterator<Item = &'a Terraform>,
) -> Option<Failure> {
    let deleted = tf.metadata.deletion_timestamp.is_some();
    let own = in_use(tf, pin)?;
    let is_at = |other: &Terraform| {
        let address = if is_told(tf) && other.namespace() == tf.namespace() {
            address(other)
        } else {
            described(other)
        };
        address.as_ref() == Some(&own)
    };
    let owner = others
        .into_iter()
        .filter(|other| rank(other, &own) < rank(tf, &own))
        .find(|other| is_at(other))?;
    // Namespaces are walls (rule 17).
    let who = if owner.namespace() == tf.namespace() {
        format!("tf {}", owner.name_any())
    } else {
        "a resource in another namespace".to_owned()
    };
    let field = tf.spec.backend.as_ref();
    let field = field.and_then(alustan_backends::place_field);
    let advice = match field {
        _ if deleted => "nothing is destroyed as long as that is so".to_owned(),
        Some(field) => format!(
            "set spec.backend.{field} to another place, or delete one of the two with \
             deletionPolicy: Orphan"
        ),
        None => "name another place in the module's backend block or in spec.backend, or delete \
                 one of the two with deletionPolicy: Orphan"
            .to_owned(),
    };
    Some(Failure {
        class: FailureClass::User,
        reason: "StateConflict".to_owned(),
        message: format!(
            "the state {own} belongs to {who}; two resources on one state would destroy each \
             other's objects: {advice}"
        ),
    })
}

/// The resource with the smaller rank owns the state at `address`: one that applied something there, else the older.
fn rank(tf: &Terraform, address: &str) -> (bool, Option<i64>, Option<String>) {
    let created = tf.metadata.creation_timestamp.as_ref();
    (
        !has_applied_at(tf, address),
        created.map(|time| time.0.as_second()),
        tf.uid(),
    )
}

/// Whether `tf` applied something, and its last run had its state at `address`.
fn has_applied_at(tf: &Terraform, address: &str) -> bool {
    let status = tf.status.as_ref();
    let has_applied = status.is_some_and(|status| status.last_applied.is_some());
    has_applied && told(tf).as_deref() == Some(address)
}

/// Whether the address of `tf` is the one that its last run told, and not that of its spec.
pub fn is_told(tf: &Terraform) -> bool {
    described(tf).is_none()
}
