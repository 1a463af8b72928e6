//! Requests and responses of the hooks of a metacontroller `CompositeController`:
//! <https://github.com/metacontroller/metacontroller/tree/v4.17.2/pkg/controller/composite/api>. Hook versions v1 and v2 differ only in
//! the keys of `children` and `related`, and v2 rejects unknown fields.

use std::collections::BTreeMap;

use alustan_api::{State, Terraform, TerraformStatus};
use k8s_openapi::jiff::SignedDuration;
use kube_core::Resource;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::dns_names::{is_label, is_subdomain};
use crate::model::facts::{occupied, open_run};
use crate::model::image::ImageSeen;
use crate::observed::{Answer, Seen};
use crate::step::Decision;

/// Maximum size of a request, in bytes. Sufficient for a resource at the size limit of etcd (1.5 MiB) with JSON escapes, and the
/// `CompositeController`.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Resync interval of a busy resource, in seconds. Short, because metacontroller does not watch the Secrets to which runs write.
const BUSY: u32 = 2;
/// Resync interval of a resource whose next reconcile is due soon, or that waits for other resources, in seconds.
const SOON: u32 = 10;
/// Resync interval of an idle resource, in seconds. A resync is required because metacontroller watches neither the git repository nor the
/// objects in `spec.variablesFrom`.
const IDLE: u32 = 30;

/// A request of the sync or finalize hook, reduced to identity and status of the resource, and the hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookRequest {
    /// Namespace, an RFC 1123 label.
    pub namespace: String,
    /// Name, an RFC 1123 subdomain.
    pub name: String,
    /// Uid of the resource.
    pub uid: String,
    /// Status of the resource in the cache of metacontroller.
    pub status: Value,
    /// Whether the request is for the finalize hook.
    pub finalizing: bool,
}

/// Error response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status code.
    pub status: u16,
    /// Reason in `UpperCamelCase`, the same in all versions of the operator.
    pub reason: &'static str,
    /// Message with the cause and the remedy.
    pub message: String,
}

impl Refusal {
    /// Builds an error response.
    pub fn new(status: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            message: message.into(),
        }
    }

    /// Returns the JSON body. Metacontroller shows it in the event `SyncError` of the resource.
    pub fn body(&self) -> String {
        json!({"reason": self.reason, "message": self.message}).to_string()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    controller: Controller,
    parent: Parent,
    #[serde(default)]
    children: Objects,
    #[serde(default)]
    related: Objects,
    #[serde(default)]
    finalizing: bool,
}

/// Objects by `Kind.group/version`, then by name.
type Objects = Option<BTreeMap<String, Option<Map<String, Value>>>>;

#[derive(Deserialize)]
struct Controller {
    #[serde(default)]
    kind: String,
    spec: ControllerSpec,
}

#[derive(Deserialize)]
struct ControllerSpec {
    hooks: Option<Hooks>,
}

#[derive(Deserialize)]
struct Hooks {
    sync: Option<Hook>,
    finalize: Option<Hook>,
}

#[derive(Deserialize)]
struct Hook {
    version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Parent {
    api_version: String,
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    status: Value,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
}

/// Parses the body of a request of the sync or finalize hook.
///
/// # Errors
/// Status 400 for a malformed request, 422 for an unsupported request.
pub fn read(body: &[u8]) -> Result<HookRequest, Refusal> {
    let request: Request = serde_json::from_slice(body).map_err(|error| {
        let message = format!(
            "invalid request: {error}; expected a request of the sync or finalize hook of a \
             CompositeController, with fields controller, parent, children, related and finalizing"
        );
        Refusal::new(400, "InvalidRequest", message)
    })?;
    let Request {
        controller,
        parent,
        children,
        related,
        finalizing,
    } = request;
    check_controller(&controller, finalizing)?;
    check_children(children)?;
    check_related(related)?;
    check_kind(&parent)?;
    let Metadata {
        name,
        namespace,
        uid,
    } = parent.metadata;
    if [&name, &namespace, &uid].into_iter().any(String::is_empty) {
        let message = "parent.metadata has no name, no namespace or no uid";
        return Err(Refusal::new(400, "InvalidRequest", message));
    }
    if !is_label(&namespace) || !is_subdomain(&name) {
        let message = "parent.metadata.namespace must be a DNS label and parent.metadata.name a \
                       DNS subdomain (RFC 1123)";
        return Err(Refusal::new(400, "InvalidRequest", message));
    }
    Ok(HookRequest {
        namespace,
        name,
        uid,
        status: parent.status,
        finalizing,
    })
}

/// Checks kind and hook version of `controller`. Accepts an empty kind, because metacontroller omits the kind of a controller that it read
/// as a typed object.
fn check_controller(controller: &Controller, finalizing: bool) -> Result<(), Refusal> {
    if !matches!(controller.kind.as_str(), "" | "CompositeController") {
        let message = format!(
            "controller kind {} is not supported; use CompositeController",
            controller.kind
        );
        return Err(Refusal::new(422, "UnknownController", message));
    }
    let hooks = controller.spec.hooks.as_ref();
    let hook = hooks.and_then(|hooks| {
        let hook = if finalizing {
            &hooks.finalize
        } else {
            &hooks.sync
        };
        hook.as_ref()
    });
    match hook.and_then(|hook| hook.version.as_deref()) {
        None | Some("" | "v1" | "v2") => Ok(()),
        Some(version) => {
            let message = format!(
                "hook version {version:?} is not supported; set spec.hooks.sync.version of the \
                 CompositeController to v1 or v2"
            );
            Err(Refusal::new(422, "UnknownHookVersion", message))
        }
    }
}

/// Refuses a request with children, because metacontroller would delete all children that are not in the response.
fn check_children(children: Objects) -> Result<(), Refusal> {
    let groups = children.into_iter().flatten();
    let mut claimed =
        groups.filter(|(_, objects)| objects.as_ref().is_some_and(|objects| !objects.is_empty()));
    let Some((group, objects)) = claimed.next() else {
        return Ok(());
    };
    let message = format!(
        "the request contains {} objects of {group} as children, and metacontroller would delete \
         them; remove spec.childResources from the CompositeController",
        objects.map_or(0, |objects| objects.len())
    );
    Err(Refusal::new(422, "ChildrenClaimed", message))
}

/// Refuses a request with Secrets, because every process that can read the request would see their values.
fn check_related(related: Objects) -> Result<(), Refusal> {
    let mut kinds = related.into_iter().flatten().map(|(kind, _)| kind);
    if !kinds.any(|kind| kind.starts_with("Secret.")) {
        return Ok(());
    }
    let message = "the customize hook of the CompositeController adds Secrets to the request; the \
                   operator reads Secrets from the API server: remove spec.hooks.customize";
    Err(Refusal::new(422, "SecretsShown", message))
}

fn check_kind(parent: &Parent) -> Result<(), Refusal> {
    let (version, kind) = (Terraform::api_version(&()), Terraform::kind(&()));
    if parent.api_version == version && parent.kind == kind {
        return Ok(());
    }
    let message = format!(
        "parent kind {} of {} is not supported; set spec.parentResource of the CompositeController \
         to {kind} of {version}",
        parent.kind, parent.api_version
    );
    Err(Refusal::new(422, "UnknownKind", message))
}

/// Response to a hook request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookResponse {
    /// The whole status. Metacontroller removes all other fields of the status.
    pub status: Value,
    /// Resync interval, in seconds. With 0, only a change causes the next request.
    pub resync_after_seconds: u32,
    /// Whether metacontroller may remove its finalizer.
    pub finalized: bool,
}

impl HookResponse {
    /// Returns a response that keeps the status.
    pub fn unchanged(request: &HookRequest) -> Self {
        Self {
            status: request.status.clone(),
            resync_after_seconds: 0,
            finalized: false,
        }
    }

    /// Returns the response with `status` instead of its previous status.
    #[must_use]
    pub fn with_status(self, status: &TerraformStatus) -> Self {
        Self {
            status: serde_json::to_value(status).unwrap_or(self.status),
            ..self
        }
    }

    /// Returns the JSON body. Equal responses have equal bodies. The list of children is empty, because metacontroller would delete
    /// children together with the resource, but destroy needs the objects of the resource.
    pub fn body(&self) -> String {
        json!({
            "status": self.status,
            "children": [],
            "resyncAfterSeconds": self.resync_after_seconds,
            "finalized": self.finalized,
        })
        .to_string()
    }
}

/// Returns the entity tag of `body` (<https://www.rfc-editor.org/rfc/rfc9110#field.etag>).
pub fn entity_tag(body: &str) -> String {
    format!("\"{}\"", hex::encode(Sha256::digest(body)))
}

/// Whether the header `If-None-Match` contains `tag`.
pub fn is_known(if_none_match: &str, tag: &str) -> bool {
    let mut tags = if_none_match.split(',').map(str::trim);
    tags.any(|candidate| candidate.strip_prefix("W/").unwrap_or(candidate) == tag)
}

/// How often metacontroller resyncs a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Busy: a run, a write or a query is in progress.
    AtWork,
    /// Idle until the next reconcile, which is due after this duration.
    AtRest(SignedDuration),
    /// Idle until a change.
    UntilChanged,
}

impl Pace {
    /// Returns the resync interval, in seconds. It has one of few fixed values, so that a response does not change only because time
    /// passes.
    pub fn seconds(self) -> u32 {
        match self {
            Self::AtWork => BUSY,
            Self::AtRest(wait) => [IDLE, SOON]
                .into_iter()
                .find(|interval| wait >= SignedDuration::from_secs(i64::from(*interval)))
                .unwrap_or(BUSY),
            Self::UntilChanged => 0,
        }
    }
}

/// Returns how often metacontroller resyncs a resource that is requeued after `wait`. `is_far`: whether its run is queued, but not near the
/// head of the queue.
pub fn pace(
    tf: &Terraform,
    seen: &Seen,
    image: &ImageSeen,
    decision: &Decision,
    wait: SignedDuration,
    is_far: bool,
) -> Pace {
    let is_queued = decision.start.is_some();
    if is_busy(tf, seen, image, decision) || (is_queued && !is_far) {
        Pace::AtWork
    } else if is_waiting(decision) && !is_queued {
        Pace::AtRest(wait.min(SignedDuration::from_secs(SOON.into())))
    } else {
        Pace::AtRest(wait)
    }
}

/// Whether a change is expected that metacontroller does not watch: progress of a run, a write of the operator, or the result of a query.
fn is_busy(tf: &Terraform, seen: &Seen, image: &ImageSeen, decision: &Decision) -> bool {
    let record = seen.record.as_ref();
    let has_run = record.is_some_and(|record| open_run(&record.record).is_some());
    let is_pending = image.source == Answer::Pending || image.base == Answer::Pending;
    let has_query = is_pending && !tf.spec.suspend;
    has_run || has_query || occupied(seen.job.as_ref()) || !decision.steps.is_empty()
}

/// Whether the resource waits for other objects for an unknown time. False if the resource waits for an approval or until a known time.
fn is_waiting(decision: &Decision) -> bool {
    let status = &decision.status;
    let mut conditions = status.conditions.iter();
    let reconciling =
        conditions.any(|condition| condition.type_ == "Reconciling" && condition.status == "True");
    let is_known = decision.requeue_at.is_some() || status.state == State::AwaitingApproval;
    (reconciling && !is_known) || !status.blocked_by.is_empty()
}

#[cfg(test)]
mod tests;
