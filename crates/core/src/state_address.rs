//! Two resources on one state (rule 11): it belongs to the one that applied something, else to the
//! older.

use alustan_api::report::{Failure, FailureClass};
use alustan_api::{BackendProvider, Terraform};
use alustan_backends::{Owner, default_key};
use kube::ResourceExt;

/// Kinds of addresses that name one place for everybody; `local` and `http`, for one, do not.
const SHARED: [&str; 6] = ["azurerm", "cos", "gcs", "kubernetes", "oss", "s3"];

/// Where the state of `tf` lives, such as `s3://bucket/key`: as its backend says, else as its last
/// run told. `None` where nobody else can have the same place.
pub fn address(tf: &Terraform) -> Option<String> {
    let told = tf.status.as_ref().and_then(|it| it.state_address.clone());
    let address = described(tf).or(told)?;
    let (kind, place) = address.split_once("://")?;
    (SHARED.contains(&kind) && !place.is_empty()).then_some(address)
}

fn described(tf: &Terraform) -> Option<String> {
    let backend = tf.spec.backend.as_ref()?;
    let bucket = backend.s3.as_ref()?;
    if backend.provider != Some(BackendProvider::Aws) {
        return None;
    }
    let (namespace, name) = (tf.namespace().unwrap_or_default(), tf.name_any());
    let owner = Owner {
        namespace: &namespace,
        name: &name,
    };
    let key = backend.key.clone();
    let key = key.unwrap_or_else(|| default_key(owner));
    Some(format!("s3://{bucket}/{key}"))
}

/// Why `tf` may not use its state: it belongs to one of `others`.
pub fn conflict<'a>(
    tf: &Terraform,
    others: impl IntoIterator<Item = &'a Terraform>,
) -> Option<Failure> {
    let own = address(tf)?;
    let owner = others
        .into_iter()
        .filter(|other| rank(other) < rank(tf))
        .find(|other| address(other).as_ref() == Some(&own))?;
    // Namespaces are walls (rule 17).
    let who = if owner.namespace() == tf.namespace() {
        format!("tf {}", owner.name_any())
    } else {
        "a resource in another namespace".to_owned()
    };
    let advice = if is_told(tf) {
        "name another place in the module's backend block, or in spec.backend"
    } else {
        "set spec.backend.key to another place"
    };
    Some(Failure {
        class: FailureClass::User,
        reason: "StateConflict".to_owned(),
        message: format!(
            "the state {own} belongs to {who}; two resources on one state would destroy each \
             other's objects: {advice}, or delete one of the two"
        ),
    })
}

/// The one of two resources that the state belongs to has the smaller rank: one that applied
/// something, else the older.
fn rank(tf: &Terraform) -> (bool, Option<i64>, Option<String>) {
    let applied = tf
        .status
        .as_ref()
        .is_some_and(|it| it.last_applied.is_some());
    let created = tf.metadata.creation_timestamp.as_ref();
    (!applied, created.map(|time| time.0.as_second()), tf.uid())
}

/// Whether the address of `tf` is the one that its last run told, and not that of its spec.
pub fn is_told(tf: &Terraform) -> bool {
    described(tf).is_none()
}
