//! What metacontroller's `CompositeController` asks, and what it is answered: the contract of
//! <https://github.com/metacontroller/metacontroller/tree/v4.17.2/pkg/controller/composite/api>. The
//! hook versions v1 and v2 differ in the keys of `children` and `related` alone, and in that v2
//! takes no field that it does not know.

use std::collections::BTreeMap;

use alustan_api::{State, Terraform, TerraformStatus};
use k8s_openapi::jiff::SignedDuration;
use kube::Resource;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::model::facts::{occupied, open_run};
use crate::observed::{Answer as Found, Seen};
use crate::step::Decision;

/// The largest request, in bytes: a resource of the largest size that etcd takes (1.5 MiB), with room
/// for how it is escaped, and the controller.
pub const LONGEST_REQUEST: usize = 4 << 20;

/// How soon to ask again, in seconds, about one that is at work: what its runs write are Secrets,
/// which metacontroller is not shown.
const AT_WORK: u32 = 2;
/// How soon to ask again, in seconds, about one that has something to do soon, or waits for others.
const SOON: u32 = 10;
/// How soon to ask again, in seconds, about one at rest: its repository, and what it takes values
/// from, may have changed.
const AT_REST: u32 = 30;

/// The resource that a hook is called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its status, as metacontroller knows it.
    pub status: Value,
    /// Whether the finalize hook is called.
    pub finalizing: bool,
}

/// Why a request gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// A stable word.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            message: message.into(),
        }
    }

    /// As JSON, for people: metacontroller shows it in the event `SyncError` of the resource.
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

/// Reads the body of a call of the sync or the finalize hook.
///
/// # Errors
/// What is wrong with it: 400 where it is not such a call, 422 where it asks for what there is not.
pub fn read(body: &[u8]) -> Result<Asked, Refusal> {
    let request: Request = serde_json::from_slice(body).map_err(|error| {
        let message = format!(
            "this is no request of a CompositeController's sync or finalize hook: {error}; it has the \
             fields controller, parent, children, related and finalizing"
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
    Ok(Asked {
        namespace,
        name,
        uid,
        status: parent.status,
        finalizing,
    })
}

/// Whether it is a DNS label, as the name of a namespace is: both names become part of the path of a
/// request to the API server
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#names>).
fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// Whether it is a DNS subdomain, as the name of a resource is.
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

/// Whether it begins and ends with a small letter or a digit, with only those and `-` between.
fn is_part(name: &str) -> bool {
    let end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.into_iter().all(|byte| byte.copied().is_some_and(end))
        && bytes.iter().all(|byte| end(*byte) || *byte == b'-')
}

/// The API server leaves out `kind` where a program reads the controller into a type of its own.
fn check_controller(controller: &Controller, finalizing: bool) -> Result<(), Refusal> {
    if !matches!(controller.kind.as_str(), "" | "CompositeController") {
        let message = format!("{} calls; only CompositeController may", controller.kind);
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
        Some(other) => {
            let message = format!(
                "the hook has version {other:?}; this operator speaks v1 and v2: set \
                 spec.hooks.sync.version of the CompositeController to one of them"
            );
            Err(Refusal::new(422, "UnknownHookVersion", message))
        }
    }
}

/// An answer without them would delete them.
fn check_children(children: Objects) -> Result<(), Refusal> {
    let groups = children.into_iter().flatten();
    let mut some = groups.filter(|(_, objects)| objects.as_ref().is_some_and(|it| !it.is_empty()));
    let Some((group, objects)) = some.next() else {
        return Ok(());
    };
    let message = format!(
        "the CompositeController claims {} objects {group} as children, which an answer would delete; \
         nothing of the operator's is a child: remove spec.childResources",
        objects.map_or(0, |objects| objects.len())
    );
    Err(Refusal::new(422, "ChildrenClaimed", message))
}

/// Whoever sees a request sees what is in it.
fn check_related(related: Objects) -> Result<(), Refusal> {
    let mut kinds = related.into_iter().flatten().map(|(kind, _)| kind);
    if !kinds.any(|kind| kind.starts_with("Secret.")) {
        return Ok(());
    }
    let message = "the customize hook of the CompositeController adds Secrets to the request; the \
                   operator reads by itself what it needs: remove spec.hooks.customize";
    Err(Refusal::new(422, "SecretsShown", message))
}

fn check_kind(parent: &Parent) -> Result<(), Refusal> {
    let (version, kind) = (Terraform::api_version(&()), Terraform::kind(&()));
    if parent.api_version == version && parent.kind == kind {
        return Ok(());
    }
    let message = format!(
        "the parent is a {} of {}; this operator knows {kind} of {version}: set spec.parentResource of \
         the CompositeController",
        parent.kind, parent.api_version
    );
    Err(Refusal::new(422, "UnknownKind", message))
}

/// The answer to a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The whole status: what is not in it is gone.
    pub status: Value,
    /// How soon to ask again, in seconds; 0 for not before something changes.
    pub resync_after_seconds: u32,
    /// Whether metacontroller's own finalizer may go.
    pub finalized: bool,
}

impl Answer {
    /// That a resource stays as it is.
    pub fn unchanged(asked: &Asked) -> Self {
        Self {
            status: asked.status.clone(),
            resync_after_seconds: 0,
            finalized: false,
        }
    }

    /// The same with this `status`.
    #[must_use]
    pub fn saying(self, status: &TerraformStatus) -> Self {
        Self {
            status: serde_json::to_value(status).unwrap_or(self.status),
            ..self
        }
    }

    /// The body: the same bytes for the same answer. It has no children, since nothing that
    /// destroy needs may be swept away with the resource.
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

/// The entity tag of `body` (<https://www.rfc-editor.org/rfc/rfc9110#field.etag>).
pub fn entity_tag(body: &str) -> String {
    format!("\"{}\"", hex::encode(Sha256::digest(body)))
}

/// Whether `tag` is in the header `If-None-Match`.
pub fn is_known(if_none_match: &str, tag: &str) -> bool {
    let mut tags = if_none_match.split(',').map(str::trim);
    tags.any(|known| known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// How a resource is to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Something happens.
    AtWork,
    /// Nothing happens before the resource is looked at again, which is due after this.
    AtRest(SignedDuration),
    /// Nothing happens before it is changed.
    UntilChanged,
}

impl Pace {
    /// In how many seconds to ask again. It comes in steps, so that an answer is not another one
    /// only because time passes.
    pub fn seconds(self) -> u32 {
        match self {
            Self::AtWork => AT_WORK,
            Self::AtRest(due) => [AT_REST, SOON]
                .into_iter()
                .find(|step| due >= SignedDuration::from_secs(i64::from(*step)))
                .unwrap_or(AT_WORK),
            Self::UntilChanged => 0,
        }
    }
}

/// Returns the poll interval. `is_far`: the run is not among the next in the queue.
pub fn pace(
    tf: &Terraform,
    seen: &Seen,
    decision: &Decision,
    wait: SignedDuration,
    is_far: bool,
) -> Pace {
    let starts = decision.start.is_some();
    if is_at_work(tf, seen, decision) || (starts && !is_far) {
        Pace::AtWork
    } else if is_waiting(decision) && !starts {
        Pace::AtRest(wait.min(SignedDuration::from_secs(SOON.into())))
    } else {
        Pace::AtRest(wait)
    }
}

/// Whether something goes on of which no watch of metacontroller's tells: a run, a write of ours, an
/// answer that is on its way.
fn is_at_work(tf: &Terraform, seen: &Seen, decision: &Decision) -> bool {
    let record = seen.record.as_ref();
    let runs = record.is_some_and(|it| open_run(&it.record).is_some());
    let is_pending = seen.source == Found::Pending || seen.base == Found::Pending;
    let asks = is_pending && !tf.spec.suspend;
    runs || asks || occupied(seen.job.as_ref()) || !decision.steps.is_empty()
}

/// Whether it waits for something else, which may take days: neither for a person nor for a moment
/// that is known.
fn is_waiting(decision: &Decision) -> bool {
    let status = &decision.status;
    let mut conditions = status.conditions.iter();
    let reconciling = conditions.any(|it| it.type_ == "Reconciling" && it.status == "True");
    let known = decision.requeue_at.is_some() || status.state == State::AwaitingApproval;
    (reconciling && !known) || !status.blocked_by.is_empty()
}

#[cfg(test)]
mod tests;
